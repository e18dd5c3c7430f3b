"""Tables of SQLite whose two halves are read at once, by two connections in one snapshot."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import adbc_driver_manager as adbc

from .connection import quoted
from .sources import SourceColumn, SourceTable
from .statements import ask

FIRST_READ = "select count(*) from sqlite_schema"
"""Begins a transaction's snapshot: SQLite takes the lock with the first row."""
_NO_TRUST = "pragma trusted_schema = off"
# Names of the row number. A column of such a name hides it.
_ROW_NUMBERS = ("rowid", "_rowid_", "oid")
_ROW_NUMBER = "pagraph row"


class SecondReader:
    """A second connection to a file, which a first one reads in one transaction.

    It begins twice: :meth:`open` before the first connection's transaction, and :meth:`join` after
    it. No commit between these two means that both transactions are of one moment, with a log of
    writes (WAL) or a journal. It waits for no writer, who may be waiting for the first connection.

    Attributes:
        link: The connection; None if the first one must read alone.
    """

    def __init__(self, path: str) -> None:
        self.link: Any = None
        self._path = path
        # Before the first connection opens it: the file may be replaced by another.
        self._file = os.stat(path)
        self._version = -1

    def open(self, database: Any) -> None:
        """Connect, and note the version of the file before the first transaction begins."""
        try:
            self.link = adbc.AdbcConnection(database)
            ask(self.link, _NO_TRUST)
            ask(self.link, "pragma busy_timeout = 0")
            self._version = self._data_version()
        except adbc.Error:
            self.close()

    def join(self) -> None:
        """Begin a transaction, and close the connection if that is not the first one's snapshot."""
        if self.link is None:
            return
        is_same = False
        with contextlib.suppress(adbc.Error, OSError):
            self.link.set_autocommit(False)
            ask(self.link, FIRST_READ)
            is_same = self._data_version() == self._version and os.path.samestat(
                self._file, os.stat(self._path)
            )
        if not is_same:
            self.close()

    def close(self) -> None:
        """End the transaction."""
        if self.link is not None:
            self.link.close()
            self.link = None

    def _data_version(self) -> int:
        """A number that changes with commits of others (https://www.sqlite.org/pragma.html)."""
        ((version,),) = (row.values() for row in ask(self.link, "pragma data_version"))
        return int(version)


@dataclass(frozen=True)
class Halves:
    """Where to divide a table.

    Attributes:
        row_number: The row number, in SQLite's SQL.
        name: The column that it is, or becomes.
        middle: The last row number of the first half, about the middle of all.
    """

    row_number: str
    name: str
    middle: int

    @property
    def first(self) -> str:
        """The end of a query for the rows of the first half, after the table's name."""
        return f"not indexed where {self.row_number} <= {self.middle}"

    @property
    def second(self) -> str:
        """The end of a query for the other rows."""
        return f"not indexed where {self.row_number} > {self.middle}"


def row_number_of(names: Sequence[str]) -> str | None:
    """The name of the row number of a table with columns of these names; None if they hide it."""
    hidden = {name.lower() for name in names}
    return next((name for name in _ROW_NUMBERS if name not in hidden), None)


def halves_of(link: Any, table: SourceTable, columns: Sequence[SourceColumn]) -> Halves | None:
    """Where to divide a table that has row numbers.

    None if SQLite would read its rows in another order than that of the numbers: from an index.
    """
    names = [column.name for column in columns]
    listed = ", ".join(map(quoted, names))
    if _plan(link, f"select {listed} from {table.place}") != f"SCAN {table.name}":
        return None
    keys = {name: quoted(name) for name in table.primary_key[:1] if name in names}
    if _ROW_NUMBER not in names:
        keys |= {name: name for name in _ROW_NUMBERS}
    wanted = f"SEARCH {table.name} USING INTEGER PRIMARY KEY (rowid>?)"
    for name, row_number in keys.items():
        search = f"select {listed} from {table.place} not indexed where {row_number} > 0"
        if _plan(link, search) != wanted:
            continue
        # Two queries, since SQLite looks up only one end at a time.
        ends = ", ".join(
            f"(select {end}({row_number}) from {table.place}) as {end}" for end in ("min", "max")
        )
        (found,) = ask(link, f"select {ends}")
        if found["min"] is None:
            return None
        kept = name if name in names else _ROW_NUMBER
        return Halves(row_number, kept, (found["min"] + found["max"]) // 2)
    return None


def _plan(link: Any, query: str) -> str:
    """SQLite's plan for a query, of one line."""
    return "\n".join(row["detail"] for row in ask(link, f"explain query plan {query}"))
