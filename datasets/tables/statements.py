"""Statements of ADBC connections, and their results."""

from __future__ import annotations

from typing import Any

import adbc_driver_manager as adbc
import nanoarrow

from .sources import Rows


def ask(link: Any, query: str) -> Rows:
    """The rows of a small result of a connection; the statement has ended."""
    with adbc.AdbcStatement(link) as statement:
        return rows_of(stream_of(statement, query))


def stream_of(statement: Any, query: str) -> Any:
    """The rows of a query, as an Arrow stream that lives as long as its statement."""
    statement.set_sql_query(query)
    stream, _ = statement.execute_query()
    return stream


def rows_of(stream: Any) -> Rows:
    """All rows of a small stream."""
    found: Rows = nanoarrow.ArrayStream(stream).read_all().to_pylist()
    return found
