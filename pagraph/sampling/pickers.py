"""Pickers, which choose the edges of a hop uniformly, by weight or by time; and rows of a
frontier."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..system.arrays import Array
from .hop import raise_bad_row, raise_bad_source, set_slots
from .times import MISSING

if TYPE_CHECKING:
    from ..graph.csc import CSC
    from .edge_values import EdgeWeights
    from .hop import Hop, HopEdges, Scratch
    from .times import EdgeTimes


@dataclass(frozen=True)
class UniformPicker:
    """Draws ``fanout`` in-edges of each vertex (-1: all), with or without replacement."""

    fanout: int
    replace: bool = False

    def pick(self, hop: Hop) -> HopEdges:
        """See :class:`~pagraph.sampling.hop.Picker`."""
        return self.pick_from(hop, measure_rows(hop, self.fanout, self.replace))

    def pick_from(self, hop: Hop, rows: tuple[Array, Array, Array]) -> HopEdges:
        """Pick from ``rows``, as :func:`measure_rows` returns them; they may be parts of the
        graph's rows."""
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
            # The set is only needed for long rows with a large fan-out.
            is_needed = (
                self.fanout > _cpu.SCAN_LIMIT
                and len(counters) > 0
                and int(degrees.max()) > self.fanout
            )
            picks = self.fanout if is_needed else 1
            seen = hop.scratch.hash_set(set_slots(picks))
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
    """The start and length of each frontier vertex's row, and the ``indptr`` of its picks, int64.

    All are scratch arrays; the ``indptr`` has the name ``offsets``.

    Raises:
        FormatError: The graph's ``indptr`` is damaged.
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
    if total < 0:  # -1 - i, for frontier vertex i
        raise_bad_row(int(frontier[-1 - total]))
    return starts, degrees, indptr


@dataclass(frozen=True)
class WeightedPicker:
    """Draws ``fanout`` in-edges of each vertex in proportion to their weights, never of weight 0.

    Without replacement, picks are those of successive sampling: each in proportion to the weights
    of the edges that are left (the distribution of DGL's picks). If a vertex has at most ``fanout``
    edges of positive weight, all are taken, in CSC order.

    Args:
        fanout: Edges per vertex; -1 takes all of positive weight.
        replace: Draw with replacement. A vertex without an edge of positive weight draws none.
        weights: Weights of the edges that the hop draws from.
    """

    fanout: int
    replace: bool
    weights: EdgeWeights

    def pick(self, hop: Hop) -> HopEdges:
        """See :class:`~pagraph.sampling.hop.Picker`.

        Raises:
            ValueError: The weights are of another graph.
        """
        from .kernels import hop as _cpu

        weights = self.weights
        if weights.num_edges != hop.csc.num_edges:
            raise ValueError(
                f"weights must be of the graph's {hop.csc.num_edges} edges, got weights of "
                f"{weights.num_edges} edges"
            )
        # Draw among the edges of positive weight, numbered without the others.
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
        """Draw by weight among the edges of positive weight."""
        from .kernels import weighted

        rows = measure_rows(hop, self.fanout, self.replace)
        _, degrees, offsets = rows
        edges = hop.edges(offsets)
        # Room for the keys of one row; rows up to the fan-out need none.
        most = min(self.fanout, int(degrees.max(initial=0)))
        scratch = weighted_scratch(hop.scratch, len(degrees), int(offsets[-1]), most)
        weighted.pick_weighted(
            hop.counters,
            rows,
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
    """The ``scratch`` of ``pick_weighted``.

    Args:
        scratch: This thread's scratch.
        rows: Number of rows.
        picks: Number of picks of all rows.
        most: Maximum number of picks of one row.
    """
    return (
        scratch.array("drawn rows", rows, np.int64),
        scratch.array("slots", picks, np.int64),
        scratch.array("points", picks, np.float64),
        scratch.array("keys", most, np.float64),
    )


@dataclass(frozen=True)
class TimedPicker:
    """Draws ``fanout`` in-edges of each vertex among those within its time limits.

    These are edges with times up to ``Hop.until`` and, if it is not None, above ``Hop.since``; an
    edge with a missing time is never drawn. If a vertex has at most ``fanout`` such edges, all are
    taken, in the order of time (equal times in CSC order).

    Args:
        fanout: Edges per vertex; -1 takes all.
        replace: Draw with replacement.
        latest: Draw among the latest ``fanout`` edges; without replacement, take all of these.
        times: Times of the edges that the hop draws from. Picks index rows in the order of time
            (``times.in_order``).
    """

    fanout: int
    replace: bool
    latest: bool
    times: EdgeTimes

    def pick(self, hop: Hop) -> HopEdges:
        """See :class:`~pagraph.sampling.hop.Picker`; raises as :meth:`rows`."""
        return UniformPicker(self.fanout, self.replace).pick_from(hop, self.rows(hop))

    def rows(self, hop: Hop) -> tuple[Array, Array, Array]:
        """The rows cut to the edges within their time limits, as :func:`measure_rows` returns rows.

        Raises:
            ValueError: The times are of another graph.
        """
        from .kernels import times as _times

        times = self.times
        if times.num_edges != hop.csc.num_edges:
            raise ValueError(
                f"times must be of the graph's {hop.csc.num_edges} edges, got times of "
                f"{times.num_edges} edges"
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
        """The time that each vertex's edges must be above; empty if there is no such limit."""
        if hop.since is not None:
            return hop.since
        count = len(hop.frontier) if self.times.has_missing else 0
        since = hop.scratch.array("since", count, np.int64)
        since.fill(MISSING)
        return since


NO_WEIGHTS: Array = np.empty(0, dtype=np.float32)
"""Weights of 1, as kernels take them."""


_VERTICES_PER_EDGE = 8
"""Up to this many vertices per in-edge, a direct table of all vertices is used. It is then about as
large as the hop's other memory, and faster than a hash table."""


def in_order(weights: EdgeWeights | None) -> Array:
    """Weights as kernels take them: one per edge in CSC order, or none for weights of 1."""
    values: Array = NO_WEIGHTS if weights is None else weights.in_order.numpy()
    return values


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a frontier's in-edges; its arrays are scratch.

    Attributes:
        hop: The hop.
        starts: Shape ``(n,)``, int64: the first position of each row in the CSC.
        offsets: Shape ``(n + 1,)``, int64: the ``indptr`` of arrays with an element per in-edge.
    """

    hop: Hop
    starts: Array
    offsets: Array

    @classmethod
    def of(cls, hop: Hop) -> Rows:
        """The rows of a hop's frontier.

        Raises:
            FormatError: The graph's ``indptr`` is damaged.
        """
        # Another name than "offsets", to which pickers write.
        starts, degrees, offsets = measure_rows(hop, -1, False, offsets="row offsets")
        if hop.csc.pages is not None:
            hop.csc.pages.need_edges(starts, degrees)
        return cls(hop, starts, offsets)

    @property
    def num_edges(self) -> int:
        """Number of in-edges of the whole frontier."""
        return int(self.offsets[-1])

    @property
    def largest(self) -> int:
        """Length of the longest row."""
        return int(np.diff(self.offsets).max(initial=0))

    def array(self, name: str, dtype: Any) -> Array:
        """An uninitialised scratch array with an element per in-edge, and one more, since kernels
        write an element before they decide whether to count it.

        Pages that are never written take no memory.
        """
        return self.hop.scratch.array(name, self.num_edges + 1, dtype)

    def edges(self, offsets: Array, positions: Array, weights: Array | None = None) -> HopEdges:
        """The edges of the hop, with positions and weights copied from scratch."""
        edges = self.hop.edges(offsets, weighted=weights is not None)
        total = int(offsets[-1])
        edges.positions.numpy()[:] = positions[:total]
        if weights is not None and edges.weights is not None:
            edges.weights.numpy()[:] = weights[:total]
        return edges

    def candidates(self) -> tuple[Array, int]:
        """Number the distinct sources by first occurrence.

        Returns:
            The number of each in-edge's source, and the count of distinct sources.

        Raises:
            FormatError: An edge points outside the graph.
        """
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
