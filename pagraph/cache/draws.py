"""Draws: how the hops of a sampler draw from the edges of one type, and which of them have an edge back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..graph import EdgeType, Graph
    from ..sampling.hop_sampler import HopSampler
    from ..sampling.weights import EdgeWeights

    Array = npt.NDArray[Any]

__all__ = ["Draws", "Mutual", "find_mutual"]

_LARGEST = 64
"""A vertex of a larger in-degree owes too little to one neighbour, and is too seldom drawn from it, to look for it."""

_LOOKED_AT = 1000
"""Rows that decide which edge type leads back."""


@dataclass(frozen=True, eq=False)
class Draws:
    """How the hops draw from the edges of one type.

    Attributes:
        edge_type: The type.
        indptr: Rows of the edges that may be drawn.
        indices: Sources of these edges.
        num_src: Number of source vertices.
        fanouts: By hop, the one that serves the seeds first.
        replace: Draws are with replacement.
        later: What a vertex draws in the hops after its first, see ``_vip``.
        values: Weights of the edges; None where all are as likely.
        totals: Sums of the rows' weights.
        rates: Shape ``(num_dst, num_hops)``, see ``_vip_weighted.push_weighted``; empty without weights.
    """

    edge_type: EdgeType
    indptr: Array
    indices: Array
    num_src: int
    fanouts: Array
    replace: bool
    later: int
    values: Array | None
    totals: Array
    rates: Array

    @classmethod
    def of(cls, graph: Graph, sampler: HopSampler, edge_type: EdgeType) -> Draws:
        """The draws of a sampler with fan-outs.

        Raises:
            TypeError, ValueError: As the sampler raises them for wrong weights; ValueError for a damaged graph.
        """
        csc = graph.adjacency(sampler.edge_dir, edge_type)
        csc.validate()
        fanouts = np.array([sampler.fanout(hop, edge_type) for hop in range(sampler.num_hops)], np.int64)
        replace, later = sampler.replace, _later(sampler)
        weights = sampler.weights(graph, edge_type, lambda etype, name: graph.edge_fields(etype).get(name))
        indptr, indices = csc.indptr, csc.indices
        if weights is not None and weights.kept is not None:
            indptr, indices = weights.kept.indptr, indices[weights.kept.indices.long()]
        values, totals, rates = _weigh(indptr.numpy(), weights, fanouts, replace)
        return cls(
            edge_type, indptr.numpy(), indices.numpy(), csc.num_src, fanouts, replace, later, values, totals, rates
        )

    def push(self, unknown: Mapping[str, Array], hops: int, back: Mutual | None, out: Array) -> None:
        """Add the logarithm of the chance that none of a source's edges has been drawn after ``hops`` hops.

        Args:
            unknown: Vertex type to the chances to be unknown after each hop, shape ``(num_nodes, num_hops + 1)``.
            hops: As said.
            back: The edges back.
            out: Shape ``(num_src,)``.
        """
        from . import _vip, _vip_weighted

        src_type, _, dst_type = self.edge_type
        flags = np.empty(0, np.bool_) if back is None else back.flags
        other = self if back is None else back.draws
        rest = (
            self.replace,
            self.later,
            src_type == dst_type,
            flags,
            other.indptr,
            unknown[src_type],
            other.fanouts[:hops],
            out,
        )
        if self.values is None:
            _vip.push_uniform(self.indptr, self.indices, unknown[dst_type], self.fanouts[:hops], *rest)
        else:
            rows = self.indptr, self.indices, self.values, self.totals, self.rates
            _vip_weighted.push_weighted(*rows, unknown[dst_type], *rest)

    def turned(self) -> tuple[Array, Array]:
        """The edges by source: an ``indptr``, and their destinations."""
        from .. import _csc
        from . import _mutual

        indptr = np.zeros(self.num_src + 1, np.int64)
        _csc.count_degrees(self.indices, indptr[1:])
        np.cumsum(indptr, out=indptr)
        out = np.empty_like(self.indices)
        _mutual.turn_rows(self.indices, indptr[:-1].copy(), self.indptr, out)
        return indptr, out


def _later(sampler: HopSampler) -> int:
    from . import _vip

    if sampler.expands_once:
        return _vip.ONCE
    return _vip.SAME if sampler.layer_dependency else _vip.ANEW


def _weigh(
    indptr: Array, weights: EdgeWeights | None, fanouts: Array, replace: bool
) -> tuple[Array | None, Array, Array]:
    """Weights, sums of rows, and rates of all hops."""
    from . import _vip_weighted

    if weights is None or weights.values is None:
        return None, np.empty(0), np.empty((0, 0))
    values, totals = weights.values.numpy(), np.zeros(len(indptr) - 1)
    _vip_weighted.row_totals(indptr, values, totals)
    rates = np.empty((len(totals), len(fanouts)))
    for fanout in set(fanouts.tolist()):
        solved = np.full(len(totals), np.inf if fanout < 0 else float(fanout))
        if not replace:
            _vip_weighted.solve_rates(indptr, values, totals, fanout, solved)
        rates[:, fanouts == fanout] = solved[:, None]
    return values, totals, rates


@dataclass(frozen=True, eq=False)
class Mutual:
    """Which edges have an edge back.

    Attributes:
        flags: Shape ``(num_edges,)``, bool.
        draws: The draws of the edges back.
    """

    flags: Array
    draws: Draws


def find_mutual(draws: Sequence[Draws]) -> list[Mutual | None]:
    """The edges back of each type's edges: those of the type that has most of them; None where there are none."""
    turned: dict[EdgeType, tuple[Array, Array]] = {}
    found = []
    for each in draws:
        src_type, _, dst_type = each.edge_type
        others = [other for other in draws if other.edge_type[::2] == (dst_type, src_type)]
        for other in others:
            if other.edge_type not in turned:
                turned[other.edge_type] = other.turned()
        found.append(_most_mutual(each, others, turned))
    return found


def _most_mutual(
    draws: Draws, others: Sequence[Draws], turned: Mapping[EdgeType, tuple[Array, Array]]
) -> Mutual | None:
    step = max(1, len(draws.indptr) // _LOOKED_AT)
    counts = [_mark(draws, turned[other.edge_type], step, np.empty(0, np.bool_)) for other in others]
    if not any(counts):
        return None
    back = others[counts.index(max(counts))]
    flags = np.zeros(len(draws.indices), np.bool_)
    _mark(draws, turned[back.edge_type], 1, flags)
    return Mutual(flags, back)


def _mark(draws: Draws, turned: tuple[Array, Array], step: int, flags: Array) -> int:
    from . import _mutual

    stamps = np.full(draws.num_src, -1, draws.indices.dtype)
    return int(_mutual.mark_mutual(draws.indptr, draws.indices, *turned, _LARGEST, step, stamps, flags))
