"""What a sampler draws from a graph, as kernels take it: its hops, the edges, and their weights."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from .hop import (
    CALLER,
    FLAGS,
    ID_BYTES,
    KNOWN_IDS,
    KNOWN_OFFSETS,
    NARROW,
    NARROW_IDS,
    Scratch,
)
from .pickers import NO_WEIGHTS, weighted_scratch

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..graph.csc import CSC
    from ..graph.graph import EdgeType, Graph
    from ..system.arrays import Int64Array
    from .edge_values import EdgeField, EdgeWeights

MOST_SMALL_FANOUT = 2**18  # the set of one vertex's picks is that large, even where none is needed
_MOST_INT32 = 2**31 - 1
_INT64 = np.dtype(np.int64)
NUMPY_IDS = {torch.int32: np.dtype(np.int32), torch.int64: _INT64}
_LIKE = {dtype: np.empty(0, dtype=kind) for dtype, kind in NUMPY_IDS.items()}
# Empty arrays that tell the kernels the dtypes of running sums and guides.
_NO_SUMS = np.empty(0, dtype=np.float64)
_NO_GUIDE = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, eq=False)
class SamplePlan:
    """The hops of a sampler along a graph's edge types.

    Attributes:
        fanouts: Fan-out of each hop and edge type, shape ``(num_hops, num_edge_types)``, int64; the
            first hop serves the seeds. -1 takes all; ``CALLER`` asks the sampler's picker.
        ends: Numbers of the source's and the destination's vertex type, shape
            ``(num_edge_types, 2)``, int64.
        replace: Draw with replacement.
        once: Each hop expands what the previous one found; else all known vertices.
        disjoint: Each seed has its own tree.
        shared: None, or for LABOR whether all hops share their random numbers.
        weighed: Whether drawn edges have weights.
        set_size: Slots of the hash set of one vertex's picks.
    """

    fanouts: Int64Array
    ends: Int64Array
    replace: bool
    once: bool
    disjoint: bool
    shared: bool | None
    weighed: bool
    set_size: int

    @cached_property
    def draws(self) -> bool:
        """Whether the kernels draw along any edge type."""
        return bool(((self.fanouts != 0) & (self.fanouts != CALLER)).any())

    @cached_property
    def asks(self) -> bool:
        """Whether some picks are left to the caller."""
        return bool((self.fanouts == CALLER).any())


@lru_cache(maxsize=64)
def asking(plan: SamplePlan, edge_types: tuple[int, ...]) -> SamplePlan:
    """A plan with the picks of these edge types left to the caller."""
    fanouts = plan.fanouts.copy()
    for edge_type in edge_types:
        fanouts[:, edge_type][fanouts[:, edge_type] != 0] = CALLER
    return replace(plan, fanouts=fanouts)


def edge_ends(graph: Graph) -> Int64Array:
    """Numbers of the source's and the destination's vertex type, shape ``(num_edge_types, 2)``,
    int64."""
    node_types, edge_types, _ = graph.types
    ends = [(node_types.index(src), node_types.index(dst)) for src, _, dst in edge_types]
    return np.array(ends, dtype=np.int64).reshape(len(ends), 2)


# Cached, as it is called for each batch, mostly with the same arguments.
@lru_cache(maxsize=256)
def batch_dtype(
    dtype: torch.dtype | None, of_seeds: torch.dtype, sizes: tuple[int, ...]
) -> torch.dtype:
    """The id dtype of a batch: the one asked for, else that of its first seeds, or int64 if theirs
    is none.

    Raises:
        ValueError: It is not an id dtype, or cannot hold the ids of so many vertices.
    """
    if dtype is None:
        dtype = of_seeds if of_seeds in NUMPY_IDS else torch.int64
    most = max(sizes, default=0)
    if dtype not in NUMPY_IDS or (dtype == torch.int32 and most > _MOST_INT32):
        raise ValueError(f"dtype must be an id dtype that holds ids below {most}, got {dtype}")
    return dtype


class KernelEdges(NamedTuple):
    """The edges of all types as kernels take them.

    Attributes:
        owners: Keep the arrays alive, which kernels read by their addresses.
        csc: See ``kernels/batch.py``.
        like: An empty array of the ids' dtype.
        like_ids: An empty array of the edge ids' dtype.
        narrow: None, or an empty int32 array if ids of other types are int64.
        page_bits: See there.
        on_disk: Whether arrays are on disk, with pages that may not be in memory.
    """

    owners: list[CSC]
    csc: Any
    like: Any
    like_ids: Any
    narrow: Any
    on_disk: bool
    page_bits: int | None


def edges_for_kernels(edge_dir: str, graph: Graph) -> KernelEdges:
    """The edges of all types as the kernels take them; ``csc`` is shared by batches."""
    owners = graph.scattered(edge_dir)
    found = []
    page_bits = None
    # Asked for again for each batch: arrays move when a graph is shared with another process.
    for csc in owners:
        indptr = csc.indptr
        indices = csc.indices
        ids = csc.edge_ids
        pages = csc.pages
        ids_at = 0
        id_bytes = 0
        known_at = (0, 0, 0)
        if ids is not None:
            ids_at = ids.data_ptr()
            id_bytes = ids.itemsize
        if pages is not None:
            page_bits = mmap.PAGESIZE.bit_length() - 1
            known_at = pages.known_at
        found.append(
            (
                indptr.data_ptr(),
                indices.data_ptr(),
                ids_at,
                indices.shape[0],
                indptr.shape[0] - 1,
                csc.num_src,
                indices.itemsize,
                *known_at,
                id_bytes,
            )
        )
    return KernelEdges(owners, *_as_table(tuple(found)), page_bits)


# Cached, as most batches are of the same edges: making the array took 4 of a small batch's 80 us.
@lru_cache(maxsize=64)
def _as_table(found: tuple[tuple[int, ...], ...]) -> tuple[Any, Any, Any, Any, bool]:
    """``csc`` to ``on_disk`` of ``KernelEdges``, from the rows of ``csc`` with bytes of an id for
    flags."""
    csc = np.array(found, dtype=np.int64).reshape(-1, ID_BYTES + 1)
    widths = csc[:, FLAGS].copy()
    id_widths = csc[:, ID_BYTES]
    # An id dtype by its bytes; the wider one where types differ.
    kinds = [_LIKE[torch.int32], _LIKE[torch.int64]]
    like = kinds[set(widths.tolist()) != {4}]
    like_ids = like
    own_ids = set(id_widths.tolist()) - {0}
    if own_ids:
        like_ids = kinds[own_ids != {4}]
    csc[:, FLAGS] = NARROW * (widths < like.itemsize)
    csc[:, FLAGS] += NARROW_IDS * ((id_widths > 0) & (id_widths < like_ids.itemsize))
    narrow = None
    if csc[:, FLAGS].any():
        narrow = _LIKE[torch.int32]
    return csc, like, like_ids, narrow, bool(csc[:, KNOWN_OFFSETS : KNOWN_IDS + 1].any())


@dataclass(frozen=True, eq=False)
class WeightedEdges:
    """Weights of all edges that a sampler draws from, as the kernels take them.

    Attributes:
        plan: The hops, in which types with weights that are invalid, or of another dtype than
            others', are left to the caller.
        table: The table in the kernels' ``weights``, shape ``(num_edge_types, 6)``, int64.
        like: An empty array of the weights' dtype; None if no type has weights.
        held: Keeps the memory at the table's addresses alive.
    """

    plan: SamplePlan
    table: Int64Array
    like: Any
    held: list[Any]

    @classmethod
    def of(
        cls,
        weights_of: Callable[[Graph, EdgeType, EdgeField], EdgeWeights | None],
        graph: Graph,
        plan: SamplePlan,
        field: EdgeField,
    ) -> WeightedEdges:
        """The weights of the edge types that the kernels draw from; ``weights_of`` is
        ``HopSampler.weights``."""
        edge_types = graph.types.edges
        drawn = ((plan.fanouts != 0) & (plan.fanouts != CALLER)).any(0).tolist()
        table = np.zeros((len(edge_types), 6), dtype=np.int64)
        like = None
        held: list[Any] = []
        left: list[int] = []
        for place, etype in enumerate(edge_types):
            try:
                weights = weights_of(graph, etype, field) if drawn[place] else None
            except (TypeError, ValueError):
                # Not raised here: it is an error only if a batch reaches this type.
                left.append(place)
                continue
            if weights is None:
                continue
            held.append(weights)
            if weights.values is not None:
                values = weights.values.numpy()
                if like is not None and like.dtype != values.dtype:
                    left.append(place)
                    continue
                like = values[:0]
                table[place, :3] = [array.ctypes.data for array in (values, *weights.tables())]
            if weights.kept is not None:
                table[place, 3] = weights.kept.indptr.data_ptr()
                table[place, 4] = weights.kept.indices.data_ptr()
            table[place, 5] = weights.num_positive
        if left:
            plan = asking(plan, tuple(left))
        if held and like is None:
            like = NO_WEIGHTS
        return cls(plan, table, like, held)

    def leave_offsets(self, csc: Any) -> None:
        """Note in the kernels' ``csc`` for which types the offsets on disk are not read, as those
        of the edges of positive weight are."""
        csc[self.table[:, 3] != 0, KNOWN_OFFSETS] = 0

    def for_kernels(self, rows: int, picks: int, plan: SamplePlan) -> Any:
        """The kernels' ``weights``, for hops with at most these rows and picks."""
        if self.like is None:
            return None
        # The set has at least four slots per pick, so a quarter bounds the picks of one row.
        scratch = weighted_scratch(Scratch.of_this_thread(), rows, picks, plan.set_size >> 2)
        return self.table, self.like, _NO_SUMS, _NO_GUIDE, scratch
