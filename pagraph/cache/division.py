"""Dividing one budget over fields of several widths, orders and numbers of reads: the most bytes
saved first."""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..system.arrays import Array
from ..system.budget import rows_that_fit

if TYPE_CHECKING:
    from torch import Tensor

    from ..ranking.policy import Ranking


@dataclass(frozen=True, eq=False)
class Demand:
    """Request of fields of which the same rows are cached, for a part of a budget.

    Attributes:
        num_nodes: Number of rows there are.
        row_bytes: Bytes that one row of all these fields takes in the cache, at least 1.
        table_bytes: Paid once if any rows of this order are cached.
        ranking: The rows that are worth caching, in their order.
        order: Demands with equal ``order`` have one table; they have the same ids. None: a table of
            its own.
        reads: Shape ``(len(ids),)``: the reads that caching each row saves, along the ids. Need not
            decrease. Default: the ranking's scores.
        read_bytes: Bytes that a read of a row moves where they are not ``row_bytes`` (rows cached
            at half precision).
    """

    num_nodes: int
    row_bytes: int
    table_bytes: int
    ranking: Ranking
    order: Hashable = None
    reads: Tensor | None = None
    read_bytes: int | None = None


def divide(nbytes: int, demands: Sequence[Demand]) -> list[int]:
    """Number of each demand's first rows to cache, so that the most bytes need not be moved.

    A cached row of ``w`` bytes that is read ``r`` times saves ``r * w`` bytes: per byte of cache,
    ``r``, whatever the width. Of the orders that are let in, rows are taken by reads as long as one
    fits; ties go to the first demand. An order's best rows need not be its first (labels along the
    order of the features): there the slopes of the concave envelope of its first rows' savings
    replace reads. Without tables and envelopes, all orders are let in. Else the table of a large
    type can cost more than its rows are worth, or a block of an envelope may fit only without
    another order's rows: the orders let in are the best of all together and each alone, changed by
    one while that saves more.

    No choice of the same orders saves more than the envelopes say for that many bytes. Of that,
    less than one row is missing where reads decrease along all orders; elsewhere at most one block
    of an envelope, the first that does not fit whole (the better of taking a part of it and of
    leaving it out is taken). Which orders to let in is a local optimum, at least as good as any
    alone.

    Reads of different demands must be comparable. If one has none, row ``i`` of ``n`` counts as
    ``1 - i / n`` in all, and all are let in if their tables leave room: each gets the same share of
    its rows.

    Args:
        nbytes: Bytes to spend on rows and tables.
        demands: Any number; ``row_bytes`` of at least 1 each.

    Returns:
        A number of rows for each demand.
    """
    (rows,) = divide_each([nbytes], demands)
    return rows


def divide_each(budgets: Sequence[int], demands: Sequence[Demand]) -> list[list[int]]:
    """:func:`divide` for each of several budgets; their common part is computed once."""
    if len(demands) == 1:
        # One order needs no weighing: as many of its first rows as fit.
        (only,) = demands
        count = len(only.ranking.ids)
        row_bytes = [only.row_bytes]
        return [
            [rows_that_fit(nbytes - only.table_bytes, row_bytes, count, table=False)]
            for nbytes in budgets
        ]
    scored = all(
        demand.reads is not None or demand.ranking.scores is not None for demand in demands
    )
    offers = [_Offer.of(demand, place, scored) for place, demand in enumerate(demands)]
    return [_divide(nbytes, offers, scored) for nbytes in budgets]


def _divide(nbytes: int, offers: Sequence[_Offer], scored: bool) -> list[int]:
    orders = list(dict.fromkeys(offer.order for offer in offers))
    best = _choose(offers, nbytes, orders)
    # Without tables and blocks, filling by density is optimal to within a row, and there is nothing
    # to gain by leaving an order out. Without scores no two choices can be compared.
    exact = not any(offer.table_bytes or offer.ends is not None for offer in offers)
    if any(best.rows) and (exact or not scored):
        return best.rows
    alone = (_choose(offers, nbytes, [order]) for order in orders)
    best = max([best, *alone], key=_Choice.worth)
    # Local search over the orders that are let in. It ends: the worth grows with every step, and
    # there are finitely many sets.
    while True:
        let_in = {offer.order for offer, rows in zip(offers, best.rows, strict=True) if rows}
        trials = (let_in ^ {order} for order in orders)  # one order more, or one less
        better = max(
            (_choose(offers, nbytes, [o for o in orders if o in trial]) for trial in trials),
            key=_Choice.worth,
        )
        if better.worth() <= best.worth():
            return best.rows
        best = better


@dataclass(frozen=True, eq=False)
class _Choice:
    """Rows for each demand, and the bytes that they save."""

    rows: list[int]
    saved: float

    def worth(self) -> tuple[float, int]:
        # Of choices that save alike, the one with more rows: rows without reads may be read yet.
        return self.saved, sum(self.rows)


