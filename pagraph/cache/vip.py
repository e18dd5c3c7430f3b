"""The vip policy: how often each vertex is expected to be read, without sampling (SALIENT++'s VIP)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..csc import check_range
from ..sampling.chances import chance_of_some
from .policy import Ranking

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..graph import EdgeType, Graph
    from ..sampling.weights import EdgeWeights

    Array = npt.NDArray[Any]

__all__ = ["ExpectedAccesses", "expected_accesses", "vip"]

_FEW_BATCHES = 16
"""Up to here an incomplete last batch is computed apart; beyond it counts as its share of a whole one."""


@dataclass(frozen=True, eq=False)
class ExpectedAccesses:
    """How often each vertex is expected to be an input node in an epoch, by the hop that finds it (0: the seeds).

    To be used as :class:`~pagraph.sampling.accesses.AccessCounts`, for one epoch.

    Attributes:
        found: Vertex type to expected reads, float64, shape ``(num_hops + 1, num_nodes)``.
        batches: Batches of the epoch, an incomplete last one counted.
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
        return len(next(iter(self.found.values()))) - 1

    def by_hop(self, node_type: str) -> Tensor:
        """Reads of each vertex by the hop that finds it, shape ``(num_nodes, num_hops + 1)``, float64."""
        return self.found[node_type].T

    def reads(self, node_type: str) -> Tensor:
        """Reads of each vertex as an input node, shape ``(num_nodes,)``, float64."""
        return self.found[node_type].sum(0)

    def frontier(self, node_type: str, hop: int) -> Tensor:
        """In how many batches hop number ``hop`` (0 serves the seeds) expands each vertex, shape ``(num_nodes,)``."""
        return self.found[node_type][: hop + 1].sum(0)

    @property
    def total(self) -> float:
        """Rows read of all types."""
        return sum(float(reads.sum()) for reads in self.found.values())


def vip(graph: Graph, seeds: Any, sampler: Any, seed: int, *, batch_size: int = 1000) -> dict[str, Ranking]:
    """Ranks by the expected number of reads an epoch, the seeds' own included; see :func:`expected_accesses`.

    Raises:
        ValueError: The sampler has no fan-outs.
    """
    expected = expected_accesses(graph, seeds, sampler, batch_size=batch_size)
    if expected is None:
        if sampler is None:
            raise ValueError(
                "cache_policy 'vip' needs seeds and a sampler with fan-outs that it can see into, got your own; "
                "'degree' and 'random' need neither"
            )
        raise ValueError(
            f"cache_policy 'vip' needs a sampler with fan-outs (neighbour or LABOR sampling), got "
            f"{type(getattr(sampler, 'blocks', sampler)).__name__}; 'presample', 'degree' and 'random' need none"
        )
    return {ntype: Ranking.of_reads(expected.reads(ntype)) for ntype in expected.node_types}


