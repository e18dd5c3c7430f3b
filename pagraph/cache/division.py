"""Division of one budget over fields of different widths and orders: the most bytes saved first."""

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
    """Request for a part of the budget, by fields that are cached for the same rows.

    Attributes:
        num_nodes: Number of all rows.
        row_bytes: Bytes of one cached row of all these fields, at least 1.
        table_bytes: Paid once if any rows of this order are cached.
        ranking: The rows that are worth caching, in order.
        order: Demands with equal ``order`` have the same ids and share a table. None: not shared.
        reads: Reads that caching each of the ranking's rows saves, shape ``(len(ids),)``. May
            increase along the order. Default: the ranking's scores.
        read_bytes: Bytes that reading a row moves, if not ``row_bytes`` (rows cached at half
            precision).
    """

    num_nodes: int
    row_bytes: int
    table_bytes: int
    ranking: Ranking
    order: Hashable = None
    reads: Tensor | None = None
    read_bytes: int | None = None


def divide(nbytes: int, demands: Sequence[Demand]) -> list[int]:
    """Number of each demand's first rows to cache, so that the most bytes are saved.

    A cached row of ``w`` bytes that is read ``r`` times saves ``r * w`` bytes. That is ``r`` per
    byte of cache, whatever the width, so rows are taken greedily by reads; ties go to the first
    demand. An order's best rows need not be its first (labels in the order of the features). Then
    the slopes of the concave envelope of its cumulative savings replace reads.

    Without tables and envelopes, all orders are admitted. Otherwise the table of a large type can
    cost more than its rows are worth, or a block of an envelope may fit only without another
    order's rows. Then the search starts from the best of all orders together and each alone, and
    adds or removes one order while that saves more. The result is a local optimum, at least as good
    as any order alone.

    For the admitted orders, the envelopes bound what any choice can save. If reads decrease along
    all orders, the result misses the bound by less than one row. Otherwise it misses at most one
    block: the first that does not fit, taken in part or skipped, whichever saves more.

    Reads of different demands must be comparable. If one has none, row ``i`` of ``n`` counts as
    ``1 - i / n`` in all demands. All are then admitted if their tables leave room, and each gets
    the same share of its rows.

    Args:
        nbytes: Bytes to spend on rows and tables.
        demands: Any number; ``row_bytes`` of at least 1 each.

    Returns:
        A number of rows for each demand.
    """
    (rows,) = divide_each([nbytes], demands)
    return rows


def divide_each(budgets: Sequence[int], demands: Sequence[Demand]) -> list[list[int]]:
    """:func:`divide` for several budgets; shared work is done once."""
    if len(demands) == 1:
        # A single order takes all rows that fit.
        (only,) = demands
        count = len(only.ranking.ids)
        divided = []
        for nbytes in budgets:
            left = nbytes - only.table_bytes
            divided.append([rows_that_fit(left, [only.row_bytes], count, table=False)])
        return divided
    scored = all(_reads(demand) is not None for demand in demands)
    offers = [_Offer.of(demand, place, scored) for place, demand in enumerate(demands)]
    return [_divide(nbytes, offers, scored) for nbytes in budgets]


def _reads(demand: Demand) -> Tensor | None:
    return demand.ranking.scores if demand.reads is None else demand.reads


def _divide(nbytes: int, offers: Sequence[_Offer], scored: bool) -> list[int]:
    orders = list(dict.fromkeys(offer.order for offer in offers))
    best = _choose(offers, nbytes, orders)
    # Without tables and blocks, greedy filling is optimal to within a row, and leaving an order out
    # gains nothing. Without scores, choices cannot be compared.
    exact = not any(offer.table_bytes or offer.ends is not None for offer in offers)
    if any(best.rows) and (exact or not scored):
        return best.rows
    alone = (_choose(offers, nbytes, [order]) for order in orders)
    best = max([best, *alone], key=_Choice.worth)
    # Local search over the admitted orders. It ends, since the worth grows with every step and
    # there are finitely many sets.
    while True:
        let_in = {offer.order for offer, rows in zip(offers, best.rows, strict=True) if rows}
        choices = []
        for changed in orders:
            trial = let_in ^ {changed}  # one order added or removed
            choices.append(_choose(offers, nbytes, [order for order in orders if order in trial]))
        better = max(choices, key=_Choice.worth)
        if better.worth() <= best.worth():
            return best.rows
        best = better


@dataclass(frozen=True, eq=False)
class _Choice:
    """Number of rows for each demand, and the bytes saved."""

    rows: list[int]
    saved: float

    def worth(self) -> tuple[float, int]:
        # Ties go to more rows: rows without expected reads may still be read.
        return self.saved, sum(self.rows)


