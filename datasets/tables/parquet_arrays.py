"""Reads columns of Parquet as arrays: numbers in their own dtype, lists of one length as rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ...errors import FormatError
from ...system.arrays import Array
from ...system.budget import check_fits
from ...system.checks import StrPath
from ..column_files import Scratch, Store, new_column
from ..numbers import check_beside
from .columns import DTYPES, array_value, list_item, look_at
from .connection import Connection, quoted
from .parquet import parquet_table
from .schema import Table
from .text import file_source


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
        return np.dtype(DTYPES[self.item])

    @property
    def sql(self) -> str:
        """Its values, booleans as bytes."""
        if self.width is not None:
            return array_value(self.name, DTYPES[self.item], self.width)
        kind = "UTINYINT" if self.item == "BOOLEAN" else self.item
        return f"{quoted(self.name)}::{kind}"

    def rows(self, values: Array) -> Array:
        """Values of some rows, a column for each number."""
        return values.view(self.dtype).reshape(-1, 1 if self.width is None else self.width)


def read_parquet_array(path: StrPath, scratch: Scratch | None) -> Tensor:
    """All columns of a Parquet file side by side; see :func:`columns_side_by_side`."""
    with Connection(0) as connection, file_source(path) as source:
        table = parquet_table(connection, path, source)
        values, width = columns_side_by_side(connection, table, scratch)
    return values.mapped().reshape(-1, width)


def columns_side_by_side(
    connection: Connection, table: Table, scratch: Scratch | None
) -> tuple[Store, int]:
    """The columns of a table as one array, row after row, and the numbers of a row.

    Args:
        connection: Has the table.
        table: The table, which is named after its file.
        scratch: For the numbers; None: memory.

    Raises:
        FormatError: A column holds something else, or lists of several lengths; a number is
            missing; integers are too wide for the floats beside them.
    """
    if not table.columns:
        raise FormatError(f"{table.name} must have at least 1 column, got none")
    parts = _parts(connection, table)
    dtype = np.result_type(*(part.dtype for part in parts))
    values = new_column(scratch, dtype)
    # A list of none casts to no array.
    read = [part for part in parts if part.width != 0]
    query = f"SELECT {', '.join(part.sql for part in read)} FROM {quoted(table.relation)}"
    for batch in connection.batches(query) if read else ():
        found = [part.rows(numbers) for part, numbers in zip(read, batch, strict=True)]
        for part, numbers in zip(read, found, strict=True):
            check_beside(f"{table.name}, column {part.name!r}", numbers, dtype)
        values.append(np.concatenate(found, axis=1, dtype=dtype).reshape(-1))
        check_fits(table.name, values.nbytes, "numbers")
    return values, sum(1 if part.width is None else part.width for part in parts)


def _parts(connection: Connection, table: Table) -> list[_Part]:
    items = {n: list_item(k) if k.endswith("]") else k for n, k in table.columns.items()}
    for name, item in items.items():
        if item not in DTYPES:
            raise _other(table, name, table.columns[name])
    parts = []
    for look in look_at(connection, table, list(items))[1]:
        if look.missing:
            raise _other(table, look.name, "missing ones")
        if look.low != look.high and look.family == "list":
            raise FormatError(
                f"{table.name}, column {look.name!r} must hold lists of the same length, got "
                f"{look.low} to {look.high}"
            )
        if look.has_holes:
            raise _other(table, look.name, "missing ones")
        width = look.high if look.family == "list" else None
        parts.append(_Part(look.name, items[look.name], width))
    return parts


def _other(table: Table, name: str, got: str) -> FormatError:
    return FormatError(f"{table.name}, column {name!r} must hold numbers, got {got}")
