"""Hit rates of every policy and budget, from one pass of sampling."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..ranking.auto import Learned
from ..ranking.policies import POLICIES
from ..ranking.policy import Policy, Ranking, apply_policy, turned
from ..ranking.presample import AccessCounts, count_accesses, default_threads, most_repeats
from ..sampling.edge_batches import EdgeBatches
from ..sampling.sampler import HopSampler, MiniBatchSampler
from ..seeds.order import SeedOrder
from ..system.arrays import Float64Array
from ..system.checks import as_integer
from ..system.progress import Progress, Ticks
from .arguments import DEFAULT_BUDGETS, GRID, FieldNames, FieldSizes, check_seeds
from .compared import ADAPTIVE, ORACLE, Compared
from .curve import HitRateCurve
from .tally import Cut, Tally

if TYPE_CHECKING:
    from ..graph.graph import Graph

# Policies whose scores are expected reads, the most accurate first.
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
    memory: int | str | None = None,
    progress: Progress | None = None,
) -> HitRateCurve:
    """Compute the hit rate of every policy with every budget on real, sampled epochs.

    The measured epochs are those of a loader with this ``seed`` and ``shuffle=True``, so that its
    hit rates are the curve's. An epoch is sampled once for all policies and budgets, and no field
    is read.

    Args:
        graph, sampler, batch_size, seed, drop_last: As for a loader.
        seeds: Ids of the training vertices, shape ``(n,)``, int32 or int64; a mapping from type for
            several types. Ids of edges if the sampler is a ``pagraph.sampling.EdgeBatches``, as in
            loaders of links.
        epochs: Epochs to measure.
        policies: Names or functions, see ``pagraph.cache``. Also ``"oracle"``, which ranks by the
            reads of the measured epoch itself, and ``"ideal"`` (``"ideal:N"``), which ranks by the
            mean of 30 (N) other epochs. ``"adaptive"`` learns from the first epoch, and is measured
            on the others. Default: auto, degree, presample, vip, random and oracle, without those
            that do not suit this sampler.
        budgets: Rows as an int, shares of the vertices (0.1, "10%"), or bytes ("2GiB", tables
            included).
        threads: Sampling threads. Default: one per processor, at most 8.
        fields: Fields read for the input nodes, for their widths; for several vertex types, a
            mapping from type to names. Default: none. All vertices then count the same, and bytes
            are not known.
        labels: Fields read for the seeds. The curve caches all fields of a vertex together; a
            loader that expects the reads of both may cache more rows of one than of the other.
        memory: Limit of memory in bytes (1073741824, "4GiB"). It includes what the process already
            holds beyond an eighth. If it is too small for the arrays of auto, vip and presample,
            ``auto`` ranks by a few batches, as in a loader with this memory. Defaults among the
            others are left out (see ``left_out`` of the curve), and nothing is predicted. Default:
            no limit.
        progress: Called with the batches done and all batches, by the sampling threads.

    Raises:
        ValueError: A policy or field is unknown. A budget is negative, NaN or more than all
            vertices. There are no seeds, or ``epochs`` is below 1. The memory does not hold the
            counts of all vertices, or a named policy.
        TypeError, IndexError: An argument has a wrong type, or a seed is outside the graph.
    """
    as_integer("epochs", epochs, least=1)
    if not isinstance(sampler, MiniBatchSampler):
        raise TypeError(
            "sampler must be a pagraph sampler, such as NeighborSampler, got "
            f"{type(sampler).__name__}"
        )
    of_links = isinstance(sampler, EdgeBatches)
    num_seeds = check_seeds(graph, seeds, of_links=of_links)
    compared = Compared.named(policies)
    if ADAPTIVE in compared.policies and epochs < 2:
        raise ValueError(
            f"epochs must be at least 2 to measure what {ADAPTIVE!r} learns in the first, got "
            f"{epochs}"
        )
    sizes = FieldSizes.of(graph, fields, labels)
    asked = sizes.rows.spendings(budgets)
    grid = sizes.rows.spendings(GRID)
    order = SeedOrder(seeds, batch_size, drop_last=drop_last)
    batches = len(order)
    if not batches:
        raise ValueError(f"seeds must fill at least 1 batch of {batch_size}, got {num_seeds}")
    # The most reads of a vertex decide the width of the counters. An ideal's epochs are counted
    # together.
    most = batches * most_repeats(order, sampler) * max([1, *compared.ideals.values()])
    compared = compared.within(memory, graph, sampler.num_hops, seeds=num_seeds, reads=most)
    threads = default_threads() if threads is None else as_integer("threads", threads, least=1)
    given: dict[str, Any] = {
        "batch_size": batch_size,
        "seed": seed,
        "drop_last": drop_last,
        "threads": threads,
    }
    ticks = Ticks(progress, batches * (epochs + sum(compared.ideals.values())))
    given["progress"] = ticks.add
    count = partial(count_accesses, graph, seeds, sampler, **given)
    clock = _Clock()
    ranks = _Rankings(graph, seeds, sampler, batch_size, seed)
    # The budgets asked for, then those of the grid.
    tally = Tally(sizes, [*asked, *grid], threads)
    _measure(tally, count, compared, epochs=epochs, ranks=ranks, clock=clock)
    settings = {
        "sampler": repr(sampler),
        "seeds": num_seeds,
        "batch_size": batch_size,
        "epochs": epochs,
        "seed": seed,
    }
    # Only if true, so that most runs show no such settings.
    if of_links:
        settings["of_links"] = True
    if compared.few_batches:
        settings["few_batches"] = True
    settings |= {"drop_last": drop_last, "policies": [*compared.policies], "budgets": [*budgets]}
    measured = [name for name in compared.policies if name in tally.policies]
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
        left_out=compared.left_out,
    )


def _measure(
    tally: Tally,
    count: Callable[..., AccessCounts],
    compared: Compared,
    *,
    epochs: int,
    ranks: _Rankings,
    clock: _Clock,
) -> None:
    """Rank, and count and add up the epochs, for each of which the oracle ranks again."""
    with clock("ranking"):
        cuts = ranks.each(compared.policies, tally.cut, required=compared.given)
        for name, number in compared.ideals.items():
            # By epochs after the measured ones: it knows the distribution, not the draw.
            cuts[name] = tally.cut(_by_reads(count(epochs=range(epochs, epochs + number))))
        tally.expected = None if compared.few_batches else ranks.expectation()
    for epoch in range(epochs):
        with clock("counting"):
            counts = count(epochs=[epoch])
        with clock("summing"):
            tally.add(counts, {**cuts, ORACLE: tally.cut(_by_reads(counts))})
        if epoch == 0 and ADAPTIVE in cuts:
            with clock("ranking"):
                cuts[ADAPTIVE] = tally.cut(ranks.apply(Learned(counts, counts.batches)))


def _by_reads(counts: AccessCounts) -> dict[str, Ranking]:
    """Rank the vertices of every type by their reads."""
    # Sums over several epochs rank as their means do, but are no reads per epoch.
    return {
        ntype: replace(Ranking.of_reads(counts.reads(ntype)), per_epoch=False)
        for ntype in counts.node_types
    }


class _Clock:
    """Adds up wall time by part of the work."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("ranking", "counting", "summing"), 0.0)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - begin


