"""Counts hits of every policy's cache at every budget, over the counted epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ..system.arrays import Array, Int64Array
from .compared import ADAPTIVE, ORACLE
from .curve import CurveRecord

if TYPE_CHECKING:
    from ..ranking.policy import Ranking
    from ..ranking.presample import AccessCounts
    from .arguments import FieldSizes, Spending


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

    def cut(self, rankings: Mapping[str, Ranking]) -> Cut:
        """Take the best vertices that each budget buys."""
        rows = self.sizes.rows
        segments = {}
        places = {}
        for ntype, bought in rows.divide(rankings, self.budgets).items():
            # Budgets often buy the same number of a type. Counts are summed between different ones.
            ends, where = np.unique(bought, return_inverse=True)
            places[ntype] = where.reshape(-1)
            segments[ntype] = _numbered(rankings[ntype].ids, ends, rows.num_nodes[ntype])
        return Cut(segments, places)

    def add(self, counts: AccessCounts, cuts: Mapping[str, Cut]) -> None:
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
        self, expected: Mapping[str, Array], cuts: Mapping[str, Cut], pool: ThreadPoolExecutor
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
class Cut:
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
