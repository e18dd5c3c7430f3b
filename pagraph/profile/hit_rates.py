"""Hit rates of every policy's cache at every budget, from one pass of sampling."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .._compiling import kernels_seconds
from ..ranking.auto import Learned
from ..ranking.policies import POLICIES
from ..ranking.policy import Policy, Ranking, apply_policy, turned
from ..ranking.presample import AccessCounts, count_accesses, default_threads, most_repeats
from ..sampling.edge_batches import EdgeBatches
from ..sampling.sampler import HopSampler, MiniBatchSampler
from ..seeds.order import SeedOrder
from ..system.arrays import Array, Float64Array, Int64Array
from ..system.checks import as_integer
from ..system.progress import Progress, Ticks
from .arguments import DEFAULT_BUDGETS, GRID, FieldNames, FieldSizes, check_seeds
from .compared import ADAPTIVE, ORACLE, Compared
from .curve import CurveRecord, HitRateCurve

if TYPE_CHECKING:
    from ..graph.graph import Graph
    from .arguments import Spending

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
    """Adds up wall time by part of the work, and that of loading kernels apart."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("ranking", "counting", "summing", "kernels"), 0.0)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        end = time.perf_counter()
        kernels = kernels_seconds(begin, end)
        self.seconds[part] += end - begin - kernels
        self.seconds["kernels"] += kernels


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
        take: Callable[[dict[str, Ranking]], _Cut],
        *,
        required: bool,
    ) -> dict[str, _Cut]:
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
        end = time.perf_counter()
        self.seconds[name] = end - begin - kernels_seconds(begin, end)
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


