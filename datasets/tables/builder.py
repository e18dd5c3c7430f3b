"""From a schema to a graph: rows become vertices, columns fields, and foreign keys edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from ...errors import FormatError
from ...graph.csc import CSC
from ...graph.fields import Fields
from ...graph.graph import EdgeType, Graph
from ...system.arrays import Array
from ...system.progress import Progress, Ticks
from ...system.units import printable
from ..column_files import Scratch, Store, new_column
from ..edge_sort import LEAST_ROOM, EdgeColumns, InFiles, sort_edges
from ..edges import array_id_dtype
from .choices import check_orphans
from .connection import Connection, quoted
from .keys import KeyColumn, Matched, as_key, missing_from
from .schema import Column, End, Link, Schema, VertexTable

# One part in so many of the room for edges is for key look-ups. The rest is for sorting.
_NUMBERS_SHARE = 4
# A longer key would make `original_id` larger than most features.
_LONGEST_KEY = 256
Gaps = dict[tuple[str, str], Tensor]
"""By vertex type and field where numbers stand for missing values: whether a row has one."""
_NONE = -1
"""For a row without a reference."""
_LOST = -2
"""For a key that no row has."""

# Integer keys within this range, or within 16 times the rows, are looked up in an array of 4 bytes
# each. A join takes 30x longer, measured for 10 M rows.
_ANY_RANGE = 2**20
_MOST_SPARSE = 16
_BLOCK_ROWS = 2**20


def build(
    connection: Connection,
    schema: Schema,
    scratch: Scratch | None,
    room: int,
    *,
    orphans: str = "error",
    gaps: Gaps | None = None,
    progress: Progress | None = None,
) -> Graph:
    """The graph of a schema; its vertices are in the order of the tables' rows.

    Args:
        connection: Has the tables.
        schema: The result of :func:`plan`.
        scratch: For data larger than memory; None: all is in memory.
        room: Bytes for edges in work.
        orphans: "error", or "drop": foreign keys that no row has make no edge.
        gaps: Gets, by vertex type and field where numbers stand for missing values, whether a row
            has one.
        progress: Called with the work done and all work, in rows.

    Raises:
        FormatError: A foreign key points nowhere.
        ValueError: ``orphans`` is invalid.
    """
    check_orphans(orphans)
    builder = _Builder(connection, schema, scratch, room, orphans == "drop", progress)
    return builder.graph(gaps)


def with_counts(
    connection: Connection, schema: Schema, room: int, *, orphans: str = "error"
) -> Schema:
    """The schema with the edge counts of :func:`build`, and the same errors."""
    with Scratch(connection.folder) as scratch:
        return _Builder(connection, schema, scratch, room, orphans == "drop", None).counted()


class _Builder:
    """One call of :func:`build`."""

    def __init__(
        self,
        connection: Connection,
        schema: Schema,
        scratch: Scratch | None,
        room: int,
        drops: bool,
        progress: Progress | None,
    ) -> None:
        self._connection = connection
        self._schema = schema
        self._scratch = scratch
        self._room = room
        self._drops = drops
        self._vertices = {vertex.name: vertex for vertex in schema.vertices}
        of_vertices = {vertex.relation for vertex in schema.vertices}
        of_links = {link.relation for link in schema.links}
        self._kinds = _Kinds.of(connection, of_vertices | of_links)
        # Work: rows for their fields, and twice for each key (look-up and sort).
        rows = sum(vertex.rows for vertex in schema.vertices)
        keys = sum(link.count for link in schema.links)
        self._ticks = Ticks(progress, rows + 2 * keys)

    def graph(self, gaps: Gaps | None) -> Graph:
        """Make the graph; edges first, so that dangling keys are found before fields are read."""
        csc: dict[EdgeType, CSC] = {}
        kept_rows: dict[EdgeType, Store] = {}
        by_key: dict[tuple[str, tuple[str, ...]], list[Link]] = {}
        for link in self._schema.links:
            by_key.setdefault((link.target.table, link.target.to), []).append(link)
        # One table of row numbers at a time, for all links to it.
        for (name, to), links in by_key.items():
            numbers = self._numbers(name, to)
            for link in links:
                if link.reverse is None:
                    csc[link.edge_type], kept_rows[link.edge_type] = self._one_way(link, numbers)
                else:
                    csc |= self._both_ways(link, numbers)
        in_order = {}
        for link in self._schema.links:
            for edge_type in link.edge_types:
                in_order[edge_type] = csc[edge_type]
        counts = {vertex.name: vertex.rows for vertex in self._schema.vertices}
        graph = Graph(in_order, counts)
        for vertex in self._schema.vertices:
            self._set_fields(graph, vertex, gaps)
        for link in self._schema.links:
            if link.columns:
                self._set_edge_fields(graph, link, kept_rows[link.edge_type])
        # Actual counts of edges: dangling keys may have been dropped.
        kept = tuple(replace(k, count=csc[k.edge_type].num_edges) for k in self._schema.links)
        graph.tables = replace(self._schema, links=kept)
        self._ticks.finish()
        return graph

    def counted(self) -> Schema:
        """Count the edges without making them."""
        links = []
        for link in self._schema.links:
            targets = self._numbers(link.target.table, link.target.to)
            count = 0
            for _, _, keep in self._edges(link, targets):
                count += int(np.count_nonzero(keep))
            links.append(replace(link, count=count))
        return replace(self._schema, links=tuple(links))

    def _numbers(self, name: str, to: tuple[str, ...]) -> _RowNumbers:
        room = self._room // _NUMBERS_SHARE
        vertex = self._vertices[name]
        return _RowNumbers(self._connection, vertex, to, self._kinds, room, self._store)

    def _store(self, dtype: str) -> Store:
        return new_column(self._scratch, dtype)

    # -- edges -------------------------------------------------------------------------------------

    def _one_way(self, link: Link, targets: _RowNumbers) -> tuple[CSC, Store]:
        """The CSC of a link without a reverse, and a mask of the rows with an edge."""
        ends = (self._vertices[link.source.table].rows, self._vertices[link.target.table].rows)
        dtype = array_id_dtype(max(ends), link.count).name
        src = self._store(dtype)
        dst = self._store(dtype)
        kept = self._store("bool")
        for first, last, keep in self._edges(link, targets):
            src.append(first.astype(dtype, copy=False))
            dst.append(last.astype(dtype, copy=False))
            kept.append(keep)
            self._ticks.add(2 * len(first))
        for store in (src, dst, kept):
            store.flush()
        csc = self._sorted(EdgeColumns(ends, src, dst), numbered=True)
        src.remove()
        dst.remove()
        return csc, kept

    def _both_ways(self, link: Link, targets: _RowNumbers) -> dict[EdgeType, CSC]:
        """The CSC of both directions of a link."""
        assert link.reverse is not None
        num_src = self._vertices[link.source.table].rows
        num_dst = self._vertices[link.target.table].rows
        most_edges = max(num_src, link.count)
        dtype = array_id_dtype(max(num_src, num_dst), most_edges).name
        src = self._store(dtype)
        dst = self._store(dtype)
        # For a foreign key: the number of edges before each row.
        starts = self._store(dtype)
        starts.append(np.zeros(1, dtype=dtype))
        for first, last, keep in self._edges(link, targets):
            starts.append((len(dst) + np.cumsum(keep)).astype(dtype))
            src.append(first.astype(dtype, copy=False))
            dst.append(last.astype(dtype, copy=False))
            self._ticks.add(len(first))
        for store in (src, dst, starts):
            store.flush()
        forward = self._sorted(EdgeColumns((num_src, num_dst), src, dst))
        if not link.source.columns:
            # A row refers to at most one other, so these edges are already in order.
            src.remove()
            backward = CSC(starts.mapped(), dst.mapped(), num_dst)
        else:
            starts.remove()
            backward = self._sorted(EdgeColumns((num_dst, num_src), dst, src))
            src.remove()
            dst.remove()
        self._ticks.add(len(forward.indices))
        return {link.edge_type: forward, link.reverse: backward}

    def _edges(self, link: Link, targets: _RowNumbers) -> Iterator[tuple[Array, Array, Array]]:
        """Both ends of the edges of blocks of rows, and a mask of the rows with an edge.

        Raises:
            FormatError: At the end, if rows hold keys that no row has.
        """
        lost = [0, 0]
        for first, last in self._ends(link, targets):
            lost[0] += int(np.count_nonzero(first == _LOST))
            lost[1] += int(np.count_nonzero(last == _LOST))
            keep = (first >= 0) & (last >= 0)
            if not keep.all():
                first = first[keep]
                last = last[keep]
            yield first, last, keep
        for count, end in zip(lost, (link.source, link.target), strict=True):
            if count and not self._drops:
                raise self._lost(link, end, count)

    def _ends(self, link: Link, targets: _RowNumbers) -> Iterator[tuple[Array, Array]]:
        """Numbers of both ends of each row (negative: none), in blocks."""
        row = 0
        if not link.source.columns:
            for last in targets.of(link.relation, link.target):
                yield np.arange(row, row + len(last), dtype=last.dtype), last
                row += len(last)
            return
        # Two results come in blocks of different sizes, so one of them is stored.
        sources = self._numbers(link.source.table, link.source.to)
        firsts = self._store("int64")
        for first in sources.of(link.relation, link.source):
            firsts.append(first)
        firsts.flush()
        for last in targets.of(link.relation, link.target):
            yield firsts.read(row, row + len(last)), last
            row += len(last)
        firsts.remove()

    def _sorted(self, edges: EdgeColumns, *, numbered: bool = False) -> CSC:
        room = max(self._room - self._room // _NUMBERS_SHARE, LEAST_ROOM)
        files = None if self._scratch is None else InFiles(self._scratch, room)
        # Ids only for edges with fields; otherwise their order does not matter.
        return sort_edges(edges, files, numbered=numbered)

    def _lost(self, link: Link, end: End, count: int) -> FormatError:
        shown = printable(f"{link.table}.{', '.join(end.columns)}")
        other = self._vertices[end.table].relation
        columns = self._kinds.key(link.relation, end.columns)
        keys = self._kinds.key(other, end.to)
        _, example = missing_from(self._connection, link.relation, columns, other, keys)
        rows = "1 row points" if count == 1 else f"{count:,} rows point"
        return FormatError(
            f"{shown} must hold keys of {printable(end.table)}, got {printable(example)}, which is "
            f"not in {printable(', '.join(end.to))}; {rows} nowhere: orphans='drop' "
            "leaves out their edges"
        )

    # -- fields ------------------------------------------------------------------------------------

    def _set_fields(self, graph: Graph, vertex: VertexTable, gaps: Gaps | None) -> None:
        fields = graph.node_fields(vertex.name)
        columns = [column for column in vertex.columns if column.field]
        holes = [c for c in columns if c.gap] if gaps is not None else []
        values = [column.sql for column in columns]
        values += [f"({column.gap})::UTINYINT" for column in holes]
        dtypes = [*(c.dtype for c in columns), *["uint8" for _ in holes]]
        found = self._read(vertex.relation, values, dtypes)
        if gaps is not None:
            for column, store in zip(holes, found[len(columns) :], strict=True):
                gaps[vertex.name, column.field] = store.mapped()
        _fill(fields, columns, found[: len(columns)])
        kept = self._original_ids(vertex)
        if kept is not None:
            fields["original_id"] = kept
            fields.columns["original_id"] = vertex.key[0]

    def _set_edge_fields(self, graph: Graph, link: Link, kept: Store) -> None:
        """Set the fields of the rows that have an edge."""
        columns = [column for column in link.columns if column.field]
        values = [column.sql for column in columns]
        found = self._read(link.relation, values, [column.dtype for column in columns], kept)
        _fill(graph.edge_fields(link.edge_type), columns, found)
        kept.remove()

    def _read(
        self,
        relation: str,
        values: Sequence[str],
        dtypes: Sequence[str],
        kept: Store | None = None,
    ) -> list[Store]:
        """The values of a relation's rows, of all or of those that are ``kept``."""
        stores = [self._store(dtype) for dtype in dtypes]
        query = f"select true::UTINYINT, {', '.join(values)} from {quoted(relation)}"
        row = 0
        for first, *batch in self._connection.batches(query) if values else ():
            rows = len(first)
            keep = None if kept is None else kept.read(row, row + rows).astype(bool)
            for store, numbers in zip(stores, batch, strict=True):
                found = numbers.view(store.dtype)
                store.append(found if keep is None else found.reshape(rows, -1)[keep].reshape(-1))
            row += rows
            self._ticks.add(rows)
        return stores

    def _original_ids(self, vertex: VertexTable) -> Tensor | None:
        """The keys of a type's vertices: integers, or words as rows of bytes.

        None if they are 0, 1, 2..., or composite.
        """
        if len(vertex.key) != 1 or not vertex.rows:
            return None
        (column,) = self._kinds.key(vertex.relation, vertex.key)
        rows = quoted(vertex.relation)
        if column.is_number:
            key = as_key(column)
            ((low, high),) = self._connection.run(f"select min({key}), max({key}) from {rows}")
            if low >= -(2**63) and high < 2**63:
                return self._integers(f"select {key}::BIGINT from {rows}")
        key = as_key(column, as_text=True)
        ((width,),) = self._connection.run(f"select max(strlen({key})) from {rows}")
        if width > _LONGEST_KEY:
            return None
        store = self._store("uint8")
        width = max(int(width), 1)
        try:
            for words in self._connection.padded(f"select {key} from {rows}", width):
                store.append(words.reshape(-1))
        except FormatError as error:
            shown = printable(f"{vertex.name}.{vertex.key[0]}")
            raise FormatError(f"{shown} cannot be kept: {error}") from None
        return store.mapped().reshape(vertex.rows, width)

    def _integers(self, query: str) -> Tensor | None:
        store = self._store("int64")
        counts_up = True
        for (keys,) in self._connection.batches(query):
            begin = len(store)
            places = np.arange(begin, begin + len(keys))
            counts_up = counts_up and bool((keys == places).all())
            store.append(keys)
        if counts_up:
            store.remove()
            return None
        return store.mapped()


