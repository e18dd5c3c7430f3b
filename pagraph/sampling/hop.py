"""One hop of sampling: the frontier, what a picker gets and returns, and recycled scratch
memory."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError
from ..system.arrays import Array, Int64Array

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..graph.graph import CSC


# 8 KiB, which are cleared in no time and hold 256 vertices without growing.
_MIN_TABLE_BITS = 10
FIRST_ROOM = 2**16
"""Vertices, or edges, of one type in a batch of trees that there is room for at first."""
SHARES_NONE: npt.NDArray[np.uint64] = np.empty(0, dtype=np.uint64)
"""Stands for ``Renewal.numbers`` where batches share no random numbers."""
_local = threading.local()


class Scratch:
    """Arrays by name that grow and never shrink, and a vertex table for each vertex type."""

    def __init__(self) -> None:
        self._arrays: dict[Any, Array] = {}
        self._tables: list[VertexTable] = []
        self._seen: Array = np.empty(0, dtype=np.int64)
        self._zeros: Array = np.empty(0, dtype=np.uint64)
        self._named: dict[str, VertexTable] = {}
        self._table_bits: Array = np.empty(0, dtype=np.int64)
        self._places: Array = np.empty(0, dtype=np.int32)
        self.of_batch: Any = None  # of the last batch that was sampled in one call
        self.of_trees: Any = None  # of the last batch of trees
        self.tree_room = FIRST_ROOM
        self.induced_room = 2**16  # edges of an induced subgraph that there is room for

    @staticmethod
    def of_this_thread() -> Scratch:
        """The calling thread's scratch."""
        scratch: Scratch | None = getattr(_local, "value", None)
        if scratch is None:
            scratch = _local.value = Scratch()
        return scratch

    def array(self, name: Any, length: int, dtype: Any) -> Array:
        """An array of ``length`` (contents undefined); it is valid until the next call with this
        name."""
        array = self._arrays.get(name)
        if array is None or len(array) < length or array.dtype != dtype:
            array = np.empty(length + (length >> 3), dtype=dtype)
            self._arrays[name] = array
        return array[:length]

    def hash_set(self, picks: int) -> Array:
        """An empty set for ``picks`` numbers: a power-of-two length filled with -1. Kernels must
        leave it empty."""
        size = 1 << (2 * max(picks, 1) - 1).bit_length()
        if len(self._seen) < size:
            self._seen = np.full(size, -1, dtype=np.int64)
        return self._seen[:size]

    def table_bits(self, count: int) -> Array:
        """Bits of the hash tables of the next batch that is sampled in one call, for ``count``
        vertex types, int64."""
        if len(self._table_bits) < count:
            self._table_bits = np.full(count, _MIN_TABLE_BITS, dtype=np.int64)
        return self._table_bits[:count]

    def places(self, length: int) -> Array:
        """Places in a batch, int32, all of them -1. Kernels must leave them so."""
        if len(self._places) < length:
            self._places = np.full(length, -1, dtype=np.int32)
        return self._places

    def zeros(self, length: int) -> Array:
        """Words that are all 0, uint64. Kernels must leave them so."""
        if len(self._zeros) < length:
            self._zeros = np.zeros(length, dtype=np.uint64)
        return self._zeros[:length]

    def tables(self, count: int) -> list[VertexTable]:
        """The vertex tables of ``count`` vertex types, with whatever the batch before left in
        them."""
        while len(self._tables) < count:
            self._tables.append(VertexTable())
        return self._tables[:count]

    def table(self, name: str) -> VertexTable:
        """A vertex table of its own, for use within one hop, with whatever the hop before left in
        it."""
        return self._named.setdefault(name, VertexTable())


