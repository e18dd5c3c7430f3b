"""In-memory tables as DuckDB relations: DataFrames, Arrow tables, RelBench's databases."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ...graph.graph import Graph
from ...system.budget import work_memory
from .builder import build
from .choices import Missing
from .connection import BEYOND_LIMIT, LEAST_LIMIT, Connection
from .planning import Fields, Keys, Times, plan
from .schema import ForeignKey, Table, alike

_log = logging.getLogger("pagraph.datasets")


def graph_from_tables(
    tables: Any,
    *,
    keys: Keys | None = None,
    times: Times | None = None,
    orphans: str = "error",
    missing: Missing = None,
    fields: Fields | None = None,
) -> Graph:
    """See ``Graph.from_tables``."""
    room = work_memory(None, LEAST_LIMIT + BEYOND_LIMIT, whom="tables")
    with Connection(room) as connection:
        known = getattr(tables, "table_dict", None)
        if known is None:
            described = frame_tables(connection, tables)
        else:
            described = relbench_tables(connection, known)
            times = {
                **{name: None for name in known},
                **_relbench_times(known),
                **(times or {}),
            }
        schema = plan(
            described,
            connection,
            keys=keys,
            times=times,
            missing=missing,
            fields=fields,
            infer=known is None,
        )
        for note in schema.notes:
            _log.warning("%s", note)
        return build(connection, schema, None, room, orphans=orphans)


def frame_tables(connection: Connection, tables: Mapping[str, Any]) -> list[Table]:
    """Register tables by name; they are read in place."""
    if not isinstance(tables, Mapping):
        raise TypeError(f"tables must be a mapping from name to table, got {type(tables).__name__}")
    return [
        registered(connection, name, rows, f"pagraph table {place}")
        for place, (name, rows) in enumerate(tables.items())
    ]


def relbench_tables(connection: Connection, tables: Mapping[str, Any]) -> list[Table]:
    """The tables of RelBench's ``Database``, with its keys."""
    found = []
    keys = {name: table.pkey_col for name, table in tables.items()}
    for place, (name, table) in enumerate(tables.items()):
        rows = registered(connection, name, table.df, f"pagraph table {place}")
        links = tuple(
            ForeignKey((column,), other, (keys[other],))
            for column, other in table.fkey_col_to_pkey_table.items()
        )
        key = () if table.pkey_col is None else (table.pkey_col,)
        found.append(Table(name, rows.relation, rows.columns, key, links, (), is_ordered=True))
    return found


def _relbench_times(tables: Mapping[str, Any]) -> dict[str, str]:
    return {name: t.time_col for name, t in tables.items() if t.time_col is not None}


def registered(connection: Connection, name: Any, rows: Any, relation: str) -> Table:
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
