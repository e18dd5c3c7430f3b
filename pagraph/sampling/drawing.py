"""What a batch is drawn from and which edges it leaves out, as kernels and pickers take it; for
batches of every kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..seeds.keys import Renewal, derive_key
from ..system.arrays import Array
from .hop import IDS, KNOWN_IDS, SHARES_NONE, Hop, HopEdges, HopMemory
from .plan import NUMPY_IDS, WeightedEdges, batch_dtype, edges_for_kernels
from .sampler import own_fields, seeds_by_type

if TYPE_CHECKING:
    from ..graph.graph import EdgeType, Graph
    from .edge_values import EdgeField
    from .hop import Scratch
    from .plan import KernelEdges, SamplePlan
    from .sampler import HopSampler
    from .times import TimedEdges, TreeTimes

_NO_MARKS = np.empty(0, dtype=np.uint8)


class ExcludedEdges:
    """A set of edges of one edge type, by position in its CSC.

    Args:
        positions: Shape ``(n,)``; repeats are allowed.
    """

    def __init__(self, positions: Tensor) -> None:
        from .kernels import edges as _excluded

        values: Array = positions.numpy()
        bits = max(6, (2 * len(values)).bit_length())
        self._table = np.full(1 << bits, -1, dtype=np.int64)
        # 16 bits per slot, 32 to 64 per edge: 16 KiB for 1000 edges and their reverse edges, which
        # stay in the L1 cache.
        self._marks = np.zeros(1 << (bits + 1), dtype=np.uint8)
        self._shifts = np.uint64(64 - bits), np.uint64(64 - bits - 4)
        self.count: int = len(values)
        _excluded.insert(values, self._table, self._shifts[0], self._marks, self._shifts[1])

    def for_kernels(self) -> tuple[int, ...]:
        """A row of the kernels' ``excluded``."""
        arrays = self._table.ctypes.data, len(self._table), self._marks.ctypes.data
        return *arrays, *(int(shift) for shift in self._shifts)

    def drop_from(self, edges: HopEdges) -> HopEdges:
        """The edges without excluded ones, in order; changes their arrays in place."""
        from .kernels import edges as _excluded

        if self.count == 0 or len(edges.positions) == 0:
            return edges
        weights = np.empty(0, dtype=np.float32) if edges.weights is None else edges.weights.numpy()
        arrays = edges.indptr.numpy(), edges.positions.numpy(), weights
        kept = int(
            _excluded.drop(*arrays, self._table, self._shifts[0], self._marks, self._shifts[1])
        )
        weights_left = None if edges.weights is None else edges.weights[:kept]
        return HopEdges(edges.indptr, edges.positions[:kept], weights_left)

    def left_of(self, positions: Tensor) -> Tensor:
        """Indices of the positions that are not excluded, ascending, int64."""
        from .kernels import edges as _excluded

        places = np.empty(len(positions), dtype=np.int64)
        arrays = self._table, self._shifts[0], self._marks, self._shifts[1], places
        return torch.from_numpy(places[: int(_excluded.left(positions.numpy(), *arrays))])


