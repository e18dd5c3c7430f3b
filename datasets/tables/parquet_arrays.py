"""Reads columns of Parquet as arrays: numbers in their own dtype, lists of one length as rows."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ...errors import FormatError
from ...system.arrays import Array
from ...system.budget import check_fits
from ...system.checks import StrPath
from ..column_files import Scratch, Store, new_column
from ..numbers import check_beside
from .columns import list_item
from .connection import Connection, quoted
from .parquet import ParquetColumn, parquet_columns
from .text import file_source

_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOLEAN": np.dtype(np.bool_),
    "TINYINT": np.dtype(np.int8),
    "SMALLINT": np.dtype(np.int16),
    "INTEGER": np.dtype(np.int32),
    "BIGINT": np.dtype(np.int64),
    "UTINYINT": np.dtype(np.uint8),
    "USMALLINT": np.dtype(np.uint16),
    "UINTEGER": np.dtype(np.uint32),
    "UBIGINT": np.dtype(np.uint64),
    "FLOAT": np.dtype(np.float32),
    "DOUBLE": np.dtype(np.float64),
}


@dataclass(frozen=True)
class _Part:
    """A column of numbers, or of lists of them.

    Attributes:
        name: The column.
        item: DuckDB's type of a number.
        width: Numbers in a list; None of a column of numbers.
    """

    name: str
    item: str
    width: int | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        return _DTYPES[self.item]

    @property
    def sql(self) -> str:
        """Its values, booleans as bytes."""
        value = quoted(self.name)
        kind = "UTINYINT" if self.item == "BOOLEAN" else self.item
        if self.width is None:
            return f"{value}::{kind}"
        # Through a list: an array of booleans casts to no array of integers.
        return f"{value}::{kind}[]::{kind}[{self.width}]"

    def rows(self, values: Array) -> Array:
        """Values of some rows, a column for each number."""
        return values.view(self.dtype).reshape(-1, 1 if self.width is None else self.width)


def read_parquet_array(path: StrPath, scratch: Scratch | None) -> Tensor:
    """All columns of a Parquet file side by side; see :func:`columns_side_by_side`."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Connection(Path(folder), 0) as connection,
        file_source(path) as source,
    ):
        relation, columns = parquet_columns(connection, path, source)
        values, width = columns_side_by_side(connection, relation, columns, path, scratch)
    return values.mapped().reshape(-1, width)


def columns_side_by_side(
    connection: Connection,
    relation: str,
    columns: Sequence[ParquetColumn],
    path: StrPath,
    scratch: Scratch | None,
) -> tuple[Store, int]:
    """Columns as one array, row after row, and the numbers of a row.

    Args:
        connection: Has the relation.
        relation: What has the columns, for SQL.
        columns: The columns.
        path: The file, for errors.
        scratch: For the numbers; None: memory.

    Raises:
        FormatError: A column holds something else, or lists of several lengths; a number is
            missing; integers are too wide for the floats beside them.
    """
    if not columns:
        raise FormatError(f"{path} must have at least 1 column, got none")
    parts = _parts(connection, relation, columns, path)
    dtype = np.result_type(*(part.dtype for part in parts))
    values = new_column(scratch, dtype)
    # A list of none casts to no array.
    read = [part for part in parts if part.width != 0]
    query = ", ".join(part.sql for part in read)
    for batch in connection.batches(f"SELECT {query} FROM {relation}") if read else ():
        found = [part.rows(numbers) for part, numbers in zip(read, batch, strict=True)]
        for part, numbers in zip(read, found, strict=True):
            check_beside(f"{path}, column {part.name!r}", numbers, dtype)
        values.append(np.concatenate(found, axis=1, dtype=dtype).reshape(-1))
        check_fits(path, values.nbytes, "numbers")
    return values, sum(1 if part.width is None else part.width for part in parts)


def _parts(
    connection: Connection, relation: str, columns: Sequence[ParquetColumn], path: StrPath
) -> list[_Part]:
    for column in columns:
        item = list_item(column.type) if column.type.endswith("]") else column.type
        if item not in _DTYPES:
            raise _other(path, column, column.type)
    counts = ", ".join(f"count({quoted(column.name)})" for column in columns)
    ((rows, *present),) = connection.run(f"SELECT count(*), {counts} FROM {relation}")
    parts = []
    for column, count in zip(columns, present, strict=True):
        if count != rows:
            raise _other(path, column, "missing ones")
        if column.type.endswith("]"):
            width = _width(connection, relation, column, path)
            parts.append(_Part(column.name, list_item(column.type), width))
        else:
            parts.append(_Part(column.name, column.type))
    return parts


def _width(connection: Connection, relation: str, column: ParquetColumn, path: StrPath) -> int:
    """How long the lists of a column are; 0 if there are none."""
    value = f"{quoted(column.name)}::{list_item(column.type)}[]"
    ((low, high, holes),) = connection.run(
        f"SELECT min(len({value})), max(len({value})), "
        f"bool_or(len({value}) <> list_aggregate({value}, 'count')) FROM {relation}"
    )
    if low != high:
        raise FormatError(
            f"{path}, column {column.name!r} must hold lists of the same length, got {low} to "
            f"{high}"
        )
    if holes:
        raise _other(path, column, "missing ones")
    return int(low or 0)


def _other(path: StrPath, column: ParquetColumn, got: str) -> FormatError:
    return FormatError(f"{path}, column {column.name!r} must hold numbers, got {got}")
