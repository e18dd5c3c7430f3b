"""What an epoch is expected to read: counted epochs and the analytic expectation, each as far as it can be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .degree import out_degrees
from .noise import noise_share
from .vip import expected_accesses

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..graph import Graph
    from ..sampling.accesses import AccessCounts
    from .vip import ExpectedAccesses

    Array = npt.NDArray[np.float64]

__all__ = ["Counted", "expected_reads"]

_STRATA = 40  # of each property that the prior is fitted to; 20 and 100 gave the same hit rates
_ROUNDS = 6  # of the fit; it stands still after three
_LEAST = 30  # vertices in a stratum
_SAMPLE = 100_000  # vertices that say where strata begin
_MODEL_WORTH = 0.1  # of the measured noise: what the modelled one counts for beside it


@dataclass(frozen=True, eq=False)
class Counted:
    """Reads that were counted.

    Attributes:
        counts: By vertex and hop.
        epochs: How many epochs that is; the last may be a part of one.
    """

    counts: AccessCounts
    epochs: float


def expected_reads(
    graph: Graph, seeds: Any, sampler: Any, counted: Sequence[Counted], *, batch_size: int
) -> dict[str, Tensor]:
    """The reads of every vertex that an epoch is expected to make, from one or a few epochs that were counted.

    Counts (PreSC, GNNLab) are unbiased but noisy: a vertex that is read every other epoch was counted once or not at
    all. The analytic expectation (VIP, SALIENT++) has no noise, but takes draws of one batch to be independent: on web
    graphs, where the neighbours of a vertex share their neighbours, it is up to three times too high, and not by the
    same factor everywhere. So (empirical Bayes; Efron and Morris, JASA 1975):

    1. The analytic expectation is fitted to the counts: one factor for each stratum of vertices with about the same
       expectation, of about the same out-degree, and of as many seeds, by iterative proportional fitting.
    2. Where the counts lie further from that prior than their noise explains, stratum by stratum, the rest is how much
       vertices really differ; each vertex's count is taken as far as this is larger than the noise.
    3. The noise of one epoch is modelled (:func:`~pagraph.cache.noise.noise_share`), and with two countings measured.

    How often a seed is read as such is known, and left out of all this. So expected hit rates are not too high, as
    those of raw counts are: a vertex that ranks high for being counted often by chance is pulled back.

    Args:
        graph: The graph.
        seeds: What the loader has: vertex ids, by type or not, or whatever ``sampler.seed_rates`` takes.
        sampler: As for ``expected_accesses``. None, or one without fan-outs: the prior knows the out-degree alone.
        counted: One or two countings, at least half a batch altogether.
        batch_size: Seeds a batch.

    Returns:
        Vertex type to reads an epoch, shape ``(num_nodes,)``, float64.
    """
    analytic = None if sampler is None else expected_accesses(graph, seeds, sampler, batch_size=batch_size)
    evidence = _Evidence(counted, seeds_are_known=sampler is not None and not hasattr(sampler, "seed_rates"))
    shares = None if analytic is None else _noise_shares(graph, sampler, analytic, evidence)
    degrees = out_degrees(graph)
    return {
        ntype: torch.from_numpy(
            _reads(ntype, evidence, analytic, _array(degrees[ntype]), None if shares is None else shares[ntype])
        )
        for ntype in graph.node_types
    }


@dataclass(frozen=True, eq=False)
class _Evidence:
    """Countings of the same loader."""

    counted: Sequence[Counted]
    seeds_are_known: bool

    @property
    def epochs(self) -> float:
        return sum(c.epochs for c in self.counted)

    @property
    def batches(self) -> float:
        """Batches of an epoch."""
        return max(1.0, sum(c.counts.batches for c in self.counted) / self.epochs)

    @property
    def first_hop(self) -> int:
        """The first hop whose reads are a matter of chance."""
        return 1 if self.seeds_are_known else 0

    def drawn(self, ntype: str) -> list[Array]:
        """What hops of chance read, one array for each counting."""
        return [_array(c.counts.by_hop(ntype)[:, self.first_hop :].sum(1)) for c in self.counted]

    def mean(self, ntype: str, hop: int) -> Array:
        """What one hop found in an epoch."""
        found = [_array(c.counts.by_hop(ntype)[:, hop]) for c in self.counted]
        mean: Array = np.add.reduce(found) / self.epochs
        return mean


def _reads(
    ntype: str, evidence: _Evidence, analytic: ExpectedAccesses | None, degrees: Array, shares: Array | None
) -> Array:
    """The expected reads of the vertices of one type."""
    seeded, drawn, batches = evidence.mean(ntype, 0), evidence.drawn(ntype), evidence.batches
    mean = np.add.reduce(drawn) / evidence.epochs
    known, prior, traits = seeded, np.ones(len(mean)), [degrees]
    if evidence.seeds_are_known:
        traits.append(np.round(seeded))
    if analytic is not None:
        by_hop = analytic.by_hop(ntype)
        known, prior = _array(by_hop[:, 0]), np.minimum(_array(by_hop[:, evidence.first_hop :].sum(1)), batches)
        traits = [prior, *traits]
    prior = np.minimum(_fitted(prior, mean, traits), batches)
    noise = prior * (1 - prior / batches) * (1.0 if shares is None else shares)
    measured = _measured(drawn, [c.epochs for c in evidence.counted])
    reads = _shrunk(prior, mean, noise, measured, evidence.epochs)
    return reads + known if evidence.seeds_are_known else reads


def _noise_shares(graph: Graph, sampler: Any, analytic: ExpectedAccesses, evidence: _Evidence) -> dict[str, Array]:
    """``noise_share`` with frontiers as large as the counted ones."""
    frontiers: list[Mapping[str, Array]] = []
    known = {t: np.zeros(graph.num_nodes_of(t)) for t in graph.node_types}
    for hop in range(analytic.num_hops):
        for ntype in known:
            found = _array(analytic.by_hop(ntype)[:, hop])
            there = float(evidence.mean(ntype, hop).sum())
            known[ntype] = known[ntype] + found * (there / max(float(found.sum()), 1e-300))
        frontiers.append(dict(known))
    return noise_share(graph, getattr(sampler, "blocks", sampler), frontiers, max(1, round(evidence.batches)))


def _array(values: Tensor) -> Array:
    array: Array = values.double().numpy()
    return array


@dataclass(frozen=True, eq=False)
class _Strata:
    """Vertices with about the same value; stratum 0 are those with none."""

    of: npt.NDArray[np.int64]
    count: int

    @classmethod
    def by(cls, values: Array) -> _Strata:
        positive = values[values > 0]
        sample = positive[:: max(1, len(positive) // _SAMPLE)]
        wanted = min(_STRATA, max(1, len(positive) // _LEAST))
        # Equal values stay together: a stratum begins at a value, not between two of the same.
        begins = (
            np.unique(np.quantile(sample, np.arange(1, wanted) / wanted, method="lower")) if len(sample) else sample
        )
        places = np.searchsorted(begins, values, side="right").astype(np.int64) + 1
        places[values <= 0] = 0
        return cls(places, len(begins) + 2)

    def sum(self, values: Array) -> Array:
        """Sum of each stratum."""
        return np.bincount(self.of, weights=values, minlength=self.count).astype(np.float64)

    def ratio(self, above: Array, below: Array) -> Array:
        """For each vertex the ratio of its stratum's sums; 0 where nothing is expected."""
        below = self.sum(below)
        ratios: Array = np.divide(self.sum(above), below, out=np.zeros(self.count), where=below > 0)
        return ratios[self.of]


