"""What a sampler draws from a graph, as kernels take it: its hops, the edges, and their weights."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from .hop import CALLER, FLAGS, KNOWN_OFFSETS, NARROW, NARROW_IDS, Scratch
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
def check_dtype(dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    """Check that a batch may have ids of this dtype.

    Raises:
        ValueError: It is not an id dtype, or cannot hold the ids of so many vertices.
    """
    most = max(sizes, default=0)
    if dtype not in NUMPY_IDS or (dtype == torch.int32 and most > _MOST_INT32):
        raise ValueError(f"dtype must be an id dtype that holds ids below {most}, got {dtype}")


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
    page_bits: int | None
    on_disk: bool


def edges_for_kernels(edge_dir: str, graph: Graph) -> KernelEdges:
    """The edges of all types as the kernels take them.

    Not cached between batches: arrays move when a graph is shared with another process.
    """
    owners = graph.scattered(edge_dir)
    arrays = []
    dtypes = set()
    id_dtypes = set()
    on_disk = False
    page_bits = None
    for csc in owners:
        indptr = csc.indptr
        indices = csc.indices
        ids = csc.edge_ids
        pages = csc.pages
        address = 0
        known_offsets = 0
        known_edges = 0
        known_ids = 0
        id_bytes = 0
        if ids is not None:
            address = ids.data_ptr()
            id_dtypes.add(ids.dtype)
            id_bytes = ids.itemsize
        if pages is not None:
            page_bits = mmap.PAGESIZE.bit_length() - 1
            if pages.indptr is not None:
                known_offsets = pages.indptr.pages.known_at
            if pages.indices is not None:
                known_edges = pages.indices.pages.known_at
            if pages.edge_ids is not None:
                known_ids = pages.edge_ids.pages.known_at
        on_disk = on_disk or bool(known_offsets or known_edges or known_ids)
        dtypes.add(indices.dtype)
        arrays.append(
            (
                indptr.data_ptr(),
                indices.data_ptr(),
                address,
                indices.shape[0],
                indptr.shape[0] - 1,
                csc.num_src,
                0,
                known_offsets,
                known_edges,
                known_ids,
                id_bytes,
            )
        )
    table = np.array(arrays, dtype=_INT64).reshape(-1, 11)
    narrow = None
    if len(dtypes) > 1 or len(id_dtypes) > 1:
        narrow = _LIKE[torch.int32]
        for row, csc in zip(table, owners, strict=True):
            ids = csc.edge_ids
            is_narrow = len(dtypes) > 1 and csc.indices.dtype == torch.int32
            has_narrow = len(id_dtypes) > 1 and ids is not None and ids.dtype == torch.int32
            row[FLAGS] = NARROW * is_narrow + NARROW_IDS * has_narrow
    like = _LIKE[torch.int64 if len(dtypes) != 1 else dtypes.pop()]
    like_ids = like
    if id_dtypes:
        like_ids = _LIKE[torch.int64 if len(id_dtypes) > 1 else id_dtypes.pop()]
    return KernelEdges(owners, table, like, like_ids, narrow, page_bits, on_disk)


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
