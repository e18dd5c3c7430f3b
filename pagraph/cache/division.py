"""Dividing one budget over the vertices of several types: the most reads saved per byte first."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .budget import rows_that_fit

if TYPE_CHECKING:
    import numpy.typing as npt

    from .policy import Ranking

    Array = npt.NDArray[Any]

__all__ = ["Demand", "divide"]


@dataclass(frozen=True, eq=False)
class Demand:
    """What one vertex type asks of a budget.

    Attributes:
        num_nodes: Number of vertices.
        row_bytes: Bytes of one vertex's rows of all fields, at least 1.
        table_bytes: What the type pays once if it gets any rows.
        ranking: The vertices that are worth caching.
    """

    num_nodes: int
    row_bytes: int
    table_bytes: int
    ranking: Ranking


def divide(nbytes: int, demands: Sequence[Demand]) -> list[int]:
    """How many of each type's best vertices to cache.

    Of the types that are let in, rows are taken in the order of score per byte as long as one fits; ties go to the type
    that comes first. Without tables to pay, that is all types. Else the table of a large type can cost more than its
    rows are worth: the types to let in are the best of all together and each alone, changed by one type at a time as
    long as that saves more.

    Scores of different types must mean the same (reads saved). If a ranking has none, vertex ``i`` of ``n`` counts as
    ``row_bytes * (1 - i / n)`` in all types, and all are let in if their tables leave room: each gets the same share
    of its vertices, that is bytes in proportion to the bytes of all its rows.

    Args:
        nbytes: Bytes to spend.
        demands: One for each type.

    Returns:
        For each type a number of vertices; their rows and tables take at most ``nbytes``.
    """
    if len(demands) == 1:
        (only,) = demands
        return [rows_that_fit(nbytes - only.table_bytes, [only.row_bytes], len(only.ranking.ids), table=False)]
    scored = all(demand.ranking.scores is not None for demand in demands)
    offers = [_Offer.of(demand, scored) for demand in demands]
    types = range(len(offers))
    best = _choose(offers, nbytes, types)
    if any(best.rows) and (not scored or not any(demand.table_bytes for demand in demands)):
        return best.rows
    best = max([best, *(_choose(offers, nbytes, [t]) for t in types)], key=_Choice.worth)
    while True:
        let_in = {t for t in types if best.rows[t]}
        better = max((_choose(offers, nbytes, let_in ^ {t}) for t in types), key=_Choice.worth)
        if better.worth() <= best.worth():
            return best.rows
        best = better


@dataclass(frozen=True, eq=False)
class _Choice:
    """Vertices of each type, and the reads they save."""

    rows: list[int]
    saved: float

    def worth(self) -> tuple[float, int]:
        """Of equal savings, more rows: vertices that are never drawn may be seeds."""
        return self.saved, sum(self.rows)


@dataclass(frozen=True, eq=False)
class _Offer:
    """What the rows of one type save, best first.

    Attributes:
        order: Shape ``(n,)``, ascending: minus the reads saved per byte.
        saved: Shape ``(n + 1,)``: reads saved by the first vertices.
        row_bytes: Bytes of a row.
        table_bytes: Bytes of the table.
    """

    order: Array
    saved: Array
    row_bytes: int
    table_bytes: int

    @classmethod
    def of(cls, demand: Demand, scored: bool) -> _Offer:
        scores = demand.ranking.scores
        if scores is None or not scored:
            places = np.arange(len(demand.ranking.ids), dtype=np.float64)
            values = demand.row_bytes * (1 - places / max(1, demand.num_nodes))
        else:
            values = scores.double().numpy()
        saved = np.concatenate([[0.0], np.cumsum(values)])
        return cls(-values / demand.row_bytes, saved, demand.row_bytes, demand.table_bytes)

    def above(self, density: float) -> int:
        """How many rows save more than ``density`` per byte."""
        return int(np.searchsorted(self.order, -density, side="left"))

    def at_least(self, density: float) -> int:
        """How many rows save at least ``density`` per byte."""
        return int(np.searchsorted(self.order, -density, side="right"))


def _choose(offers: Sequence[_Offer], nbytes: int, let_in: Iterable[int]) -> _Choice:
    """The best rows of the types that are let in; one that gets none pays no table."""
    types = list(let_in)
    while True:
        rows = _take(offers, nbytes - sum(offers[t].table_bytes for t in types), types)
        if all(rows[t] for t in types):
            return _Choice(rows, sum(float(offers[t].saved[rows[t]]) for t in types))
        types = [t for t in types if rows[t]]


def _take(offers: Sequence[_Offer], left: int, types: Iterable[int]) -> list[int]:
    """How many rows of each type to take: in the order of reads saved per byte, as long as one fits in ``left``."""
    rows = [0] * len(offers)
    live = list(types)
    while live := [t for t in live if rows[t] < len(offers[t].order) and offers[t].row_bytes <= left]:
        density = _threshold([(offers[t], rows[t]) for t in live], left)
        for t in live:
            taken = max(rows[t], offers[t].above(density))
            left -= (taken - rows[t]) * offers[t].row_bytes
            rows[t] = taken
        ended = []
        for t in live:  # of the rows that save just as much, not all fit
            count = offers[t].at_least(density) - rows[t]
            part = rows_that_fit(left, [offers[t].row_bytes], count, table=False)
            left -= part * offers[t].row_bytes
            rows[t] += part
            if part < count:
                ended.append(t)
        live = [t for t in live if t not in ended]
    return rows


def _threshold(offers: Sequence[tuple[_Offer, int]], left: int) -> float:
    """The least reads per byte such that all rows that save more fit in ``left``, given each type's rows so far.

    A search by halves, in the bits of floating point numbers: those of positive ones are in the numbers' order.
    """

    def fits(bits: int) -> bool:
        density = _from_bits(bits)
        return sum(max(0, offer.above(density) - n) * offer.row_bytes for offer, n in offers) <= left

    return _from_bits(bisect.bisect_left(range(_INFINITY), True, key=fits))


_INFINITY = int(np.float64(np.inf).view(np.int64))


def _from_bits(bits: int) -> float:
    return float(np.int64(bits).view(np.float64))
