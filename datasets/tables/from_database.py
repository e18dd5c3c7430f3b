"""Graphs from databases: tables, all copied in one transaction, become vertices, and keys edges."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import FormatError, MissingDependencyError, how_to_install
from ...graph.graph import Graph
from ...system.budget import work_memory
from ...system.checks import StrPath
from ...system.progress import Progress, part_of
from ...system.units import one_line, printable
from ..edge_sort import LEAST_ROOM, InFiles
from ..numbers import float32_holds
from .assembly import Found, Wishes
from .builder import with_counts
from .choices import Choice, Named, check_choices, named
from .columns import family
from .connection import BEYOND_LIMIT, LEAST_LIMIT, Connection, quoted, text_literal
from .location import Location, location_of
from .planning import plan
from .schema import ForeignKey, Schema, Table, alike
from .sources import Session, SourceColumn, SourceTable, dated_value, our_error

LEAST_MEMORY = LEAST_LIMIT + BEYOND_LIMIT + LEAST_ROOM
"""Minimal bytes beyond what the process holds, for rows in work and for edges."""

# Shares of the time until rows are copied and until they are planned, measured for 10 million
# SQLite rows in 5 tables.
_COPIED = 0.5
_PLANNED = 0.7
# Seconds between attempts to stop threads.
_STOPPING = 0.05
# Names in our connection of an attached DuckDB file, and of the schema that is read by default.
_ATTACHED = "pagraph file"
_MAIN = "main"


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
            ``keys`` and ``times`` of ``Graph.from_tables``; those of :class:`~.assembly.Wishes`.

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
    with _planned(source, rows, inside, progress=step, **options) as (connection, schema, found):
        # From here on, rows share memory with edges.
        connection.limit(room)
        step = part_of(progress, _PLANNED, 1)
        edges = room // 2
        graph, gaps = found.graph(
            connection, schema, scratch, edges, orphans=orphans, progress=step
        )
    # After the connection has freed its memory.
    found.finish(graph, gaps, scratch)
    return graph


def database_schema(source: StrPath, *, memory: int | str | None = None, **options: Any) -> Schema:
    """The schema that a database would become; reads all its rows, and writes nothing."""
    check_choices(options)
    orphans = options.pop("orphans", None) or "error"
    room = work_memory(memory, LEAST_MEMORY, whom="a database")
    with _planned(source, room, **options) as (connection, schema, _):
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
    progress: Progress | None = None,
    **wishes: Any,
) -> Iterator[tuple[Connection, Schema, Found]]:
    """A connection with the rows, their schema, and what is wished of them."""
    choice = Choice(tuple(tables), tuple(skip_tables), tuple(skip_columns), schema)
    with Connection(room, inside) as connection:
        share = _COPIED / _PLANNED
        step = part_of(progress, 0, share)
        location = location_of(source)
        with ThreadPoolExecutor(1) as pool:
            # Compile the first kernel, which takes a second, while rows are copied.
            pool.submit(float32_holds, np.zeros(1))
            described = _database_tables(location, connection, choice, step)
        columns = {table.name: list(table.columns) for table in described}
        when = named("times", times, columns.__contains__)
        found = Wishes(**wishes).found_in(columns)
        when = found.times(when)
        described = [_dated(connection, table, when.get(table.name)) for table in described]
        made = plan(
            described,
            connection,
            keys=named("keys", keys, _is_key(columns)),
            times=when,
            missing=found.missing,
            words=found.words,
        )
        if not made.links:
            raise FormatError(
                "source must have a table that refers to another, or to itself, got "
                f"{len(described)} without a foreign key; "
                "pass keys={'TABLE.COLUMN': 'TABLE'} to name one"
            )
        made = found.with_label(connection, made)
        if progress is not None:
            progress(1, 1)
        yield connection, made, found


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


def _database_tables(
    location: Location,
    connection: Connection,
    choice: Choice,
    progress: Progress | None = None,
) -> list[Table]:
    """Copy a consistent snapshot of a database's tables into a connection, which may spill.

    A DuckDB file is attached instead, and read in place.

    Raises:
        ConnectionError: A server cannot be reached, refuses, or is lost.
        FormatError: The database is damaged, has no table, or a column violates its type.
        MissingDependencyError: A driver is not installed.
        ValueError: ``choice`` has unknown names.
    """
    with _open(location, connection) as session:
        listed = sorted(session.tables(choice.schema), key=lambda table: table.name)
        chosen = _chosen(listed, choice)
        relations = [f"pagraph source {place}" for place in range(len(chosen))]
        total = sum(table.rows for table in chosen)
        done = 0
        # Closed before the session is, also after an error.
        with closing(_copied(session, connection, chosen, relations)) as copied:
            for rows in copied:
                done += rows
                if progress is not None:
                    progress(done, total)
        unfit = session.unfit
    return [
        Table(
            t.name,
            relation,
            connection.columns(relation),
            t.primary_key,
            t.foreign_keys,
            unfit=unfit.get(t.name, {}),
        )
        for t, relation in zip(chosen, relations, strict=True)
    ]


def _copied(
    session: Session,
    connection: Connection,
    tables: Sequence[SourceTable],
    relations: Sequence[str],
) -> Generator[int]:
    """Copy tables into relations; yields the estimated rows of each when it is there."""
    if session.readers == 1:
        for table, relation in zip(tables, relations, strict=True):
            session.copy(table, relation)
            yield table.rows
        return
    # The largest first, so that both readers end at about the same time.
    pairs = sorted(zip(tables, relations, strict=True), key=lambda pair: -pair[0].rows)
    with ThreadPoolExecutor(session.readers) as pool:
        copies: dict[Future[None], int] = {}
        try:
            for table, relation in pairs:
                copies[pool.submit(session.copy, table, relation)] = table.rows
            for copy in as_completed(copies):
                copy.result()
                yield copies[copy]
        finally:
            # After an error, or Ctrl-C: what has not begun need not be done.
            for copy in copies:
                copy.cancel()
            # Repeatedly, since a thread may be about to begin.
            while not all(copy.done() for copy in copies):
                connection.stop_loading()
                wait(copies, _STOPPING)


@contextmanager
def _open(location: Location, connection: Connection) -> Iterator[Session]:
    """Open the database; driver errors become ours, in one line and without secrets."""
    if location.driver == "duckdb":
        session: Session = _DuckDBSession(location, connection)
        try:
            yield session
        finally:
            session.close()
        return
    try:
        # Imported here, since it may not be installed.
        import adbc_driver_manager

        from .adbc import session_of
    except ImportError:
        raise MissingDependencyError(
            f"databases need adbc-driver-manager: {how_to_install('databases')}"
        ) from None
    try:
        session = session_of(location, connection)
        try:
            yield session
        finally:
            session.close()
    except adbc_driver_manager.Error as error:
        raise _driver_error(location, str(error)) from None
    except FormatError as error:
        # DuckDB was reading from a driver, and repeats its error.
        raise _driver_error(location, str(error), type(error)) from None


def _driver_error(
    location: Location, text: str, kind: type[Exception] = ConnectionError
) -> Exception:
    """Our error for a driver's."""
    said = our_error(text)
    if said is not None:
        return FormatError(printable(said))
    said = location.without_secrets(text)
    if location.path is not None:
        kind = FormatError
    elif any(sign in said for sign in _LOST):
        kind = ConnectionError
    elif kind is FormatError and not any(sign in said for sign in _RAW):
        return FormatError(said)
    return kind(f"{location.shown}: {one_line(Exception(said))}")


