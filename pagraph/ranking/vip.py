"""Expected reads, computed by propagating chances over the edges hop by hop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..graph.csc import check_range
from ..sampling.batches import chance_of_some
from ..seeds.order import num_seeds
from ..system.arrays import Array
from ..system.checks import as_integer
from .policy import Ranking

if TYPE_CHECKING:
    from ..graph.graph import EdgeType, Graph
    from ..sampling.edge_values import EdgeWeights
    from ..sampling.sampler import HopSampler, MiniBatchSampler


_LARGEST = 64
"""Largest in-degree whose edges are checked for an edge back. With more in-neighbours, a vertex
depends too little on any one of them."""

_LOOKED_AT = 1000
"""Rows that decide which edge type has the edges back."""


@dataclass(frozen=True, eq=False)
class Draws:
    """Draws of all hops from the edges of one type.

    Attributes:
        edge_type: The type.
        indptr: Edges that may be drawn, by destination.
        indices: Their sources.
        num_src: Number of sources.
        fanouts: By hop, that of the seeds' hop first.
        replace: Whether draws are with replacement.
        later: What a vertex draws in the hops after its first, see ``_vip``.
        values: Weights of the edges; None if they are equal.
        totals: Sums of the rows' weights.
        rates: Shape ``(num_dst, num_hops)``, see ``_vip.push_weighted``; empty without weights.
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

        Raises TypeError or ValueError for wrong weights or a damaged graph.
        """
        csc = graph.adjacency(sampler.edge_dir, edge_type)
        csc.validate()
        from . import _vip

        fanouts = np.array(
            [sampler.fanout(hop, edge_type) for hop in range(sampler.num_hops)], np.int64
        )
        later = _vip.ANEW
        if sampler.expands_once:
            later = _vip.ONCE
        elif sampler.layer_dependency:
            later = _vip.SAME
        replace = sampler.replace
        weights = sampler.weights(
            graph, edge_type, lambda etype, name: graph.edge_fields(etype).get(name)
        )
        indptr = csc.indptr
        indices = csc.indices
        # Edges of weight 0 are never drawn, and do not count in degrees.
        if weights is not None and weights.kept is not None:
            indptr = weights.kept.indptr
            indices = indices[weights.kept.indices.long()]
        values, totals, rates = _weigh(indptr.numpy(), weights, fanouts, replace)
        return cls(
            edge_type,
            indptr.numpy(),
            indices.numpy(),
            csc.num_src,
            fanouts,
            replace,
            later,
            values,
            totals,
            rates,
        )

    def push(
        self, unknown: Mapping[str, Array], hops: int, back: Mutual | None, out: Array
    ) -> None:
        """Add to ``out`` the log of the chance that ``hops`` hops draw none of a source's edges.

        ``unknown`` maps a vertex type to the chances to be unknown after each hop, shape
        ``(num_nodes, num_hops + 1)``.
        """
        from . import _vip

        src_type, _, dst_type = self.edge_type
        flags = np.empty(0, np.bool_) if back is None else back.flags
        other = self if back is None else back.draws
        draws = self.replace, self.later, src_type == dst_type
        backwards = flags, other.indptr, unknown[src_type], other.fanouts[:hops]
        if self.values is None:
            rows = self.indptr, self.indices, unknown[dst_type], self.fanouts[:hops]
            _vip.push_uniform(*rows, *draws, *backwards, out)
        else:
            weighted = (
                self.indptr,
                self.indices,
                self.values,
                self.totals,
                self.rates,
                unknown[dst_type],
            )
            _vip.push_weighted(*weighted, *draws, *backwards, out)

    def turned(self) -> tuple[Array, Array]:
        """The edges by source, as an ``indptr`` and their destinations."""
        from ..graph import _csc
        from . import _vip

        indptr = np.zeros(self.num_src + 1, np.int64)
        _csc.count_degrees(self.indices, indptr[1:])
        np.cumsum(indptr, out=indptr)
        out = np.empty_like(self.indices)
        _vip.turn_rows(self.indices, indptr[:-1].copy(), self.indptr, out)
        return indptr, out


def _weigh(
    indptr: Array, weights: EdgeWeights | None, fanouts: Array, replace: bool
) -> tuple[Array | None, Array, Array]:
    """The ``values``, ``totals`` and ``rates`` of :class:`Draws`."""
    from . import _vip

    if weights is None or weights.values is None:
        return None, np.empty(0), np.empty((0, 0))
    values = weights.values.numpy()
    totals = np.zeros(len(indptr) - 1)
    _vip.row_totals(indptr, values, totals)
    rates = np.empty((len(totals), len(fanouts)))
    for fanout in set(fanouts.tolist()):
        draws = np.inf if fanout < 0 else float(fanout)
        solved = np.full(len(totals), draws)
        if not replace:
            _vip.solve_rates(indptr, values, totals, fanout, solved)
        rates[:, fanouts == fanout] = solved[:, None]
    return values, totals, rates


@dataclass(frozen=True, eq=False)
class Mutual:
    """Which edges have an edge back, shape ``(num_edges,)``, bool, and the draws of those."""

    flags: Array
    draws: Draws


def find_mutual(draws: Sequence[Draws]) -> list[Mutual | None]:
    """For each edge type, its edges back in the one type that has most of them; None if none."""
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
    # A sample of rows decides which edge type has most edges back. Only for that one all are
    # marked.
    step = max(1, len(draws.indptr) // _LOOKED_AT)
    counts = [
        _mark(draws, turned[other.edge_type], step, np.empty(0, np.bool_)) for other in others
    ]
    if not any(counts):
        return None
    back = others[counts.index(max(counts))]
    flags = np.zeros(len(draws.indices), np.bool_)
    _mark(draws, turned[back.edge_type], 1, flags)
    return Mutual(flags, back)


def _mark(draws: Draws, turned: tuple[Array, Array], step: int, flags: Array) -> int:
    from . import _vip

    stamps = np.full(draws.num_src, -1, draws.indices.dtype)
    return int(
        _vip.mark_mutual(draws.indptr, draws.indices, *turned, _LARGEST, step, stamps, flags)
    )


_FEW_BATCHES = 16
"""With fewer batches, an incomplete last one is computed separately. Otherwise it counts as a
fraction of a whole one."""


@dataclass(frozen=True, eq=False)
class ExpectedAccesses:
    """Expected reads of each vertex as an input node in an epoch, by the hop that finds it.

    Hop 0 is the seeds. It has the methods of :class:`~pagraph.ranking.presample.AccessCounts`.

    Attributes:
        found: Vertex type to expected reads, float64, shape ``(num_nodes, num_hops + 1)``.
        batches: Batches of the epoch, including an incomplete last one.
    """

    found: Mapping[str, Tensor]
    batches: int

    @property
    def node_types(self) -> list[str]:
        """The vertex types."""
        return list(self.found)

    @property
    def num_hops(self) -> int:
        """Hops of a mini-batch."""
        return int(next(iter(self.found.values())).shape[1]) - 1

    def by_hop(self, node_type: str) -> Tensor:
        """Reads of each vertex by the hop that finds it, shape ``(num_nodes, num_hops + 1)``,
        float64."""
        return self.found[node_type]

    def reads(self, node_type: str) -> Tensor:
        """Reads of each vertex as an input node, shape ``(num_nodes,)``, float64."""
        return self.found[node_type].sum(1)

    def frontier(self, node_type: str, hop: int) -> Tensor:
        """Expected number of batches that know each vertex when hop ``hop`` draws.

        Shape ``(num_nodes,)``. Hop 0 draws for the seeds.
        """
        return self.found[node_type][:, : hop + 1].sum(1)

    @property
    def total(self) -> float:
        """Rows read of all types."""
        return sum(float(reads.sum()) for reads in self.found.values())


def vip(
    graph: Graph, seeds: Any, sampler: Any, seed: int, *, batch_size: int = 1000
) -> dict[str, Ranking]:
    """Rank by the expected number of reads per epoch, including those as seeds.

    See :func:`expected_accesses`.

    Raises:
        ValueError: The sampler has no fan-outs.
    """
    expected = expected_accesses(graph, seeds, sampler, batch_size=batch_size)
    if expected is None:
        if sampler is None:
            raise ValueError(
                "cache_policy 'vip' needs seeds and a sampler with fan-outs that it can "
                "inspect, got custom ones; 'degree' and 'random' need neither"
            )
        blocks = sampler.hops
        got = type(blocks or sampler).__name__
        if blocks is not None and blocks.disjoint:
            got = f"disjoint {got}"
        raise ValueError(
            "cache_policy 'vip' needs a sampler with fan-outs (neighbour or LABOR sampling) and "
            f"batches that are not disjoint, got {got}; 'presample', 'degree' and 'random' need "
            "neither"
        )
    return {ntype: Ranking.of_reads(expected.reads(ntype)) for ntype in expected.node_types}


def expected_accesses(
    graph: Graph, seeds: Any, sampler: MiniBatchSampler | None, *, batch_size: int
) -> ExpectedAccesses | None:
    """Expected reads of each vertex in an epoch of shuffled batches, from the chances of draws.

    This extends VIP of SALIENT++ (Kaler et al., MLSys 2023) to directed graphs of any types, and to
    reads as seeds. Each hop draws from every vertex known so far; if the sampler ``expands_once``,
    only from those that the hop before found. So the chance of an edge depends on when its
    destination was found. If it has an edge back, it also depends on how likely one end is known
    only through the other. Otherwise edges are assumed to be drawn independently: random numbers
    that LABOR's vertices share are ignored, and cycles of more than two edges count twice. It takes
    one pass over the edges per hop.

    Args:
        graph: The graph.
        seeds: As the sampler takes them.
        sampler: Draws the mini-batches.
        batch_size: Seeds per batch.

    Returns:
        The expectations. None if there is no sampler, it has no fan-outs, or it makes disjoint
        trees.

    Raises:
        IndexError: A seed is outside the graph.
        ValueError: ``batch_size`` is below 1, or the graph is damaged.
    """
    as_integer("batch_size", batch_size, least=1)
    blocks = None if sampler is None else sampler.hops
    if sampler is None or blocks is None or not blocks.has_fanouts or blocks.disjoint:
        return None
    starts = _seed_counts(graph, seeds) if sampler.seeds_are_vertices else None
    total = num_seeds(seeds)
    draws = [Draws.of(graph, blocks, etype) for etype in graph.edge_types]
    # With one hop, no vertex is known through another.
    backs = find_mutual(draws) if blocks.num_hops > 1 else [None] * len(draws)
    found = {
        t: torch.zeros(
            graph.num_nodes_of(t), blocks.num_hops + 1, dtype=torch.float64, device="cpu"
        )
        for t in graph.node_types
    }
    for size, times in _batches(total, batch_size):
        first = seed_chances(graph, seeds, sampler, size)
        for ntype, unknown in _expand(first, draws, backs, blocks.num_hops).items():
            found[ntype] += times * torch.from_numpy(-np.diff(unknown, axis=1, prepend=1.0))
    if starts is not None:
        for ntype, counts in starts.items():
            found[ntype][:, 0] = counts  # a repeated seed is read each time
    return ExpectedAccesses(found, -(-total // batch_size))


def seed_chances(
    graph: Graph, seeds: Any, sampler: MiniBatchSampler, size: int
) -> dict[str, Tensor]:
    """The chance of each vertex to be in the first frontier of a batch of ``size`` seeds.

    By vertex type, float64.

    Raises:
        IndexError: A seed is outside the graph.
    """
    if not sampler.seeds_are_vertices:
        return sampler.seed_rates(seeds, size) or {}
    return {
        t: chance_of_some(counts, num_seeds(seeds), size)
        for t, counts in _seed_counts(graph, seeds).items()
    }


def _batches(total: int, batch_size: int) -> Iterator[tuple[int, float]]:
    """Sizes of an epoch's batches, and the number of batches of each size."""
    size = min(batch_size, total)
    whole, rest = divmod(total, size) if size else (0, 0)
    if not whole:
        return
    if rest == 0:
        yield size, whole
    elif whole >= _FEW_BATCHES:
        yield size, total / size
    else:
        yield size, whole
        yield rest, 1


