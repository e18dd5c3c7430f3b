"""hit_rate_curve: sample real epochs once, and say what every policy and budget would have served."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..cache.policy import Policy, Ranking
from ..sampling.accesses import AccessCounts, count_accesses, default_threads
from ..sampling.minibatch_sampler import MiniBatchSampler
from ..sampling.seeds import SeedOrder
from .budgets import DEFAULT_BUDGETS, GRID
from .checks import check_epochs, check_seeds
from .curve import HitRateCurve
from .field_sizes import FieldNames, FieldSizes
from .hits import Cut
from .rankings import Rankings, ideal_epochs, name_policies
from .tally import ADAPTIVE, ORACLE, Tally

if TYPE_CHECKING:
    from ..graph import Graph

__all__ = ["hit_rate_curve"]


def hit_rate_curve(
    graph: Graph,
    seeds: Tensor | Mapping[str, Tensor],
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
    """Count what real epochs read, and what caches of every budget, filled by every policy, would have served of it.

    The measured epochs are those of a loader with this ``seed`` and ``shuffle=True``: its hit rates are the curve's. No
    field is read. An epoch is sampled once for all policies and budgets; policies that rank by sampled epochs sample
    others.

    Args:
        graph: The graph.
        seeds: Ids of the training vertices, shape ``(n,)``, int32 or int64; a mapping from type for several types.
        sampler: Draws the mini-batches.
        batch_size: Seeds a batch.
        epochs: Epochs to measure.
        policies: Names or functions, see ``pagraph.cache``; besides them ``"oracle"``, which ranks by the reads of each
            measured epoch itself, and ``"ideal"`` (``"ideal:N"``), which ranks by the mean of 30 (N) other epochs. Of
            ``"adaptive"`` the epochs after the first are measured: in that it still is degree.
            Default: auto, degree, presample, vip, random and the oracle, but for those that this sampler does not suit.
        budgets: Rows as an int, shares of the vertices (0.1, "10%"), or bytes ("2GiB", tables included).
        seed: Of order and sampling.
        drop_last: Leave out an incomplete last batch.
        threads: Threads that sample. Default: one for each processor, at most 8.
        fields: Fields that are read for the input nodes: their widths turn rows into bytes. For several vertex types a
            mapping from type to names. Default: none; then all vertices count the same, and bytes are not known.
        labels: Fields that are read for the seeds, in the same way. All fields of a vertex are cached together here; a
            loader that expects the reads of both may cache more rows of one than of the other.
        progress: Called with the batches done and all batches, by the threads that sample.

    Raises:
        ValueError: An unknown policy, a field that the graph does not have, a budget that is negative, NaN or more than
            all vertices, no seeds, fewer than 1 epoch.
        TypeError, IndexError: An argument of a wrong type, a seed outside the graph.
    """
    check_epochs(epochs)
    num_seeds = check_seeds(graph, seeds)
    named = name_policies(policies)
    if ADAPTIVE in named and epochs < 2:
        raise ValueError(f"epochs must be at least 2 to measure what {ADAPTIVE!r} learns in the first, got {epochs}")
    sizes = FieldSizes.of(graph, fields, labels)
    asked, grid = sizes.rows.spendings(budgets), sizes.rows.spendings(GRID)
    batches = len(SeedOrder(seeds, batch_size, drop_last=drop_last))
    if not batches:
        raise ValueError(f"seeds must fill at least 1 batch of {batch_size}, got {num_seeds}")
    threads = threads or default_threads()
    ideals = {name: ideal_epochs(name) for name, policy in named.items() if policy is None and name != ORACLE}
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
    clock, ranks = _Clock(), Rankings(graph, seeds, sampler, batch_size, seed)
    tally = Tally(sizes, [*asked, *grid], threads)
    with clock("ranking"):
        cuts = {name: tally.cut(rankings) for name, rankings in ranks.each(named, required=policies is not None)}
        for name, number in ideals.items():
            cuts[name] = tally.cut(_by_reads(count(epochs=range(epochs, epochs + number))))
        tally.expected = ranks.expectation()
    _measure(tally, count, epochs=epochs, cuts=cuts, ranks=ranks, clock=clock)
    settings = {"sampler": repr(sampler), "seeds": num_seeds, "batch_size": batch_size, "epochs": epochs, "seed": seed}
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
    ranks: Rankings,
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
                cuts[ADAPTIVE] = tally.cut(ranks.refilled(counts))


def _by_reads(counts: AccessCounts) -> dict[str, Ranking]:
    """The vertices of every type by what was read of them; of several epochs, the sums put them in the same order."""
    rankings = {ntype: Ranking.of_reads(counts.reads(ntype)) for ntype in counts.node_types}
    return {ntype: replace(ranking, per_epoch=False) for ntype, ranking in rankings.items()}


def _counter(progress: Callable[[int, int], object] | None, total: int) -> Callable[[], object] | None:
    """What counts the batches of all threads."""
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
