"""Writer of a graph with renumbered vertices, by scattering rows into buckets on disk."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..graph.csc import check_range
from ..graph.fields import FieldNote, FieldValue
from ..graph.graph import EDGE_TYPE, NODE_TYPE, EdgeType, Graph
from ..graph.row_form import Decoding
from ..graph.stored_rows import IndexedRows, NarrowRows
from ..system.arrays import Array
from ..system.atomic import new_folder
from ..system.checks import StrPath
from ..system.paging import GAP_IN_ORDER, Pages
from .manifest import EdgeEntry, Manifest, NodeEntry
from .native import ArrayWriter
from .original_ids import ORIGINAL_ID

Source = Callable[[int, int], Tensor]
"""Rows ``begin`` to ``end`` in their old order."""
Places = Callable[[int, int], Array]
"""New places of the rows ``begin`` to ``end``, integers; together a permutation."""

# Minimal bytes of scratch per row: its new place, and its place in its chunk.
_LEAST_ROW = 16


@dataclass
class Scratch:
    """The folder of the buckets, and their sizes.

    Attributes:
        folder: For files, which are removed when their rows are closed.
        bucket_bytes: Bytes of a bucket's rows, one of which is in memory. Smaller fields need no
            files.
        tick: Called with numbers of bytes scattered.
        chunk_bytes: Bytes of rows that are read at once.
        files: Number of files made.
    """

    folder: Path
    bucket_bytes: int
    tick: Callable[[int], None]
    chunk_bytes: int
    files: int = 0

    def new_path(self) -> Path:
        """The path of a new file."""
        self.files += 1
        return self.folder / f"bucket-{self.files}"


class MovedRows:
    """Lazy rows in their new order, to be read in blocks from first to last.

    The first read scatters all rows: it goes through the old order once, and appends each chunk's
    rows to their buckets, which are ranges of new places. Blocks are then assembled in memory, one
    bucket at a time. So every byte is read and written twice, in large pieces, plus 4 bytes per row
    for its place.

    Args:
        source: The rows.
        places: Their new places.
        shape, dtype: Of all rows.
        name: Name of the rows, for errors.
        scratch: Folder and sizes of buckets.

    Attributes:
        decoding: For writers: how stored rows become values; None: unchanged.

    Raises:
        ValueError: Two rows go to one place (when they are read).
    """

    def __init__(
        self,
        source: Source,
        places: Places,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        name: str,
        scratch: Scratch,
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.decoding: Decoding | None = None
        self._source = source
        self._places = places
        self._scratch = scratch
        self._name = name
        self._width = math.prod(shape[1:]) * dtype.itemsize
        # In memory, each place of a bucket has a flag: whether it has a row.
        per_row = self._width + 1
        self._size = min(max(1, scratch.bucket_bytes // per_row), 2**31, max(1, shape[0]))
        self._step = max(1, scratch.chunk_bytes // max(_LEAST_ROW, self._width))
        # Files of the rows and of their places in their buckets; empty before scattering, or if one
        # bucket holds all rows.
        self._paths: list[Path] = []
        # The bucket in memory. One is enough, since blocks are read in order.
        self._bucket: tuple[int, Tensor] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.shape[0] * self._width

    def __getitem__(self, rows: slice) -> Tensor:
        """Some rows in their new order; cheap if they follow those read before."""
        begin, end, _ = rows.indices(self.shape[0])
        if begin >= end or self._width == 0:
            shape = (max(0, end - begin), *self.shape[1:])
            return torch.empty(shape, dtype=self.dtype, device="cpu")
        parts = []
        while begin < end:
            number = begin // self._size
            if self._bucket is None or self._bucket[0] != number:
                self._bucket = None  # free its memory before the next one is read
                self._bucket = number, self._read(number)
            base = number * self._size
            values = self._bucket[1]
            parts.append(values[begin - base : end - base])
            begin = base + len(values)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def close(self) -> None:
        """Free memory and files."""
        self._bucket = None
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._paths = []

    def _read(self, number: int) -> Tensor:
        """The rows of a bucket."""
        count = min(self._size, self.shape[0] - number * self._size)
        values = torch.empty((count, *self.shape[1:]), dtype=self.dtype, device="cpu")
        out = _as_items(values, self._width)
        filled = np.zeros(count, np.bool_)
        is_whole = count == self.shape[0]
        chunks = self._chunks() if is_whole else self._scattered(number, count, out.dtype)
        for places, rows in chunks:
            out[places] = rows
            filled[places] = True
            del rows  # before the next ones are read
        # If two rows went to one place, another is empty.
        if not filled.all():
            raise ValueError(self._twice())
        return values

    def _chunks(self) -> Iterator[tuple[Array, Array]]:
        """All rows in their old order with their places, in chunks."""
        for begin in range(0, self.shape[0], self._step):
            end = min(begin + self._step, self.shape[0])
            yield self._places(begin, end), _as_items(self._source(begin, end), self._width)
            self._scratch.tick((end - begin) * self._width)

    def _scattered(self, number: int, count: int, dtype: Any) -> Iterator[tuple[Array, Array]]:
        """The rows of a bucket with their places in it, in chunks."""
        if not self._paths:
            self._scatter()
        rows_path, places_path = self._paths
        first = number * self._size
        end = first + count
        for begin in range(first, end, self._step):
            some = min(self._step, end - begin)
            places = np.fromfile(places_path, np.uint32, some, offset=begin * 4)
            yield places, np.fromfile(rows_path, dtype, some, offset=begin * self._width)

    def _scatter(self) -> None:
        """Write all rows, and their places, to two files of consecutive buckets."""
        from . import _orders

        count = self.shape[0]
        size = self._size
        self._paths = [self._scratch.new_path(), self._scratch.new_path()]
        # starts[b]: where the next row of bucket b is written; room[b]: where the bucket ends.
        starts = np.arange(0, count, size)
        room = np.minimum(starts + size, count)
        ends = np.empty(len(starts) + 1, np.int64)
        order = np.empty(min(self._step, count), np.int64)
        with (
            open(self._paths[0], "wb", buffering=0) as rows,
            open(self._paths[1], "wb", buffering=0) as offsets,
        ):
            # Set the full size now, so that a full disk is more likely to fail early.
            os.truncate(rows.fileno(), count * self._width)
            os.truncate(offsets.fileno(), count * 4)
            for places, data in self._chunks():
                sorted_ = order[: len(places)]
                _orders.split(places, size, ends, sorted_)
                data = data[sorted_]
                within = (places[sorted_] % size).astype(np.uint32)
                # One write per bucket of the chunk, after the rows of earlier chunks.
                low = 0
                for bucket in np.flatnonzero(np.diff(ends[:-1], prepend=0)):
                    high = int(ends[bucket])
                    at = int(starts[bucket])
                    # More rows than places: do not write into the next bucket.
                    if at + high - low > room[bucket]:
                        raise ValueError(self._twice())
                    _write_at(rows, data[low:high], at * self._width)
                    _write_at(offsets, within[low:high], at * 4)
                    starts[bucket] += high - low
                    low = high
                del data  # before the next rows are read

    def _twice(self) -> str:
        return f"{self._name} must go to a place of its own each, got two for one place"


def source_rows(values: Tensor | IndexedRows) -> Source:
    """A field's rows in their own order, with readahead for mapped files."""
    pages = Pages.of(values) if isinstance(values, Tensor) else None

    def read(begin: int, end: int) -> Tensor:
        if pages is not None:  # one chunk ahead, so that the disk works while this one is used
            pages.ask(np.arange(begin, min(2 * end - begin, len(values))), gap=GAP_IN_ORDER)
        return values[begin:end]

    return read


