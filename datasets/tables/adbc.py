"""Databases through ADBC, Arrow's drivers: their tables' descriptions, and rows in streams."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Any
from urllib.parse import quote

import adbc_driver_manager as adbc
import nanoarrow

from ...errors import FormatError, MissingDependencyError, how_to_install
from ...system.units import printable
from ..numbers import WIDE
from .connection import Connection, quoted, text_literal
from .location import Location
from .schema import ForeignKey
from .sources import (
    SQLITE_SEEDS,
    Rows,
    Session,
    SourceColumn,
    SourceTable,
    clashing_column,
    lookup,
    postgresql_value,
    sqlite_kind,
    staged_value,
)
from .texts import is_gap

_VIEWS = ("view", "materialized view", "system view")
# Limit of row numbers, since users may set any rowid.
_MOST_ROWS = 2**40
# Rows per SQLite batch: the driver's default; and four of DuckDB's vectors, which is a fifth
# faster, for rows of fewer bytes on average.
_FEW_ROWS = 1024
_MANY_ROWS = 8192
_SHORT_ROW = 4096
_ROW_NUMBERS = ("rowid", "_rowid_", "oid")
_NOT_LOADED = "[Driver Manager] Could not load"
_TABLES = ("table", "base table", "partitioned table", "foreign table", "local temporary")
# Begins a transaction's snapshot: SQLite takes the lock with the first row.
_FIRST_READ = "select count(*) from sqlite_schema"
_NO_TRUST = "pragma trusted_schema = off"


def session_of(location: Location, connection: Connection) -> Session:
    """Open a database and begin a read-only transaction."""
    kinds: dict[str, type[_Session]] = {"sqlite": SQLiteSession, "postgresql": PostgreSQLSession}
    return kinds.get(location.driver, _Session)(location, connection)


class _Session:
    """A database of any ADBC driver; a :class:`~.sources.Session`."""

    _second: Any = None
    """What is closed with the second connection; None without one."""

    def __init__(self, location: Location, connection: Connection) -> None:
        self._connection = connection
        self._location = location
        self.unfit: dict[str, dict[str, str]] = {}
        # Connections that copy no table now.
        self._free: SimpleQueue[Any] = SimpleQueue()
        try:
            self._database = adbc.AdbcDatabase(driver=_driver(location.driver), uri=self._uri())
        except adbc.Error as error:
            if _NOT_LOADED not in str(error):
                raise
            raise MissingDependencyError(
                f"{printable(location.shown)} needs the ADBC driver {printable(location.driver)}, "
                f"which is not installed: pip install adbc-driver-{printable(location.driver)}, if "
                "there is one"
            ) from None
        try:
            self._link = adbc.AdbcConnection(self._database)
        except BaseException:
            self._database.close()
            raise
        try:
            self._begin()
            second = self._second_link()
        except BaseException:
            self.close()
            raise
        self._free.put(self._link)
        if second is not None:
            self._free.put(second)
        self.readers = 1 if second is None else 2

    def _uri(self) -> str:
        return self._location.uri

    def _begin(self) -> None:
        # One transaction for all tables, so that they are of one moment as far as the database
        # supports it. PostgreSQL and SQLite are set up for that below.
        self._link.set_autocommit(False)

    def _second_link(self) -> Any:
        """A second connection in a transaction of the same moment, or None."""
        return None

    def _close_second(self) -> None:
        if self._second is not None:
            self._second.close()
            self._second = None

    def close(self) -> None:
        """End the transactions."""
        self._close_second()
        self._link.close()
        self._database.close()

    # -- descriptions of tables --------------------------------------------------------------------

    def tables(self, schema: str | None) -> list[SourceTable]:
        """Tables and views of a schema, or of the only one."""
        stream = self._link.get_objects(adbc.GetObjectsDepth.ALL, db_schema=schema)
        found = []
        for catalog in _rows_of(stream):
            for part in catalog["catalog_db_schemas"] or ():
                name = part["db_schema_name"] or ""
                if schema is None or name == schema:
                    found += [(name, table) for table in part["db_schema_tables"] or ()]
        return [
            self._described(part, table)
            for part, table in found
            if table["table_type"].lower() in (*_TABLES, *_VIEWS)
        ]

    def _described(self, schema: str, table: Mapping[str, Any]) -> SourceTable:
        columns = sorted(table["table_columns"] or (), key=lambda c: c["ordinal_position"] or 0)
        key: tuple[str, ...] = ()
        links = []
        for constraint in table["table_constraints"] or ():
            names = tuple(constraint["constraint_column_names"] or ())
            if constraint["constraint_type"] == "PRIMARY KEY":
                key = names
            elif constraint["constraint_type"] == "FOREIGN KEY":
                link = _link(names, constraint["constraint_column_usage"] or (), schema)
                if link not in links:
                    links.append(link)
        name = table["table_name"]
        return SourceTable(
            name,
            ".".join(quoted(part) for part in (schema, name) if part),
            tuple(SourceColumn(c["column_name"], c["xdbc_type_name"] or "") for c in columns),
            key,
            tuple(links),
            is_view=table["table_type"].lower() in _VIEWS,
        )

    # -- rows --------------------------------------------------------------------------------------

    def copy(self, table: SourceTable, relation: str) -> None:
        """Stream the rows of a table into a relation of our connection."""
        link = self._free.get()
        try:
            self._copy(link, table, relation)
        finally:
            self._free.put(link)

    def _copy(self, link: Any, table: SourceTable, relation: str) -> None:
        columns = ", ".join(quoted(column.name) for column in table.columns)
        self._load(link, relation, f"select {columns} from {table.place}", "*")

    def _load(self, link: Any, relation: str, query: str, values: str) -> None:
        """Make a relation of ``values`` from the rows of a query."""
        with adbc.AdbcStatement(link) as statement:
            self._connection.load(relation, _stream_of(statement, query), values)

    def _ask(self, query: str) -> Rows:
        """The rows of a small result."""
        return ask(self._link, query)


class SecondReader:
    """A second connection to an SQLite file, which a first one reads in one transaction.

    It begins twice: :meth:`open` before the first connection's transaction, and :meth:`join` after
    it. No commit between these two means that both transactions are of one moment, with a log of
    writes (WAL) or a journal. It waits for no writer, who may be waiting for the first connection.

    Attributes:
        link: The connection; None if the first one must read alone.
    """

    def __init__(self, path: str) -> None:
        self.link: Any = None
        self._path = path
        # Before the first connection opens it: the file may be replaced by another.
        self._file = os.stat(path)
        self._version = -1

    def open(self, database: Any) -> None:
        """Connect, and note the version of the file before the first transaction begins."""
        try:
            self.link = adbc.AdbcConnection(database)
            ask(self.link, _NO_TRUST)
            ask(self.link, "pragma busy_timeout = 0")
            self._version = self._data_version()
        except adbc.Error:
            self.close()

    def join(self) -> None:
        """Begin a transaction, and close the connection if that is not the first one's snapshot."""
        if self.link is None:
            return
        is_same = False
        with contextlib.suppress(adbc.Error, OSError):
            self.link.set_autocommit(False)
            ask(self.link, _FIRST_READ)
            is_same = self._data_version() == self._version and os.path.samestat(
                self._file, os.stat(self._path)
            )
        if not is_same:
            self.close()

    def close(self) -> None:
        """End the transaction."""
        if self.link is not None:
            self.link.close()
            self.link = None

    def _data_version(self) -> int:
        """A number that changes with commits of others (https://www.sqlite.org/pragma.html)."""
        ((version,),) = (row.values() for row in ask(self.link, "pragma data_version"))
        return int(version)


