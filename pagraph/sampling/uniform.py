"""Uniform picks: every in-edge of a vertex is as likely as any other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .scratch import raise_bad_row

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..csc import CSC
    from .hop import Hop, HopEdges
    from .scratch import Scratch

    Array = npt.NDArray[Any]

__all__ = ["UniformPicker", "measure_frontier", "measure_rows"]


@dataclass(frozen=True)
class UniformPicker:
    """Draws ``fanout`` in-edges of each vertex.

    Args:
        fanout: Edges per vertex; -1 takes all.
        replace: Draw with replacement.
    """

    fanout: int
    replace: bool = False

    def pick(self, hop: Hop) -> HopEdges:
        """See :class:`~pagraph.sampling.hop.Picker`."""
        return self.pick_from(hop, measure_rows(hop, self.fanout, self.replace))

    def pick_from(self, hop: Hop, rows: tuple[Array, Array, Array]) -> HopEdges:
        """Picks from rows that may be parts of the graph's, measured as :func:`measure_rows` does."""
        from . import _cpu

        counters, (starts, degrees, offsets) = hop.counters, rows
        edges = hop.edges(offsets)
        positions = edges.positions.numpy()
        if self.fanout == -1:
            _cpu.pick_all(starts, offsets, positions)
        elif self.replace:
            _cpu.pick_repeated(counters, starts, degrees, offsets, hop.key, positions)
        else:
            # The set is a token where no vertex has to choose among so many.
            many = self.fanout > _cpu.SCAN_LIMIT and len(counters) > 0 and int(degrees.max()) > self.fanout
            seen = hop.scratch.hash_set(self.fanout if many else 1)
            _cpu.pick_distinct(counters, starts, degrees, offsets, hop.key, seen, positions)
        return edges


def measure_rows(hop: Hop, fanout: int, replace: bool, *, offsets: str = "offsets") -> tuple[Array, Array, Array]:
    """See :func:`measure_frontier`; ``offsets`` is the scratch's name for the ``indptr``."""
    return measure_frontier(hop.csc, hop.frontier, hop.scratch, fanout, replace, offsets=offsets)


def measure_frontier(
    csc: CSC, frontier: Array, scratch: Scratch, fanout: int, replace: bool, *, offsets: str = "offsets"
) -> tuple[Array, Array, Array]:
    """Where the row of each frontier vertex begins, its length, and the ``indptr`` of the picks, int64, in scratch.

    ``offsets`` is the scratch's name for the last.

    Raises:
        FormatError: The graph's ``indptr`` is damaged.
    """
    from . import _cpu

    n = len(frontier)
    starts, degrees = scratch.array("starts", n, np.int64), scratch.array("degrees", n, np.int64)
    indptr = scratch.array(offsets, n + 1, np.int64)
    total = _cpu.measure(csc.indptr.numpy(), csc.num_edges, frontier, fanout, replace, starts, degrees, indptr)
    if total < 0:  # -1 - i means the frontier's vertex i
        raise_bad_row(int(frontier[-1 - total]))
    return starts, degrees, indptr
