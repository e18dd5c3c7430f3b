"""Hits of every policy's cache at every budget, summed over the counted epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from .compared import ADAPTIVE, ORACLE
from .curve import CurveRecord

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..ranking.policy import Ranking
    from ..ranking.presample import AccessCounts
    from .budgets import FieldSizes, Spending

    Array = npt.NDArray[Any]


@dataclass(eq=False)
class Tally:
    """Adds up hits by policy, epoch, vertex type, budget and hop, with so many threads.

    ``expected`` are the reads expected of each vertex, shape ``(num_nodes, 1)`` by type; None: not
    known.
    """

    sizes: FieldSizes
    budgets: Sequence[Spending]
    threads: int = 1
    expected: Mapping[str, Array] | None = None
    _reads: list[Array] = field(default_factory=list)  # of each epoch by type and hop
    _hits: dict[str, list[Array]] = field(default_factory=dict)  # by type, budget and hop
    _predicted: dict[str, list[Array]] = field(default_factory=dict)  # by budget

    def cut(self, rankings: Mapping[str, Ranking]) -> Cut:
        """Take the best vertices that each budget buys."""
        rows, segments, places = self.sizes.rows.divide(rankings, self.budgets), {}, {}
        for ntype, bought in rows.items():
            ends, where = np.unique(bought, return_inverse=True)
            places[ntype] = where.reshape(-1)
            segments[ntype] = _numbered(rankings[ntype].ids, ends, self.sizes.rows.num_nodes[ntype])
        return Cut(segments, places)

    def add(self, counts: AccessCounts, cuts: Mapping[str, Cut]) -> None:
        """Add an epoch: its reads, and by policy what caches hold in it."""
        from . import _hits

        by_type = {ntype: counts.counters(ntype) for ntype in self.sizes.rows.cached_types}
        sums = [np.zeros(values.shape[1], np.int64) for values in by_type.values()]
        for values, out in zip(by_type.values(), sums, strict=True):
            _hits.add_columns(values, out)
        self._reads.append(np.stack(sums))
        with ThreadPoolExecutor(self.threads, thread_name_prefix="pagraph-tally") as pool:
            for policy, hits in zip(
                cuts, pool.map(lambda cut: cut.hits(by_type), cuts.values()), strict=True
            ):
                self._hits.setdefault(policy, []).append(hits)
            expected = self.expected
            if expected is None:
                return
            unknown = [
                policy
                for policy in cuts
                if policy == ADAPTIVE or policy not in (ORACLE, *self._predicted)
            ]
            reads = np.float64(sum(float(expected[ntype].sum()) for ntype in by_type))
            predicted = pool.map(lambda policy: cuts[policy].hits(expected), unknown)
            for policy, hits in zip(unknown, predicted, strict=True):
                self._predicted.setdefault(policy, []).append(_ratio(hits.sum((0, 2)), reads))

    @property
    def policies(self) -> list[str]:
        """Those whose hits were added."""
        return list(self._hits)

    @property
    def reads_by_hop(self) -> list[float]:
        """Rows of input nodes an epoch asks for, of the types that can be cached, by hop."""
        return [float(reads) for reads in np.mean(self._reads, 0).sum(0)]

    @property
    def bytes_read(self) -> int | None:
        """Bytes an epoch asks for."""
        return self._bytes_moved(np.sum(self._reads, 0), len(self._reads))

    def records(self, policies: Sequence[str], places: Sequence[int]) -> list[CurveRecord]:
        """One record for every policy and each of the budgets at these places."""
        return [record for policy in policies for record in self._records(policy, places)]

    def _records(self, policy: str, places: Sequence[int]) -> list[CurveRecord]:
        # Its first epoch is degree's, and not what it is for.
        settled = slice(1 if policy == ADAPTIVE else 0, None)
        every, reads = np.stack(self._hits[policy]), np.stack(self._reads)
        by_epoch = _ratio(every.sum((1, 3)), reads.sum((1, 2))[:, None])
        hits, reads = every[settled], reads[settled]
        rates = _ratio(hits.sum((0, 1, 3)), reads.sum())
        best = np.stack(self._hits[ORACLE])[settled]
        oracle = _ratio(best.sum((0, 1, 3)), reads.sum())
        by_hop = _ratio(hits.sum((0, 1)), reads.sum((0, 1)))
        predicted = (
            np.mean(self._predicted[policy][settled], 0) if policy in self._predicted else None
        )
        rows = self.sizes.rows
        return [
            CurveRecord(
                policy,
                rows.rows(budget) / max(1, rows.vertices),
                rows.rows(budget),
                rows.nbytes(budget),
                hit_rate=float(rates[place]),
                hit_rate_by_epoch=by_epoch[:, place].tolist(),
                hit_rate_by_hop=by_hop[place].tolist(),
                hit_rate_by_field=self._by_field(hits[:, :, place].sum(0), reads.sum(0)),
                bytes_moved=moved,
                predicted_hit_rate=None if predicted is None else float(predicted[place]),
                oracle_hit_rate=float(oracle[place]),
                share_of_oracle=self._share(rates[place], oracle[place], moved, least, reads),
                oracle_bytes_moved=least,
            )
            for place, budget in ((place, self.budgets[place]) for place in places)
            for moved, least in [
                [
                    self._bytes_moved((reads - of[:, :, place]).sum(0), len(reads))
                    for of in (hits, best)
                ]
            ]
        ]

    def _share(
        self, rate: float, oracle: float, moved: int | None, least: int | None, reads: Array
    ) -> float:
        """Share served of what the oracle serves: in bytes where types have rows of different
        widths."""
        every = self._bytes_moved(reads.sum(0), len(reads))
        if (
            len(self.sizes.rows.cached_types) > 1
            and every
            and moved is not None
            and least is not None
        ):
            rate, oracle = every - moved, every - least
        return float(rate / oracle) if oracle else 1.0

    def _by_field(self, hits: Array, reads: Array) -> dict[str, float]:
        """Hit rates of all fields, from hits and reads by type and hop."""
        rates = {}
        for t, ntype in enumerate(self.sizes.rows.cached_types):
            for name in self.sizes.inputs.get(ntype, ()):
                rates[self.sizes.key(ntype, name)] = float(_ratio(hits[t].sum(), reads[t].sum()))
            for name in self.sizes.labels.get(ntype, ()):
                rates[self.sizes.key(ntype, name)] = float(_ratio(hits[t, 0], reads[t, 0]))
        return rates

    def _bytes_moved(self, misses: Array, epochs: int) -> int | None:
        """Bytes an epoch, from the misses of several by type and hop."""
        if self.sizes.rows.row_bytes is None:
            return None
        moved = 0
        for t, ntype in enumerate(self.sizes.rows.cached_types):
            moved += int(misses[t].sum()) * sum(self.sizes.inputs.get(ntype, {}).values())
            moved += int(misses[t, 0]) * sum(self.sizes.labels.get(ntype, {}).values())
        return round(moved / epochs)


def _ratio(hits: Any, reads: Any) -> Any:
    """``hits / reads``; 0 where nothing is read."""
    return np.divide(
        hits, reads, out=np.zeros(np.broadcast(hits, reads).shape), where=np.asarray(reads) != 0
    )


@dataclass(frozen=True, eq=False)
class Cut:
    """The smallest budget that buys each vertex, of one ranking.

    Attributes:
        segments: Vertex type to the place of that budget among the different ones, ascending; their
            number for a vertex that none buys. Shape ``(num_nodes,)``, uint8, or uint16 where there
            are more than 255: cuts of all policies are in memory at once.
        places: Vertex type to the place of each budget among the different ones, shape
            ``(num_budgets,)``.
    """

    segments: dict[str, Array]
    places: dict[str, npt.NDArray[np.int64]]

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
            sums = np.zeros((int(places.max()) + 2, of_type.shape[1]), dtype)
            _hits.add_segments(self.segments[ntype], of_type, sums)
            hits.append(sums.cumsum(0)[places])
        return np.stack(hits)


def _numbered(ids: Tensor, ends: Array, num_nodes: int) -> Array:
    """The segment between neighbouring ``ends`` that each vertex's place in ``ids`` is in;
    ``len(ends)``: in none."""
    from . import _hits

    segments = np.full(num_nodes, len(ends), np.uint8 if len(ends) < 2**8 else np.uint16)
    _hits.number_segments(ids.numpy(), ends, segments)
    return segments
