"""A second connection to an SQLite file, which reads the same snapshot as the first."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import adbc_driver_manager as adbc

from .statements import ask

FIRST_READ = "select count(*) from sqlite_schema"
"""Begins a transaction's snapshot: SQLite takes the lock with the first row."""
_NO_TRUST = "pragma trusted_schema = off"


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
