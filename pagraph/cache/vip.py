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
from ..sampling.seeds import num_seeds
from .draws import Draws, Mutual, find_mutual
from .policy import Ranking

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..graph import Graph
    from ..sampling.hop_sampler import HopSampler
    from ..sampling.minibatch_sampler import MiniBatchSampler

    Array = npt.NDArray[Any]

__all__ = ["ExpectedAccesses", "expected_accesses", "vip"]

_FEW_BATCHES = 16
"""Up to here an incomplete last batch is computed apart; beyond it counts as its share of a whole one."""


@dataclass(frozen=True, eq=False)
class ExpectedAccesses:
    """How often each vertex is expected to be an input node in an epoch, by the hop that finds it (0: the seeds).

    To be used as :class:`~pagraph.sampling.accesses.AccessCounts`, for one epoch.

    Attributes:
        found: Vertex type to expected reads, float64, shape ``(num_nodes, num_hops + 1)``.
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
        return int(next(iter(self.found.values())).shape[1]) - 1

    def by_hop(self, node_type: str) -> Tensor:
        """Reads of each vertex by the hop that finds it, shape ``(num_nodes, num_hops + 1)``, float64."""
        return self.found[node_type]

    def reads(self, node_type: str) -> Tensor:
        """Reads of each vertex as an input node, shape ``(num_nodes,)``, float64."""
        return self.found[node_type].sum(1)

    def frontier(self, node_type: str, hop: int) -> Tensor:
        """In how many batches each vertex is known before hop ``hop`` (0 serves the seeds), shape ``(num_nodes,)``."""
        return self.found[node_type][:, : hop + 1].sum(1)

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
            f"cache_policy 'vip' needs a sampler with fan-outs (neighbour or LABOR sampling) and batches that are not "
            f"disjoint, got {_described(sampler)}; 'presample', 'degree' and 'random' need neither"
        )
    return {ntype: Ranking.of_reads(expected.reads(ntype)) for ntype in expected.node_types}


def expected_accesses(
    graph: Graph, seeds: Any, sampler: MiniBatchSampler | None, *, batch_size: int
) -> ExpectedAccesses | None:
    """How often each vertex is read in an epoch of shuffled batches, from the chances of the draws alone.

    After VIP of SALIENT++ (Kaler et al., MLSys 2023), for directed graphs of any types, with the seeds' own reads. As
    the samplers do, each hop draws from every vertex known so far, or, of a sampler that ``expands_once``, from those
    that the hop before found; so the chance that an edge has been drawn depends on when its destination was found, and
    if there is an edge back, on how much the one end owes to the other. Apart from that, edges are taken to be drawn
    independently of each other: what the random numbers have in common that LABOR's vertices share is left aside, and
    cycles of more than two edges count twice. One pass over the edges for each hop.

    Args:
        graph: The graph.
        seeds: As the sampler takes them.
        sampler: Any; None, or one that does not know its fan-outs, gives None.
        batch_size: Seeds a batch.

    Returns:
        The expectations, or None for samplers without fan-outs and those of disjoint trees.

    Raises:
        IndexError: A seed is outside the graph.
        ValueError: ``batch_size`` is below 1; a damaged graph.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    blocks = None if sampler is None else sampler.hops
    if sampler is None or blocks is None or not blocks.has_fanouts or blocks.disjoint:
        return None
    starts = _Seeds(graph, seeds) if sampler.seeds_are_vertices else None
    total, steps = num_seeds(seeds), _steps(graph, blocks)
    found = {t: torch.zeros(graph.num_nodes_of(t), blocks.num_hops + 1, dtype=torch.float64) for t in graph.node_types}
    for size, times in _batches(total, batch_size):
        first = (sampler.seed_rates(seeds, size) or {}) if starts is None else starts.rates(size)
        for ntype, unknown in _expand(first, steps, blocks.num_hops).items():
            found[ntype] += times * torch.from_numpy(-np.diff(unknown, axis=1, prepend=1.0))
    if starts is not None:
        for ntype, counts in starts.counts.items():
            found[ntype][:, 0] = counts  # a seed that is there several times is read as often
    return ExpectedAccesses(found, -(-total // batch_size))


def _described(sampler: MiniBatchSampler) -> str:
    blocks = sampler.hops
    return f"{'disjoint ' * (blocks is not None and blocks.disjoint)}{type(blocks or sampler).__name__}"


def _steps(graph: Graph, sampler: HopSampler) -> list[_Step]:
    """The draws along each edge type."""
    draws = [Draws.of(graph, sampler, etype) for etype in graph.edge_types]
    # With one hop, no vertex owes anything to another.
    backs = find_mutual(draws) if sampler.num_hops > 1 else [None] * len(draws)
    return [_Step(each, back) for each, back in zip(draws, backs, strict=True)]


def _batches(total: int, batch_size: int) -> Iterator[tuple[int, float]]:
    """Sizes of batches, and how many there are."""
    size = min(batch_size, total)
    whole, rest = divmod(total, size) if size else (0, 0)
    if whole:
        yield size, whole if rest == 0 or whole < _FEW_BATCHES else total / size
    if rest and whole < _FEW_BATCHES:
        yield rest, 1


class _Seeds:
    """How often each vertex is among the seeds."""

    def __init__(self, graph: Graph, seeds: Any) -> None:
        by_type = seeds if isinstance(seeds, Mapping) else {graph.only_node_type: seeds}
        self.counts = {t: torch.zeros(graph.num_nodes_of(t), dtype=torch.int64) for t in graph.node_types}
        for ntype, ids in by_type.items():
            name = f"seeds[{ntype!r}]" if isinstance(seeds, Mapping) else "seeds"
            check_range(name, ids, graph.num_nodes_of(ntype), IndexError)
            self.counts[ntype] = torch.bincount(ids.cpu().long(), minlength=graph.num_nodes_of(ntype))
        self.total = num_seeds(by_type)

    def rates(self, batch_size: int) -> dict[str, Tensor]:
        """How likely each vertex is in a batch."""
        return {t: chance_of_some(counts, self.total, batch_size) for t, counts in self.counts.items()}


def _expand(first: Mapping[str, Tensor], steps: list[_Step], num_hops: int) -> dict[str, Array]:
    """The chance that a vertex is not known after each hop of a batch, shape ``(num_nodes, num_hops + 1)`` by type."""
    unknown = {t: np.ones((len(rates), num_hops + 1)) for t, rates in first.items()}
    for ntype, rates in first.items():
        unknown[ntype][:, 0] -= rates.numpy()
    with np.errstate(divide="ignore"):
        unseeded = {t: np.log(part[:, 0]) for t, part in unknown.items()}
    for hop in range(1, num_hops + 1):
        logs = {t: part.copy() for t, part in unseeded.items()}
        for step in steps:
            step.draws.push(unknown, hop, step.back, logs[step.draws.edge_type[0]])
        for t, log in logs.items():
            np.minimum(np.exp(log), unknown[t][:, hop - 1], out=unknown[t][:, hop])
    return unknown


@dataclass(frozen=True, eq=False)
class _Step:
    """One edge type in every hop."""

    draws: Draws
    back: Mutual | None