# libpq's messages for a lost server.
_LOST = (
    "server closed the connection",
    "terminating connection",
    "no connection to the server",
    "connection not open",
    "could not receive data",
    "SSL connection has been closed",
)
# Signs of raw driver messages, which do not name the source.
_RAW = ("[SQLite]", "[libpq]", "reading the stream", "arrow_scan")


def _chosen(tables: Sequence[SourceTable], choice: Choice) -> list[SourceTable]:
    """The tables to read, with their columns; ValueError for unknown names."""
    known = {table.name: table for table in tables}
    names = [printable(name) for name in known]
    for argument, wanted in (("tables", choice.tables), ("skip_tables", choice.skip_tables)):
        for name in wanted:
            if name not in known:
                raise ValueError(
                    f"{argument} must be of the database ({', '.join(names)}), got "
                    f"{printable(name)!r}"
                )
    found = [t for t in tables if t.name in choice.tables or not (choice.tables or t.is_view)]
    found = [table for table in found if table.name not in choice.skip_tables]
    if not found:
        raise FormatError("source must hold a table to read, got a database without one")
    skipped = {table.name: _skipped(table, choice) for table in found}
    for entry in choice.skip_columns:
        if not any(entry == f"{name}:{c}" for name, columns in skipped.items() for c in columns):
            raise ValueError(
                f"skip_columns must be TABLE:COLUMN of what is read, got {printable(entry)!r}"
            )
    return [_checked(_without(_in_order(table), skipped[table.name])) for table in found]


