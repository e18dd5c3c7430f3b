"""Descriptions of tables, and the schema of their graph: types, keys, times and fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ...graph.fields import FieldNote, Fields
from ...graph.graph import EDGE_TYPE, EdgeType, Graph
from ...system import tables
from ...system.units import printable, shortened, words_text
from ..manifest import ColumnEntry


@dataclass(frozen=True)
class ForeignKey:
    """Columns of a table that hold the key of a row of another table, or of the same.

    Attributes:
        columns: The referring columns.
        table: Name of the referenced table.
        to: The referenced columns, in the same order.
    """

    columns: tuple[str, ...]
    table: str
    to: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table as its source describes it; its rows are a relation of a DuckDB connection.

    Attributes:
        name: Its name in the source.
        relation: The name of the table or view in the connection, unquoted.
        columns: DuckDB's type of each column, in order.
        primary_key: Columns of the declared primary key, or empty.
        foreign_keys: Declared foreign keys.
        time_columns: Columns that the source declares as the time of a row.
        is_ordered: Whether the order of rows is meaningful, as in a file or a DataFrame. Rows of
            other tables, such as a database's, are sorted by primary key.
        unfit: Columns that no field holds, and why, if the source knows that.
    """

    name: str
    relation: str
    columns: Mapping[str, str]
    primary_key: tuple[str, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    time_columns: tuple[str, ...] = ()
    is_ordered: bool = False
    unfit: Mapping[str, str] = field(default_factory=dict)


def alike(names: Iterable[str]) -> tuple[str, str] | None:
    """Two names that are equal apart from case, so that SQL confuses them, or None."""
    used: dict[str, str] = {}
    for name in names:
        folded = name.lower()
        if folded in used:
            return used[folded], name
        used[folded] = name
    return None


@dataclass(frozen=True)
class Column:
    """A column of a table, and the field that it becomes.

    Attributes:
        name: The column, or the field if only that is known.
        kind: DuckDB's type; empty if unknown.
        field: The field's name; empty if the column is left out.
        dtype: The field's dtype, as in NumPy and torch.
        sql: SQL for its values, with missing ones replaced.
        width: Numbers per row of a 2-D field; 0 for a 1-D field.
        unit: For times: "seconds", "microseconds" or "nanoseconds" since 1970.
        words: For codes: the words of codes 0, 1, ...
        why: Why it is left out, or how its values were changed.
        missing: Number of rows without a value.
        gap: SQL that tells where a number stands for a missing value; empty if nowhere.
        feature: What the features of a task have of it.
    """

    name: str
    kind: str = ""
    field: str = ""
    dtype: str = ""
    sql: str = ""
    width: int = 0
    unit: str = ""
    words: tuple[str, ...] = ()
    why: str = ""
    missing: int = 0
    gap: str = ""
    feature: str = ""

    @property
    def note(self) -> FieldNote | None:
        """The note of a field of times or codes."""
        return FieldNote(self.unit, self.words) if self.unit or self.words else None

    @property
    def holds(self) -> str:
        """Unit or words of the field, how it was changed, and what features have of it."""
        parts = [self.unit]
        if self.words:
            parts.append(words_text(self.words))
        return "; ".join(filter(None, [*parts, self.why, self.feature]))


@dataclass(frozen=True)
class VertexTable:
    """A table whose rows are the vertices of a type.

    Attributes:
        name: The table, and the vertex type.
        relation: Relation with the rows in vertex order.
        rows: Number of rows.
        key: Columns of the primary key, or empty.
        time: The column with the time of a row, or empty.
        columns: The other columns and their fields.
    """

    name: str
    relation: str
    rows: int
    key: tuple[str, ...] = ()
    time: str = ""
    columns: tuple[Column, ...] = ()


@dataclass(frozen=True)
class End:
    """One end of the edges that the rows of a table make.

    Attributes:
        table: The vertex type.
        columns: Columns of the row with the vertex's key; empty if the row is the vertex.
        to: The corresponding columns of ``table``.
    """

    table: str
    columns: tuple[str, ...] = ()
    to: tuple[str, ...] = ()


@dataclass(frozen=True)
class Link:
    """An edge type and its reverse: a foreign key, or a table of pairs.

    Attributes:
        edge_type: The edge type.
        reverse: The edge type of the other direction; None: it has none.
        table: The table whose rows are edges.
        relation: Relation with its rows.
        source: Source of the edges.
        target: Destination of the edges.
        count: Number of rows without a missing end.
        columns: The columns that become fields, or are left out; only without a reverse.
    """

    edge_type: EdgeType
    reverse: EdgeType | None
    table: str
    relation: str
    source: End
    target: End
    count: int
    columns: tuple[Column, ...] = ()

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """The edge types that it makes."""
        return (self.edge_type,) if self.reverse is None else (self.edge_type, self.reverse)


@dataclass(frozen=True)
class Schema(tables.Tabled):
    """The schema of a graph. ``str()`` and notebooks show vertex types, edge types and fields.

    Attributes:
        vertices: The vertex types.
        links: The edge types, each with its reverse.
        edges: Number of edges by edge type, if there are no links.
        edge_columns: Fields of the edges, likewise.
        notes: Inferences, one per line.
    """

    vertices: tuple[VertexTable, ...]
    links: tuple[Link, ...] = ()
    edges: Mapping[EdgeType, int] | None = None
    edge_columns: Mapping[EdgeType, tuple[Column, ...]] | None = None
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """Tables of types, edges and fields, and the inferences, for a terminal."""
        return str(self)

    def __str__(self) -> str:
        notes = "\n".join(tables.wrapped("\n".join(self.notes), tables.output_width()))
        return "\n\n".join(filter(None, [super().__str__(), notes]))

    def _repr_html_(self) -> str:
        from html import escape

        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return super()._repr_html_() + notes

    def _tables(self) -> Iterator[tables.Table]:
        head = ["vertices", "rows", "key", "time"]
        rows = [
            [printable(v.name), f"{v.rows:,}", joined(v.key) or "-", printable(v.time) or "-"]
            for v in self.vertices
        ]
        yield tables.Table([head, *rows], left=(0, 2, 3))
        edges = [[" / ".join(map(printable, t)), f"{n:,}"] for t, n in self._edge_counts()]
        if edges:
            yield tables.Table([["edges", "number"], *edges], left=(0,))
        fields = list(self._fields())
        if fields:
            title = ["field", "of", "dtype", "column", "holds"]
            yield tables.Table([title, *fields], left=(0, 1, 2, 3, 4))
        left = list(self._left_out())
        if left:
            yield tables.Table([["left out", "type", "why"], *left], left=(0, 1, 2))

    def entries(self) -> list[ColumnEntry]:
        """What became of each column, for the manifest."""
        found = []
        for vertex in self.vertices:
            found += [ColumnEntry(vertex.name, name, "key") for name in vertex.key]
        for link in self.links:
            for name in (*link.source.columns, *link.target.columns):
                entry = ColumnEntry(link.table, name, "edges")
                if entry not in found:
                    found.append(entry)
        for owner, columns in self._columns():
            table = "" if owner == "/".join(EDGE_TYPE) else owner
            for column in columns:
                becomes = f"{column.dtype} {column.field}" if column.field else "nothing"
                table, name, becomes, notes = map(
                    printable, (table, column.name, becomes, column.holds)
                )
                # Fields of no type came from elsewhere, such as masks.
                if column.kind:
                    found.append(ColumnEntry(table, name, becomes, column.missing, notes))
        return found

    def _edge_counts(self) -> Iterator[tuple[EdgeType, int]]:
        for link in self.links:
            for edge_type in link.edge_types:
                yield edge_type, link.count
        yield from (self.edges or {}).items()

    def _columns(self) -> Iterator[tuple[str, tuple[Column, ...]]]:
        for vertex in self.vertices:
            yield vertex.name, vertex.columns
        for edge_type, columns in (self.edge_columns or {}).items():
            yield "/".join(edge_type), columns

    def _left_out(self) -> Iterator[list[str]]:
        for owner, columns in self._columns():
            for column in columns:
                if not column.field:
                    name = printable(f"{owner}.{column.name}")
                    yield [name, shortened(column.kind, 40), column.why]

    def _fields(self) -> Iterator[list[str]]:
        for owner, columns in self._columns():
            for column in columns:
                if not column.field:
                    continue
                dtype = column.dtype
                if column.width:
                    dtype = f"{dtype} x {column.width}"
                cells = [column.field, owner, dtype, column.name, column.holds]
                yield list(map(printable, cells))


def joined(names: tuple[str, ...]) -> str:
    """Names of columns, for a line."""
    return ", ".join(map(printable, names))


def schema_of(graph: Graph) -> Schema:
    """The schema of a graph with its current fields; from its tables, if it was made from any."""
    known: Schema | None = graph.tables
    if known is not None:
        return _schema_now(known, graph)
    vertices = tuple(
        VertexTable(name, "", count, columns=_columns_of(graph.node_fields(name)))
        for name, count in graph.num_nodes_by_type.items()
    )
    edges = {t: graph.csc_of(t).num_edges for t in graph.edge_types}
    columns = {t: _columns_of(graph.edge_fields(t)) for t in graph.edge_types}
    return Schema(vertices, edges=edges, edge_columns=columns)


def _schema_now(known: Schema, graph: Graph) -> Schema:
    """The schema of tables, updated to the current fields."""
    vertices = tuple(
        replace(vertex, columns=_columns_now(vertex.columns, graph.node_fields(vertex.name)))
        for vertex in known.vertices
    )
    before = dict(known.edge_columns or {})
    before |= {link.edge_type: link.columns for link in known.links}
    columns = {t: _columns_now(before.get(t, ()), graph.edge_fields(t)) for t in graph.edge_types}
    return replace(known, vertices=vertices, edge_columns=columns)


def _columns_now(known: tuple[Column, ...], fields: Fields) -> tuple[Column, ...]:
    """Columns that are left out, those that still have their fields, and other fields."""
    now = {column.field: column for column in _columns_of(fields)}
    found = []
    for column in known:
        if column.field and column.field not in fields:
            continue
        if column.field:
            current = now[column.field]
            # Otherwise another field has its name now.
            if fields.columns.get(column.field) == column.name:
                current = replace(column, dtype=current.dtype, width=current.width)
            column = current
        found.append(column)
        now.pop(column.field, None)
    return (*found, *now.values())


def _columns_of(fields: Fields) -> tuple[Column, ...]:
    found = []
    for name, rows in fields.items():
        note = fields.notes.get(name, FieldNote())
        dtype = str(rows.dtype).removeprefix("torch.")
        width = rows.shape[1] if rows.dim() == 2 else 0
        column = fields.columns.get(name, name)
        found.append(Column(column, "", name, dtype, "", width, note.unit, note.words))
    return tuple(found)
