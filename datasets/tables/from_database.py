"""Graphs from databases: tables become vertices, keys edges, columns fields, and one the task."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import FormatError
from ...graph.graph import Graph
from ...system.budget import work_memory
from ...system.checks import StrPath
from ...system.progress import Progress, part_of
from ..edge_sort import LEAST_ROOM, InFiles
from ..numbers import float32_holds
from ..paths import VertexSet
from .builder import build, with_counts
from .choices import Choice, Filling, Missing, Named, Task, check_choices, named
from .columns import family
from .connection import BEYOND_LIMIT, LEAST_LIMIT, Connection, quoted
from .database import database_tables
from .dialects import dated_value, our_error
from .location import location_of
from .planning import plan
from .schema import Schema, Table
from .task import set_task, with_label

_log = logging.getLogger("pagraph.datasets")

LEAST_MEMORY = LEAST_LIMIT + BEYOND_LIMIT + LEAST_ROOM
"""Minimal bytes beyond what the process holds, for rows in work and for edges."""

# Shares of the time until rows are copied and until they are planned, measured for 10 million
# SQLite rows in 5 tables.
_COPIED = 0.5
_PLANNED = 0.7


def read_database(
    source: StrPath,
    *,
    files: InFiles | None = None,
    progress: Progress | None = None,
    orphans: str = "error",
    **options: Any,
) -> Graph:
    """Make a graph from a database.

    Args:
        source: An SQLite or DuckDB file, or a URL; see :func:`~.location.location_of`.
        files: For columns and edges larger than memory, with their own progress. Rows get as much
            memory as these edges.
        progress: Called with the work done and all work.
        orphans: As in ``Graph.from_tables``.
        options: ``tables``, ``skip_tables``, ``skip_columns`` and ``schema`` of :class:`Choice`;
            ``keys``, ``times`` and ``missing`` of ``Graph.from_tables``; ``task`` and its
            ``parts``, see :class:`Task`.

    Raises:
        ConnectionError: A server cannot be reached, refuses, or is lost.
        FormatError: As in ``Graph.from_tables``; or the database is damaged, or has no table.
        MissingDependencyError: A driver is not installed.
        ValueError: An option has unknown names, or is ambiguous.
    """
    check_choices({"orphans": orphans, **options})
    scratch = None
    inside = None
    if files is None:
        room = work_memory(None, LEAST_MEMORY, whom="a database") // 2
    else:
        room = files.room
        progress = files.progress
        scratch = files.scratch
        # Spill into the unfinished folder, which is removed if the process is killed.
        inside = scratch.folder
    step = part_of(progress, 0, _PLANNED)
    # A quarter is for kernels, which take 130 MiB, and for dirty pages.
    rows = 2 * room * 3 // 4
    with _planned(source, rows, inside, progress=step, **options) as planned:
        connection, schema, task = planned
        for note in schema.notes:
            _log.warning("%s", note)
        # From here on, rows share memory with edges.
        connection.limit(room)
        step = part_of(progress, _PLANNED, 1)
        edges = room // 2
        graph = build(connection, schema, scratch, edges, orphans=orphans, progress=step)
    # After the connection has freed its memory.
    if task is not None:
        set_task(graph, task, scratch)
    return graph


def database_schema(source: StrPath, *, memory: int | str | None = None, **options: Any) -> Schema:
    """The schema that a database would become; reads all its rows, and writes nothing."""
    check_choices(options)
    orphans = options.pop("orphans", None) or "error"
    room = work_memory(memory, LEAST_MEMORY, whom="a database")
    with _planned(source, room, **options) as (connection, schema, _task):
        connection.limit(room // 2)
        return with_counts(connection, schema, room // 2, orphans=orphans)


@contextmanager
def _planned(
    source: StrPath,
    room: int,
    inside: Path | None = None,
    *,
    tables: Sequence[str] = (),
    skip_tables: Sequence[str] = (),
    skip_columns: Sequence[str] = (),
    schema: str | None = None,
    keys: Named = (),
    times: Named = (),
    missing: Missing = None,
    task: str | None = None,
    parts: Mapping[str, VertexSet | None] | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[Connection, Schema, Any]]:
    """A connection with the rows, their schema, and the task."""
    choice = Choice(tuple(tables), tuple(skip_tables), tuple(skip_columns), schema)
    with Connection(room, inside) as connection:
        share = _COPIED / _PLANNED
        step = part_of(progress, 0, share)
        location = location_of(source)
        with ThreadPoolExecutor(1) as pool:
            # Compile the first kernel, which takes a second, while rows are copied.
            pool.submit(float32_holds, np.zeros(1))
            described = database_tables(location, connection, choice, step)
        columns = {table.name: list(table.columns) for table in described}
        when = named("times", times, columns.__contains__)
        filling = Filling.of(missing)
        if task is not None:
            wanted = Task.parse(task, parts or {})
            seeds, label, time = wanted.names(columns)
            when = _with_time(when, seeds, time)
            # A missing label: the answer is not known yet.
            filling = filling.with_number(seeds, label, -1)
        described = [_dated(connection, table, when.get(table.name)) for table in described]
        found = plan(
            described,
            connection,
            keys=named("keys", keys, _is_key(columns)),
            times=when,
            missing=filling,
        )
        if not found.links:
            raise FormatError(
                "source must have a table that refers to another, or to itself, got "
                f"{len(described)} without a foreign key; "
                "pass keys={'TABLE.COLUMN': 'TABLE'} to name one"
            )
        asked = None
        if task is not None:
            found, asked = with_label(connection, found, seeds, label, wanted.shares)
        if progress is not None:
            progress(1, 1)
        yield connection, found, asked


def _dated(connection: Connection, table: Table, time: str | None) -> Table:
    """The table with its time column parsed, if that is text (as always in SQLite)."""
    if not time or family(table.columns.get(time, "")) != "text":
        return table
    relation = f"{table.relation} dated"
    value = dated_value(table.name, time)
    connection.run(
        f"create view {quoted(relation)} as "
        f"select * replace ({value} as {quoted(time)}) from {quoted(table.relation)}"
    )
    try:
        # Parse all of them, so that errors come here and not later.
        connection.run(f"select max({quoted(time)}) from {quoted(relation)}")
    except FormatError as error:
        said = our_error(str(error))
        raise FormatError(said or str(error)) from None
    return replace(table, relation=relation, columns={**table.columns, time: "TIMESTAMP"})


def _is_key(columns: Mapping[str, Sequence[str]]) -> Any:
    """A function that tells whether a name is a table, or "table.column"."""
    known = {*columns, *(f"{name}.{c}" for name, of_table in columns.items() for c in of_table)}
    return known.__contains__


def _with_time(times: dict[str, str | None], table: str, time: str) -> dict[str, str | None]:
    if not time:
        return times
    if times.get(table, time) != time:
        raise ValueError(
            f"task must have the time that times names for {table}, {times[table]!r}, got {time!r}"
        )
    return {**times, table: time}