def _seed_counts(graph: Graph, seeds: Any) -> dict[str, Tensor]:
    """The number of times that each vertex is a seed, by vertex type."""
    by_type = seeds if isinstance(seeds, Mapping) else {graph.only_node_type: seeds}
    counts = {
        t: torch.zeros(graph.num_nodes_of(t), dtype=torch.int64, device="cpu")
        for t in graph.node_types
    }
    for ntype, ids in by_type.items():
        name = f"seeds[{ntype!r}]" if isinstance(seeds, Mapping) else "seeds"
        check_range(name, ids, graph.num_nodes_of(ntype), IndexError)
        counts[ntype] = torch.bincount(ids.cpu().long(), minlength=graph.num_nodes_of(ntype))
    return counts


def _expand(
    first: Mapping[str, Tensor],
    draws: Sequence[Draws],
    backs: Sequence[Mutual | None],
    num_hops: int,
) -> dict[str, Array]:
    """Vertex type to the chance that a vertex is not known after each hop of a batch.

    Shape ``(num_nodes, num_hops + 1)``.
    """
    unknown = {t: np.ones((len(rates), num_hops + 1)) for t, rates in first.items()}
    for ntype, rates in first.items():
        unknown[ntype][:, 0] -= rates.numpy()
    # Chances multiply over edges, so their logs are added. -inf is a certain seed.
    with np.errstate(divide="ignore"):
        unseeded = {t: np.log(part[:, 0]) for t, part in unknown.items()}
    for hop in range(1, num_hops + 1):
        logs = {t: part.copy() for t, part in unseeded.items()}
        for each, back in zip(draws, backs, strict=True):
            each.push(unknown, hop, back, logs[each.edge_type[0]])
        for t, log in logs.items():
            # A known vertex stays known, so rounding must not increase the chance.
            np.minimum(np.exp(log), unknown[t][:, hop - 1], out=unknown[t][:, hop])
    return unknown
