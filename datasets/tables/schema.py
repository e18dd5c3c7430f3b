"""What tables say of themselves: their columns, keys and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ForeignKey:
    """Columns of a table that hold the key of a row of another table, or of the same.

    Attributes:
        columns: The columns that refer.
        table: Name of the table that is referred to.
        to: The columns there, in the same order.
    """

    columns: tuple[str, ...]
    table: str
    to: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table as its source describes it; its rows are a relation of a DuckDB connection.

    Attributes:
        name: The name that the source has for it.
        relation: The name of the table or view in the connection, unquoted.
        columns: DuckDB's type of each column, in order.
        primary_key: Columns that tell rows apart; none where the source names none.
        foreign_keys: What its columns refer to.
        time_columns: Columns that the source itself declares as the time of a row.
    """

    name: str
    relation: str
    columns: Mapping[str, str]
    primary_key: tuple[str, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    time_columns: tuple[str, ...] = ()
