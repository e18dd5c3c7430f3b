"""Databases' descriptions of their tables, and the interface of an open database."""

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
    """

    readers: int

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