@dataclass(frozen=True, eq=False)
class _Offer:
    """Savings of a demand's rows.

    Attributes:
        order: The order whose table it needs.
        slopes: Shape ``(n,)``, negated bytes saved per byte, non-decreasing.
        saved: Shape ``(n + 1,)``: bytes that the first rows save.
        ends: Ends of the blocks whose rows share a slope; None if each row has its own.
    """

    order: Hashable
    slopes: Array
    saved: Array
    row_bytes: int
    table_bytes: int
    ends: Array | None

    @classmethod
    def of(cls, demand: Demand, place: int, scored: bool) -> _Offer:
        reads = demand.ranking.scores if demand.reads is None else demand.reads
        if reads is None or not scored:
            # Row i of n counts as 1 - i / n, per byte of cache: each order then gets the same share
            # of its rows, whatever their width.
            places = np.arange(len(demand.ranking.ids), dtype=np.float64)
            values = 1 - places / max(1, demand.num_nodes)
            moved = demand.row_bytes
        else:
            values = reads.double().numpy()
            moved = demand.row_bytes if demand.read_bytes is None else demand.read_bytes
        saved = np.concatenate([[0.0], np.cumsum(values) * moved])
        # The place keeps demands of no order apart, each with a table.
        order = ("alone", place) if demand.order is None else ("order", demand.order)
        slopes, ends = _envelope(values)
        return cls(
            order,
            slopes * (-moved / demand.row_bytes),
            saved,
            demand.row_bytes,
            demand.table_bytes,
            ends,
        )

    def whole_blocks(self, stop: int, begin: int) -> int:
        """The last end of a block in ``[begin, stop]``; ``begin`` if there is none."""
        if self.ends is None:
            return stop
        place = int(np.searchsorted(self.ends, stop, side="right"))
        return max(begin, int(self.ends[place - 1])) if place else begin

    def above(self, density: float) -> int:
        """Number of rows that save more than ``density`` per byte."""
        return int(np.searchsorted(self.slopes, -density, side="left"))

    def at_least(self, density: float) -> int:
        """Number of rows that save at least ``density`` per byte."""
        return int(np.searchsorted(self.slopes, -density, side="right"))


def _envelope(values: Array) -> tuple[Array, Array | None]:
    """Slopes of the least concave curve above the sums of ``values``, and its pieces' ends; None:
    ``values`` itself."""
    if not np.any(values[1:] > values[:-1]):
        return values, None  # the sums are concave already
    # Late: numba takes a second to import, and most orders are sorted by their reads.
    from . import _envelope as kernels

    means = np.empty_like(values)
    sizes = np.empty(len(values), np.int64)
    blocks = kernels.pool(np.ascontiguousarray(values), means, sizes)
    return np.repeat(means[:blocks], sizes[:blocks]), np.cumsum(sizes[:blocks])


def _choose(offers: Sequence[_Offer], nbytes: int, let_in: Sequence[Hashable]) -> _Choice:
    """The best rows of the orders that are let in; one that gets none pays no table."""
    while True:
        live = [place for place, offer in enumerate(offers) if offer.order in let_in]
        # By order: demands of one order share its table, which is paid once.
        tables = {offers[place].order: offers[place].table_bytes for place in live}
        best = _fill(offers, nbytes - sum(tables.values()), live)
        used = [
            order
            for order in let_in
            if any(best.rows[place] for place in live if offers[place].order == order)
        ]
        if len(used) == len(let_in):
            return best
        let_in = used  # the bytes of unused tables buy rows of the other orders


def _fill(offers: Sequence[_Offer], left: int, live: Sequence[int]) -> _Choice:
    """The better of taking a part of the block of an envelope that does not fit, and of leaving it
    out at first."""
    choices = []
    has_blocks = any(offers[place].ends is not None for place in live)
    for whole in (False, True) if has_blocks else (False,):
        rows = [0] * len(offers)
        rest = _take(offers, rows, left, live, whole=whole)
        if whole:
            _take(offers, rows, rest, live, whole=False)
        choices.append(_Choice(rows, sum(float(offers[t].saved[rows[t]]) for t in live)))
    return max(choices, key=_Choice.worth)


def _take(
    offers: Sequence[_Offer], rows: list[int], left: int, live: Sequence[int], *, whole: bool
) -> int:
    """Add to ``rows`` by bytes saved per byte while one fits (``whole``: only whole blocks);
    returns what is left."""
    # Each round takes all rows above the density at which the bytes run out, then as many as fit of
    # those exactly at it. A demand leaves when it has no row left, or none that fits.
    while live := [
        t for t in live if rows[t] < len(offers[t].slopes) and offers[t].row_bytes <= left
    ]:
        density = _threshold([(offers[t], rows[t]) for t in live], left)
        for t in live:
            taken = max(rows[t], offers[t].above(density))
            left -= (taken - rows[t]) * offers[t].row_bytes
            rows[t] = taken
        ended = []
        for t in live:  # of the rows that save just as much, not all fit
            count = offers[t].at_least(density) - rows[t]
            part = rows_that_fit(left, [offers[t].row_bytes], count, table=False)
            if part < count:
                ended.append(t)
                if whole:
                    part = offers[t].whole_blocks(rows[t] + part, rows[t]) - rows[t]
            left -= part * offers[t].row_bytes
            rows[t] += part
        live = [t for t in live if t not in ended]
    return left


def _threshold(offers: Sequence[tuple[_Offer, int]], left: int) -> float:
    """The least saving per byte such that all rows that save more fit in ``left``, given each
    demand's rows so far.

    A search by halves, in the bits of floating point numbers: those of positive ones are in the
    numbers' order.
    """

    def fits(bits: int) -> bool:
        density = _from_bits(bits)
        return (
            sum(max(0, offer.above(density) - n) * offer.row_bytes for offer, n in offers) <= left
        )

    return _from_bits(bisect.bisect_left(range(_INFINITY), True, key=fits))


# The bits of infinity, above which a float64's bits are no number.
_INFINITY = int(np.float64(np.inf).view(np.int64))


def _from_bits(bits: int) -> float:
    return float(np.int64(bits).view(np.float64))
