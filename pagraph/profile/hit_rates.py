"""Hit rates of every policy and budget, from one pass of sampling."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..ranking.auto import Learned
from ..ranking.degree import turned
from ..ranking.policies import POLICIES, resolve_policy
from ..ranking.policy import Policy, Ranking, apply_policy
from ..ranking.presample import AccessCounts, count_accesses, default_threads
from ..sampling.batches import EdgeBatches
from ..sampling.sampler import HopSampler, MiniBatchSampler
from ..seeds.order import SeedOrder
from ..system.checks import as_integer
from .budgets import DEFAULT_BUDGETS, GRID, FieldNames, FieldSizes
from .curve import HitRateCurve
from .seeds import check_seeds
from .tally import ADAPTIVE, ORACLE, Cut, Tally

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..graph.graph import Graph

__all__ = ["DEFAULT_POLICIES", "hit_rate_curve"]

DEFAULT_POLICIES = ("auto", "degree", "presample", "vip", "random", "oracle")
"""Policies that a curve compares unless told otherwise; the oracle is for comparison alone."""
_IDEAL_EPOCHS = 30  # whose mean ``ideal`` ranks by; ``ideal:N`` takes N
_ANALYSIS = ("ideal", "oracle")
_PREDICTORS = ("auto", "vip", "presample")


def hit_rate_curve(
    graph: Graph,
    seeds: Tensor | Mapping[Any, Tensor],
    sampler: MiniBatchSampler,
    *,
    batch_size: int = 1000,
    epochs: int = 1,
    policies: Sequence[str | Policy] | None = None,
    budgets: Sequence[Any] = DEFAULT_BUDGETS,
    seed: int = 0,
    drop_last: bool = False,
    threads: int | None = None,
    fields: FieldNames | None = None,
    labels: FieldNames = (),
    progress: Callable[[int, int], object] | None = None,
) -> HitRateCurve:
    """Sample real epochs and compute the hit rate that every policy would have reached with every budget.

    The measured epochs are those of a loader with this ``seed`` and ``shuffle=True``: its hit rates are the curve's. An
    epoch is sampled once for all policies and budgets, and no field is read.

    Args:
        graph, sampler, batch_size, seed, drop_last: As for a loader.
        seeds: Ids of the training vertices, shape ``(n,)``, int32 or int64; a mapping from type for several types. Of
            edges where the sampler is a ``pagraph.sampling.batches.EdgeBatches``, as the loaders of links make it.
        epochs: Epochs to measure.
        policies: Names or functions, see ``pagraph.cache``; besides them ``"oracle"``, which ranks by the reads of each
            measured epoch itself, and ``"ideal"`` (``"ideal:N"``), which ranks by the mean of 30 (N) other epochs. Of
            ``"adaptive"`` the epochs after the first, which it learns from, are measured.
            Default: auto, degree, presample, vip, random and the oracle, but for those that this sampler does not suit.
        budgets: Rows as an int, shares of the vertices (0.1, "10%"), or bytes ("2GiB", tables included).
        threads: Threads that sample. Default: one for each processor, at most 8.
        fields: Fields that are read for the input nodes, for their widths. For several vertex types a mapping from type
            to names. Default: none; then all vertices count the same, and bytes are not known.
        labels: The same for the seeds. All fields of a vertex are cached together here; a loader that expects the reads
            of both may cache more rows of one than of the other.
        progress: Called with the batches done and all batches, by the threads that sample.

    Raises:
        ValueError: An unknown policy, a field that the graph does not have, a budget that is negative, NaN or more than
            all vertices, no seeds, fewer than 1 epoch.
        TypeError, IndexError: An argument of a wrong type, a seed outside the graph.
    """
    as_integer("epochs", epochs, least=1)
    if not isinstance(sampler, MiniBatchSampler):
        raise TypeError(f"sampler must be a pagraph sampler, such as NeighborSampler, got {type(sampler).__name__}")
    of_links = isinstance(sampler, EdgeBatches)
    num_seeds = check_seeds(graph, seeds, of_links=of_links)
    named = _name_policies(policies)
    if ADAPTIVE in named and epochs < 2:
        raise ValueError(f"epochs must be at least 2 to measure what {ADAPTIVE!r} learns in the first, got {epochs}")
    sizes = FieldSizes.of(graph, fields, labels)
    asked, grid = sizes.rows.spendings(budgets), sizes.rows.spendings(GRID)
    batches = len(SeedOrder(seeds, batch_size, drop_last=drop_last))
    if not batches:
        raise ValueError(f"seeds must fill at least 1 batch of {batch_size}, got {num_seeds}")
    threads = threads or default_threads()
    ideals = {name: _ideal_epochs(name) for name, policy in named.items() if policy is None and name != ORACLE}
    count = partial(
        count_accesses,
        graph,
        seeds,
        sampler,
        batch_size=batch_size,
        seed=seed,
        drop_last=drop_last,
        threads=threads,
        progress=_counter(progress, batches * (epochs + sum(ideals.values()))),
    )
    clock, ranks = _Clock(), _Rankings(graph, seeds, sampler, batch_size, seed)
    tally = Tally(sizes, [*asked, *grid], threads)
    with clock("ranking"):
        cuts = {name: tally.cut(rankings) for name, rankings in ranks.each(named, required=policies is not None)}
        for name, number in ideals.items():
            cuts[name] = tally.cut(_by_reads(count(epochs=range(epochs, epochs + number))))
        tally.expected = ranks.expectation()
    _measure(tally, count, epochs=epochs, cuts=cuts, ranks=ranks, clock=clock)
    settings = {"sampler": repr(sampler), "seeds": num_seeds, "batch_size": batch_size, "epochs": epochs, "seed": seed}
    settings |= {"of_links": True} if of_links else {}
    settings |= {"drop_last": drop_last, "policies": [*named], "budgets": [*budgets]}
    measured = [name for name in named if name == ORACLE or name in cuts]
    return HitRateCurve(
        tally.records(measured, range(len(asked))),
        sizes.rows.vertices,
        batches,
        reads=sum(tally.reads_by_hop),
        rows_by_hop=tally.reads_by_hop,
        row_bytes=sizes.row_bytes,
        bytes_read=tally.bytes_read,
        grid=tally.records(measured, range(len(asked), len(asked) + len(grid))),
        settings=settings,
        seconds=clock.seconds,
        ranking_seconds=ranks.seconds,
    )


def _measure(
    tally: Tally,
    count: Callable[..., AccessCounts],
    *,
    epochs: int,
    cuts: Mapping[str, Cut],
    ranks: _Rankings,
    clock: _Clock,
) -> None:
    """Count the epochs and add them up, the oracle's vertices chosen anew for each."""
    cuts = dict(cuts)
    for epoch in range(epochs):
        with clock("counting"):
            counts = count(epochs=[epoch])
        with clock("summing"):
            tally.add(counts, {**cuts, ORACLE: tally.cut(_by_reads(counts))})
        if epoch == 0 and ADAPTIVE in cuts:
            with clock("ranking"):
                cuts[ADAPTIVE] = tally.cut(ranks.apply(Learned(counts, counts.batches)))