@dataclass(eq=False)
class _Rankings:
    """Ranks a graph's vertices. ``seconds`` maps each policy to the wall time of its ranking."""

    graph: Graph
    seeds: Any
    sampler: Any
    batch_size: int
    seed: int
    seconds: dict[str, float] = field(default_factory=dict)
    # The best predictor so far, and the reads that it expects. Those of others are dropped, as they
    # take 8 bytes a vertex.
    _expected: tuple[str, dict[str, Float64Array]] | None = None

    def __post_init__(self) -> None:
        # Turned here, or each policy would turn all edges again.
        if isinstance(self.sampler, HopSampler) and self.sampler.edge_dir != "in":
            self.graph = turned(self.graph, self.sampler.edge_dir)
            self.sampler = self.sampler.with_in_edges()

    def each(
        self,
        named: Mapping[str, Policy | None],
        take: Callable[[dict[str, Ranking]], Cut],
        *,
        required: bool,
    ) -> dict[str, Cut]:
        """Rank by each policy that is not None, and return what ``take`` makes of the ranking.

        One ranking is in memory at a time. Unless ``required``, policies that raise ValueError are
        left out, as a default policy need not suit the sampler.
        """
        kept = {}
        for name, policy in named.items():
            try:
                if policy is not None:
                    kept[name] = take(self._of(name, policy))
            except ValueError:
                if required:
                    raise
        return kept

    def expectation(self) -> dict[str, Float64Array] | None:
        """Expected reads per epoch by type, each of shape ``(num_nodes, 1)``.

        They come from the first of auto, vip and presample that knows them; None if none does.
        """
        for name in _PREDICTORS:
            if name not in self.seconds:
                with suppress(ValueError):
                    self._of(name, POLICIES[name])
            if self._expected is not None and self._expected[0] == name:
                return self._expected[1]
        return None

    def apply(self, policy: Policy) -> dict[str, Ranking]:
        """Rank by a policy."""
        return apply_policy(
            policy, self.graph, self.seeds, self.sampler, self.seed, batch_size=self.batch_size
        )

    def _of(self, name: str, policy: Policy) -> dict[str, Ranking]:
        begin = time.perf_counter()
        rankings = self.apply(policy)
        self.seconds[name] = time.perf_counter() - begin
        if name in self._better_predictors:
            reads = self._reads_of(rankings)
            if reads is not None:
                self._expected = (name, reads)
        return rankings

    @property
    def _better_predictors(self) -> tuple[str, ...]:
        """Predictors that are better than the known one."""
        if self._expected is None:
            return _PREDICTORS
        return _PREDICTORS[: _PREDICTORS.index(self._expected[0])]

    def _reads_of(self, rankings: Mapping[str, Ranking]) -> dict[str, Float64Array] | None:
        """Scores by vertex; None unless all of them are reads per epoch."""
        reads = {}
        for ntype, ranking in rankings.items():
            if ranking.scores is None or not ranking.per_epoch:
                return None
            count = self.graph.num_nodes_of(ntype)
            values = torch.zeros(count, 1, dtype=torch.float64, device="cpu")
            values[ranking.ids, 0] = ranking.scores
            reads[ntype] = values.numpy()
        return reads