class SQLiteSession(_Session):
    """An SQLite file, where each value has its own type, and columns only have an affinity."""

    def __init__(self, location: Location, connection: Connection) -> None:
        self._second = SecondReader(location.uri)
        super().__init__(location, connection)

    def _uri(self) -> str:
        # A read-only URI, so that the file is never created or written. Quoted for any path.
        return f"file:{quote(self._location.uri)}?mode=ro"

    def _begin(self) -> None:
        # Unsafe functions in views and columns of an untrusted file do not run.
        self._ask(_NO_TRUST)
        # Milliseconds to wait for a writer.
        self._ask("pragma busy_timeout = 10000")
        if self._connection.has_spare_thread:
            self._second.open(self._database)
        self._link.set_autocommit(False)
        self._ask(_FIRST_READ)
        self._second.join()

    def _second_link(self) -> Any:
        return self._second.link

    def tables(self, schema: str | None) -> list[SourceTable]:
        """Tables and views, with generated columns, and keys under their declared names."""
        if schema is not None:
            raise ValueError(f"schema must not be given for SQLite, got {schema!r}")
        # Not through the driver, which fails for all tables if one view is broken. Other types
        # belong to search indexes.
        listed = self._ask(
            "select name, type, wr from pragma_table_list where schema = 'main' "
            "and type in ('table', 'view') and name not like 'sqlite^_%' escape '^'"
        )
        names = [row["name"] for row in listed]
        return [
            self._view(row["name"])
            if row["type"] == "view"
            else self._table(row["name"], names, is_counted=not row["wr"])
            for row in listed
        ]

    def _table(self, name: str, names: Sequence[str], *, is_counted: bool) -> SourceTable:
        listed = self._columns(name)
        own = [row["name"] for row in listed]
        keyed = sorted((row for row in listed if row["pk"]), key=lambda row: row["pk"])
        links = []
        for link in self._links(name):
            other = lookup(link.table, names)
            theirs = [row["name"] for row in self._columns(other)]
            to = tuple(lookup(c, theirs) for c in link.to)
            links.append(ForeignKey(tuple(lookup(c, own) for c in link.columns), other, to))
        last = 1
        hidden = {column.lower() for column in own}
        # Columns of such names hide the row number.
        row_number = next((n for n in _ROW_NUMBERS if is_counted and n not in hidden), None)
        if row_number is not None:
            # An estimate: SQLite would count rows one by one.
            (found,) = self._ask(f"select max({row_number}) as last from {quoted(name)}")
            last = min(found["last"] or 1, _MOST_ROWS)
        return SourceTable(
            name,
            quoted(name),
            tuple(_sqlite_column(row) for row in listed),
            tuple(row["name"] for row in keyed),
            tuple(links),
            rows=max(last, 1),
        )

    def _view(self, name: str) -> SourceTable:
        try:
            listed = self._columns(name)
        except adbc.Error:
            # A broken view is an error only if it is read.
            listed = []
        columns = tuple(_sqlite_column(row) for row in listed)
        return SourceTable(name, quoted(name), columns, is_view=True)

    def _columns(self, name: str) -> Rows:
        # Includes generated columns, which the driver hides.
        return self._ask(
            "select name, type, pk from "
            f"pragma_table_xinfo({text_literal(name)}) where hidden <> 1 order by cid"
        )

    def _links(self, name: str) -> list[ForeignKey]:
        """Foreign keys as declared; ``to`` is empty if the target's columns are not named."""
        listed = self._ask(
            'select id, "table" as other, "from" as own, "to" as there '
            f"from pragma_foreign_key_list({text_literal(name)}) order by id, seq"
        )
        found = []
        for number in dict.fromkeys(row["id"] for row in listed):
            rows = [row for row in listed if row["id"] == number]
            there = tuple(row["there"] for row in rows if row["there"])
            own = tuple(row["own"] for row in rows)
            found.append(ForeignKey(own, rows[0]["other"], there))
        return found

    def _copy(self, link: Any, table: SourceTable, relation: str) -> None:
        """Stream rows with the columns' declared types, or with those of the values."""
        columns = table.columns
        # Columns without a declared type may hold anything, so look at them first.
        if any(column.kind == "any" for column in columns):
            columns = self._looked_at(link, table, columns)
        try:
            self._stream(link, table, columns, relation)
            kinds = self._connection.columns(relation)
            # In its first batch the driver makes texts of numbers, as it prints them.
            is_mixed = any(kinds[c.name] == "VARCHAR" and _holds_numbers(c) for c in columns)
        except FormatError as error:
            is_mixed = clashing_column(str(error)) is not None
            if not is_mixed:
                raise
        if is_mixed:
            self._connection.run(f"drop table if exists {quoted(relation)}")
            # Only now: it is rarely needed, and takes a pass over the table.
            columns = self._looked_at(link, table, columns, every=True)
            self._stream(link, table, columns, relation)
        self._find_rounded(link, table, relation)

    def _find_rounded(self, link: Any, table: SourceTable, relation: str) -> None:
        """Find integers that the driver rounded, since other rows have fractions."""
        kinds = self._connection.columns(relation)
        floats = [
            column.name
            for column in table.columns
            if kinds[column.name] == "DOUBLE" and column.kind != "real"
        ]
        if not floats:
            return
        parts = []
        for place, name in enumerate(floats):
            value = quoted(name)
            is_large = f"{value} not between {1 - WIDE} and {WIDE - 1}"
            parts.append(
                f"max(case when typeof({value}) = 'integer' and {is_large} then {value} end) "
                f"as large{place}"
            )
        (found,) = ask(link, f"select {', '.join(parts)} from {table.place}")
        for place, name in enumerate(floats):
            large = found[f"large{place}"]
            if large is not None:
                self.unfit.setdefault(table.name, {})[name] = (
                    f"integers of 2**53 and more would be rounded beside fractions, got {large}"
                )

    def _stream(
        self, link: Any, table: SourceTable, columns: Sequence[SourceColumn], relation: str
    ) -> None:
        # The driver infers types from the first rows, and fails for columns that begin with missing
        # values. So a first row of ours sets the types.
        seeds = ", ".join(f"{SQLITE_SEEDS[c.kind]} as {quoted(c.name)}" for c in columns)
        given = ", ".join(_sqlite_value(column) for column in columns)
        query = f"select {seeds} union all select {given} from {table.place}"
        values = ", ".join(staged_value(table.name, column) for column in columns)
        # Larger batches save overhead, mostly in DuckDB, but their rows are all in memory. Their
        # size is the same for two readers: the driver prints numbers in columns of texts otherwise
        # in its first batch.
        size = os.path.getsize(self._location.uri)
        batch = _MANY_ROWS if size < table.rows * _SHORT_ROW else _FEW_ROWS
        # A column of this name hides DuckDB's own row numbers.
        hides = any(column.name.lower() == "rowid" for column in columns)
        with adbc.AdbcStatement(link) as statement:
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(batch)})
            stream = _stream_of(statement, query)
            self._connection.load(relation, stream, values, "offset 1" if hides else "")
        # Not by `offset` where there is another way: it runs the driver and DuckDB in one thread.
        if not hides:
            self._connection.run(f"delete from {quoted(relation)} where rowid = 0")

    def _looked_at(
        self,
        link: Any,
        table: SourceTable,
        columns: Sequence[SourceColumn],
        *,
        every: bool = False,
    ) -> tuple[SourceColumn, ...]:
        """Columns with the kinds of their values; without ``every``, only for untyped ones."""
        wanted = [c for c in columns if every or c.kind == "any"]
        parts = []
        for place, column in enumerate(wanted):
            value = quoted(column.name)
            for kind in ("integer", "real", "text", "blob"):
                parts.append(f"max(typeof({value}) = '{kind}') as {kind}{place}")
            # Among numbers, an empty text or N/A is a missing one.
            parts.append(f"max(typeof({value}) = 'text' and not {is_gap(value)}) as word{place}")
        (held,) = ask(link, f"select {', '.join(parts)} from {table.place}")
        found = {}
        for place, column in enumerate(wanted):
            kinds = {k for k in ("integer", "real", "text", "blob") if held[f"{k}{place}"]}
            if kinds & {"integer", "real"} and not held[f"word{place}"]:
                kinds.discard("text")
            if {"text", "real"} <= kinds:
                self.unfit.setdefault(table.name, {})[column.name] = (
                    "some of its values are texts, and some are fractions"
                )
            found[column.name] = _kind_of_values(table, column, kinds)
        return tuple(
            replace(column, kind=found.get(column.name, column.kind)) for column in columns
        )


