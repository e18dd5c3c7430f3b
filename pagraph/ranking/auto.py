"""The policies auto and adaptive: ranking by expected reads, from sampled epochs or from the first
real one."""

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

_SECONDS = 0.5  # of sampling that a ranking may take, unless one epoch takes longer
# One gave 1.0020 times the hit rate of the mean of 30, six 1.0026 (96 workloads, means).
_MOST_EPOCHS = 8
# Seconds on 2 cores: fitted to 132 epochs of 11 graphs, rounded up.
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
    """Rank by expected reads (see :func:`expected_reads`); by degree where only a user's own code
    samples.

    Samples one epoch; where epochs are short, up to 8 that take about half a second together. How
    many depends on the work of the first, not on the clock, so that the ranking is a function of
    the arguments.
    """
    if sampler is None:
        return degree(graph, seeds, sampler, seed)
    settings: dict[str, Any] = {"batch_size": batch_size, "shuffle": shuffle}
    counted = counted_epochs(graph, seeds, sampler, seed=presampling_seed(seed), **settings)
    return _by_expected_reads(graph, seeds, sampler, counted, batch_size)


def adaptive(graph: Graph, seeds: Any, sampler: Any, seed: int, *, batch_size: int = 1000) -> Any:
    """Rank by degree at first; a loader with this policy refills its cache once, after its first
    epoch.

    The reads of that epoch, counted as they happen, take the place of the epochs that ``auto``
    samples.
    """
    return degree(graph, seeds, sampler, seed)


def refills(policy: Policy, sampler: Any) -> bool:
    """Whether a loader refills its cache after its first epoch; with ``auto`` where only a user's
    own code samples."""
    return policy is adaptive or (policy is auto and sampler is None)


@dataclass(frozen=True, eq=False)
class Learned:
    """Policy that ranks by the counted reads of a real epoch, of ``batches`` where the seeds do not
    tell."""

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
    epochs = int(_SECONDS / max(_seconds(graph, sampler, first), 1e-9))
    more = min(_MOST_EPOCHS, epochs) - 1
    if more < 1 or not first.batches:
        return [Counted(first, 1)]
    others = count_accesses(graph, seeds, sampler, epochs=range(1, more + 1), **settings)
    return [Counted(first, 1), Counted(others, more)]


def _seconds(graph: Graph, sampler: MiniBatchSampler, counts: AccessCounts) -> float:
    """Estimate how long an epoch takes to sample, from what it drew."""
    edges = 0.0
    blocks = sampler.hops
    if blocks is not None and blocks.has_fanouts:
        for etype in graph.edge_types:
            degrees = graph.adjacency(blocks.edge_dir, etype).indptr.diff().double()
            for hop in range(blocks.num_hops):
                fanout = blocks.fanout(hop, etype)
                drawn = degrees if fanout < 0 else degrees.clamp(max=fanout)
                edges += float((expanded(counts, blocks, etype[2], hop) * drawn).sum())
    return counts.batches * _PER_BATCH + counts.total * _PER_ROW + edges * _PER_EDGE


_STRATA = 40  # of each property that the prior is fitted to; 20 and 100 gave the same hit rates
_ROUNDS = 6  # of the fit; it stands still after three
_LEAST_VERTICES = 30  # in a stratum
# Counted in a stratum: with fewer, the prior was fitted to noise (up to 2 points of hit rate lost).
_LEAST_READS = 100
_SAMPLE = 100_000  # vertices that say where strata begin
# What the degree's expectation counts for beside one counting, where there is nothing better.
_BLIND_EPOCHS = 0.1
_ASSUMED_WORTH = 0.1  # of the measured noise: what the assumed one counts for beside it


