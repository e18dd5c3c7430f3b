"""Keys of rows in SQL: comparison, order and uniqueness; and the usual names of keys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import FormatError
from ...system.units import printable
from .columns import WIDE_KINDS, family
from .connection import Connection, quoted
from .schema import Table


@dataclass(frozen=True)
class KeyColumn:
    """A column of a key.

    Attributes:
        name: Its name.
        kind: DuckDB's type.
    """

    name: str
    kind: str

    @property
    def family(self) -> str:
        """See :func:`family`."""
        return family(self.kind)

    @property
    def is_number(self) -> bool:
        """Whether it is compared as an integer, or else as text."""
        return self.family in ("integer", "fraction", "time", "bool")

    def may_join(self, other: KeyColumn) -> bool:
        """Whether the columns may hold the same keys."""
        numbers = ("integer", "fraction")
        if self.family in numbers:
            return other.family in numbers
        return self.family == other.family == "text"


def as_key(column: KeyColumn, *, as_text: bool = False) -> str:
    """SQL for the value by which a key is compared, equal for 7 of any integer type."""
    value = quoted(column.name)
    if column.family == "fraction":
        # pandas stores integers with missing values as floats.
        value = f"(case when isnan({value}::DOUBLE) then null else {value} end)::BIGINT"
    elif column.family == "time":
        value = f"epoch_us({value})"
    elif column.is_number and column.kind in WIDE_KINDS:
        value = f"{value}::HUGEINT"
    elif column.is_number:
        value = f"{value}::BIGINT"
    else:
        return f"{value}::VARCHAR"
    return f"({value})::VARCHAR" if as_text else f"({value})"


def as_keys(left: KeyColumn, right: KeyColumn) -> tuple[str, str]:
    """SQL for comparing two columns with each other: as text, unless both are numbers."""
    as_text = left.is_number != right.is_number
    return as_key(left, as_text=as_text), as_key(right, as_text=as_text)


@dataclass(frozen=True)
class Matched:
    """SQL for a join of two relations by keys: both selections, and the condition."""

    here: str
    there: str
    equal: str

    @classmethod
    def of(cls, columns: Sequence[KeyColumn], keys: Sequence[KeyColumn]) -> Matched:
        """Match columns with those of a key, in the same order."""
        pairs = [as_keys(*pair) for pair in zip(columns, keys, strict=True)]
        return cls(
            ", ".join(f"{own} as k{i}" for i, (own, _) in enumerate(pairs)),
            ", ".join(f"{other} as k{i}" for i, (_, other) in enumerate(pairs)),
            " and ".join(f"a.k{i} = b.k{i}" for i in range(len(pairs))),
        )


def broken_key(connection: Connection, relation: str, column: KeyColumn) -> str:
    """A non-integer value in a key of floats, which a cast would round; empty without one."""
    if column.family != "fraction":
        return ""
    value = f"{quoted(column.name)}::DOUBLE"
    is_wrong = f"not (v = round(v) and abs(v) < {2**53})"
    found = connection.run(
        f"select v::VARCHAR from (select {value} as v from {quoted(relation)}) "
        f"where v is not null and not isnan(v) and {is_wrong} limit 1"
    )
    return str(found[0][0]) if found else ""


def check_whole(connection: Connection, table: Table, column: KeyColumn) -> None:
    """Raise FormatError if a key of floats has a non-integer value."""
    wrong = broken_key(connection, table.relation, column)
    if wrong:
        raise FormatError(
            f"{printable(f'{table.name}.{column.name}')} must hold integers below 2**53, as a key "
            f"of floats does, got {wrong}"
        )


def is_ascending(
    connection: Connection, relation: str, columns: Sequence[KeyColumn], *, strictly: bool
) -> bool:
    """Whether rows are sorted by a key, and no key is missing."""
    now = ", ".join(f"{as_key(c)} as k{i}" for i, c in enumerate(columns))
    before = ", ".join(f"lag(k{i}) over () as p{i}" for i in range(len(columns)))
    key = ", ".join(f"k{i}" for i in range(len(columns)))
    last = ", ".join(f"p{i}" for i in range(len(columns)))
    sign = ">" if strictly else ">="
    # NULL would compare as the largest.
    present = " and ".join(f"k{i} is not null and p{i} is not null" for i in range(len(columns)))
    ((count, right),) = connection.run(
        f"select count(*), count(*) filter ({present} and row({key}) {sign} row({last})) from "
        f"(select {key}, {before} from (select {now} from {quoted(relation)}))"
    )
    return bool(right >= count - 1)


def check_keys(connection: Connection, relation: str, columns: Sequence[KeyColumn]) -> str:
    """The error of the rows' keys, one missing or repeated, or an empty text."""
    if is_ascending(connection, relation, columns, strictly=True):
        # The first row has no predecessor, so it was not checked.
        first = connection.run(f"select {_any_missing(columns)} from {quoted(relation)} limit 1")
        if not first or not first[0][0]:
            return ""
    gaps = f"select row_number() over () as n, {_any_missing(columns)} as gap"
    ((row,),) = connection.run(f"select min(n) from ({gaps} from {quoted(relation)}) where gap")
    names = ", ".join(printable(column.name) for column in columns)
    if row is not None:
        return f"every row must have a key in {names}, row {row} has none"
    key = ", ".join(as_key(column) for column in columns)
    twice = connection.run(
        f"select {key}, count(*) from {quoted(relation)} group by {key} having count(*) > 1 "
        f"order by {key} limit 1"
    )
    if not twice:
        return ""
    *values, count = twice[0]
    shown = ", ".join(printable(str(value)) for value in values)
    return f"keys in {names} must be unique, got {shown} ({count:,} times)"