def expected_accesses(graph: Graph, seeds: Any, sampler: Any, *, batch_size: int) -> ExpectedAccesses | None:
    """How often each vertex is read in an epoch of shuffled batches, from the chances of the draws alone.

    After VIP of SALIENT++ (Kaler et al., MLSys 2023), for directed graphs of any types, with the seeds' own reads. As
    the samplers do, each hop draws from every vertex known so far; so the chance that an edge has been drawn depends on
    when its destination was found. Edges, and the vertices at their ends, are taken to be drawn independently of each
    other; what LABOR's vertices share is left aside. One pass over the edges for each hop.

    Args:
        graph: The graph.
        seeds: Vertex ids, or a mapping from vertex type; whatever ``sampler.seed_rates`` takes if it has that method.
        sampler: A sampler with ``fanout(hop, edge_type)``, or one that has such a sampler as ``blocks`` and tells with
            ``seed_rates(seeds, batch_size)`` how likely each vertex is in the first frontier of a batch, by type.
        batch_size: Seeds a batch.

    Returns:
        The expectations, or None for samplers without fan-outs.

    Raises:
        IndexError: A seed is outside the graph.
        ValueError: ``batch_size`` is below 1; a damaged graph.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    blocks = getattr(sampler, "blocks", sampler)
    if not hasattr(blocks, "fanout"):
        return None
    hops = [_Hops.of(graph, blocks, etype) for etype in graph.edge_types]
    rates = getattr(sampler, "seed_rates", None)
    starts = _Seeds(graph, seeds) if rates is None else None
    total = _length(seeds)
    found = {t: torch.zeros(blocks.num_hops + 1, graph.num_nodes_of(t), dtype=torch.float64) for t in graph.node_types}
    for size, times in _batches(total, batch_size):
        first = rates(seeds, size) if rates is not None else starts.rates(size)  # type: ignore[union-attr]
        for ntype, part in _expand(graph, first, hops, blocks.num_hops).items():
            found[ntype] += times * torch.from_numpy(part)
    if starts is not None:
        for ntype, counts in starts.counts.items():
            found[ntype][0] = counts  # a seed that is there several times is read as often
    return ExpectedAccesses(found, -(-total // batch_size))


def _batches(total: int, batch_size: int) -> Iterator[tuple[int, float]]:
    """Sizes of batches, and how many there are."""
    size = min(batch_size, total)
    whole, rest = divmod(total, size) if size else (0, 0)
    if whole:
        yield size, whole if rest == 0 or whole < _FEW_BATCHES else total / size
    if rest and whole < _FEW_BATCHES:
        yield rest, 1


def _length(seeds: Any) -> int:
    return sum(map(len, seeds.values())) if isinstance(seeds, Mapping) else len(seeds)


class _Seeds:
    """How often each vertex is among the seeds."""

    def __init__(self, graph: Graph, seeds: Any) -> None:
        by_type = seeds if isinstance(seeds, Mapping) else {graph.only_node_type: seeds}
        self.counts = {t: torch.zeros(graph.num_nodes_of(t), dtype=torch.int64) for t in graph.node_types}
        for ntype, ids in by_type.items():
            name = f"seeds[{ntype!r}]" if isinstance(seeds, Mapping) else "seeds"
            check_range(name, ids, graph.num_nodes_of(ntype), IndexError)
            self.counts[ntype] = torch.bincount(ids.cpu().long(), minlength=graph.num_nodes_of(ntype))
        self.total = _length(by_type)

    def rates(self, batch_size: int) -> dict[str, Tensor]:
        """How likely each vertex is in a batch."""
        return {t: chance_of_some(counts, self.total, batch_size) for t, counts in self.counts.items()}


@dataclass(frozen=True, eq=False)
class _Hops:
    """How the hops draw from the edges of one type.

    Attributes:
        edge_type: The type.
        indptr: Rows of the edges that may be drawn.
        indices: Sources of these edges.
        fanouts: By hop, the one that serves the seeds first.
        replace: Draws are with replacement.
        same: Draws are the same in all hops.
        values: Weights of the edges; None where all are as likely.
        totals: Sums of the rows' weights.
        rates: Shape ``(num_hops, num_dst)``, see ``_vip.push_weighted``; empty without weights.
    """

    edge_type: EdgeType
    indptr: Array
    indices: Array
    fanouts: Array
    replace: bool
    same: bool
    values: Array | None
    totals: Array
    rates: Array

    @classmethod
    def of(cls, graph: Graph, sampler: Any, edge_type: EdgeType) -> _Hops:
        """The draws of a sampler.

        Raises:
            TypeError, ValueError: As the sampler raises them for wrong weights; ValueError for a damaged graph.
        """
        csc = graph.adjacency(sampler.edge_dir, edge_type)
        csc.validate()
        fanouts = np.array([sampler.fanout(hop, edge_type) for hop in range(sampler.num_hops)], np.int64)
        replace, same = bool(getattr(sampler, "replace", False)), bool(getattr(sampler, "layer_dependency", False))
        weights = sampler.weights(graph, edge_type, lambda etype, name: graph.edge_fields(etype).get(name))
        indptr, indices = csc.indptr, csc.indices
        if weights is not None and weights.kept is not None:
            indptr, indices = weights.kept.indptr, indices[weights.kept.indices.long()]
        values, totals, rates = _weigh(indptr.numpy(), weights, fanouts, replace)
        return cls(edge_type, indptr.numpy(), indices.numpy(), fanouts, replace, same, values, totals, rates)

    def push(self, found: Array, out: Array) -> None:
        """Add the logarithms of the chances that no edge has been drawn after ``len(found)`` hops."""
        from . import _vip

        hops = len(found)
        if self.values is None:
            _vip.push_uniform(self.indptr, self.indices, found, self.fanouts[:hops], self.replace, self.same, out)
            return
        rates = self.rates[:hops]
        _vip.push_weighted(
            self.indptr, self.indices, self.values, self.totals, found, rates, self.replace, self.same, out
        )


def _weigh(
    indptr: Array, weights: EdgeWeights | None, fanouts: Array, replace: bool
) -> tuple[Array | None, Array, Array]:
    """Weights, sums of rows, and rates of all hops."""
    from . import _vip

    if weights is None or weights.values is None:
        return None, np.empty(0), np.empty((0, 0))
    values, totals = weights.values.numpy(), np.zeros(len(indptr) - 1)
    _vip.row_totals(indptr, values, totals)
    if replace:
        draws = np.where(fanouts < 0, np.inf, fanouts)
        return values, totals, np.repeat(draws[:, None], len(totals), axis=1)
    solved: dict[int, Array] = {}
    for fanout in set(fanouts.tolist()):
        solved[fanout] = np.empty(len(totals))
        _vip.solve_rates(indptr, values, totals, fanout, solved[fanout])
    return values, totals, np.stack([solved[fanout] for fanout in fanouts.tolist()])


def _expand(graph: Graph, first: Mapping[str, Tensor], hops: list[_Hops], num_hops: int) -> dict[str, Array]:
    """The chance that each hop finds each vertex in a batch, shape ``(num_hops + 1, num_nodes)`` by type."""
    found = {t: np.zeros((num_hops + 1, graph.num_nodes_of(t))) for t in graph.node_types}
    for ntype, rates in first.items():
        found[ntype][0] = rates.numpy()
    with np.errstate(divide="ignore"):
        unseeded = {t: np.log1p(-part[0]) for t, part in found.items()}
    known = {t: part[0].copy() for t, part in found.items()}
    for hop in range(num_hops):
        logs = {t: part.copy() for t, part in unseeded.items()}
        for draws in hops:
            src_type, _, dst_type = draws.edge_type
            draws.push(found[dst_type][: hop + 1], logs[src_type])
        for t, log in logs.items():
            now = -np.expm1(log)
            np.maximum(now - known[t], 0.0, out=found[t][hop + 1])
            known[t] = np.maximum(now, known[t])
    return found
