"""Pickers: choose the edges of one hop uniformly, by weight or by time; and the rows of a
frontier."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..system.arrays import Array
from .hop import raise_bad_row, raise_bad_source
from .times import MISSING

if TYPE_CHECKING:
    from ..graph.csc import CSC
    from .edge_values import EdgeWeights
    from .hop import Hop, HopEdges, Scratch
    from .times import EdgeTimes


@dataclass(frozen=True)
class UniformPicker:
    """Draws ``fanout`` in-edges of each vertex (-1: all), or with ``replace`` as many with
    replacement."""

    fanout: int
    replace: bool = False

    def pick(self, hop: Hop) -> HopEdges:
        """See :class:`~pagraph.sampling.hop.Picker`."""
        return self.pick_from(hop, measure_rows(hop, self.fanout, self.replace))

    def pick_from(self, hop: Hop, rows: tuple[Array, Array, Array]) -> HopEdges:
        """Picks from rows that may be parts of the graph's, measured as :func:`measure_rows`
        does."""
        from .kernels import hop as _cpu

        counters = hop.counters
        starts, degrees, offsets = rows
        edges = hop.edges(offsets)
        positions = edges.positions.numpy()
        if self.fanout == -1:
            _cpu.pick_all(starts, offsets, positions)
        elif self.replace:
            _cpu.pick_repeated(counters, starts, degrees, offsets, hop.key, positions)
        else:
            # The set is a token where no vertex has to choose among so many.
            many = (
                self.fanout > _cpu.SCAN_LIMIT
                and len(counters) > 0
                and int(degrees.max()) > self.fanout
            )
            seen = hop.scratch.hash_set(self.fanout if many else 1)
            _cpu.pick_distinct(counters, starts, degrees, offsets, hop.key, seen, positions)
        return edges


def measure_rows(
    hop: Hop, fanout: int, replace: bool, *, offsets: str = "offsets"
) -> tuple[Array, Array, Array]:
    """See :func:`measure_frontier`."""
    return measure_frontier(hop.csc, hop.frontier, hop.scratch, fanout, replace, offsets=offsets)


def measure_frontier(
    csc: CSC,
    frontier: Array,
    scratch: Scratch,
    fanout: int,
    replace: bool,
    *,
    offsets: str = "offsets",
) -> tuple[Array, Array, Array]:
    """The start and length of each frontier vertex's row, and the ``indptr`` of the picks, int64,
    in scratch.

    The ``indptr`` has the name ``offsets`` there. Raises FormatError where the graph's is damaged.
    """
    from .kernels import hop as _cpu

    n = len(frontier)
    starts = scratch.array("starts", n, np.int64)
    degrees = scratch.array("degrees", n, np.int64)
    indptr = scratch.array(offsets, n + 1, np.int64)
    if csc.pages is not None:
        csc.pages.need_offsets(frontier)
    total = _cpu.measure(
        csc.indptr.numpy(), csc.num_edges, frontier, fanout, replace, starts, degrees, indptr
    )
    if total < 0:  # -1 - i means the frontier's vertex i
        raise_bad_row(int(frontier[-1 - total]))
    return starts, degrees, indptr


@dataclass(frozen=True)
class WeightedPicker:
    """Draws ``fanout`` in-edges of each vertex, in proportion to their weights; edges of weight 0
    never.

    Without replacement the picks are those of successive sampling: each in proportion to the
    weights of the edges that are left (the distribution of DGL's picks). A vertex with at most
    ``fanout`` edges of positive weight gives all of them, in CSC order.

    Args:
        fanout: Edges per vertex; -1 takes all of positive weight.
        replace: Draw with replacement; a vertex without an edge of positive weight still gives
            none.
        weights: Weights of the edges that the hop draws from.
    """

    fanout: int
    replace: bool
    weights: EdgeWeights

    def pick(self, hop: Hop) -> HopEdges:
        """See :class:`~pagraph.sampling.hop.Picker`; ValueError for the weights of another
        graph."""
        from .kernels import hop as _cpu

        weights = self.weights
        if weights.num_edges != hop.csc.num_edges:
            raise ValueError(
                f"weights must be of the graph's {hop.csc.num_edges} edges, got those of "
                f"{weights.num_edges}"
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
        from .kernels import weighted

        starts, degrees, offsets = rows = measure_rows(hop, self.fanout, self.replace)
        edges = hop.edges(offsets)
        # Where no row is longer than the fan-out, no key is needed.
        most = min(self.fanout, int(degrees.max(initial=0)))
        scratch = weighted_scratch(hop.scratch, len(starts), int(offsets[-1]), most)
        weighted.pick_weighted(
            hop.counters,
            *rows,
            hop.key,
            self.replace,
            (values, *self.weights.tables()),
            scratch,
            edges.positions.numpy(),
        )
        return edges


def weighted_scratch(
    scratch: Scratch, rows: int, picks: int, most: int
) -> tuple[Array, Array, Array, Array]:
    """``scratch`` of the kernel of weighted picks: for so many rows, picks of all of them, and of
    one."""
    return (
        scratch.array("drawn rows", rows, np.int64),
        scratch.array("slots", picks, np.int64),
        scratch.array("points", picks, np.float64),
        scratch.array("keys", most, np.float64),
    )


@dataclass(frozen=True)
class TimedPicker:
    """Draws ``fanout`` in-edges of each vertex among those whose time is within its limits.

    That is at most ``Hop.until`` and, where it is told, above ``Hop.since``; an edge without a time
    is never drawn. A vertex with at most ``fanout`` such edges gives all of them, in the order of
    time (equal times in CSC order).

    Args:
        fanout: Edges per vertex; -1 takes all.
        replace: Draw with replacement.
        latest: Draw among the latest ``fanout`` of the edges only: without replacement these are
            the picks.
        times: Times of the edges that the hop draws from, whose rows are in the order of time
            (``times.in_order``).
    """

    fanout: int
    replace: bool
    latest: bool
    times: EdgeTimes

    def pick(self, hop: Hop) -> HopEdges:
        """See :class:`~pagraph.sampling.hop.Picker`; raises as :meth:`rows` does."""
        return UniformPicker(self.fanout, self.replace).pick_from(hop, self.rows(hop))

    def rows(self, hop: Hop) -> tuple[Array, Array, Array]:
        """The rows cut down to the edges that may be drawn, measured as :func:`measure_rows` does.

        ValueError for the times of another graph.
        """
        from .kernels import times as _times

        times = self.times
        if times.num_edges != hop.csc.num_edges:
            raise ValueError(
                f"times must be of the graph's {hop.csc.num_edges} edges, got those of "
                f"{times.num_edges}"
            )
        assert hop.until is not None
        starts, degrees, _ = measure_rows(hop, self.fanout, self.replace)
        offsets = hop.scratch.array("valid offsets", len(hop.frontier) + 1, np.int64)
        counts = []
        for name, limits in ("upto", hop.until), ("before", self._since(hop)):
            counts.append(hop.scratch.array(name, len(limits), np.int64))
            _times.count_until(
                times.values.numpy(), times.marks.numpy(), limits, starts, degrees, counts[-1]
            )
        _times.cut_rows(*counts, self.fanout, self.replace, self.latest, starts, degrees, offsets)
        return starts, degrees, offsets

    def _since(self, hop: Hop) -> Array:
        """The times that edges must be above; empty where all that are early enough may be
        drawn."""
        if hop.since is not None:
            return hop.since
        since = hop.scratch.array(
            "since", len(hop.frontier) if self.times.has_missing else 0, np.int64
        )
        since.fill(MISSING)
        return since


NO_WEIGHTS: Array = np.empty(0, dtype=np.float32)
"""Stands for weights of 1 in kernels."""


_VERTICES_PER_EDGE = 8
"""Up to here a table of all vertices is about as large as what a hop needs anyway, and faster than
a hash table."""


def in_order(weights: EdgeWeights | None) -> Array:
    """Weights as kernels take them: one per edge in CSC order."""
    values: Array = NO_WEIGHTS if weights is None else weights.in_order.numpy()
    return values


@dataclass(frozen=True, eq=False)
class Rows:
    """Where the in-edges of each frontier vertex lie; the arrays are scratch.

    Attributes:
        hop: The hop.
        starts: Shape ``(n,)``, int64: the first position of each row in the CSC.
        offsets: Shape ``(n + 1,)``, int64: where the row would begin if the rows lay one after the
            other.
    """

    hop: Hop
    starts: Array
    offsets: Array

    @classmethod
    def of(cls, hop: Hop) -> Rows:
        """The rows of a hop's frontier; FormatError where the graph's ``indptr`` is damaged."""
        # Pickers write "offsets".
        starts, degrees, offsets = measure_rows(hop, -1, False, offsets="row offsets")
        if hop.csc.pages is not None:
            hop.csc.pages.need_edges(starts, degrees)
        return cls(hop, starts, offsets)

    @property
    def num_edges(self) -> int:
        """In-edges of the whole frontier."""
        return int(self.offsets[-1])

    @property
    def largest(self) -> int:
        """In-edges of the vertex that has most."""
        return int(np.diff(self.offsets).max(initial=0))

    def array(self, name: str, dtype: Any) -> Array:
        """Scratch for each in-edge, and one element more: kernels write before they count (contents
        undefined).

        Pages that nothing is written to cost nothing.
        """
        return self.hop.scratch.array(name, self.num_edges + 1, dtype)

    def edges(self, offsets: Array, positions: Array, weights: Array | None = None) -> HopEdges:
        """The edges of a hop, copied from scratch."""
        edges = self.hop.edges(offsets, weighted=weights is not None)
        total = int(offsets[-1])
        edges.positions.numpy()[:] = positions[:total]
        if weights is not None and edges.weights is not None:
            edges.weights.numpy()[:] = weights[:total]
        return edges

    def candidates(self) -> tuple[Array, int]:
        """Number the distinct sources by discovery: each in-edge's number, the count; FormatError
        for a bad edge."""
        from .kernels import layerwise

        csc = self.hop.csc
        scratch = self.hop.scratch
        indices = csc.indices.numpy()
        local_ids = scratch.array("local sources", self.num_edges, _narrow(self.num_edges))
        if csc.num_src > _VERTICES_PER_EDGE * self.num_edges:
            sources = scratch.array("sources", self.num_edges, indices.dtype)
            layerwise.read_rows(indices, self.starts, self.offsets, sources)
            table = scratch.table("candidates")
            table.reset(None, csc.num_src, indices.dtype)
            table.relabel(sources, local_ids)
            return local_ids, table.count
        places = scratch.array("places", csc.num_src, _narrow(csc.num_src))
        places.fill(-1)
        count = int(layerwise.number_sources(indices, self.starts, self.offsets, places, local_ids))
        if count < 0:
            raise_bad_source(int(indices[-1 - count]), csc.num_src)
        return local_ids, count


def _narrow(limit: int) -> Any:
    return np.int32 if limit < 2**31 else np.int64