def _any_missing(columns: Sequence[KeyColumn]) -> str:
    return " or ".join(f"{as_key(column)} is null" for column in columns)


def missing_from(
    connection: Connection,
    relation: str,
    columns: Sequence[KeyColumn],
    other: str,
    keys: Sequence[KeyColumn],
) -> tuple[int, str]:
    """Number of rows whose key another relation lacks, and one of these keys."""
    keys_of = Matched.of(columns, keys)
    present = " and ".join(f"a.k{i} is not null" for i in range(len(columns)))
    shown = " || ', ' || ".join(f"a.k{i}::VARCHAR" for i in range(len(columns)))
    ((lost, example),) = connection.run(
        f"select count(*), min({shown}) from (select {keys_of.here} from {quoted(relation)}) as a "
        f"anti join (select {keys_of.there} from {quoted(other)}) as b on {keys_of.equal} "
        f"where {present}"
    )
    return int(lost), str(example)


# Generic names of keys, so that a reference must also name the table.
_GENERAL = ("id", "key", "uuid", "code", "no", "nr", "number", "pk", "name")


def words_of(name: str) -> tuple[str, ...]:
    """The words of a name, in lower case.

    >>> words_of("sellerUserId"), words_of("user_id")
    (('seller', 'user', 'id'), ('user', 'id'))
    """
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return tuple(re.findall(r"[^\W_]+", apart.lower()))


def _forms(table: str) -> list[tuple[str, ...]]:
    """The words of a table's name, unchanged, in the singular and in the plural."""
    words = words_of(table)
    if not words:
        return []
    last = words[-1]
    ends = {last, f"{last}s"}
    if last.endswith("ies"):
        ends.add(f"{last[:-3]}y")
    if last.endswith("es"):
        ends.add(last[:-2])
    if last.endswith("s"):
        ends.add(last[:-1])
    return [(*words[:-1], end) for end in sorted(ends)]


def may_be_key(column: str, table: str) -> int:
    """How well a name fits its table's key: 2 for ``id``, 1 for ``user_id`` in ``users``, or 0."""
    words = words_of(column)
    if words in (("id",), ("uuid",)):
        return 2
    return int(words in [(*form, general) for form in _forms(table) for general in ("id", "uuid")])


def may_refer(column: str, table: str, key: str) -> int:
    """Number of words in a column's name that refer to ``table`` and its ``key``, or 0.

    >>> may_refer("seller_user_id", "users", "id"), may_refer("age", "users", "id")
    (2, 0)
    """
    words = words_of(column)
    own = words_of(key)
    names = [(*form, *own) for form in _forms(table)]
    if own and own[-1] not in own[:-1] and own not in [(word,) for word in _GENERAL]:
        names.append(own)
    return max((len(name) for name in names if words[-len(name) :] == name), default=0)