def _as_items(rows: Tensor, width: int) -> Array:
    """Rows as items of ``width`` bytes, shape ``(n,)``; no copy if they are contiguous."""
    plain = rows.detach().resolve_conj().resolve_neg().contiguous()
    flat = plain.reshape(len(rows), -1).view(torch.uint8).numpy()
    kind = "u" if width in (1, 2, 4, 8) else "V"
    return flat.view(f"{kind}{width}").reshape(-1)


def _write_at(file: Any, values: Array, offset: int) -> None:
    data = values.view(np.uint8).data
    # `pwrite` may write less than it is given.
    while len(data):
        done = os.pwrite(file.fileno(), data, offset)
        data = data[done:]
        offset = offset + done


def write_moved(
    graph: Graph,
    folder: StrPath,
    places: Mapping[str, Array],
    offsets: Mapping[EdgeType, Array],
    *,
    bucket_bytes: int,
    chunk_bytes: int = 32 * 2**20,
    origin: Mapping[str, Any] | None = None,
    tick: Callable[[int], None] = lambda count: None,
) -> None:
    """Write a graph with its vertices at ``places``, atomically.

    See :func:`pagraph.datasets.reorder`.

    Args:
        graph: The graph, with checked ids.
        folder: Must not exist yet.
        places: New ids of the vertices by type, each a permutation.
        offsets: :func:`new_indptr` by edge type.
        bucket_bytes: Bytes of rows in memory at once; up to twice that for edge fields.
        chunk_bytes: Bytes of rows that are read at once.
        origin: Where the graph is from, for people.
        tick: Called with numbers of bytes read or written.

    Raises:
        FileExistsError: ``folder`` exists.
        ValueError: Ids of edges with fields are not a permutation.
    """
    with new_folder(folder) as part:
        buckets = part / "buckets"
        buckets.mkdir()
        scratch = Scratch(buckets, bucket_bytes, tick, chunk_bytes)
        writer = _Writer(part, graph, places, offsets, scratch)
        manifest = Manifest(
            [writer.node_type(name) for name in graph.node_types],
            [writer.edge_type(etype) for etype in graph.edge_types],
            dict(origin or {}),
        )
        buckets.rmdir()
        manifest.write(part)


