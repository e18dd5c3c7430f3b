"""One hop of sampling: what a picker gets and returns, each thread's scratch memory, and the report
of a batch that is being drawn."""

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
    from collections.abc import Sequence

    import numpy.typing as npt

    from ..graph.graph import CSC


# Numbers that kernels and their callers share: the report of a batch that is being drawn, see
# `kernels/batch.py`. Here, as this module loads no numba.

# Statuses: errors, then stops at which the caller acts.
DONE = 0
BAD_SEED = 1
BAD_ROW = 2
BAD_SOURCE = 3
FULL = 4
ASK_OFFSETS = 5
ASK_ROWS = 6
ASK_EDGES = 7
PICK = 8

# Indices of the report.
STATUS = 0
WHAT = 1
EDGE_TYPE = 2
BYTES = 3
HOP = 4
PHASE = 5
ROW = 6
EDGE = 7
REPORT = 8

# Phases of a hop along an edge type; ``FRESH``: of a batch of which nothing is done.
FRESH = -1
BEGIN = 0
MEASURE = 1
PICKING = 2
READING = 3

CALLER = -2
"""A fan-out: the caller picks."""

# Columns of ``csc`` that callers use.
IDS = 2
NUM_EDGES = 3
FLAGS = 6
KNOWN_OFFSETS = 7
KNOWN_EDGES = 8
KNOWN_IDS = 9
ID_BYTES = 10

# Flags of an edge type.
NARROW = 1
NARROW_IDS = 2

# 8 KiB: quick to clear, and 512 vertices fit without growing.
_MIN_TABLE_BITS = 10
_FIRST_ROOM = 2**16  # edges
SHARES_NONE: npt.NDArray[np.uint64] = np.empty(0, dtype=np.uint64)
"""In place of ``Renewal.numbers`` if batches share no random numbers."""
_local = threading.local()


def set_slots(picks: int) -> int:
    """Slots of a hash set for one row's picks, a power of two."""
    from .kernels.hop import SET_SLOTS

    return 1 << (SET_SLOTS * max(picks, 1) - 1).bit_length()


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
        self.of_batch: Any = None  # arrays of the last batch that was sampled in one call
        self.room = _FIRST_ROOM  # room for the edges of batches that may be huge
        self.in_use = False  # by a batch that is being drawn, or was when an exception came
        self.induced_room = 2**16  # room for edges of an induced subgraph

    @staticmethod
    def of_this_thread() -> Scratch:
        """The calling thread's scratch."""
        scratch: Scratch | None = getattr(_local, "value", None)
        if scratch is None:
            scratch = _local.value = Scratch()
        return scratch

    @staticmethod
    def for_batch() -> Scratch:
        """The calling thread's scratch; another one from now on if a batch has not given it back:
        its picker samples, too, or an exception has ended it."""
        scratch: Scratch | None = getattr(_local, "value", None)
        if scratch is None or scratch.in_use:
            room = _FIRST_ROOM if scratch is None else scratch.room
            scratch = _local.value = Scratch()
            scratch.room = room
        return scratch

    def array(self, name: Any, length: int, dtype: Any) -> Array:
        """An uninitialised array of ``length``; valid until the next call with this name."""
        array = self._arrays.get(name)
        if array is None or len(array) < length or array.dtype != dtype:
            array = np.empty(length + (length >> 3), dtype=dtype)
            self._arrays[name] = array
        return array[:length]

    def hash_set(self, size: int) -> Array:
        """An empty hash set of ``size`` slots (see :func:`set_slots`), filled with -1.

        Kernels must leave it empty.
        """
        if len(self._seen) < size:
            self._seen = np.full(size, -1, dtype=np.int64)
        return self._seen[:size]

    def table_bits(self, count: int) -> Array:
        """Sizes in bits, int64, of the hash tables of ``count`` vertex types, for batches that are
        sampled in one call; kernels update them for the next batch."""
        if len(self._table_bits) < count:
            self._table_bits = np.full(count, _MIN_TABLE_BITS, dtype=np.int64)
        return self._table_bits[:count]

    def places(self, length: int) -> Array:
        """A direct table of at least ``length`` entries, int32, all -1; kernels must leave it
        so."""
        if len(self._places) < length:
            self._places = np.full(length, -1, dtype=np.int32)
        return self._places

    def zeros(self, length: int) -> Array:
        """``length`` words, uint64, all 0; kernels must leave them so."""
        if len(self._zeros) < length:
            self._zeros = np.zeros(length, dtype=np.uint64)
        return self._zeros[:length]

    def tables(self, count: int) -> list[VertexTable]:
        """The vertex tables of ``count`` vertex types; reset them first."""
        while len(self._tables) < count:
            self._tables.append(VertexTable())
        return self._tables[:count]

    def table(self, name: str) -> VertexTable:
        """A named vertex table for use within one hop; reset it first."""
        return self._named.setdefault(name, VertexTable())


