"""Options of a database import: tables, keys, times and a task, checked before it is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..paths import PARTS, VertexSet, fraction_of

ORPHANS = ("error", "drop")
"""Choices for keys that no row has."""
MOST_WORDS = 2**16
"""Limit of ``words``, and of declared categories: the manifest stores them all."""
SHARES = (0.6, 0.2, 0.2)
"""Shares of a task's rows for training, validation and testing, in the order of time."""

Named = Mapping[str, str | None] | Sequence[str]
"""Names by name: a mapping, or texts such as "users:joined"; nothing after the colon is None."""

Missing = float | Mapping[str, Mapping[str, float]] | None
"""Replacement for missing values: a number for all non-float columns, or by table and column."""


@dataclass(frozen=True)
class Filling:
    """Replacements for missing values.

    Attributes:
        every: For all integers, dates and booleans; None: missing ones are an error.
        named: By table and column, also for fractions.
    """

    every: float | None = None
    named: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, missing: Missing | Filling) -> Filling:
        """Parse an argument."""
        if isinstance(missing, Filling):
            return missing
        return cls(named=missing) if isinstance(missing, Mapping) else cls(missing)

    def check(self, columns: Mapping[str, Iterable[str]]) -> None:
        """Refuse names that are not in ``columns`` by table."""
        for table, of_table in self.named.items():
            for name in of_table:
                if name not in columns.get(table, ()):
                    raise ValueError(
                        f"missing must name columns that are read, got {f'{table}.{name}'!r}"[:300]
                    )

    def named_for(self, table: str, column: str) -> float | None:
        """The replacement for this column only, if any."""
        return self.named.get(table, {}).get(column)

    def number(self, table: str, column: str) -> float | None:
        """The replacement for missing integers, dates and booleans of a column."""
        given = self.named_for(table, column)
        return self.every if given is None else given

    def with_number(self, table: str, column: str, number: float) -> Filling:
        """A copy with another number for one column."""
        of_table = {**self.named.get(table, {}), column: number}
        return replace(self, named={**self.named, table: of_table})


@dataclass(frozen=True)
class Choice:
    """The tables and columns to read.

    Attributes:
        tables: Names of tables and views. Default: all tables, but no views.
        skip_tables: Tables to leave out.
        skip_columns: Columns to leave out, as "table:column".
        schema: Schema, if the database has several. Default: "public", or the only one.
    """

    tables: tuple[str, ...] = ()
    skip_tables: tuple[str, ...] = ()
    skip_columns: tuple[str, ...] = ()
    schema: str | None = None


@dataclass(frozen=True)
class Task:
    """A training task: a table whose rows are the seeds.

    Attributes:
        text: As given: "table:label" or "table:label:time".
        shares: Shares of the rows for training, validation and testing.
    """

    text: str
    shares: tuple[float, float, float] = SHARES

    @classmethod
    def parse(cls, text: str, parts: Mapping[str, VertexSet | None]) -> Task:
        """Parse an option; ``parts`` are shares of the rows by name.

        Raises:
            ValueError: The text is malformed, or the shares are not fractions of a whole.
        """
        if not isinstance(text, str) or not all(text.split(":")) or text.count(":") < 1:
            raise ValueError(f"task must be TABLE:LABEL or TABLE:LABEL:TIME, got {text!r}")
        given = {part: value for part, value in parts.items() if value is not None}
        if not given:
            return cls(text)
        shares = {part: fraction_of(value) for part, value in given.items()}
        for part, share in shares.items():
            if share is None or not 0 < share <= 1:
                raise ValueError(
                    f"{part} must be a share of the task's rows in (0, 1], got {given[part]}"
                )
        train, val, test = (shares.get(part) or 0.0 for part in PARTS)
        if train + val + test > 1 + 1e-9:
            total = train + val + test
            raise ValueError(f"train, val and test must add up to at most 1, got {total:g}")
        return cls(text, (train, val, test))

    def names(self, columns: Mapping[str, Sequence[str]]) -> tuple[str, str, str]:
        """Names of table, label and time (perhaps empty), found in the columns by table.

        Raises:
            ValueError: The table or a column does not exist.
        """
        unknown = ""
        for table, rest in cut(self.text):
            known = columns.get(table, ())
            if known:
                unknown = f"name columns of {table} ({', '.join(known)}), got {rest!r}"
            if rest in known:
                return table, rest, ""
            for label, time in cut(rest):
                if label in known and time in known:
                    return table, label, time
        unknown = unknown or (
            "be TABLE:LABEL or TABLE:LABEL:TIME of the tables that are read "
            f"({', '.join(columns)}), got {self.text!r}"
        )
        raise ValueError(f"task must {unknown}"[:500])


def cut(text: str) -> Iterator[tuple[str, str]]:
    """Splits of a text at each of its colons, since names may have some."""
    for place, letter in enumerate(text):
        if letter == ":":
            yield text[:place], text[place + 1 :]


def named(argument: str, given: Named, is_known: Callable[[str], bool]) -> dict[str, str | None]:
    """``given`` as a mapping; texts are split after the longest name that ``is_known``."""
    if isinstance(given, Mapping):
        return dict(given)
    found: dict[str, str | None] = {}
    for text in given:
        pairs = list(cut(text))
        fitting = [pair for pair in pairs if is_known(pair[0])] or pairs[:1]
        if not fitting:
            raise ValueError(f"{argument} must be NAME:COLUMN, got {text!r}")
        name, value = fitting[-1]
        found[name] = value or None
    return found


def check_orphans(orphans: str) -> None:
    """Raise ValueError for an unknown choice of ``orphans``."""
    if orphans not in ORPHANS:
        raise ValueError(f"orphans must be one of {', '.join(ORPHANS)}, got {orphans!r}")


def check_words(words: Any) -> None:
    """Raise ValueError unless ``words`` is None or a number of words."""
    if words is None or (type(words) is int and 1 <= words <= MOST_WORDS):
        return
    raise ValueError(f"words must be from 1 to {MOST_WORDS}, got {words!r}")


def check_choices(options: Mapping[str, Any]) -> None:
    """Refuse invalid options of :func:`~.from_database.read_database`, without the database."""
    check_orphans(options.get("orphans") or "error")
    check_words(options.get("words"))
    for name in ("times", "keys"):
        given = options.get(name) or ()
        if isinstance(given, str):
            raise TypeError(f"{name} must be a mapping or a list of texts, got {given!r}")
        named(name, given, lambda _name: False)
    check_task(options.get("task"), options.get("parts") or {})


def check_task(task: str | None, parts: Mapping[str, VertexSet | None]) -> None:
    """Refuse a task that is malformed, and ``parts`` without a task."""
    if task is not None:
        Task.parse(task, parts)
        return
    for part, value in parts.items():
        if value is not None:
            raise ValueError(f"{part} must come with task for tables, got {value}")
