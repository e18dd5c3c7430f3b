"""DuckDB's own files, attached to our connection and read in place."""

from __future__ import annotations

from dataclasses import replace

from .connection import Connection, quoted, text_literal
from .location import Location
from .schema import ForeignKey
from .sources import SourceColumn, SourceTable

_ALIAS = "pagraph file"
_SCHEMA = "main"


class DuckDBSession:
    """A DuckDB file; a :class:`Session`.

    No other process can write to the file while it is attached, so all tables are of one moment.
    """

    readers = 1

    def __init__(self, location: Location, connection: Connection) -> None:
        self._connection = connection
        path = text_literal(location.uri)
        connection.run(f"attach {path} as {quoted(_ALIAS)} (read_only)")
        # Otherwise a view could read any file of this machine.
        connection.run("set enable_external_access = false")

    def tables(self, schema: str | None) -> list[SourceTable]:
        """Tables and views of a schema."""
        wanted = schema or _SCHEMA
        of_file = f"database_name = {text_literal(_ALIAS)} and schema_name = {text_literal(wanted)}"
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
    return ".".join(map(quoted, (_ALIAS, schema, name)))