@dataclass(eq=False)
class Tally:
    """Adds up hits by policy, epoch, vertex type, budget and hop.

    ``expected`` are the expected reads of each vertex by type, shape ``(num_nodes, 1)``, or None.
    ``threads`` add up policies in parallel.
    """

    sizes: FieldSizes
    budgets: Sequence[Spending]
    threads: int = 1
    expected: Mapping[str, Array] | None = None
    # An array per epoch: reads of shape (types, hops), and by policy hits (types, budgets, hops).
    _reads: list[Array] = field(default_factory=list)
    _hits: dict[str, list[Array]] = field(default_factory=dict)
    # By policy an array of shape (budgets,); "adaptive", which ranks again, has one per epoch.
    _predicted: dict[str, list[Array]] = field(default_factory=dict)

    def cut(self, rankings: Mapping[str, Ranking]) -> _Cut:
        """Take the best vertices that each budget buys."""
        rows = self.sizes.rows
        segments = {}
        places = {}
        for ntype, bought in rows.divide(rankings, self.budgets).items():
            # Budgets often buy the same number of a type. Counts are summed between different ones.
            ends, where = np.unique(bought, return_inverse=True)
            places[ntype] = where.reshape(-1)
            segments[ntype] = _numbered(rankings[ntype].ids, ends, rows.num_nodes[ntype])
        return _Cut(segments, places)

    def add(self, counts: AccessCounts, cuts: Mapping[str, _Cut]) -> None:
        """Add an epoch's reads, and its hits in each policy's cut."""
        from . import _hits

        by_type = {ntype: counts.counters(ntype) for ntype in self.sizes.rows.cached_types}
        sums = []
        for values in by_type.values():
            reads = np.zeros(values.shape[1], np.int64)
            _hits.add_columns(values, reads)
            sums.append(reads)
        self._reads.append(np.stack(sums))
        # The kernels release the GIL, so that policies run in parallel.
        with ThreadPoolExecutor(self.threads, thread_name_prefix="pagraph-tally") as pool:
            every = pool.map(lambda cut: cut.hits(by_type), cuts.values())
            for policy, hits in zip(cuts, every, strict=True):
                self._hits.setdefault(policy, []).append(hits)
            if self.expected is not None:
                self._predict(self.expected, cuts, pool)

    def _predict(
        self, expected: Mapping[str, Array], cuts: Mapping[str, _Cut], pool: ThreadPoolExecutor
    ) -> None:
        """Add the expected hit rates of the policies whose cut is new."""
        # The oracle is cut by the reads that are to be predicted. Adaptive is cut for each epoch.
        known = {ORACLE, *self._predicted} - {ADAPTIVE}
        unknown = [policy for policy in cuts if policy not in known]
        by_type = [float(expected[ntype].sum()) for ntype in self.sizes.rows.cached_types]
        reads = np.float64(sum(by_type))
        predicted = pool.map(lambda policy: cuts[policy].hits(expected), unknown)
        for policy, hits in zip(unknown, predicted, strict=True):
            rates = _ratio(hits.sum((0, 2)), reads)
            self._predicted.setdefault(policy, []).append(rates)

    @property
    def policies(self) -> list[str]:
        """Policies whose hits were added."""
        return list(self._hits)

    @property
    def reads_by_hop(self) -> list[float]:
        """Rows of input nodes that an epoch reads of cacheable types, by hop."""
        mean = np.mean(self._reads, 0)  # (types, hops)
        return [float(reads) for reads in mean.sum(0)]

    @property
    def bytes_read(self) -> int | None:
        """Bytes that an epoch reads."""
        return self._bytes_moved(np.sum(self._reads, 0), len(self._reads))

    def records(self, policies: Sequence[str], places: Sequence[int]) -> list[CurveRecord]:
        """A record for every policy and each of the budgets at these places."""
        return [record for policy in policies for record in self._records(policy, places)]

    def _records(self, policy: str, places: Sequence[int]) -> list[CurveRecord]:
        every_hit = np.stack(self._hits[policy])  # (epochs, types, budgets, hops)
        every_read = np.stack(self._reads)  # (epochs, types, hops)
        hits_by_epoch = every_hit.sum((1, 3))
        reads_by_epoch = every_read.sum((1, 2))
        by_epoch = _ratio(hits_by_epoch, reads_by_epoch[:, None])
        # The first epoch of "adaptive" is degree's, from which it learns.
        first = 1 if policy == ADAPTIVE else 0
        settled = slice(first, None)
        epochs = len(every_read[settled])
        # Sums over these epochs: (types, budgets, hops) of hits, (types, hops) of reads.
        hits = every_hit[settled].sum(0)
        best = np.stack(self._hits[ORACLE])[settled].sum(0)
        reads = every_read[settled].sum(0)
        rates = _ratio(hits.sum((0, 2)), reads.sum())
        oracle = _ratio(best.sum((0, 2)), reads.sum())
        by_hop = _ratio(hits.sum(0), reads.sum(0))
        predicted = None
        if policy in self._predicted:
            predicted = np.mean(self._predicted[policy][settled], 0).tolist()
        every = self._bytes_moved(reads, epochs)
        rows = self.sizes.rows
        records = []
        for place in places:
            budget = self.budgets[place]
            num_rows = rows.rows(budget)
            moved = self._bytes_moved(reads - hits[:, place], epochs)
            least = self._bytes_moved(reads - best[:, place], epochs)
            predicted_rate = None if predicted is None else predicted[place]
            record = CurveRecord(
                policy,
                num_rows / max(1, rows.vertices),
                num_rows,
                rows.nbytes(budget),
                hit_rate=float(rates[place]),
                hit_rate_by_epoch=by_epoch[:, place].tolist(),
                hit_rate_by_hop=by_hop[place].tolist(),
                hit_rate_by_field=self._by_field(hits[:, place], reads),
                bytes_moved=moved,
                predicted_hit_rate=predicted_rate,
                oracle_hit_rate=float(oracle[place]),
                share_of_oracle=self._share(rates[place], oracle[place], moved, least, every),
                oracle_bytes_moved=least,
            )
            records.append(record)
        return records

    def _share(
        self,
        rate: float,
        oracle: float,
        moved: int | None,
        least: int | None,
        every: int | None,
    ) -> float:
        """What a cache serves / what the oracle's does, in bytes if there are several types.

        Args:
            rate: Hit rate of the cache.
            oracle: Hit rate of the oracle's.
            moved: Bytes that an epoch moves with the cache.
            least: Bytes that it moves with the oracle's.
            every: Bytes that it moves without one.
        """
        # A cache of several types is filled by bytes saved per byte held, so that its hit rate in
        # rows may be above the oracle's.
        several = len(self.sizes.rows.cached_types) > 1
        if several and every and moved is not None and least is not None:
            rate = every - moved
            oracle = every - least
        # Where the oracle serves nothing, every cache is as good.
        return float(rate / oracle) if oracle else 1.0

    def _by_field(self, hits: Array, reads: Array) -> dict[str, float]:
        """Hit rates of all fields, from hits and reads by type and hop."""
        sizes = self.sizes
        rates = {}
        for t, ntype in enumerate(sizes.rows.cached_types):
            # Labels are read for the seeds, which are hop 0. Inputs are read for all hops.
            of_inputs = float(_ratio(hits[t].sum(), reads[t].sum()))
            of_labels = float(_ratio(hits[t, 0], reads[t, 0]))
            for name in sizes.inputs.get(ntype, ()):
                rates[sizes.key(ntype, name)] = of_inputs
            for name in sizes.labels.get(ntype, ()):
                rates[sizes.key(ntype, name)] = of_labels
        return rates

    def _bytes_moved(self, misses: Array, epochs: int) -> int | None:
        """Bytes per epoch, from the misses of ``epochs`` epochs by type and hop."""
        sizes = self.sizes
        if sizes.rows.row_bytes is None:
            return None
        moved = 0
        for t, ntype in enumerate(sizes.rows.cached_types):
            input_bytes = sum(sizes.inputs.get(ntype, {}).values())
            label_bytes = sum(sizes.labels.get(ntype, {}).values())
            moved += int(misses[t].sum()) * input_bytes
            moved += int(misses[t, 0]) * label_bytes
        return round(moved / epochs)


