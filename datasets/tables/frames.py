"""Tables in memory (DataFrames, Arrow, RelBench's databases) as graphs, and columns as fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from ...graph.fields import FieldNote
from ...graph.graph import Graph
from ...system.budget import work_memory
from ..column_files import MemoryColumn
from .assembly import Wishes
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
from .planning import Fields, Keys, Times, plan
from .schema import Column, ForeignKey, Table, alike

# Units of NumPy's times that DuckDB supports; others are coarser than seconds.
_FINE_UNITS = ("s", "ms", "us", "ns")


def graph_from_tables(
    tables: Any,
    *,
    keys: Keys | None = None,
    times: Times | None = None,
    orphans: str = "error",
    fields: Fields | None = None,
    **wishes: Any,
) -> Graph:
    """See ``Graph.from_tables``; ``wishes`` are those of :class:`~.assembly.Wishes`."""
    wished = Wishes(**wishes)
    room = work_memory(None, LEAST_LIMIT + BEYOND_LIMIT, whom="tables")
    with Connection(room) as connection:
        known = getattr(tables, "table_dict", None)
        if known is None:
            described = _frame_tables(connection, tables)
        else:
            described = _relbench_tables(connection, known)
            times = {
                **{name: None for name in known},
                **_relbench_times(known),
                **(times or {}),
            }
        found = wished.found_in({table.name: list(table.columns) for table in described})
        schema = plan(
            described,
            connection,
            keys=keys,
            times=found.times(times or {}),
            missing=found.missing,
            words=found.words,
            fields=fields,
            infer=known is None,
        )
        schema = found.with_label(connection, schema)
        graph, gaps = found.graph(connection, schema, None, room, orphans=orphans)
    found.finish(graph, gaps, None)
    return graph


def _frame_tables(connection: Connection, tables: Mapping[str, Any]) -> list[Table]:
    """Register tables by name; they are read in place."""
    if not isinstance(tables, Mapping):
        raise TypeError(f"tables must be a mapping from name to table, got {type(tables).__name__}")
    return [
        _registered(connection, name, rows, f"pagraph table {place}")
        for place, (name, rows) in enumerate(tables.items())
    ]


def _relbench_tables(connection: Connection, tables: Mapping[str, Any]) -> list[Table]:
    """The tables of RelBench's ``Database``, with its keys."""
    found = []
    keys = {name: table.pkey_col for name, table in tables.items()}
    for place, (name, table) in enumerate(tables.items()):
        rows = _registered(connection, name, table.df, f"pagraph table {place}")
        links = tuple(
            ForeignKey((column,), other, (keys[other],))
            for column, other in table.fkey_col_to_pkey_table.items()
        )
        key = () if table.pkey_col is None else (table.pkey_col,)
        found.append(Table(name, rows.relation, rows.columns, key, links, (), is_ordered=True))
    return found


def _relbench_times(tables: Mapping[str, Any]) -> dict[str, str]:
    return {name: t.time_col for name, t in tables.items() if t.time_col is not None}


def _registered(connection: Connection, name: Any, rows: Any, relation: str) -> Table:
    """Register a table as ``relation``, to be read in place; returns its description."""
    if not isinstance(name, str):
        raise TypeError(f"tables must have names, got {name!r}"[:300])
    module = type(rows).__module__.partition(".")[0]
    if module == "pandas" and hasattr(rows, "columns"):
        wrong = [column for column in rows.columns if not isinstance(column, str)]
        if wrong:
            raise TypeError(f"{name}: columns must have names, got {wrong[0]!r}"[:300])
        # A named index is a column; others only count rows.
        if any(label is not None for label in rows.index.names):
            rows = rows.reset_index()
        names = list(rows.columns)
        connection.register(relation, rows)
    elif isinstance(rows, dict):  # arrays of NumPy by column
        names = list(rows)
        connection.register(relation, rows)
    elif hasattr(rows, "__arrow_c_stream__"):
        import nanoarrow

        names = [field.name for field in nanoarrow.c_schema(_schema_of(rows)).children]
        connection.register_stream(relation, rows)
    else:
        raise TypeError(
            f"tables must be DataFrames, Arrow tables or relations, got {type(rows).__name__} for "
            f"{name!r}"[:300]
        )
    twice = alike(names)
    if twice is not None:
        # DuckDB would rename one of them.
        raise ValueError(
            f"{name}: names of columns must differ by more than case, got {twice[0]!r} and "
            f"{twice[1]!r}"[:300]
        )
    return Table(name, relation, connection.columns(relation), is_ordered=True)


def _schema_of(rows: Any) -> Any:
    """The names and types of a stream, without reading rows if possible."""
    import nanoarrow

    schema = getattr(rows, "schema", rows)
    if hasattr(schema, "__arrow_c_schema__"):
        return schema
    return nanoarrow.c_array_stream(rows).get_schema()


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
        source = _registered(connection, owner, table, "pagraph rows")
        _, looks = look_at(connection, source, list(source.columns))
        times = [look for look in looks if look.family == "time"]
        rule = Rule(connection, graph_unit(times), Filling(), hint="fill them first")
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
