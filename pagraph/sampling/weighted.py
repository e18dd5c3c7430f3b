"""Weighted picks: in-edges drawn in proportion to their weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .uniform import UniformPicker, measure_rows

if TYPE_CHECKING:
    import numpy.typing as npt

    from .hop import Hop, HopEdges
    from .weights import EdgeWeights

    Array = npt.NDArray[Any]

__all__ = ["WeightedPicker"]


@dataclass(frozen=True)
class WeightedPicker:
    """Draws ``fanout`` in-edges of each vertex, in proportion to their weights; edges of weight 0 never.

    Without replacement the picks are those of successive sampling: each in proportion to the weights of the edges that
    are left (the distribution of DGL's picks). A vertex with at most ``fanout`` edges of positive weight gives all of
    them, in CSC order.

    Args:
        fanout: Edges per vertex; -1 takes all of positive weight.
        replace: Draw with replacement; a vertex without an edge of positive weight still gives none.
        weights: Weights of the edges that the hop draws from.
    """

    fanout: int
    replace: bool
    weights: EdgeWeights

    def pick(self, hop: Hop) -> HopEdges:
        """See :class:`~pagraph.sampling.hop.Picker`.

        Raises:
            ValueError: The weights are those of another graph.
        """
        from . import _cpu

        weights = self.weights
        if weights.num_edges != hop.csc.num_edges:
            raise ValueError(
                f"weights must be of the graph's {hop.csc.num_edges} edges, got those of {weights.num_edges}"
            )
        # Among the edges of positive weight, and in their numbering: a mask is nothing more.
        positive = hop if weights.kept is None else replace(hop, csc=weights.kept)
        if weights.values is None or self.fanout == -1:
            edges = UniformPicker(self.fanout, self.replace).pick(positive)
        else:
            edges = self._draw(positive, weights.values.numpy())
        if weights.kept is not None:
            positions = edges.positions.numpy()
            _cpu.read_neighbors(weights.kept.indices.numpy(), positions, positions)
        return edges

    def _draw(self, hop: Hop, values: Array) -> HopEdges:
        """Picks among edges of positive weight."""
        from . import _weighted

        starts, degrees, offsets = rows = measure_rows(hop, self.fanout, self.replace)
        edges = hop.edges(offsets)
        positions, frontier = edges.positions.numpy(), hop.counters
        sums, guide = self.weights.tables()
        listed, slots, points = self._first_draws(hop, rows, sums, guide)
        if self.replace:
            _weighted.pick_short_repeated(frontier, *rows, hop.key, values, positions)
            _weighted.take_repeated(listed, *rows, values, slots, points, positions)
            return edges
        # Where no row is longer than the fan-out, no key is needed.
        keys = hop.scratch.array("keys", min(self.fanout, int(degrees.max(initial=0))), np.float64)
        _weighted.pick_short(frontier, *rows, hop.key, values, keys, positions)
        _weighted.take_distinct(frontier, listed, *rows, hop.key, values, sums, guide, slots, points, keys, positions)
        return edges

    def _first_draws(
        self, hop: Hop, rows: tuple[Array, Array, Array], sums: Array, guide: Array
    ) -> tuple[Array, Array, Array]:
        """The rows to draw from, and the group and the point in it of each of as many draws as they want picks."""
        from . import _weighted

        total = int(rows[2][-1])
        listed = hop.scratch.array("drawn rows", len(hop.frontier), np.int64)
        slots, points = hop.scratch.array("slots", total, np.int64), hop.scratch.array("points", total, np.float64)
        count, drawn = _weighted.plan_draws(hop.counters, *rows, hop.key, self.replace, sums, listed, slots, points)
        listed, slots, points = listed[:count], slots[:drawn], points[:drawn]
        _weighted.find_groups(listed, *rows, sums, guide, slots, points)
        return listed, slots, points
