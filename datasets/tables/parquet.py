"""Parquet files as tables of DuckDB."""

from __future__ import annotations

from ...errors import FormatError
from ...system.checks import StrPath
from ...system.units import one_line
from ..numbers import NumberField
from .columns import family
from .connection import Connection, quoted, text_literal
from .schema import Table


def parquet_table(connection: Connection, path: StrPath, source: str) -> Table:
    """A Parquet file as a table, whose name is the path.

    Args:
        connection: Reads the file.
        path: The file, for errors.
        source: The path that DuckDB opens; see :func:`~pagraph.datasets.tables.text.file_source`.

    Raises:
        FormatError: It is no whole Parquet file.
    """
    relation = f"pagraph rows of {source}"
    rows = f"read_parquet({text_literal(source)}, binary_as_string=false)"
    try:
        connection.run(f"CREATE OR REPLACE VIEW {quoted(relation)} AS FROM {rows}")
    except FormatError as error:
        reason = one_line(error).replace(source, str(path))
        raise FormatError(f"{path} is no whole Parquet file: {reason}") from None
    return Table(str(path), relation, connection.columns(relation))


def number_value(name: str, kind: str, field: NumberField, missing: str = "0") -> str:
    """The numbers of a column for SQL, with ``missing`` in place of a missing one: int64, or
    float64 for fractions and for a field of floats."""
    whole = family(kind) == "integer" and missing.lstrip("-").isdigit()
    wanted = "BIGINT" if whole and not field.is_float else "DOUBLE"
    return f"coalesce({quoted(name)}::{wanted}, '{missing}'::{wanted})"
