"""Parquet files as DuckDB tables, and their columns as arrays, with lists of one length as rows."""

from __future__ import annotations

from torch import Tensor

from ...errors import FormatError
from ...system.budget import check_fits
from ...system.checks import StrPath
from ...system.units import one_line
from ..column_files import Scratch, Store, new_column
from ..numbers import NumberField
from .columns import (
    DTYPES,
    array_value,
    cast_to,
    family,
    joint_dtype,
    list_item,
    look_at,
    number_of,
    side_by_side,
)
from .connection import Connection, quoted, text_literal
from .schema import Column, Table
from .text import file_source


def parquet_table(connection: Connection, path: StrPath, source: str) -> Table:
    """A Parquet file as a table, named after its path.

    Args:
        connection: Reads the file.
        path: The file, for errors.
        source: The path that DuckDB opens; see :func:`~pagraph.datasets.tables.text.file_source`.

    Raises:
        FormatError: The Parquet file is damaged.
    """
    relation = f"pagraph rows of {source}"
    rows = f"read_parquet({text_literal(source)}, binary_as_string=false)"
    try:
        connection.run(f"CREATE OR REPLACE VIEW {quoted(relation)} AS FROM {rows}")
    except FormatError as error:
        reason = one_line(error).replace(source, str(path))
        raise FormatError(f"{path} is not a complete Parquet file: {reason}") from None
    return Table(str(path), relation, connection.columns(relation))


def number_value(name: str, kind: str, field: NumberField, missing: str = "0") -> str:
    """The numbers of a column, in SQL, with ``missing`` instead of missing ones.

    int64, or float64 for fractions and fields of floats.
    """
    whole = family(kind) == "integer" and missing.lstrip("-").isdigit()
    wanted = "BIGINT" if whole and not field.is_float else "DOUBLE"
    value = f"{quoted(name)}::{wanted}"
    if family(kind) == "fraction":
        value = number_of(quoted(name))
    return f"coalesce({value}, '{missing}'::{wanted})"


def read_parquet_array(path: StrPath, scratch: Scratch | None) -> Tensor:
    """All columns of a Parquet file as one array; see :func:`columns_side_by_side`."""
    with Connection(0) as connection, file_source(path) as source:
        table = parquet_table(connection, path, source)
        values, width = columns_side_by_side(connection, table, scratch)
    return values.mapped().reshape(-1, width)


def columns_side_by_side(
    connection: Connection, table: Table, scratch: Scratch | None
) -> tuple[Store, int]:
    """The columns of a table as one row-major array, and the numbers per row.

    Args:
        connection: Has the table.
        table: The table, named after its file.
        scratch: For the numbers; None: memory.

    Raises:
        FormatError: A column is not numeric, has lists of different lengths or a missing number, or
            integers are too wide for other columns' floats.
    """
    if not table.columns:
        raise FormatError(f"{table.name} must have at least 1 column, got none")
    columns = _columns(connection, table)
    values = new_column(scratch, joint_dtype(columns))
    for rows in side_by_side(connection, table.name, table.relation, columns):
        values.append(rows)
        check_fits(table.name, values.nbytes, "numbers")
    return values, sum(column.width or bool(column.sql) for column in columns)


def _columns(connection: Connection, table: Table) -> list[Column]:
    items = {n: list_item(k) if k.endswith("]") else k for n, k in table.columns.items()}
    for name, item in items.items():
        if item not in DTYPES:
            raise _other(table, name, table.columns[name])
    columns = []
    for look in look_at(connection, table, list(items))[1]:
        if look.missing:
            raise _other(table, look.name, "missing ones")
        dtype = DTYPES[items[look.name]]
        if look.family != "list":
            value = cast_to(quoted(look.name), dtype)
            columns.append(Column(look.name, dtype=dtype, sql=value))
            continue
        if look.low != look.high:
            raise FormatError(
                f"{table.name}, column {look.name!r} must hold lists of the same length, got "
                f"{look.low} to {look.high}"
            )
        if look.has_holes:
            raise _other(table, look.name, "missing ones")
        value = array_value(look.name, dtype, look.high) if look.high else ""
        columns.append(Column(look.name, dtype=dtype, sql=value, width=look.high))
    return columns


def _other(table: Table, name: str, got: str) -> FormatError:
    return FormatError(f"{table.name}, column {name!r} must hold numbers, got {got}")
