"""Parquet files as relations of DuckDB: their columns and types."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import FormatError
from ...system.checks import StrPath
from ...system.units import one_line
from ..numbers import NumberField
from .connection import Connection, quoted, text_literal

_INTEGERS = {f"{sign}{width}INT" for sign in ("", "U") for width in ("TINY", "SMALL", "BIG")} | {
    "INTEGER",
    "UINTEGER",
    "HUGEINT",
}
_FLOATS = {"FLOAT", "DOUBLE"}


@dataclass(frozen=True)
class ParquetColumn:
    """A column of a Parquet file.

    Attributes:
        name: Its name.
        type: DuckDB's name of its type.
    """

    name: str
    type: str

    @property
    def is_integer(self) -> bool:
        """Whether it holds integers, decimals without fractions not among them."""
        return self.type in _INTEGERS

    @property
    def is_text(self) -> bool:
        """Whether it holds words, or categories of words."""
        return self.type == "VARCHAR" or self.type.startswith("ENUM(")

    @property
    def is_number(self) -> bool:
        """Whether it holds numbers."""
        return self.is_integer or self.type in _FLOATS or self.type.startswith("DECIMAL(")

    def numbers(self, field: NumberField, missing: str = "0") -> str:
        """Its numbers for SQL, with ``missing`` in place of a missing one: int64, or float64 for
        fractions and for a field of floats."""
        whole = self.is_integer or (self.type.startswith("DECIMAL(") and self.type.endswith(",0)"))
        whole = whole and missing.lstrip("-").isdigit()
        wanted = "BIGINT" if whole and not field.is_float else "DOUBLE"
        return f"coalesce({quoted(self.name)}::{wanted}, '{missing}'::{wanted})"


def parquet_columns(
    connection: Connection, path: StrPath, source: str
) -> tuple[str, list[ParquetColumn]]:
    """The relation of a Parquet file for SQL, and its columns.

    Args:
        connection: Reads the file.
        path: The file, for errors.
        source: The path that DuckDB opens; see :func:`~pagraph.datasets.tables.text.file_source`.

    Raises:
        FormatError: It is no whole Parquet file.
    """
    relation = f"read_parquet({text_literal(source)}, binary_as_string=false)"
    try:
        found = connection.run(f"DESCRIBE SELECT * FROM {relation}")
    except FormatError as error:
        reason = one_line(error).replace(source, str(path))
        raise FormatError(f"{path} is no whole Parquet file: {reason}") from None
    return relation, [ParquetColumn(name, type_) for name, type_, *_ in found]
