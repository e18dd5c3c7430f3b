"""Columns of DataFrames, Arrow arrays and relations as fields of a graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from ...graph.fields import FieldNote
from ...system.budget import work_memory
from ..column_files import MemoryColumn
from .builder import shaped
from .choices import Filling
from .columns import (
    Look,
    Rule,
    array_value,
    graph_unit,
    joint_dtype,
    list_item,
    look_at,
    side_by_side,
)
from .connection import BEYOND_LIMIT, LEAST_LIMIT, Connection, quoted
from .frames import registered
from .schema import Column

# Units of NumPy's times that DuckDB supports; others are coarser than seconds.
_FINE_UNITS = ("s", "ms", "us", "ns")


def typed_rows(name: str, value: Any) -> tuple[Tensor, FieldNote | None]:
    """The rows of a field and their note, by the rule of typed columns.

    Args:
        name: The field.
        value: A column, of numbers or of lists of equal length; or a table, with a number per
            column. Floats keep their dtype.

    Raises:
        FormatError: Values are missing that are not floats.
        TypeError: A field cannot hold some values.
    """
    column = _as_table(name, value)
    table = value if column is None else column
    owner = name if column is None else "field"
    room = work_memory(None, LEAST_LIMIT + BEYOND_LIMIT, whom="a table")
    with Connection(room) as connection:
        source = registered(connection, owner, table, "pagraph rows")
        _, looks = look_at(connection, source, list(source.columns))
        times = [look for look in looks if look.family == "time"]
        rule = Rule(connection, graph_unit(times), Filling(), "fill them first")
        columns = [_checked(name, rule, look) for look in looks]
        for one in columns:
            if column is None and one.note is not None:
                raise TypeError(
                    f"field {name!r} must have columns of numbers alone, got {one.kind} in "
                    f"{one.name!r}: give this column as a field of its own"
                )
        store = MemoryColumn(joint_dtype(columns))
        for rows in side_by_side(connection, f"field {name!r}", source.relation, columns):
            store.append(rows)
    if column is None:
        width = sum(one.width or 1 for one in columns)
        return store.mapped().reshape(-1, width), None
    (only,) = columns
    return shaped(store, only), only.note


def _as_table(name: str, value: Any) -> Any:
    """A column as a table with one column ``name``; None for tables."""
    if isinstance(value, np.ndarray):
        if np.datetime_data(value.dtype)[0] not in _FINE_UNITS:
            value = value.astype("datetime64[s]")
        return {name: value}
    if hasattr(value, "columns"):
        return None
    if hasattr(value, "to_frame"):  # a Series of pandas or polars
        return value.to_frame(name) if hasattr(value, "index") else value.alias(name).to_frame()
    if hasattr(value, "type"):  # an array of Arrow's, plain or in chunks
        import pyarrow  # installed, since it made the array

        return pyarrow.table({name: value})
    return None


def _checked(name: str, rule: Rule, look: Look) -> Column:
    """The field that a column becomes; TypeError if it would be left out."""
    column = rule.column(look, is_time=False)
    if not column.field:
        raise TypeError(
            f"field {name!r} must hold values that a field can, in column {look.name!r} "
            f"{column.why}"
        )
    # Floats keep their dtype, like those of an array.
    if look.kind == "DOUBLE":
        sql = f"coalesce({quoted(look.name)}, 'nan'::DOUBLE)"
        return replace(column, dtype="float64", sql=sql)
    if look.family == "list" and list_item(look.kind) == "DOUBLE":
        sql = array_value(look.name, "float64", column.width)
        return replace(column, dtype="float64", sql=sql)
    return column