def _ratio(hits: Any, reads: Any) -> Any:
    """``hits / reads``; 0 where nothing is read."""
    zeros = np.zeros(np.broadcast(hits, reads).shape)
    return np.divide(hits, reads, out=zeros, where=np.asarray(reads) != 0)


@dataclass(frozen=True, eq=False)
class _Cut:
    """The smallest budget that buys each vertex, by one ranking.

    Budgets that buy the same number of a type's vertices have the same number. Numbers ascend.

    Attributes:
        segments: Vertex type to the number of the first budget that buys each vertex, or one more
            than the last if none does; shape ``(num_nodes,)``, uint8 or uint16.
        places: Vertex type to the number of each budget, shape ``(num_budgets,)``.
    """

    segments: dict[str, Array]
    places: dict[str, Int64Array]

    def hits(self, counts: Mapping[str, Array]) -> Array:
        """Sum the counts of the vertices that each budget buys.

        Args:
            counts: Vertex type to counts, shape ``(num_nodes, columns)``, for every type of the
                ranking.

        Returns:
            Shape ``(num_types, num_budgets, columns)``, int64, or float64 for floating-point
            counts.
        """
        from . import _hits

        hits = []
        for ntype, places in self.places.items():
            of_type = counts[ntype]
            dtype = np.float64 if of_type.dtype.kind == "f" else np.int64
            # A row for each different budget, and one for the vertices that none buys.
            num_segments = int(places.max()) + 2
            sums = np.zeros((num_segments, of_type.shape[1]), dtype)
            _hits.add_segments(self.segments[ntype], of_type, sums)
            # A budget buys all that smaller ones buy.
            hits.append(sums.cumsum(0)[places])
        return np.stack(hits)


def _numbered(ids: Tensor, ends: Array, num_nodes: int) -> Array:
    """For each vertex, the number of the first end after its place in ``ids``.

    ``ends`` are ascending; ``len(ends)`` for places after the last.
    """
    from . import _hits

    # The smallest dtype that holds len(ends), as the cuts of all policies are in memory at once.
    dtype = np.uint8 if len(ends) < 2**8 else np.uint16
    segments = np.full(num_nodes, len(ends), dtype)
    _hits.number_segments(ids.numpy(), ends, segments)
    return segments
