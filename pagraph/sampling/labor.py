"""LaborSampler: layer-neighbour sampling (LABOR), whose frontier vertices share their neighbours'
random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..system.arrays import Array
from .block_sampler import BlockSampler
from .edge_values import EdgeField
from .pickers import NO_WEIGHTS, Rows, in_order
from .sampler import FanoutSampler

if TYPE_CHECKING:
    from ..graph.graph import EdgeType, Graph
    from .edge_values import EdgeWeights
    from .hop import Hop, HopEdges, Picker


_NO_IDS: Array = np.empty(0, dtype=np.int32)
_NO_PI: Array = np.empty(0, dtype=np.float64)
_TOLERANCE = 1e-4
_MOST_PI = 1e100


@dataclass(frozen=True)
class LaborSampler(FanoutSampler, BlockSampler):
    """Samples by LABOR (Balin and Catalyurek, NeurIPS 2023), with the distribution of
    ``dgl.dataloading.LaborSampler``.

    Each source vertex ``u`` has one random number, shared by all frontier vertices and edge types
    of a hop. Vertex ``v`` takes its in-neighbour ``u`` if this number is below the probability of
    the edge. So vertices share more neighbours than with independent draws, and there are fewer
    input vertices. Without ``prob`` and importance sampling, the probability is
    ``min(1, fan-out / degree)``: all neighbours are taken if there are at most ``fan-out``, else
    ``fan-out`` on average.

    With ``prob`` or importance sampling, blocks have edge weights: ``A / probability``, scaled to
    average 1 over the sampled in-edges of each vertex. A weighted mean over these estimates the one
    over all in-edges, nearly without bias (it is a ratio). Edges of weight 0 are left out. The
    probabilities give each vertex the variance of ``fan-out`` uniform draws, to one part in 10,000
    as in DGL. So edges of tiny weight may be left out even if the degree is below the fan-out.

    Args:
        fanouts: Neighbours per vertex and edge type for each hop, in DGL's order: the last entry
            serves the seeds. -1 takes all. An entry may be a mapping from edge type to a number,
            where 0 draws nothing.
        prob: Name of an edge field with non-negative weights ``A``. Edge types without the field
            are sampled uniformly. (DGL 2.1 indexes the weights by position in its CSC instead of by
            edge id.)
        importance_sampling: Number of steps that optimise the probabilities for fewer vertices per
            layer; negative: until they converge.
        layer_dependency: Use the same random numbers in all hops, for even fewer input vertices.
        edge_dir: "in" draws from in-edges; "out" from out-edges, for graphs with one vertex type.
        batch_dependency: Number of batches for which a source keeps its random number, so that
            consecutive batches read many of the same rows; see ``NeighborSampler``.

    Raises:
        TypeError: A fan-out, ``importance_sampling`` or ``batch_dependency`` is not an integer, or
            ``prob`` is not a string.
        ValueError: There is no fan-out, one is 0 or below -1, ``batch_dependency`` is below 1, or
            ``edge_dir`` is unknown.

    Example:
        >>> import torch
        >>> from pagraph.graph import Graph
        >>> LaborSampler([2]).sample(Graph.from_coo([0, 1, 2], [1, 2, 2]), torch.tensor([2])).blocks
        [Block(num_src=2, num_dst=1, num_edges=2)]
    """

    fanouts: Sequence[int | Mapping[EdgeType, int]]
    prob: str | None = None
    importance_sampling: int = 0
    layer_dependency: bool = False
    edge_dir: str = "in"
    batch_dependency: int = 1

    def __post_init__(self) -> None:
        self.check_fanouts()
        if not isinstance(self.importance_sampling, int | np.integer):
            raise TypeError(
                f"importance_sampling must be an integer, got {self.importance_sampling!r}"
            )

    @property
    def weighs_edges(self) -> bool:
        """See :attr:`HopSampler.weighs_edges`."""
        return self.prob is not None or self.importance_sampling != 0

    @property
    def kind_of_pick(self) -> str:
        """See :attr:`HopSampler.kind_of_pick`."""
        return "caller" if self.weighs_edges else "shared"

    def picker(
        self, graph: Graph, hop: int, edge_type: EdgeType, field: EdgeField
    ) -> Picker | None:
        """See :meth:`HopSampler.picker`; raises as :meth:`fanout` and :meth:`weights`."""
        fanout = self.fanout(hop, edge_type)
        if fanout == 0:
            return None
        weights = self.weights(graph, edge_type, field)
        return LaborPicker(fanout, weights, int(self.importance_sampling), self.layer_dependency)


@dataclass(frozen=True, eq=False)
class LaborPicker:
    """Draws on average ``fanout`` in-edges of each vertex (-1: all); see :class:`LaborSampler`."""

    fanout: int
    weights: EdgeWeights | None
    importance_sampling: int = 0
    layer_dependency: bool = False

    def pick(self, hop: Hop) -> HopEdges:
        """See :class:`~pagraph.sampling.hop.Picker`."""
        from .kernels import labor

        rows = Rows.of(hop)
        indices = hop.csc.indices.numpy()
        key = hop.batch_key if self.layer_dependency else hop.layer_key
        offsets = hop.scratch.array("offsets", len(rows.offsets), np.int64)
        positions = rows.array("picked", indices.dtype)
        if self.weights is None and self.importance_sampling == 0:
            labor.pick_uniform(
                indices,
                rows.starts,
                rows.offsets,
                self.fanout,
                key,
                hop.renewal,
                offsets,
                positions,
            )
            return rows.edges(offsets, positions)
        scales = hop.scratch.array("scales", len(rows.starts), np.float64)
        local_ids = _NO_IDS
        pi = _NO_PI
        weights = in_order(self.weights)
        if self.fanout < 0:
            scales[:] = np.inf
        elif self.importance_sampling == 0:
            self._scale_by_weight(rows, scales)
        else:
            local_ids, pi = self._optimise(rows, scales)
        out = rows.array("picked weights", np.float64)
        chances = local_ids, rows.starts, rows.offsets, weights, pi, scales
        labor.pick_weighted(indices, *chances, key, hop.renewal, offsets, positions, out)
        return rows.edges(offsets, positions, out)

    def _scale_by_weight(self, rows: Rows, scales: Array) -> None:
        """Fill ``scales`` for edge weights in place of ``pi``; cached by vertex."""
        from .kernels import labor

        assert self.weights is not None
        num_dst = rows.hop.csc.num_dst
        # 0: not computed yet.
        known = self.weights.memoized(("LABOR scales", self.fanout), lambda: np.zeros(num_dst))
        frontier = rows.hop.frontier
        room = rows.hop.scratch.array("row", 2 * rows.largest, np.float64)
        weights = in_order(self.weights)
        labor.scales_by_weight(
            frontier, rows.starts, rows.offsets, weights, self.fanout, known, scales, room
        )

    def _optimise(self, rows: Rows, scales: Array) -> tuple[Array, Array]:
        """Fill ``scales`` by importance sampling; returns each in-edge's candidate, and the
        candidates' ``pi``."""
        from .kernels import labor

        starts = rows.starts
        offsets = rows.offsets
        weights = in_order(self.weights)
        scratch = rows.hop.scratch
        sums = scratch.array("sums", len(starts), np.float64)
        labor.row_sums(weights, starts, offsets, sums)
        if self.weights is None:
            np.divide(self.fanout, sums, out=scales, where=sums > 0.0)
        else:
            self._scale_by_weight(rows, scales)
        local_ids, count = rows.candidates()
        pi = scratch.array("pi", count, np.float64)
        room = scratch.array("row", 2 * rows.largest, np.float64)
        # One array for both: `largest` is no longer needed when `inverses` is written.
        largest = inverses = scratch.array("largest", count, np.float64)
        before = float("inf")
        step = 0
        while step != self.importance_sampling:
            now = weights if step == 0 else NO_WEIGHTS
            labor.largest_scales(local_ids, offsets, starts, now, scales, largest)
            # Bounded, as pi grows with each step, but hardly matters above 1.
            pi[:] = largest if step == 0 else np.minimum(pi * largest, _MOST_PI)
            inverses[:] = 0.0
            np.divide(1.0, pi, out=inverses, where=pi > 0.0)
            labor.solve_scales(
                local_ids, starts, offsets, weights, inverses, self.fanout, sums, scales, room
            )
            now = labor.expected_vertices(pi)
            if not now < (1.0 - _TOLERANCE) * before:  # also ends for NaN
                break
            before = now
            step += 1
        return local_ids, pi