def _by_reads(counts: AccessCounts) -> dict[str, Ranking]:
    """Rank the vertices of every type by their reads; sums over several epochs give the order of their means."""
    return {ntype: replace(Ranking.of_reads(counts.reads(ntype)), per_epoch=False) for ntype in counts.node_types}


def _counter(progress: Callable[[int, int], object] | None, total: int) -> Callable[[], object] | None:
    """A callback that counts the batches of all threads; None without ``progress``."""
    if progress is None:
        return None
    done = itertools.count(1)  # next() of it is atomic
    return lambda: progress(next(done), total)


class _Clock:
    """Adds up wall time by part."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("ranking", "counting", "summing"), 0.0)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - begin


def _name_policies(policies: Sequence[str | Policy] | None) -> dict[str, Policy | None]:
    """Resolve policies by name, in order; the oracle and the ideal, which are no functions of the graph, are None."""
    if isinstance(policies, str):
        raise TypeError(f"policies must be a list of names or functions, got {policies!r}")
    if policies is None:
        policies = DEFAULT_POLICIES
    named: dict[str, Policy | None] = {}
    for policy in policies:
        name = policy if isinstance(policy, str) else getattr(policy, "__name__", type(policy).__name__)
        if not isinstance(policy, str) and name in (*POLICIES, *_ANALYSIS) and POLICIES.get(name) is not policy:
            raise ValueError(f"policies must have names of their own if they are functions, got {name!r}")
        if name in named:
            raise ValueError(f"policies must have different names, got {name!r} twice")
        base = policy.partition(":")[0] if isinstance(policy, str) else None
        if base is None and not callable(policy):
            raise TypeError(f"policies must be names or functions, got {type(policy).__name__}")
        if base is not None and base not in POLICIES:
            raise ValueError(f"policies must be among {sorted({*POLICIES, *_ANALYSIS})} or functions, got {policy!r}")
        if base == "ideal":
            _ideal_epochs(name)
        named[name] = None if policy == ORACLE or base == "ideal" else resolve_policy(policy)
    if not named:
        raise ValueError("policies must hold at least 1 policy, got none")
    return named


def _ideal_epochs(name: str) -> int:
    """Parse ``"ideal"`` or ``"ideal:N"`` to a number of epochs; ValueError unless N is at least 1."""
    _, colon, number = name.partition(":")
    if not colon:
        return _IDEAL_EPOCHS
    if not number.isdecimal() or int(number) < 1:
        raise ValueError(f"policies may say 'ideal:N' with N at least 1, got {name!r}")
    return int(number)


@dataclass(eq=False)
class _Rankings:
    """Ranks a graph's vertices by policies; ``seconds`` is policy to the wall time of its ranking."""

    graph: Graph
    seeds: Any
    sampler: Any
    batch_size: int
    seed: int
    seconds: dict[str, float] = field(default_factory=dict)
    _expected: dict[str, dict[str, npt.NDArray[np.float64]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.sampler, HopSampler) and self.sampler.edge_dir != "in":
            self.graph, self.sampler = turned(self.graph, self.sampler.edge_dir), self.sampler.with_in_edges()

    def each(
        self, named: Mapping[str, Policy | None], *, required: bool = True
    ) -> Iterator[tuple[str, dict[str, Ranking]]]:
        """Rank by each policy that is not None; unless ``required``, policies that raise ValueError are left out."""
        for name, policy in named.items():
            try:
                if policy is not None:
                    yield name, self._of(name, policy)
            except ValueError:
                if required:
                    raise

    def expectation(self) -> dict[str, npt.NDArray[np.float64]] | None:
        """Reads an epoch by the first of auto, vip and presample that expects any, shape ``(num_nodes, 1)`` by type."""
        for name in _PREDICTORS:
            if name not in self._expected:
                for _ in self.each({name: POLICIES[name]}, required=False):
                    pass
            if name in self._expected:
                return self._expected[name]
        return None

    def apply(self, policy: Policy) -> dict[str, Ranking]:
        """Rank by a policy."""
        return apply_policy(policy, self.graph, self.seeds, self.sampler, self.seed, batch_size=self.batch_size)

    def _of(self, name: str, policy: Policy) -> dict[str, Ranking]:
        begin = time.perf_counter()
        rankings = self.apply(policy)
        self.seconds[name] = time.perf_counter() - begin
        scores = {ntype: r.scores for ntype, r in rankings.items() if r.per_epoch and r.scores is not None}
        if name in _PREDICTORS and len(scores) == len(rankings):
            reads = {t: torch.zeros(self.graph.num_nodes_of(t), 1, dtype=torch.float64, device="cpu") for t in scores}
            for ntype, values in scores.items():
                reads[ntype][rankings[ntype].ids, 0] = values
            self._expected[name] = {ntype: values.numpy() for ntype, values in reads.items()}
        return rankings