class VertexTable:
    """The vertices of one type in a batch, by first occurrence, and a hash table from id to local
    id.

    The table has at least two slots per vertex of the batch. Unlike a table of the whole graph, it
    stays in the processor's caches. Its size is kept from batch to batch.
    """

    def __init__(self) -> None:
        self.count: int = 0
        self._nodes: Array = np.empty(0, dtype=np.int32)
        self._bits = _MIN_TABLE_BITS
        self._table: Array = np.empty(0, dtype=np.int64)
        self._num_vertices = 0

    @property
    def nodes(self) -> Array:
        """The ids so far; valid until the next :meth:`relabel`."""
        return self._nodes[: self.count]

    def reset(self, seeds: Tensor | None, num_vertices: int, dtype: Any) -> None:
        """Begin a batch with ``seeds``, of which repeated ones keep their own local ids.

        Args:
            seeds: Ids below ``num_vertices``; None: none.
            num_vertices: Number of the graph's vertices of this type.
            dtype: NumPy dtype of ids.
        """
        self.count = 0 if seeds is None else len(seeds)
        self._num_vertices = num_vertices
        if self._nodes.dtype != dtype or len(self._nodes) < self.count:
            self._nodes = np.empty(max(self.count, 1), dtype=dtype)
        if seeds is not None:
            self._nodes[: self.count] = seeds.numpy()
        needed = (4 * self.count - 1).bit_length() if self.count else 0
        bits = max(_MIN_TABLE_BITS, self._bits, needed)
        # Not much larger than the graph: else a small graph sampled after a large one would clear
        # a large table for each batch.
        self._bits = min(bits, max(_MIN_TABLE_BITS, (4 * num_vertices).bit_length()))
        while 1 << self._bits < 4 * self.count:
            self._bits += 1
        self._fill()

    def relabel(self, neighbors: Array, local_ids: Array) -> None:
        """Write each neighbour's local id to ``local_ids``, and append new vertices.

        Raises:
            FormatError: A neighbour is outside the graph.
        """
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
        """Arguments of the look-up kernels: the ids, the hash table, and the shift of a hash."""
        return self.nodes, self._table, np.uint64(64 - self._bits)

    def _fill(self) -> None:
        from .kernels import hop

        size = 1 << self._bits
        if len(self._table) != size:
            self._table = np.empty(size, dtype=np.int64)
        self._table.fill(-1)
        hop.insert_nodes(self._nodes, self.count, self._table, np.uint64(64 - self._bits))


def raise_bad_row(vertex: int) -> NoReturn:
    """Raise the error for a vertex whose row is damaged."""
    raise FormatError(
        f"the graph's indptr must be non-decreasing, it is not at vertex {vertex}: damaged file?"
    )


def raise_bad_source(vertex: int, num_vertices: int) -> NoReturn:
    """Raise the error for an edge that points outside the graph."""
    raise FormatError(
        f"the graph's indices must be in [0, {num_vertices}), got {vertex}: damaged file?"
    )


def raise_reported(
    report: Sequence[int], ends: npt.NDArray[np.int64], num_nodes: Sequence[int]
) -> NoReturn:
    """Raise the error in the report of a kernel that draws a whole batch.

    Args:
        report: Its status, id and edge type come first.
        ends: For each edge type, the numbers of its source and destination vertex types.
        num_nodes: Number of the graph's vertices of each type.
    """
    status, vertex, edge_type = report[:3]
    if status == BAD_SEED:
        raise IndexError("seeds must not be written while a batch is sampled, they were")
    if status == BAD_ROW:
        raise_bad_row(vertex)
    raise_bad_source(vertex, num_nodes[ends[edge_type, 0]])


@dataclass(frozen=True, eq=False)
class HopEdges:
    """The edges drawn for a frontier.

    Attributes:
        indptr: Shape ``(len(frontier) + 1,)``: the edges of frontier vertex ``i`` are
            ``indptr[i]:indptr[i + 1]``.
        positions: Shape ``(num_edges,)``, positions in the graph's CSC.
        weights: Shape ``(num_edges,)``, float32; None if the picker makes none.
    """

    indptr: Tensor
    positions: Tensor
    weights: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Hop:
    """One hop along one edge type.

    Attributes:
        csc: The edges to draw from.
        frontier: Ids of the vertices that draw, shape ``(n,)``; may have repeats.
        key: Random key of this hop and edge type.
        layer_key: Random key of this hop, the same for all edge types.
        batch_key: Random key of the batch.
        scratch: This thread's scratch memory.
        dtype: Dtype of local ids.
        pool: Memory of the result.
        drawn_as: The counter of each frontier vertex's random numbers, shape ``(n,)``. None: its
            id.
        until: Upper limit of the times of each frontier vertex's edges, shape ``(n,)``; None: no
            limit.
        renewal: ``Renewal.numbers``; empty if batches share no random numbers.
        since: Time that they must be above, shape ``(n,)``; None: no limit.
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
        """Allocate edges with ``offsets`` as ``indptr``; positions are yet to be written."""
        n = len(self.frontier)
        total = int(offsets[-1])
        specs = [((n + 1,), torch.int64), ((total,), self.csc.indices.dtype)]
        if weighted:
            specs.append(((total,), torch.float32))
        indptr, positions, *weights = self.pool.take_many(*specs)
        indptr.numpy()[:] = offsets
        return HopEdges(indptr, positions, weights[0] if weights else None)


class EdgeMemory(Protocol):
    """Memory for drawn edges: a ``BufferPool``, or scratch for edges that are copied later."""

    def take_many(self, *specs: tuple[tuple[int, ...], torch.dtype]) -> list[Tensor]:
        """Uninitialised tensors of these shapes and dtypes."""


_NUMPY = {torch.int32: np.int32, torch.int64: np.int64, torch.float32: np.float32}


@dataclass(frozen=True, eq=False)
class HopMemory:
    """Scratch memory for a hop's edges, which are copied when the batch is assembled."""

    scratch: Scratch
    name: Any

    def take_many(self, *specs: tuple[tuple[int, ...], torch.dtype]) -> list[Tensor]:
        """See ``EdgeMemory``."""
        return [
            torch.from_numpy(self.scratch.array((self.name, place), shape[0], _NUMPY[dtype]))
            for place, (shape, dtype) in enumerate(specs)
        ]


class Picker(Protocol):
    """Picks edges of a frontier, as a pure function of the hop; thread-safe."""

    def pick(self, hop: Hop) -> HopEdges:
        """Pick edges, and fill in positions (and weights).

        Raises:
            FormatError: The graph's ``indptr`` is damaged.
        """
