"""The policies auto and adaptive, which rank by expected reads, from sampled epochs or from the
first real one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..sampling.batches import expanded
from ..seeds.order import num_seeds
from ..system.arrays import Float64Array, Int64Array
from .policy import Ranking, degree, out_degrees
from .presample import AccessCounts, count_accesses, presampling_seed, reads_by_seed
from .vip import expected_accesses

if TYPE_CHECKING:
    from ..graph.graph import Graph
    from ..sampling.sampler import MiniBatchSampler
    from .policy import Policy

    Array = Float64Array

_SECONDS = 0.5  # of sampling for a ranking; one epoch may take longer
# On the mean of 96 workloads one epoch gave 1.0020 times the hit rate that the mean reads of 30
# epochs give as a ranking, and six epochs gave 1.0026 times.
_MOST_EPOCHS = 8
# Seconds on 2 cores, fitted to 132 epochs of 11 graphs and rounded up.
_PER_BATCH = 4e-4
_PER_ROW = 2e-8
_PER_EDGE = 5e-9


def auto(
    graph: Graph,
    seeds: Any,
    sampler: Any,
    seed: int,
    *,
    batch_size: int = 1000,
    shuffle: bool = True,
) -> Any:
    """Rank by expected reads, see :func:`expected_reads`; by degree if only user code can sample.

    Samples one epoch, or up to 8 short ones that take about half a second together. Their number
    depends on the work of the first, not on the clock, so that the ranking is a function of the
    arguments.
    """
    if sampler is None:
        return degree(graph, seeds, sampler, seed)
    settings: dict[str, Any] = {"batch_size": batch_size, "shuffle": shuffle}
    counted = counted_epochs(graph, seeds, sampler, seed=presampling_seed(seed), **settings)
    return _by_expected_reads(graph, seeds, sampler, counted, batch_size)


def adaptive(graph: Graph, seeds: Any, sampler: Any, seed: int, *, batch_size: int = 1000) -> Any:
    """Rank by degree at first; the loader refills its cache once, after its first epoch.

    The reads counted in that epoch replace the epochs that ``auto`` samples.
    """
    return degree(graph, seeds, sampler, seed)


def refills(policy: Policy, sampler: Any) -> bool:
    """Whether a loader refills its cache after its first epoch.

    True for ``adaptive``, and for ``auto`` if only user code can sample.
    """
    return policy is adaptive or (policy is auto and sampler is None)


@dataclass(frozen=True, eq=False)
class Learned:
    """Policy that ranks by the counted reads of a real epoch.

    The epoch has ``batches`` batches if the number of seeds is unknown.
    """

    counts: AccessCounts
    batches: int

    def __call__(
        self, graph: Graph, seeds: Any, sampler: Any, seed: int, *, batch_size: int = 1000
    ) -> dict[str, Ranking]:
        """See ``pagraph.ranking.policy``."""
        count = num_seeds(seeds)
        batches = -(-count // batch_size) if count else self.batches
        # If several processes share the seeds, this one has read its share of the epoch.
        counted = Counted(self.counts, self.counts.batches / batches)
        return _by_expected_reads(graph, seeds, sampler, [counted], batch_size)


def _by_expected_reads(
    graph: Graph, seeds: Any, sampler: Any, counted: Sequence[Counted], batch_size: int
) -> dict[str, Ranking]:
    reads = expected_reads(graph, seeds, sampler, counted, batch_size=batch_size)
    return {ntype: Ranking.of_reads(values) for ntype, values in reads.items()}


def counted_epochs(
    graph: Graph, seeds: Any, sampler: Any, *, batch_size: int, seed: int, shuffle: bool = True
) -> list[Counted]:
    """Count one epoch, and if it is short also several others together."""
    settings: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "shuffle": shuffle}
    first = count_accesses(graph, seeds, sampler, epochs=[0], **settings)
    epochs = int(_SECONDS / max(_seconds(graph, sampler, first), 1e-9))
    more = min(_MOST_EPOCHS, epochs) - 1
    if more < 1 or not first.batches:
        return [Counted(first, 1)]
    others = count_accesses(graph, seeds, sampler, epochs=range(1, more + 1), **settings)
    return [Counted(first, 1), Counted(others, more)]


def _seconds(graph: Graph, sampler: MiniBatchSampler, counts: AccessCounts) -> float:
    """Estimate how long it takes to sample an epoch, from what it drew."""
    edges = 0.0
    blocks = sampler.hops
    if blocks is not None and blocks.has_fanouts:
        for etype in graph.edge_types:
            degrees = graph.adjacency(blocks.edge_dir, etype).indptr.diff().double()
            for hop in range(blocks.num_hops):
                fanout = blocks.fanout(hop, etype)
                drawn = degrees if fanout < 0 else degrees.clamp(max=fanout)
                times = expanded(counts, blocks, etype[2], hop)
                edges += float((times * drawn).sum())
    return counts.batches * _PER_BATCH + counts.total * _PER_ROW + edges * _PER_EDGE


_STRATA = 40  # of each property that the prior is fitted to; 20 and 100 gave the same hit rates
_ROUNDS = 6  # of the fit, which converges in three
_LEAST_VERTICES = 30  # in a stratum
# Reads counted in a stratum. With fewer, the prior was fitted to noise, which lost up to 2 points
# of hit rate.
_LEAST_READS = 100
_SAMPLE = 100_000  # vertices from which the bounds of strata are taken
# Weight of a prior by degree, in counted epochs.
_BLIND_EPOCHS = 0.1
_ASSUMED_WORTH = 0.1  # weight of the assumed noise relative to the measured one


@dataclass(frozen=True, eq=False)
class Counted:
    """Counted reads by vertex and hop, and the number of epochs, which may have a fraction."""

    counts: AccessCounts
    epochs: float


def expected_reads(
    graph: Graph,
    seeds: Any,
    sampler: MiniBatchSampler | None,
    counted: Sequence[Counted],
    *,
    batch_size: int,
) -> dict[str, Tensor]:
    """Expected reads of every vertex in an epoch, from one or a few counted epochs.

    Counts (PreSC, GNNLab) are unbiased but noisy. The analytic expectation (VIP, SALIENT++) has no
    noise, but assumes independent draws within a batch. On web graphs, where the neighbours of a
    vertex share neighbours, it is up to three times too high, and by different factors. The
    expectation of :func:`~pagraph.ranking.presample.reads_by_seed` is better and costs more. The
    lower of the two is the prior. Prior and counts are combined by empirical Bayes (Efron and
    Morris, JASA 1975):

    1. The prior is fitted to the counts by iterative proportional fitting: one factor for each
       stratum of vertices with similar expectation, similar out-degree and equal reads as seeds.
    2. In each stratum, the counts may deviate from the prior by more than their noise. The rest is
       how much vertices really differ. Each vertex's count is trusted by the share of this in the
       total deviation.

    The noise is assumed to be that of independent batches. With two countings it is measured. (It
    is smaller, since every seed is in exactly one batch. A model of that was right within 30 %, and
    gained nothing over the better prior.)

    A vertex is read at most once in a batch, or once in each of disjoint trees. Reads as a seed are
    known and stay out of the estimate. Unlike raw counts, the result does not expect too high hit
    rates.

    Args:
        graph: The graph.
        seeds: The loader's seeds, as the sampler takes them.
        sampler: As for ``expected_accesses``. If it is None or has no fan-outs, the prior is by
            out-degree alone.
        counted: One or two countings, of at least half a batch in total.
        batch_size: Seeds per batch.

    Returns:
        Vertex type to reads per epoch, shape ``(num_nodes,)``, float64.
    """
    evidence = _Evidence(
        counted,
        seeds_are_known=sampler is not None and sampler.seeds_are_vertices,
        disjoint=sampler is not None and sampler.hops is not None and sampler.hops.disjoint,
    )
    priors = {} if sampler is None else _priors(graph, seeds, sampler, evidence, batch_size)
    degrees = out_degrees(graph)
    expected = {}
    for ntype in graph.node_types:
        reads = _reads(ntype, evidence, priors.get(ntype), _array(degrees[ntype]))
        expected[ntype] = torch.from_numpy(reads)
    return expected


def learned_reads(prior: Tensor, counts: Tensor, batches: int) -> Tensor:
    """Expected reads of some vertices, from counts of independent batches and a prior.

    See :func:`expected_reads`.

    Args:
        prior: Expected reads of each vertex, up to a factor, shape ``(n,)``. Vertices with 0 are
            unknown, and get equal priors.
        counts: Number of batches that read each vertex, shape ``(n,)``.
        batches: Number of batches that were counted.

    Returns:
        Reads in that many batches, shape ``(n,)``, float64.

    Example:
        >>> learned_reads(torch.tensor([4.0, 2.0, 0.0]), torch.tensor([6, 2, 1]), 10).argsort()
        tensor([2, 1, 0])
    """
    expected = _array(prior)
    known = expected[expected > 0]
    expected = np.where(expected > 0, expected, known.min(initial=1.0) / 2)
    counted = _array(counts)
    most = _most_strata(counted.sum())
    scaled = _fitted(expected, counted, [_Strata.by(expected, most)])
    fitted = np.minimum(scaled, batches)
    noise = fitted * (1 - fitted / max(1, batches))
    reads = _shrunk(fitted, counted, noise, None, 1.0, _Strata.by(fitted, most))
    return torch.from_numpy(reads)


def _most_strata(reads: float) -> int:
    """Number of strata, so that each has enough of all counted reads."""
    return max(1, min(_STRATA, int(reads / _LEAST_READS)))


@dataclass(frozen=True, eq=False)
class _Evidence:
    """Countings of one loader."""

    counted: Sequence[Counted]
    seeds_are_known: bool
    disjoint: bool

    @property
    def epochs(self) -> float:
        return sum(counted.epochs for counted in self.counted)

    @property
    def draws(self) -> float:
        """Batches, or disjoint trees, of an epoch; each reads a vertex at most once."""
        if not self.disjoint:
            batches = sum(counted.counts.batches for counted in self.counted)
            return max(1.0, batches / self.epochs)
        # Each tree has one seed.
        trees = 0.0
        for node_type in self.counted[0].counts.node_types:
            trees += sum(float(seeded.sum()) for seeded in self._seeded(node_type))
        return max(1.0, trees / self.epochs)

    def drawn(self, ntype: str) -> list[Array]:
        """Reads that are random, one array for each counting: all but those as known seeds."""
        reads = [_array(c.counts.reads(ntype)) for c in self.counted]
        if not self.seeds_are_known:
            return reads
        return [r - s for r, s in zip(reads, self._seeded(ntype), strict=True)]

    def seeded(self, ntype: str) -> Array:
        """Mean reads as seeds in an epoch."""
        mean: Array = np.add.reduce(self._seeded(ntype)) / self.epochs
        return mean

    def _seeded(self, ntype: str) -> list[Array]:
        return [_array(c.counts.frontier(ntype, 0)) for c in self.counted]


def _priors(
    graph: Graph, seeds: Any, sampler: MiniBatchSampler, evidence: _Evidence, batch_size: int
) -> dict[str, tuple[Array, Array]]:
    """Vertex type to the prior expectation of reads as seeds, and of all others.

    Empty for samplers without fan-outs.
    """
    by_seed = reads_by_seed(graph, seeds, sampler, batch_size=batch_size)
    if evidence.disjoint and by_seed is not None:
        (only,) = graph.node_types
        return {only: (evidence.seeded(only), _array(by_seed))}
    analytic = expected_accesses(graph, seeds, sampler, batch_size=batch_size)
    if analytic is None:
        return {}
    priors = {}
    for ntype in graph.node_types:
        by_hop = analytic.by_hop(ntype)
        reads = _array(by_hop[:, int(evidence.seeds_are_known) :].sum(1))
        if by_seed is not None:
            reads = np.minimum(reads, _array(by_seed))
        priors[ntype] = _array(by_hop[:, 0]), np.minimum(reads, evidence.draws)
    return priors


def _reads(
    ntype: str, evidence: _Evidence, prior: tuple[Array, Array] | None, degrees: Array
) -> Array:
    """The expected reads of the vertices of one type."""
    seeded = evidence.seeded(ntype)
    drawn = evidence.drawn(ntype)
    mean = np.add.reduce(drawn) / evidence.epochs
    # A user's sampler may make trees without saying so. Then a vertex is read more often than there
    # are batches.
    draws = max(evidence.draws, float(mean.max(initial=0.0)))
    traits = [degrees, np.round(seeded)] if evidence.seeds_are_known else [degrees]
    if prior is None:
        seed_reads = seeded
        expected = np.ones(len(mean))
    else:
        seed_reads, expected = prior
        traits.insert(0, expected)
    most = _most_strata(mean.sum() * evidence.epochs)
    strata = [_Strata.by(trait, most) for trait in traits]
    fitted = np.minimum(_fitted(expected, mean, strata), draws)
    # The variance of a binomial count: n p (1 - p) with n = draws and p = fitted / draws.
    noise = fitted * (1 - fitted / draws)
    measured = None
    if len(drawn) > 1:
        # The means of m and n epochs differ with variance v (1 / m + 1 / n), where v is the
        # variance of one epoch's reads.
        first, second = (counted.epochs for counted in evidence.counted[:2])
        difference = drawn[0] / first - drawn[1] / second
        measured = difference**2 / (1 / first + 1 / second)
    if prior is None and measured is None:
        # Degrees predict too little to separate noise from real differences. They mostly break
        # ties.
        total = mean * evidence.epochs + fitted * _BLIND_EPOCHS
        reads: Array = total / (evidence.epochs + _BLIND_EPOCHS)
    else:
        reads = _shrunk(fitted, mean, noise, measured, evidence.epochs, _Strata.by(fitted, most))
    return reads + seed_reads if evidence.seeds_are_known else reads


def _array(values: Tensor) -> Array:
    array: Array = values.double().numpy()
    return array


@dataclass(frozen=True, eq=False)
class _Strata:
    """Groups of vertices with similar values; stratum 0 has those with none."""

    of: Int64Array
    count: int

    @classmethod
    def by(cls, values: Array, most: int) -> _Strata:
        """At most ``most`` strata of equally many vertices, and stratum 0."""
        positive = values[values > 0]
        sample = positive[:: max(1, len(positive) // _SAMPLE)]
        wanted = min(most, max(1, len(positive) // _LEAST_VERTICES))
        # Bounds are values, so that equal values are in one stratum.
        begins = sample
        if len(sample):
            shares = np.arange(1, wanted) / wanted
            begins = np.unique(np.quantile(sample, shares, method="lower"))
        places = np.searchsorted(begins, values, side="right").astype(np.int64) + 1
        places[values <= 0] = 0
        return cls(places, len(begins) + 2)

    def sum(self, values: Array) -> Array:
        """Sum of the values in each stratum."""
        return np.bincount(self.of, weights=values, minlength=self.count).astype(np.float64)

    def ratio(self, above: Array, below: Array) -> Array:
        """For each vertex the ratio of its stratum's sums; 0 if nothing is expected."""
        above = self.sum(above)
        below = self.sum(below)
        # A prior may be so small (2e-309) that the quotient overflows: then nothing is expected.
        expected = below > above / np.finfo(np.float64).max
        ratios: Array = np.divide(above, below, out=np.zeros(self.count), where=expected)
        return ratios[self.of]


