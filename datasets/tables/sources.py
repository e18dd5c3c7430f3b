"""Databases: descriptions of their tables, the interface of an open one, SQL for their types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...system.units import printable
from .connection import quoted, text_literal
from .schema import ForeignKey
from .texts import is_gap

SQLITE_SEEDS = {
    "integer": "0",
    "bool": "0",
    "number": "0",
    "real": "0.0",
    "text": "''",
    # Must cast to a time, since it is cast before it is dropped.
    "time": "'1970-01-01'",
    "blob": "x''",
}
"""A value of each kind of column, which sets the type in SQLite's driver."""

# As seconds since 1970, numbers below this are years up to 5138; milliseconds exceed it from 1973.
_MOST_SECONDS = 10**11
# Smaller numbers may be years (2024) or days (20240131).
_LEAST_SECONDS = 10**8

# PostgreSQL's types with an Arrow equivalent.
_ARROW = (
    *("smallint", "integer", "bigint", "real", "double precision", "boolean", "bytea", "text"),
    *("character varying", "uuid"),
)
_LISTS = tuple(f"{kind}[]" for kind in _ARROW[:6])


@dataclass(frozen=True)
class SourceColumn:
    """A column of a table of a database.

    Attributes:
        name: Its name.
        declared: The type's name in the database, or empty.
        kind: The dialect's kind of the type.
    """

    name: str
    declared: str = ""
    kind: str = ""


@dataclass(frozen=True)
class SourceTable:
    """A table as its database describes it.

    Attributes:
        name: Its name.
        place: Its quoted name in the database, with the schema.
        columns: Columns to read.
        primary_key: Columns of its key.
        foreign_keys: Its foreign keys.
        is_view: Whether it is a view.
        rows: Estimated number of rows, only for progress.
    """

    name: str
    place: str
    columns: tuple[SourceColumn, ...]
    primary_key: tuple[str, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    is_view: bool = False
    rows: int = 1


class Session(Protocol):
    """An open database, in one transaction.

    Attributes:
        readers: Number of threads that may call :meth:`copy` at once.
        unfit: Columns that no field holds, by table, and why; known when they are copied.
    """

    readers: int
    unfit: dict[str, dict[str, str]]

    def tables(self, schema: str | None) -> list[SourceTable]:
        """All tables and views."""

    def copy(self, table: SourceTable, relation: str) -> None:
        """Copy the rows of a table into ``relation`` of our connection."""

    def close(self) -> None:
        """End the transaction."""


def lookup(name: str, names: Sequence[str]) -> str:
    """A name as declared, for databases that ignore case."""
    if name in names:
        return name
    return next((n for n in names if n.lower() == name.lower()), name)


Rows = list[dict[str, Any]]
"""Rows of a small result, by column."""


def sqlite_kind(declared: str) -> str:
    """The kind of a column's values by its declared type.

    This is SQLite's rule of affinities (https://www.sqlite.org/datatype3.html, section 3.1), plus
    times and booleans, which SQLite has only by name.
    """
    word = declared.upper()
    if re.match(r"(DATE|DATETIME|TIMESTAMP)", word):
        return "time"
    if word.startswith("BOOL"):
        return "bool"
    if "INT" in word:
        return "integer"
    if any(part in word for part in ("CHAR", "CLOB", "TEXT")):
        return "text"
    if not word or "BLOB" in word:
        return "any"
    if any(part in word for part in ("REAL", "FLOA", "DOUB")):
        return "real"
    return "number"


def postgresql_value(column: SourceColumn) -> str:
    """The SQL expression for a column in PostgreSQL, with a type that its driver supports."""
    value = quoted(column.name)
    kind = re.sub(r"\(.*?\)", "", column.kind)
    if kind.startswith(("timestamp", "date")):
        # The driver lacks infinity, and would turn it into a wrong date.
        return f"case when isfinite({value}) then {value} end"
    if kind in _ARROW or kind in _LISTS:
        return value
    if kind == "money":
        return f"{value}::numeric::text"
    # `numeric`, enumerations, JSON, addresses and ranges come as text.
    return f"{value}::text"


def staged_value(table: str, column: SourceColumn) -> str:
    """The SQL that converts a driver's value, under the column's name."""
    value = quoted(column.name)
    return f"{_typed(value, table, column)} as {value}"


def dated_value(table: str, column: str) -> str:
    """The SQL that parses times in a text column."""
    return _typed(quoted(column), table, SourceColumn(column, "", "time"))


def _typed(value: str, table: str, column: SourceColumn) -> str:
    shown = f"{table}.{column.name}"
    declared = f"as it is declared {column.declared}" if column.declared else "as a time"
    if column.kind == "time":
        # Via a zoned type: a plain cast to TIMESTAMP silently drops "+02:00".
        moment = f"try_cast({value} as timestamptz)"
        number = f"try_cast({value} as bigint)"
        wrong = _error(f"{shown} must hold dates or seconds since 1970, {declared}, got ", value)
        return (
            f"coalesce({_usual_time(value)}, "
            f"case when {value} is null or {is_gap(value)} then null "
            f"when regexp_full_match({value}, '-?[0-9]+') then case when {number} <= 0 and "
            f"{number} > -{_MOST_SECONDS} or {number} between {_LEAST_SECONDS} and {_MOST_SECONDS} "
            f"then make_timestamp({number} * 1000000) else {wrong} end "
            f"when {moment} is null then {wrong} else make_timestamp(epoch_us({moment})) end)"
        )
    if column.kind == "bool":
        wrong = _error(f"{shown} must hold 0 and 1, {declared}, got ", f"{value}::varchar")
        return (
            f"case when {value} is null or {value} in (0, 1) then {value}::boolean else {wrong} end"
        )
    return value


def _usual_time(value: str) -> str:
    """The time of a text in the usual format without a zone; null for others.

    DuckDB must print the same text, so that nothing was ignored. It takes a quarter of the time of
    a cast via a zoned type.
    """
    moment = f"try_cast({value} as timestamp)"
    is_date = f"length({value}) = 10 and {moment}::varchar = {value} || ' 00:00:00'"
    # Fails for infinity, which is not a time.
    finite = f"make_timestamp(epoch_us({moment}))"
    return f"case when {moment}::varchar = {value} or {is_date} then {finite} end"


def _error(text: str, value: str) -> str:
    """SQL that fails with our error about a value."""
    return f"error({text_literal(_MARK + printable(text))} || left({value}, 100))"


_MARK = "pagraph: "


def our_error(text: str) -> str | None:
    """Our error of :func:`staged_value` in a message of DuckDB's, or None."""
    return text.split(_MARK, 1)[1] if _MARK in text else None


def clashing_column(text: str) -> int | None:
    """The column of mixed types in a message of SQLite's driver, or None."""
    found = re.search(r"Type mismatch in column (\d+)", text)
    return int(found[1]) if found else None
