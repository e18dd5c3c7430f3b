"""Tables of a database, copied into our own connection in one transaction."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import closing, contextmanager
from dataclasses import replace

from ...errors import FormatError, MissingDependencyError, how_to_install
from ...system.progress import Progress
from ...system.units import one_line, printable
from .choices import Choice
from .connection import Connection
from .dialects import our_error
from .location import Location
from .schema import Table, alike
from .sources import Session, SourceTable

# Seconds between attempts to stop threads.
_STOPPING = 0.05


def database_tables(
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
    return [
        Table(t.name, relation, connection.columns(relation), t.primary_key, t.foreign_keys)
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
        # Imported here, as below, since each needs its own driver.
        from .duckdb_file import DuckDBSession

        session: Session = DuckDBSession(location, connection)
        try:
            yield session
        finally:
            session.close()
        return
    try:
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