def _fitted(prior: Array, mean: Array, traits: Sequence[_Strata]) -> Array:
    """The prior, scaled by a factor per stratum so that every stratum's sum equals its counts."""
    fitted = prior
    for _ in range(_ROUNDS):
        for strata in traits:
            fitted = fitted * strata.ratio(mean, fitted)
    return fitted


def _shrunk(
    prior: Array, mean: Array, noise: Array, measured: Array | None, epochs: float, strata: _Strata
) -> Array:
    """The counted mean, shrunk towards the prior according to its noise."""
    if measured is not None:
        # Scale the assumed noise of a stratum to the measured one, shrunk a little towards 1. It is
        # bounded, as two countings of few vertices may agree or differ by accident.
        blended = measured + _ASSUMED_WORTH * noise
        ratio = strata.ratio(blended, (1 + _ASSUMED_WORTH) * noise)
        noise = noise * np.clip(ratio, 0.1, 5.0)
    noise = noise / epochs
    # Assume that the variance of vertices around the prior is its square times a factor for each
    # stratum. Estimate the factor by moments: the squared deviations less the noise.
    deviation = (mean - prior) ** 2
    surplus = np.maximum(strata.sum(deviation - noise), 0.0)
    scale = strata.sum(prior**2)
    factor = np.divide(surplus, scale, out=np.zeros_like(scale), where=scale > 0)
    signal = factor[strata.of] * prior**2
    total = signal + noise
    trust = np.divide(signal, total, out=np.zeros_like(signal), where=total > 0)
    reads: Array = prior + trust * (mean - prior)
    return reads