def _fitted(prior: Array, mean: Array, traits: Sequence[Array]) -> Array:
    """The prior with a factor for each stratum of each trait, such that all strata sum up to what was counted."""
    strata = [_Strata.by(trait) for trait in traits]
    fitted = prior
    for _ in range(_ROUNDS):
        for groups in strata:
            fitted = fitted * groups.ratio(mean, fitted)
    return fitted


def _measured(drawn: Sequence[Array], epochs: Sequence[float]) -> Array | None:
    """For each vertex the variance of one epoch's reads, from two countings; None where there is one."""
    if len(drawn) < 2:
        return None
    squared: Array = (drawn[0] / epochs[0] - drawn[1] / epochs[1]) ** 2 / (1 / epochs[0] + 1 / epochs[1])
    return squared


def _shrunk(prior: Array, mean: Array, noise: Array, measured: Array | None, epochs: float) -> Array:
    """The counted mean, drawn towards the prior as far as its noise asks for."""
    strata = _Strata.by(prior)
    if measured is not None:
        noise = noise * np.clip(strata.ratio(measured + _MODEL_WORTH * noise, (1 + _MODEL_WORTH) * noise), 0.1, 5.0)
    noise = noise / epochs
    surplus = np.maximum(strata.sum((mean - prior) ** 2 - noise), 0.0)
    scale = strata.sum(prior**2)
    signal = np.divide(surplus, scale, out=np.zeros_like(scale), where=scale > 0)[strata.of] * prior**2
    trust = np.divide(signal, signal + noise, out=np.zeros_like(signal), where=signal + noise > 0)
    reads: Array = prior + trust * (mean - prior)
    return reads