class VertexTable:
    """The vertices of one type in a batch, in the order of their discovery, and a hash table from
    id to place.

    The table is small (at least twice the vertices, not as large as the graph), so that it stays in
    the processor's caches; its size is kept from batch to batch.
    """

    def __init__(self) -> None:
        self.count: int = 0
        self._nodes: Array = np.empty(0, dtype=np.int32)
        self._bits = _MIN_TABLE_BITS
        self._table: Array = np.empty(0, dtype=np.int64)
        self._num_vertices = 0

    @property
    def nodes(self) -> Array:
        """The ids so far; valid until :meth:`relabel` is called."""
        return self._nodes[: self.count]

    def reset(self, seeds: Tensor | None, num_vertices: int, dtype: Any) -> None:
        """Begin a batch with ``seeds`` (repeated ones keep their own places) out of
        ``num_vertices``."""
        self.count = 0 if seeds is None else len(seeds)
        self._num_vertices = num_vertices
        if self._nodes.dtype != dtype or len(self._nodes) < self.count:
            self._nodes = np.empty(max(self.count, 1), dtype=dtype)
        if seeds is not None:
            self._nodes[: self.count] = seeds.numpy()
        bits = max(
            _MIN_TABLE_BITS, self._bits, (4 * self.count - 1).bit_length() if self.count else 0
        )
        # Never much larger than the graph: a small graph after a large one would clear a large
        # table for nothing.
        self._bits = min(bits, max(_MIN_TABLE_BITS, (4 * num_vertices).bit_length()))
        while 1 << self._bits < 4 * self.count:
            self._bits += 1
        self._fill()

    def relabel(self, neighbors: Array, local_ids: Array) -> None:
        """Write each neighbour's place to ``local_ids``, append new vertices; FormatError for one
        outside the graph."""
        from .kernels import hop

        if len(self._nodes) < self.count + len(neighbors):
            grown = np.empty((self.count + len(neighbors)) * 9 // 8, dtype=self._nodes.dtype)
            grown[: self.count] = self.nodes
            self._nodes = grown
        at = 0
        while True:
            table = self._table
            shift = np.uint64(64 - self._bits)
            at, count = hop.relabel(
                neighbors, at, self._num_vertices, self._nodes, self.count, table, shift, local_ids
            )
            self.count = int(count)
            if at < 0:
                raise_bad_source(int(neighbors[-1 - at]), self._num_vertices)
            if at == len(neighbors):
                return
            self._bits += 1
            self._fill()

    @property
    def lookup(self) -> tuple[Array, Array, np.uint64]:
        """Arguments of the look-up kernels: the ids, the hash table, and how far to shift a
        hash."""
        return self.nodes, self._table, np.uint64(64 - self._bits)

    def _fill(self) -> None:
        from .kernels import hop

        size = 1 << self._bits
        if len(self._table) != size:
            self._table = np.empty(size, dtype=np.int64)
        self._table.fill(-1)
        hop.insert_nodes(self._nodes, self.count, self._table, np.uint64(64 - self._bits))


def raise_bad_row(vertex: int) -> NoReturn:
    """Report a vertex whose row does not end in the graph's edges."""
    raise FormatError(
        f"the graph's indptr must be non-decreasing, it is not at vertex {vertex}: damaged file?"
    )


def raise_bad_source(vertex: int, num_vertices: int) -> NoReturn:
    """Report an edge that leads out of the graph."""
    raise FormatError(
        f"the graph's indices must be in [0, {num_vertices}), got {vertex}: damaged file?"
    )


@dataclass(frozen=True, eq=False)
class HopEdges:
    """The edges drawn for a frontier; ``indices`` is filled in later.

    Attributes:
        indptr: Shape ``(len(frontier) + 1,)``: the edges of frontier vertex ``i`` are
            ``indptr[i]:indptr[i + 1]``.
        indices: Shape ``(num_edges,)``, local ids of the source vertices.
        positions: Shape ``(num_edges,)``, places in the graph's CSC.
        weights: Shape ``(num_edges,)``, float32, where the picker makes any.
    """

    indptr: Tensor
    indices: Tensor
    positions: Tensor
    weights: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Hop:
    """One hop along one edge type.

    Attributes:
        csc: The edges to draw from.
        frontier: Ids of the vertices that draw, shape ``(n,)``; repeated ones may be among them.
        key: Random key of this hop and edge type.
        layer_key: Random key of this hop, the same for all edge types.
        batch_key: Random key of the batch.
        scratch: This thread's working memory.
        dtype: Dtype of local ids.
        pool: Memory of the result.
        drawn_as: The number that each frontier vertex's random numbers are drawn for, shape
            ``(n,)``. None: its id.
        until: The latest time that an edge of each frontier vertex may have, shape ``(n,)``; None:
            none is told.
        renewal: ``Renewal.numbers``; empty where batches share none.
        since: The time that it must be above, the same; None: no such limit.
    """

    csc: CSC
    frontier: Array
    key: np.uint64
    layer_key: np.uint64
    batch_key: np.uint64
    scratch: Scratch
    dtype: torch.dtype
    pool: EdgeMemory
    drawn_as: Array | None = None
    until: Int64Array | None = None
    renewal: npt.NDArray[np.uint64] = field(default_factory=lambda: SHARES_NONE)
    since: Int64Array | None = None

    @property
    def counters(self) -> Array:
        """Counters of the random numbers of the frontier's vertices, shape ``(n,)``."""
        if self.drawn_as is not None:
            return self.drawn_as
        if len(self.renewal) == 0:
            return self.frontier
        from .kernels import hop

        counters = self.scratch.array("counters", len(self.frontier), np.int64)
        hop.renew(self.frontier, self.renewal, counters)
        return counters

    def edges(self, offsets: Array, *, weighted: bool = False) -> HopEdges:
        """Room for the edges of each frontier vertex, ``offsets`` being the ``indptr``; positions
        are yet to be set."""
        n = len(self.frontier)
        total = int(offsets[-1])
        specs = [((n + 1,), self.dtype), ((total,), self.dtype), ((total,), self.csc.indices.dtype)]
        if weighted:
            specs.append(((total,), torch.float32))
        indptr, indices, positions, *weights = self.pool.take_many(*specs)
        indptr.numpy()[:] = offsets
        return HopEdges(indptr, indices, positions, weights[0] if weights else None)


class EdgeMemory(Protocol):
    """Gives memory for drawn edges: a ``BufferPool``, or scratch for edges that do not outlive the
    batch."""

    def take_many(self, *specs: tuple[tuple[int, ...], torch.dtype]) -> list[Tensor]:
        """Uninitialised tensors of these shapes and dtypes."""


_NUMPY = {torch.int32: np.int32, torch.int64: np.int64, torch.float32: np.float32}


@dataclass(frozen=True, eq=False)
class HopMemory:
    """Scratch memory of a hop's edges, which live until the batch is put together."""

    scratch: Scratch
    name: Any

    def take_many(self, *specs: tuple[tuple[int, ...], torch.dtype]) -> list[Tensor]:
        """See ``EdgeMemory``."""
        return [
            torch.from_numpy(self.scratch.array((self.name, place), shape[0], _NUMPY[dtype]))
            for place, (shape, dtype) in enumerate(specs)
        ]


class Picker(Protocol):
    """Chooses edges of a frontier; a pure function of the hop, called from any number of
    threads."""

    def pick(self, hop: Hop) -> HopEdges:
        """The edges drawn, positions (and weights) filled in; FormatError where the graph's
        ``indptr`` is damaged."""