def _sqlite_column(row: Mapping[str, Any]) -> SourceColumn:
    declared = row["type"] or ""
    return SourceColumn(row["name"], declared, sqlite_kind(declared))


def _holds_numbers(column: SourceColumn) -> bool:
    return column.kind in ("integer", "real", "number", "bool")


def _sqlite_value(column: SourceColumn) -> str:
    """The SQL of SQLite for a column, where texts among numbers may stand for missing values."""
    value = quoted(column.name)
    declared = replace(column, kind=sqlite_kind(column.declared))
    read = value
    if column.kind == "text" and declared.kind != "text":
        # Texts before the driver prints numbers.
        read = f"cast({value} as text)"
    if not _holds_numbers(column) and not _holds_numbers(declared):
        return read
    return f"case when typeof({value}) <> 'text' or not {is_gap(value)} then {read} end"


def _kind_of_values(table: SourceTable, column: SourceColumn, kinds: set[str]) -> str:
    """The kind of a column with values of these types."""
    shown = printable(f"{table.name}.{column.name}")
    if kinds == {"blob"}:
        return "blob"
    if "blob" in kinds:
        raise FormatError(
            f"{shown} must hold values of one type, got bytes and {', '.join(kinds - {'blob'})}"
        )
    if column.kind == "time":
        return "time"
    if "text" in kinds:
        return "text"
    if "real" in kinds:
        return "real"
    return "integer" if kinds else column.kind.replace("any", "text")