def new_indptr(graph: Graph, etype: EdgeType, place: Array) -> Array:
    """The ``indptr`` of an edge type whose destinations are at ``place``."""
    from . import _orders

    indptr = graph.csc_of(etype).indptr.numpy()
    out = np.empty_like(indptr)
    _orders.new_offsets(indptr, place, out)
    return out


class _Writer:
    """Writer of one graph's arrays in their new order; returns the manifest's entries."""

    def __init__(
        self,
        folder: Path,
        graph: Graph,
        places: Mapping[str, Array],
        offsets: Mapping[EdgeType, Array],
        scratch: Scratch,
    ) -> None:
        self._graph = graph
        self._places = places
        self._offsets = offsets
        self._arrays = ArrayWriter(folder, scratch.tick)
        self._moved = partial(MovedRows, scratch=scratch)

    def node_type(self, name: str) -> NodeEntry:
        """Write the fields of a vertex type."""
        prefix = "node" if name == NODE_TYPE else f"node-{name}"
        place = self._places[name]
        fields = self._graph.node_fields(name)
        where = partial(_some, place)
        entries = {
            key: self._field(f"{prefix}-{key}", value, where, fields.notes.get(key))
            for key, value in fields.items()
        }
        # A graph that was reordered before keeps its first ids.
        if ORIGINAL_ID not in fields:
            label = f"{prefix}-{ORIGINAL_ID}"
            rows = self._moved(_counting, where, (len(place),), torch.int64, label)
            entries[ORIGINAL_ID] = self._write(label, rows)
        return NodeEntry(name, len(place), entries)

    def edge_type(self, etype: EdgeType) -> EdgeEntry:
        """Write the edges of a type, and their fields."""
        prefix = "edge" if etype == EDGE_TYPE else "edge-" + "-".join(etype)
        csc = self._graph.csc_of(etype)
        fields = self._graph.edge_fields(etype)
        where = _edge_places(csc.indptr.numpy(), self._places[etype[2]], self._offsets[etype])
        sources = torch.from_numpy(self._places[etype[0]])
        read = source_rows(csc.indices)

        def moved_sources(begin: int, end: int) -> Tensor:
            ids = read(begin, end)
            # Checked again: a mapped file may have changed since.
            check_range("indices", ids, csc.num_src)
            return sources[ids.long()].to(csc.indices.dtype)

        indices = self._moved(moved_sources, where, (csc.num_edges,), csc.indices.dtype, "edges")
        # Fields are in the order of edge ids, edges in that of the CSC. So places by CSC order are
        # first turned into places by id, which takes a second pass over the disk.
        by_id: Places = where
        inverse = None
        if csc.edge_ids is not None and fields:
            inverse = self._inverse(csc.edge_ids, where)
            by_id = partial(_read_places, inverse)
        entries = {
            key: self._field(f"{prefix}-field-{key}", value, by_id, fields.notes.get(key))
            for key, value in fields.items()
        }
        if inverse is not None:
            inverse.close()
        if ORIGINAL_ID not in fields and (fields or csc.edge_ids is not None):
            ids: Source = _counting
            dtype = torch.int64
            if csc.edge_ids is not None:
                ids = source_rows(csc.edge_ids)
                dtype = csc.edge_ids.dtype
            rows = self._moved(ids, where, (csc.num_edges,), dtype, "edges")
            entries[ORIGINAL_ID] = self._write(f"{prefix}-field-{ORIGINAL_ID}", rows)
        indptr = self._arrays.write(f"{prefix}-indptr", torch.from_numpy(self._offsets[etype]))
        written = self._write(f"{prefix}-indices", indices)
        return EdgeEntry(etype, csc.num_edges, indptr, written, None, entries)

    def _inverse(self, edge_ids: Tensor, where: Places) -> MovedRows:
        """New places of edges, in the order of their ids."""
        read = source_rows(edge_ids)
        name = "edge ids of a graph with edge fields"

        def places(begin: int, end: int) -> Array:
            ids = read(begin, end)
            check_range(name, ids, len(edge_ids))
            return ids.numpy()

        def moved(begin: int, end: int) -> Tensor:
            return torch.from_numpy(where(begin, end))

        return self._moved(moved, places, (len(edge_ids),), torch.int64, name)

    def _field(self, label: str, values: FieldValue, where: Places, note: FieldNote | None) -> Any:
        decoding = None
        if isinstance(values, NarrowRows):
            decoding = values.decoding
            values = values.stored
        rows = self._moved(source_rows(values), where, tuple(values.shape), values.dtype, label)
        rows.decoding = decoding
        return self._write(label, rows, note)

    def _write(self, label: str, rows: MovedRows, note: FieldNote | None = None) -> Any:
        entry = self._arrays.write(label, rows, note)
        rows.close()
        return entry


def _some(places: Array, begin: int, end: int) -> Array:
    return places[begin:end]


def _read_places(rows: MovedRows, begin: int, end: int) -> Array:
    places: Array = rows[begin:end].numpy()
    return places


def _counting(begin: int, end: int) -> Tensor:
    return torch.arange(begin, end, device="cpu")


def _edge_places(indptr: Array, place: Array, offsets: Array) -> Places:
    from . import _orders

    def where(begin: int, end: int) -> Array:
        out = np.empty(end - begin, np.int64)
        # The vertex of the first of these edges. Searched in indptr's dtype, as NumPy would
        # otherwise convert all of it.
        vertex = int(np.searchsorted(indptr, indptr.dtype.type(begin), side="right")) - 1
        _orders.edge_places(indptr, place, offsets, vertex, begin, out)
        return out

    return where