def _in_order(table: SourceTable) -> SourceTable:
    """A table with its foreign keys in column order, which gives the direction of pairs' edges."""
    places = {column.name: place for place, column in enumerate(table.columns)}
    links = sorted(table.foreign_keys, key=lambda link: [places.get(c, -1) for c in link.columns])
    return replace(table, foreign_keys=tuple(links))


def _skipped(table: SourceTable, choice: Choice) -> set[str]:
    return {c.name for c in table.columns if f"{table.name}:{c.name}" in choice.skip_columns}


def _without(table: SourceTable, skipped: set[str]) -> SourceTable:
    """A table without some columns, and without keys that need them."""
    if not skipped:
        return table
    columns = tuple(c for c in table.columns if c.name not in skipped)
    key = () if skipped & {*table.primary_key} else table.primary_key
    links = tuple(k for k in table.foreign_keys if not skipped & {*k.columns})
    return replace(table, columns=columns, primary_key=key, foreign_keys=links)


def _checked(table: SourceTable) -> SourceTable:
    """Refuse names that DuckDB does not support; all others are quoted."""
    if not table.columns:
        raise FormatError(f"{printable(table.name)} must have a column to read, got none")
    for column in table.columns:
        if not column.name or "\0" in column.name:
            raise FormatError(
                f"names of columns must be one character or more, got {column.name!r} in "
                f"{printable(table.name)}"
            )
    # DuckDB ignores case, PostgreSQL does not.
    twice = alike(column.name for column in table.columns)
    if twice is not None:
        raise FormatError(
            f"columns of {printable(table.name)} must differ by more than case, got "
            f"{printable(twice[0])} and {printable(twice[1])}: skip one of them"
        )
    return table


class _DuckDBSession:
    """A DuckDB file, attached to our connection and read in place; a :class:`Session`.

    No other process can write to the file while it is attached, so all tables are of one moment.
    """

    readers = 1

    def __init__(self, location: Location, connection: Connection) -> None:
        self.unfit: dict[str, dict[str, str]] = {}
        self._connection = connection
        path = text_literal(location.uri)
        connection.run(f"attach {path} as {quoted(_ATTACHED)} (read_only)")
        # Otherwise a view could read any file of this machine.
        connection.run("set enable_external_access = false")

    def tables(self, schema: str | None) -> list[SourceTable]:
        """Tables and views of a schema."""
        wanted = schema or _MAIN
        of_file = (
            f"database_name = {text_literal(_ATTACHED)} and schema_name = {text_literal(wanted)}"
        )
        listed = self._connection.run(
            f"select table_name, greatest(estimated_size, 1), false from duckdb_tables() "
            f"where {of_file} and not internal order by table_oid"
        )
        listed += self._connection.run(
            f"select view_name, 1, true from duckdb_views() where {of_file} and not internal"
        )
        named = {
            str(name): SourceTable(
                str(name), _place(wanted, str(name)), (), is_view=is_view, rows=int(rows)
            )
            for name, rows, is_view in listed
        }
        columns: dict[str, list[SourceColumn]] = {name: [] for name in named}
        for name, column, kind in self._connection.run(
            f"select table_name, column_name, data_type from duckdb_columns() where {of_file} "
            "order by table_name, column_index"
        ):
            if name in columns:
                columns[name].append(SourceColumn(str(column), str(kind), str(kind)))
        for name, found in columns.items():
            named[name] = replace(named[name], columns=tuple(found))
        self._set_keys(of_file, named)
        return list(named.values())

    def _set_keys(self, of_file: str, named: dict[str, SourceTable]) -> None:
        """Set the primary and foreign keys of tables."""
        for name, kind, columns, other, to in self._connection.run(
            "select table_name, constraint_type, constraint_column_names, referenced_table, "
            f"referenced_column_names from duckdb_constraints() where {of_file} "
            "and constraint_type in ('PRIMARY KEY', 'FOREIGN KEY') order by constraint_index"
        ):
            table = named[name]
            if kind == "PRIMARY KEY":
                named[name] = replace(table, primary_key=tuple(columns))
            else:
                link = ForeignKey(tuple(columns), str(other), tuple(to))
                named[name] = replace(table, foreign_keys=(*table.foreign_keys, link))

    def copy(self, table: SourceTable, relation: str) -> None:
        """Make a view of a table; nothing is copied."""
        columns = ", ".join(quoted(column.name) for column in table.columns)
        self._connection.run(
            f"create view {quoted(relation)} as select {columns} from {table.place}"
        )

    def close(self) -> None:
        """Do nothing: the file is read until the connection is closed."""


def _place(schema: str, name: str) -> str:
    return ".".join(map(quoted, (_ATTACHED, schema, name)))