class PostgreSQLSession(_Session):
    """A PostgreSQL database."""

    def _begin(self) -> None:
        self._begin_on(self._link)

    def _begin_on(self, link: Any, snapshot: str | None = None) -> None:
        link.set_autocommit(False)
        # One snapshot for all tables, despite concurrent writes.
        ask(link, "set transaction isolation level repeatable read, read only")
        if snapshot is not None:
            ask(link, f"set transaction snapshot {text_literal(snapshot)}")
        # The text of times and floats must not depend on the user's settings.
        ask(link, "set local datestyle = 'ISO'")
        ask(link, "set local extra_float_digits = 1")

    def _second_link(self) -> Any:
        """A connection in the first one's snapshot; None if the server gives none."""
        if not self._connection.has_spare_thread:
            return None
        try:
            ((snapshot,),) = (row.values() for row in self._ask("select pg_export_snapshot()"))
        except adbc.Error:
            # Relatives of PostgreSQL may lack it, and the error has ended the transaction.
            self._link.rollback()
            self._begin()
            return None
        # Fails if no more connections are allowed, or a pool has led this one to another server.
        try:
            self._second = adbc.AdbcConnection(self._database)
            self._begin_on(self._second, snapshot)
        except adbc.Error:
            self._close_second()
        return self._second

    def tables(self, schema: str | None) -> list[SourceTable]:
        """Tables and views of a schema, with PostgreSQL's types."""
        wanted = "public" if schema is None else schema
        literal = text_literal(wanted)
        if not self._ask(f"select 1 from pg_namespace where nspname = {literal}"):
            raise ValueError(f"schema must be one of the database, got {printable(wanted)!r}")
        # Partitions are skipped: their rows are already in the table.
        rows = self._ask(
            "select c.relname as name, greatest(c.reltuples, 1)::float8 as count from pg_class c "
            f"join pg_namespace n on n.oid = c.relnamespace where n.nspname = {literal} and "
            "not c.relispartition and c.relkind in ('r', 'p', 'v', 'm', 'f')"
        )
        counts = {row["name"]: int(row["count"]) for row in rows}
        kinds = self._kinds(literal)
        found = []
        for table in super().tables(wanted):
            if table.name not in counts:
                continue
            columns = tuple(
                SourceColumn(c.name, *kinds[table.name, c.name])
                for c in table.columns
                if (table.name, c.name) in kinds
            )
            found.append(replace(table, columns=columns, rows=counts[table.name]))
        return found

    def _kinds(self, schema: str) -> dict[tuple[str, str], tuple[str, str]]:
        """The declared type of each column, and the base type of domains."""
        rows = self._ask(
            "select c.relname as name, a.attname as col, "
            "format_type(a.atttypid, a.atttypmod) as declared, "
            "case when t.typtype = 'e' then 'enum' when t.typtype = 'd' "
            "then format_type(t.typbasetype, t.typtypmod) "
            "else format_type(a.atttypid, a.atttypmod) end as kind "
            "from pg_attribute a join pg_class c on c.oid = a.attrelid "
            "join pg_namespace n on n.oid = c.relnamespace join pg_type t on t.oid = a.atttypid "
            f"where n.nspname = {schema} and a.attnum > 0 and not a.attisdropped"
        )
        return {(row["name"], row["col"]): (row["declared"], row["kind"]) for row in rows}

    def _copy(self, link: Any, table: SourceTable, relation: str) -> None:
        """Stream rows; types without an Arrow equivalent are cast in the query."""
        values = ", ".join(
            f"{postgresql_value(column)} as {quoted(column.name)}" for column in table.columns
        )
        kept = ", ".join(staged_value(table.name, column) for column in table.columns)
        self._load(link, relation, f"select {values} from {table.place}", kept)
        for column in table.columns:
            if column.kind.startswith(("numeric", "money")):
                self._type_numbers(table, relation, column.name)

    def _type_numbers(self, table: SourceTable, relation: str, name: str) -> None:
        """Give numeric values, which came as text, the type that holds them."""
        value = quoted(name)
        rows = quoted(relation)
        digits = f"regexp_full_match({value}, '-?[0-9]+')"
        whole, wrong = self._connection.run(
            f"select coalesce(bool_and({digits}), true), "
            f"any_value({value}) filter ({digits} and try_cast({value} as hugeint) is null) "
            f"from {rows}"
        )[0]
        if whole and wrong is not None:
            raise FormatError(
                f"{printable(f'{table.name}.{name}')} must hold integers of 64 bits, got {wrong}"
            )
        kind = "HUGEINT" if whole else "DOUBLE"
        self._connection.run(f"alter table {rows} alter {value} type {kind}")


