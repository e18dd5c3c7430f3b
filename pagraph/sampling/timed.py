"""Timed picks: only in-edges that are not later than a limit, any of them or the latest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .uniform import UniformPicker, measure_rows

if TYPE_CHECKING:
    import numpy.typing as npt

    from .hop import Hop, HopEdges
    from .times import EdgeTimes

    Array = npt.NDArray[Any]

__all__ = ["TimedPicker"]


@dataclass(frozen=True)
class TimedPicker:
    """Draws ``fanout`` in-edges of each vertex among those whose time is at most the vertex's limit (``Hop.until``).

    A vertex with at most ``fanout`` such edges gives all of them, in the order of time (equal times in CSC order).

    Args:
        fanout: Edges per vertex; -1 takes all.
        replace: Draw with replacement.
        latest: Draw among the latest ``fanout`` of the edges only: without replacement these are the picks.
        times: Times of the edges that the hop draws from.
    """

    fanout: int
    replace: bool
    latest: bool
    times: EdgeTimes

    def pick(self, hop: Hop) -> HopEdges:
        """See :class:`~pagraph.sampling.hop.Picker`.

        Raises:
            ValueError: The times are those of another graph.
        """
        from . import _cpu

        times = self.times
        if times.num_edges != hop.csc.num_edges:
            raise ValueError(f"times must be of the graph's {hop.csc.num_edges} edges, got those of {times.num_edges}")
        edges = UniformPicker(self.fanout, self.replace).pick_from(hop, self._valid_rows(hop))
        if times.order is not None:
            positions = edges.positions.numpy()
            _cpu.read_neighbors(times.order.numpy(), positions, positions)
        return edges

    def _valid_rows(self, hop: Hop) -> tuple[Array, Array, Array]:
        """As ``measure_rows``, of the edges that may be drawn."""
        from . import _times

        assert hop.until is not None
        starts, degrees, _ = measure_rows(hop, self.fanout, self.replace)
        offsets = hop.scratch.array("valid offsets", len(hop.frontier) + 1, np.int64)
        settings = self.fanout, self.replace, self.latest
        _times.cut_rows(self.times.values.numpy(), hop.until, *settings, starts, degrees, offsets)
        return starts, degrees, offsets
