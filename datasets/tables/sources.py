"""Tables as a database describes them, and what an open database can be asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .schema import ForeignKey


@dataclass(frozen=True)
class SourceColumn:
    """A column of a table of a database.

    Attributes:
        name: Its name.
        declared: The type as the database names it; empty where it has none.
        kind: What the dialect makes of the type.
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
        columns: Those that are read.
        primary_key: Columns of its key.
        foreign_keys: What its columns refer to.
        is_view: Whether it is a view.
        rows: About how many rows it has; for the progress alone.
    """

    name: str
    place: str
    columns: tuple[SourceColumn, ...]
    primary_key: tuple[str, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    is_view: bool = False
    rows: int = 1


class Session(Protocol):
    """An open database, in one transaction."""

    def tables(self, schema: str | None) -> list[SourceTable]:
        """All tables and views."""

    def copy(self, table: SourceTable, relation: str) -> None:
        """Make ``relation`` of our connection have the rows of a table."""

    def close(self) -> None:
        """End the transaction."""


def lookup(name: str, names: Sequence[str]) -> str:
    """A name as it was declared, for databases that do not tell upper from lower case."""
    if name in names:
        return name
    return next((n for n in names if n.lower() == name.lower()), name)


Rows = list[dict[str, Any]]
"""Rows of a small result, by column."""