@dataclass(frozen=True, eq=False)
class _Offer:
    """Savings of a demand's rows.

    Attributes:
        order: The order whose table it needs.
        slopes: Negated bytes saved per byte of cache, non-decreasing, shape ``(n,)``.
        saved: Bytes that the first ``i`` rows save, shape ``(n + 1,)``.
        ends: Ends of the blocks of rows with one slope; None if each row has its own.
    """

    order: Hashable
    slopes: Array
    saved: Array
    row_bytes: int
    table_bytes: int
    ends: Array | None

    @classmethod
    def of(cls, demand: Demand, place: int, scored: bool) -> _Offer:
        reads = _reads(demand)
        moved = demand.row_bytes
        if reads is None or not scored:
            # Row i of n counts as 1 - i / n per byte of cache, so that each order gets the same
            # share of its rows, whatever their width.
            places = np.arange(len(demand.ranking.ids), dtype=np.float64)
            values = 1 - places / max(1, demand.num_nodes)
        else:
            values = reads.double().numpy()
            if demand.read_bytes is not None:
                moved = demand.read_bytes
        saved = np.concatenate([[0.0], np.cumsum(values) * moved])
        # The place tells demands without an order apart: each has its own table.
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
        """The last end of a block in ``[begin, stop]``, or else ``begin``."""
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
    """Slopes of the concave envelope of the cumulative ``values``, and the ends of its blocks.

    The ends are None if the sums are concave already.
    """
    if not np.any(values[1:] > values[:-1]):
        return values, None
    # Imported here: numba takes a second, and most orders are sorted by reads.
    from . import _envelope as kernels

    means = np.empty_like(values)
    sizes = np.empty(len(values), np.int64)
    blocks = kernels.pool(np.ascontiguousarray(values), means, sizes)
    return np.repeat(means[:blocks], sizes[:blocks]), np.cumsum(sizes[:blocks])


def _choose(offers: Sequence[_Offer], nbytes: int, let_in: Sequence[Hashable]) -> _Choice:
    """The best rows of the admitted orders. An order without rows pays no table."""
    while True:
        live = [place for place, offer in enumerate(offers) if offer.order in let_in]
        # By order: its demands share one table.
        tables = {offers[place].order: offers[place].table_bytes for place in live}
        best = _fill(offers, nbytes - sum(tables.values()), live)
        filled = {offers[place].order for place in live if best.rows[place]}
        used = [order for order in let_in if order in filled]
        if len(used) == len(let_in):
            return best
        let_in = used  # spend the bytes of unused tables on the other orders


def _fill(offers: Sequence[_Offer], left: int, live: Sequence[int]) -> _Choice:
    """Fill ``left`` bytes: take a part of the first block that does not fit, or skip it.

    Returns the better of the two.
    """
    choices = []
    has_blocks = any(offers[place].ends is not None for place in live)
    for whole in (False, True) if has_blocks else (False,):
        rows = [0] * len(offers)
        rest = _take(offers, rows, left, live, whole=whole)
        if whole:
            _take(offers, rows, rest, live, whole=False)
        saved = sum(float(offers[t].saved[rows[t]]) for t in live)
        choices.append(_Choice(rows, saved))
    return max(choices, key=_Choice.worth)


def _take(
    offers: Sequence[_Offer], rows: list[int], left: int, live: Sequence[int], *, whole: bool
) -> int:
    """Add rows greedily by bytes saved per byte (``whole``: only whole blocks).

    Returns the bytes left.
    """
    # Each round takes all rows above the density at which the bytes run out, then those exactly at
    # it that fit. A demand drops out when it has no row left that fits.
    while True:
        has_rows = [t for t in live if rows[t] < len(offers[t].slopes)]
        live = [t for t in has_rows if offers[t].row_bytes <= left]
        if not live:
            return left
        density = _threshold([(offers[t], rows[t]) for t in live], left)
        for t in live:
            taken = max(rows[t], offers[t].above(density))
            left -= (taken - rows[t]) * offers[t].row_bytes
            rows[t] = taken
        ended = []
        # Of the rows exactly at the density, not all may fit.
        for t in live:
            offer = offers[t]
            count = offer.at_least(density) - rows[t]
            part = rows_that_fit(left, [offer.row_bytes], count, table=False)
            if part < count:
                ended.append(t)
                if whole:
                    part = offer.whole_blocks(rows[t] + part, rows[t]) - rows[t]
            left -= part * offer.row_bytes
            rows[t] += part
        live = [t for t in live if t not in ended]


def _threshold(offers: Sequence[tuple[_Offer, int]], left: int) -> float:
    """The least density such that all further rows above it fit in ``left``.

    Bisects the bits of a float64, which have the order of the numbers for positive numbers.
    """

    def fits(bits: int) -> bool:
        density = _from_bits(bits)
        needed = 0
        for offer, taken in offers:
            more = max(0, offer.above(density) - taken)
            needed += more * offer.row_bytes
        return needed <= left

    return _from_bits(bisect.bisect_left(range(_INFINITY), True, key=fits))


# The bits of infinity: larger ones are NaN.
_INFINITY = int(np.float64(np.inf).view(np.int64))


def _from_bits(bits: int) -> float:
    return float(np.int64(bits).view(np.float64))