@dataclass(frozen=True, eq=False)
class Counted:
    """Counted reads by vertex and hop, and of how many epochs; the last may be a part of one."""

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
    """Expected reads of every vertex in an epoch, from one or a few epochs that were counted.

    Counts (PreSC, GNNLab) are unbiased but noisy. The analytic expectation (VIP, SALIENT++) has no
    noise, but takes draws of one batch to be independent: on web graphs, where the neighbours of a
    vertex share their neighbours, it is up to three times too high, and not by the same factor
    everywhere. That of :func:`~pagraph.ranking.presample.reads_by_seed` is better and costs
    more; the lower of the two is taken. So (empirical Bayes; Efron and Morris, JASA 1975):

    1. The analytic expectation is fitted to the counts: one factor for each stratum of vertices
    with about the same
       expectation, of about the same out-degree, and of as many seeds, by iterative proportional
       fitting.
    2. Where the counts lie further from that prior than their noise explains, stratum by stratum,
    the rest is how much
       vertices really differ; each vertex's count is taken as far as this is larger than the noise.
       That is taken to be the noise of independent batches, and with two countings it is measured.
       (It is less, as every seed is in exactly one batch; a model of that was right within 30 % and
       gained nothing over the better prior.)

    A vertex is read at most once in a batch, or of disjoint trees once in each tree. How often a
    seed is read as such is known, and left out of all this. So expected hit rates are not too high,
    as those of raw counts are.

    Args:
        graph: The graph.
        seeds: The loader's, as the sampler takes them.
        sampler: As for ``expected_accesses``. None, or one without fan-outs: the prior knows the
            out-degree alone.
        counted: One or two countings, at least half a batch altogether.
        batch_size: Seeds a batch.

    Returns:
        Vertex type to reads an epoch, shape ``(num_nodes,)``, float64.
    """
    evidence = _Evidence(
        counted,
        seeds_are_known=sampler is not None and sampler.seeds_are_vertices,
        disjoint=sampler is not None and sampler.hops is not None and sampler.hops.disjoint,
    )
    priors = {} if sampler is None else _priors(graph, seeds, sampler, evidence, batch_size)
    degrees = out_degrees(graph)
    return {
        ntype: torch.from_numpy(_reads(ntype, evidence, priors.get(ntype), _array(degrees[ntype])))
        for ntype in graph.node_types
    }


def learned_reads(prior: Tensor, counts: Tensor, batches: int) -> Tensor:
    """Expected reads of some vertices by counts of independent batches, drawn towards a prior; see
    :func:`expected_reads`.

    Args:
        prior: What each vertex was expected to be read, up to a factor, shape ``(n,)``. Those of 0
            are not known, and taken to be alike.
        counts: In how many batches each was read, shape ``(n,)``.
        batches: How many were counted.

    Returns:
        Reads in as many batches, shape ``(n,)``, float64.

    Example:
        >>> learned_reads(torch.tensor([4.0, 2.0, 0.0]), torch.tensor([6, 2, 1]), 10).argsort()
        tensor([2, 1, 0])
    """
    expected = _array(prior)
    known = expected[expected > 0]
    expected = np.where(expected > 0, expected, known.min(initial=1.0) / 2)
    counted = _array(counts)
    most = max(1, min(_STRATA, int(counted.sum() / _LEAST_READS)))
    fitted = np.minimum(_fitted(expected, counted, [_Strata.by(expected, most)]), batches)
    noise = fitted * (1 - fitted / max(1, batches))
    return torch.from_numpy(_shrunk(fitted, counted, noise, None, 1.0, _Strata.by(fitted, most)))