def _fill(fields: Fields, columns: Sequence[Column], stores: Sequence[Store]) -> None:
    """Set the fields of columns, with their notes."""
    for column, store in zip(columns, stores, strict=True):
        fields[column.field] = shaped(store, column)
        fields.columns[column.field] = column.name
        if column.note is not None:
            fields.notes[column.field] = column.note


def shaped(store: Store, column: Column) -> Tensor:
    """The rows of a field."""
    values = store.mapped()
    return values.reshape(-1, column.width) if column.width else values


@dataclass(frozen=True)
class _Kinds:
    """DuckDB's types of the columns of all tables."""

    by_relation: Mapping[str, Mapping[str, str]]

    @classmethod
    def of(cls, connection: Connection, relations: set[str]) -> _Kinds:
        """Query the types."""
        return cls({relation: connection.columns(relation) for relation in relations})

    def key(self, relation: str, names: tuple[str, ...]) -> list[KeyColumn]:
        """Columns of a relation as those of a key."""
        return [KeyColumn(name, self.by_relation[relation][name]) for name in names]


class _RowNumbers:
    """The vertices of a table by the columns to which other tables refer.

    Args:
        connection: Has the tables.
        vertex: The table, with unique keys.
        to: The referenced columns.
        kinds: Types of the columns.
        room: Bytes for a table of numbers.
        store: Makes a column, for numbers that come out of order.
    """

    def __init__(
        self,
        connection: Connection,
        vertex: VertexTable,
        to: tuple[str, ...],
        kinds: _Kinds,
        room: int,
        store: Callable[[str], Store],
    ) -> None:
        self._connection = connection
        self._vertex = vertex
        self._columns = kinds.key(vertex.relation, to)
        self._kinds = kinds
        self._store = store
        self._low = 0
        self._numbers: Array | None = self._by_value(room)

    def _by_value(self, room: int) -> Array | None:
        """Row numbers by key, if keys are dense integers."""
        if len(self._columns) != 1 or not self._columns[0].is_number:
            return None
        value = as_key(self._columns[0])
        rows = quoted(self._vertex.relation)
        ((low, high),) = self._connection.run(f"select min({value}), max({value}) from {rows}")
        if low is None:
            return np.empty(0, dtype=np.int32)
        size = int(high) - int(low) + 1
        dtype = np.dtype(np.int32 if self._vertex.rows < 2**31 else np.int64)
        most = max(_ANY_RANGE, _MOST_SPARSE * self._vertex.rows)
        if size > most or size * dtype.itemsize > room or abs(int(low)) >= 2**62:
            return None
        self._low = int(low)
        numbers = np.full(size, _LOST, dtype=dtype)
        first = 0
        for (keys,) in self._connection.batches(
            f"select {value}::BIGINT from {rows} where {value} is not null"
        ):
            numbers[keys - self._low] = np.arange(first, first + len(keys), dtype=dtype)
            first += len(keys)
        return numbers

    def of(self, relation: str, end: End) -> Iterator[Array]:
        """Numbers of the vertices to which a relation's rows refer, in order, in blocks."""
        columns = self._kinds.key(relation, end.columns)
        if self._numbers is not None and columns[0].is_number:
            yield from self._looked_up(relation, columns[0], self._numbers)
        else:
            yield from self._joined(relation, columns)

    def _looked_up(self, relation: str, column: KeyColumn, numbers: Array) -> Iterator[Array]:
        key = as_key(column)
        # Integers beyond 64 bits are not keys of this table.
        value = f"coalesce(try_cast({key} as BIGINT), {-(2**63)})"
        ((gaps,),) = self._connection.run(f"select count(*) - count({key}) from {quoted(relation)}")
        gap = f", ({key} is null)::UTINYINT" if gaps else ""
        for keys, *gap_of in self._connection.batches(
            f"select {value}{gap} from {quoted(relation)}"
        ):
            places = keys - self._low
            inside = (keys >= self._low) & (places < len(numbers)) & (places >= 0)
            if inside.all():
                found = numbers[places]
            else:
                found = np.full(len(keys), _LOST, dtype=numbers.dtype)
                found[inside] = numbers[places[inside]]
            if gap_of:
                found[gap_of[0].view(bool)] = _NONE
            yield found

    def _joined(self, relation: str, columns: list[KeyColumn]) -> Iterator[Array]:
        keys = Matched.of(columns, self._columns)
        gap = " or ".join(f"a.k{i} is null" for i in range(len(columns)))
        row = "row_number() over () - 1 as n"
        ((count,),) = self._connection.run(f"select count(*) from {quoted(relation)}")
        store = self._store("int64")
        # Joined rows come in any order, so each number is written to its row's place.
        joined = self._connection.batches(
            f"select a.n, coalesce(b.n, case when {gap} then {_NONE} else {_LOST} end)::BIGINT "
            f"from (select {row}, {keys.here} from {quoted(relation)}) as a left join "
            f"(select {row}, {keys.there} from {quoted(self._vertex.relation)}) as b "
            f"on {keys.equal}"
        )
        store.place(count, joined)
        store.flush()
        for begin in range(0, count, _BLOCK_ROWS):
            yield store.read(begin, min(begin + _BLOCK_ROWS, count))
        store.remove()
