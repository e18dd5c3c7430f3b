"""CSC and graphs of edges, in memory or out of core: by files of buckets that are each sorted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.csc import CSC, FEW_EDGES
from ..graph.graph import Graph
from ..graph.mapped import MappedFile
from ..system.atomic import new_folder
from ..system.budget import work_memory
from ..system.checks import StrPath
from ..system.progress import Progress, Ticks, part_of
from ..system.threads import AHEAD, in_order, usable_cpus
from .column_files import ColumnFile, MemoryColumn, Scratch, Store
from .edges import Ids, array_id_dtype, check_size, count_nodes, csc_of_pairs, mirror
from .native import Rows, write_into

LEAST_ROOM = 64 * 2**20
"""Minimal bytes for :func:`sort_edges`."""

# Half of the memory is for edges in work. The other half is for compiled kernels and dirty pages.
_WORKING_SHARE = 2

# Each worker holds a chunk or a bucket: more workers would leave each too little room.
_MOST_WORKERS = 8
_CHUNK_EDGES = 2**20
# Per edge of a chunk, at most: both ends, both reversed ends, and rows of both, 8 bytes each.
_CHUNK_EDGE_BYTES = 128
# Per row of a bucket, at most: the row, its key, copies of both, and the results.
_SORT_ROW_BYTES = 64
# Larger buckets are not sorted faster: their destinations exceed the CPU's caches.
_BUCKET_ROWS = 2**22
# One open file per bucket and direction; the usual limit of a process is 1,024.
_MOST_BUCKETS = 256
# Rows per block, if all may not fit into memory.
_BLOCK_ROWS = 2**20


class EdgeStream(Protocol):
    """Edges that any thread can read (or draw) by position, repeatedly."""

    @property
    def num_nodes(self) -> int | tuple[int, int]:
        """Number of vertices, or of sources and of destinations if their types differ."""

    @property
    def num_edges(self) -> int:
        """Number of edges."""

    def read(self, begin: int, end: int, /) -> tuple[Ids, Ids]:
        """Sources and destinations of some edges."""


@dataclass(frozen=True)
class InFiles:
    """Files for edges and fields larger than memory.

    Attributes:
        scratch: Makes the files.
        room: Bytes for edges in work.
        progress: Called with the edges moved by sorting, and all edge moves.
    """

    scratch: Scratch
    room: int
    progress: Progress | None = None


@dataclass(frozen=True, eq=False)
class EdgeColumns:
    """An :class:`EdgeStream` over columns of checked ids.

    Attributes:
        num_nodes: See :class:`EdgeStream`.
        src: Sources.
        dst: Destinations.
        ids: Sorted original ids, whose positions are the vertices. Default: ids are vertices.
        mapping: The file that both columns are mapped from, if any.
    """

    num_nodes: int | tuple[int, int]
    src: Store
    dst: Store
    ids: Ids | None = None
    mapping: MappedFile | None = None

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.dst)

    def read(self, begin: int, end: int) -> tuple[Ids, Ids]:
        """Sources and destinations of some edges."""
        src = self._vertices(self.src.read(begin, end))
        dst = self._vertices(self.dst.read(begin, end))
        if self.mapping is not None:
            self.mapping.forget_pages()
        return src, dst

    def _vertices(self, ids: Ids) -> Ids:
        if self.ids is not None:
            return np.searchsorted(self.ids, ids)
        if self.mapping is None and ids.dtype == np.int32:
            return ids
        # A copy of a mapped file's ids, so that its pages can be dropped.
        return ids.astype(np.int64, copy=self.mapping is not None)


def check_ends(edges: EdgeStream, where: object) -> None:
    """Raise FormatError if an id is out of range; ``where`` names the edges."""
    bounds = [[0, -1], [0, -1]]
    for begin in range(0, edges.num_edges, _CHUNK_EDGES):
        ends = edges.read(begin, min(begin + _CHUNK_EDGES, edges.num_edges))
        for known, ids in zip(bounds, ends, strict=True):
            known[0] = min(known[0], int(ids.min()))
            known[1] = max(known[1], int(ids.max()))
    named = zip(("src", "dst"), bounds, _ends(edges), strict=True)
    for name, (low, high), count in named:
        if low < 0 or high >= count:
            got = low if low < 0 else high
            raise FormatError(f"{where}: {name} must be in [0, {count}), got {got}")


def append_reverse(edges: EdgeStream, values: Store, width: int = 1) -> int:
    """Append rows for the reverse of every edge but self-loops, as :func:`sort_edges` numbers them.

    Args:
        edges: The edges.
        values: A row for each.
        width: Numbers per row.

    Returns:
        The number of all rows.
    """
    values.flush()
    count = edges.num_edges
    for begin in range(0, edges.num_edges, _CHUNK_EDGES):
        end = min(begin + _CHUNK_EDGES, edges.num_edges)
        src, dst = edges.read(begin, end)
        rows = values.read(begin * width, end * width).reshape(end - begin, width)
        reversible = rows[src != dst]
        values.append(reversible.reshape(-1))
        count += len(reversible)
    return count


def sort_edges(
    edges: EdgeStream,
    files: InFiles | None,
    *,
    mirrored: bool = False,
    simple: bool = False,
    numbered: bool = False,
) -> CSC:
    """Compress any number of edges by destination.

    The result equals ``CSC.from_coo`` of all edges, perhaps in temporary files.

    Args:
        edges: The edges, with checked ids. They are read once.
        files: For 8 to 24 bytes per edge and direction, with at least :data:`LEAST_ROOM`. None: all
            is in memory.
        mirrored: Append the reverse of every edge but self-loops. Both ends have one type.
        simple: Drop self-loops and repeated edges, and sort the sources of each vertex.
        numbered: Keep each edge's position as its id, if the order changes.

    Raises:
        OSError: The disk is full.
    """
    keeps_ids = numbered and not simple
    if files is None or edges.num_edges <= FEW_EDGES:
        progress = None if files is None else files.progress
        return _in_memory(edges, mirrored, simple, keeps_ids, progress)
    return _Sort(edges, files, mirrored, simple, keeps_ids).csc()


def _in_memory(
    edges: EdgeStream, mirrored: bool, simple: bool, numbered: bool, progress: Progress | None
) -> CSC:
    """The CSC of edges in memory; for a few edges, files and threads cost more than they save."""
    num_src, num_dst = _ends(edges)
    src, dst = edges.read(0, edges.num_edges)
    if mirrored:
        src, dst, _ = mirror(src, dst)
    if progress is not None:
        whole = edges.num_edges * (3 if mirrored else 2)
        progress(whole, whole)
    if simple:
        keep = src != dst
        return csc_of_pairs(src[keep], dst[keep], num_src, num_dst)
    csc = CSC.from_coo(src, dst, (num_src, num_dst))
    return csc if numbered else CSC(csc.indptr, csc.indices, num_src)


def _ends(edges: EdgeStream) -> tuple[int, int]:
    """Number of sources and of destinations."""
    count = edges.num_nodes
    return count if isinstance(count, tuple) else (count, count)


def write_bounded(
    make: Callable[[InFiles], Graph],
    folder: StrPath,
    *,
    memory: int | str | None = None,
    computed: Mapping[str, Rows] | None = None,
    store: str | None = None,
    origin: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Graph:
    """Write a graph in bounded memory as a folder, atomically, and open it.

    Args:
        make: Makes the graph in these files.
        folder: Must not exist yet.
        memory: Bytes that this may take; see :func:`room_of`.
        computed: Further vertex fields; like ``store`` and ``origin`` see :func:`write_graph`.
        progress: Called with the work done and all work.
    """
    # Before the folder is made, so that an error leaves nothing behind.
    room = room_of(memory)
    # Scratch files are in the unfinished folder, which is removed if the process is killed.
    with new_folder(folder) as part, Scratch(part) as scratch:
        graph = make(InFiles(scratch, room, part_of(progress, 0, 0.6)))
        step = part_of(progress, 0.6, 1)
        write_into(part, graph, origin=origin, computed=computed, store=store, progress=step)
    return Graph.open(folder)


def room_of(memory: int | str | None) -> int:
    """Bytes for edges in work, out of all ``memory``.

    Args:
        memory: Bytes as an int, or text with a unit ("4GiB"). It includes what the process already
            holds beyond an eighth. Default: half of free memory.

    Raises:
        ValueError: It is not a number of bytes, or is too small.
    """
    needed = LEAST_ROOM * _WORKING_SHARE
    return work_memory(memory, needed, whom="edges sorted in files") // _WORKING_SHARE


@dataclass(frozen=True)
class _Bucket:
    """Edges between ranges of sources and destinations, as rows in consecutive files."""

    src: range
    dst: range
    width: int
    files: tuple[ColumnFile, ...]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(map(len, self.files)) // self.width

    def read(self) -> Ids:
        """All rows."""
        parts = [file.read(0, len(file)) for file in self.files]
        # `concatenate` would copy even a single array, and take the memory twice.
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return rows.reshape(-1, self.width)

    def blocks(self, rows: int) -> Iterator[Ids]:
        """The rows, in blocks."""
        step = rows * self.width
        for file in self.files:
            for begin in range(0, len(file), step):
                end = min(begin + step, len(file))
                yield file.read(begin, end).reshape(-1, self.width)

    def remove(self) -> None:
        """Delete the files."""
        for file in self.files:
            file.remove()


@dataclass(frozen=True)
class _Rows:
    """Rows ordered by bucket, with the buckets' bounds ``starts``."""

    rows: Ids
    starts: Ids

    def append_to(self, files: Sequence[ColumnFile]) -> None:
        """Write the rows of each bucket to its file."""
        flat = self.rows.reshape(-1)
        bounds = self.starts * self.rows.shape[1]
        for number, file in enumerate(files):
            file.append(flat[bounds[number] : bounds[number + 1]])