def _driver(name: str) -> str:
    """The library of a driver: from its Python package, or else found by the driver manager."""
    try:
        package = importlib.import_module(f"adbc_driver_{name}")
        return str(package._driver_path())
    except (ImportError, AttributeError):
        pass
    if name in ("sqlite", "postgresql"):
        raise MissingDependencyError(
            f"databases of this kind need adbc-driver-{name}: {how_to_install('databases')}"
        )
    return name


def _link(columns: tuple[str, ...], usage: Sequence[Mapping[str, Any]], schema: str) -> ForeignKey:
    """A foreign key; the target's name includes its schema if that differs."""
    first = usage[0]
    other = first["fk_table"]
    place = first["fk_db_schema"] or ""
    name = other if place == schema else f"{place}.{other}"
    return ForeignKey(columns, name, tuple(part["fk_column_name"] or "" for part in usage))


def ask(link: Any, query: str) -> Rows:
    """The rows of a small result of a connection; the statement has ended."""
    with adbc.AdbcStatement(link) as statement:
        return _rows_of(_stream_of(statement, query))


def _stream_of(statement: Any, query: str) -> Any:
    """The rows of a query, as an Arrow stream that lives as long as its statement."""
    statement.set_sql_query(query)
    stream, _ = statement.execute_query()
    return stream


def _rows_of(stream: Any) -> Rows:
    """All rows of a small stream."""
    found: Rows = nanoarrow.ArrayStream(stream).read_all().to_pylist()
    return found