@dataclass(eq=False, slots=True)
class Drawing:
    """A batch while it is drawn: what it is drawn from, and how.

    Attributes:
        sampler, graph, seeds, field, exclude: See ``BlockSampler.sample``.
        key: The random key.
        renewal: See ``Hop``.
        plan: The hops to draw.
        given: Seeds of each vertex type, if any.
        counts: Number of seeds of each vertex type.
        dtype: Id dtype of the result.
        edges: The edges to draw from.
        weights: Their weights; None: uniform.
        timed: The times of edges and trees; None: not by time.
        stops: Whether Python runs while the batch is half drawn. It may raise, or sample another
            batch, so the scratch is then marked as in use.
        weighed: Whether a picker gave weights, by hop and edge type in the order of drawing.
    """

    sampler: Any  # a HopSampler; of trees a SubgraphSampler
    graph: Graph
    seeds: Tensor | Mapping[str, Tensor]
    field: EdgeField | None
    exclude: Mapping[EdgeType, ExcludedEdges] | None
    key: int
    renewal: Any
    plan: SamplePlan
    given: list[Tensor | None]
    counts: list[int]
    dtype: torch.dtype
    edges: KernelEdges
    weights: WeightedEdges | None
    timed: tuple[TimedEdges, TreeTimes] | None
    stops: bool
    weighed: dict[int, bool]

    @classmethod
    def of(
        cls,
        sampler: HopSampler,
        graph: Graph,
        seeds: Tensor | Mapping[str, Tensor],
        key: int,
        dtype: torch.dtype | None,
        field: EdgeField | None,
        exclude: Mapping[EdgeType, ExcludedEdges] | None = None,
        timed: tuple[TimedEdges, TreeTimes] | None = None,
        *,
        reads_ids: bool = True,
    ) -> Drawing:
        """A batch before it is drawn; raises as ``BlockSampler.sample``.

        Without ``reads_ids``, edges have positions for ids.
        """
        types = graph.types
        plan = sampler.known_plans.get(types) or sampler.plan(graph)
        given = _given(graph, seeds)
        if given is None:
            by_type = seeds_by_type(graph, seeds)
            given = [_as_ids(by_type.get(ntype)) for ntype in types.nodes]
            seeds = by_type
        dtypes = [ids.dtype for ids in given if ids is not None]
        of_seeds = torch.int64
        if isinstance(seeds, Tensor):
            of_seeds = seeds.dtype
        elif seeds:
            of_seeds = next(iter(seeds.values())).dtype
        dtype = batch_dtype(dtype, of_seeds, types.sizes)
        # The kernels check seeds, but only after they are converted.
        if dtypes.count(dtype) < len(dtypes):
            seeds_by_type(graph, seeds)
        edges = edges_for_kernels(sampler.edge_dir, graph)
        if edges.on_disk or timed is not None or not reads_ids:
            edges = edges._replace(csc=edges.csc.copy())  # other batches share it
            if not reads_ids:
                edges.csc[:, IDS] = 0
            if not (reads_ids and plan.once):  # blocks have positions, too
                edges.csc[:, KNOWN_IDS] = 0
        renewal = SHARES_NONE
        if sampler.batch_dependency != 1:
            shared = Renewal.of(key, sampler.batch_dependency)
            key = shared.key
            renewal = shared.numbers
        weights = None
        if sampler.prob is not None and plan.draws:
            make = partial(WeightedEdges.of, sampler.weights, graph, plan)
            weights = sampler.known_weights.get(graph, sampler.prob, field, make)
            plan = weights.plan
            if edges.on_disk:
                weights.leave_offsets(edges.csc)
        if timed is not None:
            timed[0].leave_ids(edges.csc)
        counts = [0 if ids is None else ids.shape[0] for ids in given]
        return cls(
            sampler,
            graph,
            seeds,
            field,
            exclude,
            key,
            renewal,
            plan,
            given,
            counts,
            dtype,
            edges,
            weights,
            timed,
            edges.on_disk or plan.asks,
            {},
        )

    def excluded_for_kernels(self) -> Any:
        """The kernels' ``excluded``, of a batch that has some."""
        edge_types = self.graph.types.edges
        table = np.zeros((len(edge_types), 5), dtype=np.int64)
        for etype, edges in (self.exclude or {}).items():
            if etype in edge_types and edges.count:
                table[edge_types.index(etype)] = edges.for_kernels()
        return table, _NO_MARKS

    def picked(
        self, scratch: Scratch, hop: int, place: int, frontier: Any, **more: Any
    ) -> HopEdges:
        """The edges of a hop along edge type number ``place`` that the sampler itself picks.

        ``more`` are arguments of ``Hop``.
        """
        etype = self.graph.types.edges[place]
        offset = int(self.renewal[3]) if len(self.renewal) else 0
        layer_key = derive_key(self.key, hop) + offset
        own_key = derive_key(self.key, hop, place) + offset if place else layer_key
        own = Hop(
            csc=self.edges.owners[place],
            frontier=frontier,
            key=np.uint64(own_key % 2**64),
            layer_key=np.uint64(layer_key % 2**64),
            batch_key=np.uint64((self.key + offset) % 2**64),
            scratch=scratch,
            dtype=torch.int64,
            pool=HopMemory(scratch, "picked"),
            renewal=self.renewal,
            **more,
        )
        picked = self.sampler.pick(
            self.graph, own, hop, etype, self.field or own_fields(self.graph)
        )
        excluded = (self.exclude or {}).get(etype)
        return picked if excluded is None else excluded.drop_from(picked)


def _given(graph: Graph, seeds: Any) -> list[Tensor | None] | None:
    """The seeds of each vertex type; None unless all are int32 or int64 tensors on the CPU."""
    given: list[Tensor | None]
    if isinstance(seeds, Tensor):
        if not graph.is_homogeneous:
            return None
        given = [seeds]
        count = 1
    elif not isinstance(seeds, Mapping):
        return None
    else:
        given = [seeds.get(ntype) for ntype in graph.types.nodes]
        count = len(seeds)
    for ids in given:
        if ids is None:
            continue
        if not isinstance(ids, Tensor) or ids.ndim != 1:
            return None
        if not ids.is_cpu or ids.dtype not in NUMPY_IDS:
            return None
        count -= 1
    return None if count else given


def _as_ids(ids: Tensor | None) -> Tensor | None:
    if ids is None or ids.dtype in NUMPY_IDS:
        return ids
    return ids.long()
