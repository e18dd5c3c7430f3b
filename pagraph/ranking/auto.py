"""The policies auto and adaptive: ranking by expected reads, from sampled epochs or from the first real one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..sampling.batches import expanded
from ..seeds.order import num_seeds
from .degree import degree
from .expected import Counted, expected_reads
from .policy import Ranking
from .presample import AccessCounts, count_accesses, presampling_seed

if TYPE_CHECKING:
    from ..graph.graph import Graph
    from ..sampling.sampler import MiniBatchSampler
    from .policy import Policy

__all__ = ["Learned", "adaptive", "auto", "counted_epochs", "refills"]

_SECONDS = 0.5
_MOST_EPOCHS = 8  # one gave 1.0020 times the hit rate of the mean of 30, six 1.0026 (96 workloads, means)
# Seconds on 2 cores: fitted to 132 epochs of 11 graphs, rounded up.
_PER_BATCH, _PER_ROW, _PER_EDGE = 4e-4, 2e-8, 5e-9


def auto(graph: Graph, seeds: Any, sampler: Any, seed: int, *, batch_size: int = 1000, shuffle: bool = True) -> Any:
    """Rank by expected reads: those of sampled epochs and the analytic expectation, weighed against each other.

    Samples one epoch, and where epochs are short as many more as take about half a second, at most 8; how many depends
    on the work of the first, not on the clock, so that the ranking is a function of the arguments. See
    :func:`~pagraph.ranking.expected.expected_reads`. Where only a user's own code samples, ranks by degree.
    """
    if sampler is None:
        return degree(graph, seeds, sampler, seed)
    settings: dict[str, Any] = {"batch_size": batch_size, "shuffle": shuffle}
    counted = counted_epochs(graph, seeds, sampler, seed=presampling_seed(seed), **settings)
    return _by_expected_reads(graph, seeds, sampler, counted, batch_size)


def adaptive(graph: Graph, seeds: Any, sampler: Any, seed: int, *, batch_size: int = 1000) -> Any:
    """Rank by degree at first; a loader with this policy refills its cache once, after its first epoch.

    The reads of that epoch, counted as they happen, take the place of the epochs that ``auto`` samples.
    """
    return degree(graph, seeds, sampler, seed)


def refills(policy: Policy, sampler: Any) -> bool:
    """Whether a loader refills its cache after its first epoch; with ``auto`` where only a user's own code samples."""
    return policy is adaptive or (policy is auto and sampler is None)


@dataclass(frozen=True, eq=False)
class Learned:
    """Policy that ranks by the counted reads of a real epoch.

    Args:
        counts: Reads of the epoch.
        batches: Batches of an epoch, where the seeds do not tell.
    """

    counts: AccessCounts
    batches: int

    def __call__(
        self, graph: Graph, seeds: Any, sampler: Any, seed: int, *, batch_size: int = 1000
    ) -> dict[str, Ranking]:
        """See ``pagraph.ranking.policy``."""
        count = num_seeds(seeds)
        # One process of several reads its share of the epoch that the seeds make.
        epochs = self.counts.batches / (-(-count // batch_size) if count else self.batches)
        return _by_expected_reads(graph, seeds, sampler, [Counted(self.counts, epochs)], batch_size)


def _by_expected_reads(
    graph: Graph, seeds: Any, sampler: Any, counted: Sequence[Counted], batch_size: int
) -> dict[str, Ranking]:
    reads = expected_reads(graph, seeds, sampler, counted, batch_size=batch_size)
    return {ntype: Ranking.of_reads(values) for ntype, values in reads.items()}


def counted_epochs(
    graph: Graph, seeds: Any, sampler: Any, *, batch_size: int, seed: int, shuffle: bool = True
) -> list[Counted]:
    """One epoch, and a second counting of others where an epoch is short."""
    settings: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "shuffle": shuffle}
    first = count_accesses(graph, seeds, sampler, epochs=[0], **settings)
    more = min(_MOST_EPOCHS, int(_SECONDS / max(_seconds(graph, sampler, first), 1e-9))) - 1
    if more < 1 or not first.batches:
        return [Counted(first, 1)]
    others = count_accesses(graph, seeds, sampler, epochs=range(1, more + 1), **settings)
    return [Counted(first, 1), Counted(others, more)]


def _seconds(graph: Graph, sampler: MiniBatchSampler, counts: AccessCounts) -> float:
    """Estimate how long an epoch takes to sample, from what it drew."""
    edges, blocks = 0.0, sampler.hops
    if blocks is not None and blocks.has_fanouts:
        for etype in graph.edge_types:
            degrees = graph.adjacency(blocks.edge_dir, etype).indptr.diff().double()
            for hop in range(blocks.num_hops):
                fanout, frontier = blocks.fanout(hop, etype), expanded(counts, blocks, etype[2], hop)
                edges += float((frontier * (degrees if fanout < 0 else degrees.clamp(max=fanout))).sum())
    return counts.batches * _PER_BATCH + counts.total * _PER_ROW + edges * _PER_EDGE