@dataclass(frozen=True, eq=False)
class _Evidence:
    """Countings of the same loader."""

    counted: Sequence[Counted]
    seeds_are_known: bool
    disjoint: bool

    @property
    def epochs(self) -> float:
        return sum(c.epochs for c in self.counted)

    @property
    def draws(self) -> float:
        """Batches of an epoch, or its disjoint trees: each reads a vertex at most once."""
        if not self.disjoint:
            return max(1.0, sum(c.counts.batches for c in self.counted) / self.epochs)
        # Each tree has one seed.
        trees = 0.0
        for node_type in self.counted[0].counts.node_types:
            trees += sum(float(seeded.sum()) for seeded in self._seeded(node_type))
        return max(1.0, trees / self.epochs)

    def drawn(self, ntype: str) -> list[Array]:
        """Reads of the hops that are a matter of chance, one array for each counting."""
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
    """By vertex type, reads as seeds and all others before any are counted; empty for samplers
    without fan-outs."""
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
    # A user's own sampler may make trees without saying so, and then read a vertex more often than
    # there are batches.
    draws = max(evidence.draws, float(mean.max(initial=0.0)))
    traits = [degrees, np.round(seeded)] if evidence.seeds_are_known else [degrees]
    if prior is None:
        seed_reads = seeded
        expected = np.ones(len(mean))
    else:
        seed_reads, expected = prior
        traits.insert(0, expected)
    most = max(1, min(_STRATA, int(mean.sum() * evidence.epochs / _LEAST_READS)))
    strata = [_Strata.by(trait, most) for trait in traits]
    fitted = np.minimum(_fitted(expected, mean, strata), draws)
    # The variance of a binomial count: n p (1 - p) with n = draws and p = fitted / draws.
    noise = fitted * (1 - fitted / draws)
    measured = None
    if len(drawn) > 1:
        # The variance of one epoch's reads: means of m and n epochs differ by a variance of
        # v (1 / m + 1 / n).
        first, second = (c.epochs for c in evidence.counted[:2])
        measured = (drawn[0] / first - drawn[1] / second) ** 2 / (1 / first + 1 / second)
    if prior is None and measured is None:
        # Degrees say too little to tell noise from what vertices differ by: they only break ties,
        # more or less.
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
    """Vertices with about the same value; stratum 0 are those with none."""

    of: Int64Array
    count: int

    @classmethod
    def by(cls, values: Array, most: int) -> _Strata:
        """At most so many strata of equal numbers of vertices, and stratum 0."""
        positive = values[values > 0]
        sample = positive[:: max(1, len(positive) // _SAMPLE)]
        wanted = min(most, max(1, len(positive) // _LEAST_VERTICES))
        # Equal values stay together: a stratum begins at a value, not between two of the same.
        begins = sample
        if len(sample):
            shares = np.arange(1, wanted) / wanted
            begins = np.unique(np.quantile(sample, shares, method="lower"))
        places = np.searchsorted(begins, values, side="right").astype(np.int64) + 1
        places[values <= 0] = 0
        return cls(places, len(begins) + 2)

    def sum(self, values: Array) -> Array:
        """Sum of each stratum."""
        return np.bincount(self.of, weights=values, minlength=self.count).astype(np.float64)

    def ratio(self, above: Array, below: Array) -> Array:
        """For each vertex the ratio of its stratum's sums; 0 where nothing is expected."""
        above, below = self.sum(above), self.sum(below)
        # A prior may be so small (2e-309) that the quotient is no float: it expects nothing.
        expected = below > above / np.finfo(np.float64).max
        ratios: Array = np.divide(above, below, out=np.zeros(self.count), where=expected)
        return ratios[self.of]


def _fitted(prior: Array, mean: Array, traits: Sequence[_Strata]) -> Array:
    """The prior with a factor for each stratum of each trait, such that all strata sum up to what
    was counted."""
    fitted = prior
    for _ in range(_ROUNDS):
        for strata in traits:
            fitted = fitted * strata.ratio(mean, fitted)
    return fitted


def _shrunk(
    prior: Array, mean: Array, noise: Array, measured: Array | None, epochs: float, strata: _Strata
) -> Array:
    """The counted mean, drawn towards the prior as far as its noise asks for."""
    if measured is not None:
        # The measured noise of a stratum over the assumed one, drawn a little towards 1; bounded,
        # as two countings of few vertices may agree or differ by accident.
        blended = measured + _ASSUMED_WORTH * noise
        noise = noise * np.clip(strata.ratio(blended, (1 + _ASSUMED_WORTH) * noise), 0.1, 5.0)
    noise = noise / epochs
    # Vertices of a stratum differ from the prior by its square times a factor, which is what their
    # deviations show beyond the noise (moment estimate of the prior's variance).
    surplus = np.maximum(strata.sum((mean - prior) ** 2 - noise), 0.0)
    scale = strata.sum(prior**2)
    factor = np.divide(surplus, scale, out=np.zeros_like(scale), where=scale > 0)
    signal = factor[strata.of] * prior**2
    trust = np.divide(signal, signal + noise, out=np.zeros_like(signal), where=signal + noise > 0)
    reads: Array = prior + trust * (mean - prior)
    return reads