_Sorted = tuple[_Bucket, Iterable[tuple[Ids, Ids | None]], Ids | None]
"""A bucket, the sources and numbers of its sorted edges, and counts if it has several
destinations."""


class _Sort:
    """One call of :func:`sort_edges`."""

    def __init__(
        self,
        edges: EdgeStream,
        files: InFiles,
        mirrored: bool,
        simple: bool,
        numbered: bool,
    ) -> None:
        self._edges = edges
        self._scratch = files.scratch
        self._mirrored = mirrored
        self._simple = simple
        # Columns of a row: destination, source, and the edge's number if ids are kept.
        self._width = 3 if numbered else 2
        self._workers = min(usable_cpus(), _MOST_WORKERS)
        # Equal shares for chunks in work, waiting, and being written.
        share = files.room // (self._workers + AHEAD + 1)
        self._chunk = max(1, min(_CHUNK_EDGES, share // _CHUNK_EDGE_BYTES))
        self._most = max(1, share // _SORT_ROW_BYTES)
        most_rows = edges.num_edges * (2 if mirrored else 1)
        self._num_src, self._num_dst = _ends(edges)
        # For the maximal number of edges: how many are dropped is known only at the end.
        self._dtype = array_id_dtype(max(_ends(edges)), most_rows)
        # Every edge is moved twice: to its bucket, and to its place.
        self._tell = Ticks(files.progress, edges.num_edges + most_rows).add

    def csc(self) -> CSC:
        """Fill the buckets, sort each of them and concatenate the results."""
        indptr, indices, numbers = (self._scratch.column(self._dtype) for _ in range(3))
        indptr.append(np.zeros(1, dtype=self._dtype))
        # Whether edges were already in order. Then positions are ids, and none are stored.
        in_place = True
        buckets = self._fitting(self._filled())
        for bucket, blocks, counts in in_order(self._sorted, buckets, self._workers):
            before = len(indices)
            for src, ids in blocks:
                if ids is not None:
                    in_place = in_place and _counts_up(ids, len(numbers))
                    numbers.append(ids)
                indices.append(src)
            if counts is not None:
                indptr.append((before + np.cumsum(counts)).astype(self._dtype))
            elif bucket.src.stop == self._num_src:
                # If a destination was divided by sources, its last part ends the row.
                indptr.append(np.array([len(indices)], dtype=self._dtype))
            bucket.remove()
            self._tell(bucket.rows)
        # Perhaps narrower, as edges were dropped.
        dtype = array_id_dtype(max(self._num_src, self._num_dst), len(indices))
        for file in (indptr, indices, numbers):
            file.cast(dtype)
        edge_ids = None if in_place else numbers.mapped()
        if in_place:
            numbers.remove()
        return CSC(indptr.mapped(), indices.mapped(), self._num_src, edge_ids)

    def _filled(self) -> list[_Bucket]:
        """Read all edges once, each into the bucket of its destination."""
        total = self._edges.num_edges
        directions = 2 if self._mirrored else 1
        shift = self._shift(self._num_dst, total * directions)
        files = [self._files(self._num_dst, shift) for _ in range(directions)]
        begins = range(0, total, self._chunk)
        placed = in_order(self._placed(shift), begins, self._workers)
        loops = 0
        for begin, (groups, found) in zip(begins, placed, strict=True):
            # Reverse edges are numbered after all edges, in order and without self-loops. The
            # number of earlier loops is known only here, where chunks are in order.
            if self._mirrored and self._width == 3:
                groups[1].rows[:, 2] += total + begin - loops
            for group, direction in zip(groups, files, strict=True):
                group.append_to(direction)
            loops += found
            self._tell(min(self._chunk, total - begin))
        return self._buckets(range(self._num_src), range(self._num_dst), shift, files)

    def _placed(self, shift: int) -> Callable[[int], tuple[list[_Rows], int]]:
        """A function from a chunk's first edge to its rows by bucket and direction, and loops."""

        def run(begin: int) -> tuple[list[_Rows], int]:
            end = min(begin + self._chunk, self._edges.num_edges)
            src, dst = self._edges.read(begin, end)
            loops = 0
            others = (src, dst)
            if self._mirrored or self._simple:
                # A self-loop is its own reverse, and is dropped from a simple graph.
                keep = src != dst
                others = (src[keep], dst[keep])
                loops = len(src) - len(others[0])
            if self._simple:
                src, dst = others
            groups = [self._by_bucket(self._rows(src, dst, begin), 0, 0, shift)]
            if self._mirrored:
                sources, targets = others
                # Numbered from 0: `_filled` adds the chunk's offset once it is known.
                rows = self._rows(targets, sources, 0)
                groups.append(self._by_bucket(rows, 0, 0, shift))
            return groups, loops

        return run

    def _rows(self, src: Ids, dst: Ids, first: int) -> Ids:
        """Rows of edges whose numbers begin at ``first``."""
        rows = np.empty((len(src), self._width), dtype=self._dtype)
        rows[:, 0] = dst
        rows[:, 1] = src
        if self._width == 3:
            rows[:, 2] = np.arange(first, first + len(src), dtype=self._dtype)
        return rows

    def _by_bucket(self, rows: Ids, column: int, low: int, shift: int) -> _Rows:
        """The rows ordered by the bucket of their ids in a column, from ``low`` on."""
        from . import _edge_sort

        starts = np.zeros(_MOST_BUCKETS + 1, dtype=np.int64)
        _edge_sort.count_buckets(rows, column, low, shift, starts[1:])
        starts = np.cumsum(starts)
        moved = np.empty_like(rows)
        _edge_sort.fill_buckets(rows, column, low, shift, starts[:-1].copy(), moved)
        return _Rows(moved, starts)

    def _fitting(self, buckets: Iterable[_Bucket]) -> Iterator[_Bucket]:
        """The buckets; those that cannot be sorted in memory are divided."""
        # Ends, since each division at least halves the ids.
        for bucket in buckets:
            if bucket.rows <= self._most or self._is_last(bucket):
                yield bucket
            else:
                yield from self._fitting(self._divided(bucket))

    def _is_last(self, bucket: _Bucket) -> bool:
        """Whether a bucket needs no sorting: one destination, and if simple only one source."""
        return len(bucket.dst) == 1 and (not self._simple or len(bucket.src) == 1)

    def _divided(self, bucket: _Bucket) -> list[_Bucket]:
        """A bucket divided by destinations, or by the sources of its only destination."""
        keys = bucket.dst
        column = 0
        if len(keys) == 1:
            # The edges of a hub alone may exceed memory, so they are divided by source.
            keys = bucket.src
            column = 1
        shift = self._shift(len(keys), bucket.rows)
        files = self._files(len(keys), shift)
        for rows in bucket.blocks(self._chunk):
            self._by_bucket(rows, column, keys.start, shift).append_to(files)
        bucket.remove()
        return self._buckets(bucket.src, bucket.dst, shift, [files])

    def _shift(self, keys: int, rows: int) -> int:
        """Base-2 logarithm of the ids per bucket, so that buckets are half full on average."""
        # Half full: degrees differ, and an overfull bucket is written again.
        wanted = -(-2 * rows // min(self._most, _BUCKET_ROWS))
        # Overfull buckets are divided at least in two, so that this ends.
        least = 2 if rows > self._most else 1
        number = max(least, min(_MOST_BUCKETS, wanted))
        # Both as powers of two, rounded up.
        return max(0, (keys - 1).bit_length() - (number - 1).bit_length())

    def _files(self, keys: int, shift: int) -> list[ColumnFile]:
        count = (keys + (1 << shift) - 1) >> shift
        return [self._scratch.column(self._dtype) for _ in range(count)]

    def _buckets(
        self, src: range, dst: range, shift: int, files: list[list[ColumnFile]]
    ) -> list[_Bucket]:
        """Buckets over the files of each direction, ordered by the divided ids."""
        # A single file: nothing was divided.
        if len(files[0]) == 1:
            whole = tuple(of_direction[0] for of_direction in files)
            for part in whole:
                part.close()
            return [_Bucket(src, dst, self._width, whole)]
        by_target = len(dst) > 1
        keys = dst if by_target else src
        size = 1 << shift
        found = []
        for number, parts in enumerate(zip(*files, strict=True)):
            # There may be many buckets: only those being filled stay open.
            for part in parts:
                part.close()
            low = keys.start + number * size
            ids = range(low, min(low + size, keys.stop))
            ends = (src, ids) if by_target else (ids, dst)
            found.append(_Bucket(*ends, self._width, parts))
        return found

    def _sorted(self, bucket: _Bucket) -> _Sorted:
        """Sort a bucket in memory, or pass it on in blocks if it is in order."""
        from . import _edge_sort

        if self._is_last(bucket):
            return bucket, self._in_blocks(bucket), None
        rows = bucket.read()  # columns: destination, source, perhaps number
        low = bucket.dst.start
        counts = np.zeros(len(bucket.dst), dtype=np.int64)
        src = np.empty(len(rows), dtype=self._dtype)
        if self._simple:
            keys = np.empty(len(rows), dtype=np.int64)
            _edge_sort.fill_keys(rows, low, self._num_src, keys)
            del rows  # before the sort takes memory of its own
            keys.sort()
            found = _edge_sort.take_distinct(keys, self._num_src, counts, src)
            blocks = [(src[:found], None)]
            # A single destination may have several buckets by source; the last ends the row.
            return bucket, blocks, counts if len(bucket.dst) > 1 else None
        has_ids = self._width == 3
        numbers = np.empty(len(rows) if has_ids else 0, dtype=self._dtype)
        # A counting sort is stable: edges of one vertex stay in the order of the file.
        _edge_sort.count_buckets(rows, 0, low, 0, counts)
        begins = np.cumsum(counts) - counts
        _edge_sort.fill_bucket(rows, low, begins, src, numbers)
        return bucket, [(src, numbers if has_ids else None)], counts

    def _in_blocks(self, bucket: _Bucket) -> Iterator[tuple[Ids, Ids | None]]:
        for rows in bucket.blocks(self._chunk):
            if self._simple:  # one edge, repeated
                yield rows[:1, 1], None
                return
            yield rows[:, 1], rows[:, 2] if self._width == 3 else None


def _counts_up(ids: Ids, first: int) -> bool:
    places = np.arange(first, first + len(ids), dtype=ids.dtype)
    return bool((ids == places).all())


@dataclass(frozen=True, eq=False)
class GivenEdges:
    """Edges of one type: where they are, their unchecked ends, and their fields."""

    where: str
    ends: EdgeColumns
    fields: Mapping[str, Tensor]

    def compressed(
        self, files: InFiles | None, *, undirected: bool = False
    ) -> tuple[CSC, dict[str, Tensor]]:
        """Their CSC and fields.

        If ``undirected``, each edge but self-loops gets a reverse edge with the same rows.

        Raises:
            FormatError: An id is out of range, or a field has a wrong number of rows.
        """
        for name, values in self.fields.items():
            if len(values) != self.ends.num_edges:
                raise FormatError(
                    f"{self.where}: field {name!r} must have a row per edge "
                    f"({self.ends.num_edges}), got {len(values)}"
                )
        check_ends(self.ends, self.where)
        csc = sort_edges(self.ends, files, mirrored=undirected, numbered=True)
        fields = dict(self.fields)
        if undirected:
            fields = {name: self._both_ways(rows, files) for name, rows in fields.items()}
        return csc, fields

    def _both_ways(self, rows: Tensor, files: InFiles | None) -> Tensor:
        """The rows of all edges, then those of the reverse edges."""
        if files is None:
            src, dst = self.ends.read(0, self.ends.num_edges)
            values = rows.numpy()
            return torch.from_numpy(np.concatenate([values, values[src != dst]]))
        shape = rows.shape[1:]
        column = copied(rows, rows.dtype, files)
        count = append_reverse(self.ends, column, math.prod(shape))
        return column.mapped().reshape(count, *shape)


def copied(rows: Tensor, dtype: torch.dtype, files: InFiles) -> Store:
    """A copy of all rows in another dtype."""
    as_numpy = torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
    column = files.scratch.column(as_numpy)
    for begin in range(0, len(rows), _BLOCK_ROWS):
        block = rows[begin : begin + _BLOCK_ROWS]
        column.append(block.to(dtype).numpy().reshape(-1))
    return column


def build_graph(
    path: StrPath,
    src: Ids,
    dst: Ids,
    num_nodes: int | None,
    *,
    edata: Mapping[str, Tensor] | None = None,
    undirected: bool = False,
    files: InFiles | None = None,
) -> Graph:
    """Build the graph of edges, with reverse edges if ``undirected``.

    Args:
        path: The file, for errors.
        src: Source ids.
        dst: Target ids.
        num_nodes: Number of vertices. Default: the largest id plus 1.
        edata: Edge fields in the file's order; a reverse edge gets the same rows.
        undirected: Add the reverse of each edge but self-loops.
        files: For edges larger than memory. Default: all is in memory.

    Raises:
        FormatError: Ids are not below ``num_nodes``, a field has another length, or the vertices do
            not fit into memory.
    """
    count = count_nodes(path, src, dst) if num_nodes is None else num_nodes
    check_size(path, count)
    ends = EdgeColumns(count, MemoryColumn.of(src), MemoryColumn.of(dst))
    edges = GivenEdges(str(path), ends, edata or {})
    csc, fields = edges.compressed(files, undirected=undirected)
    return Graph(csc, edata=fields)
