"""Dividing one budget over the vertices of several types: the most reads saved per byte first."""

from __future__ import annotations

from collections.abc import Sequence
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

    Of the types that get rows at all, rows are taken in the order of score per byte as long as one fits; ties go to
    the type that comes first. Types are let in one after another, each time the one that saves most together with
    those before, as long as that saves more: the table of a large type can cost more than its rows are worth.

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
    levels = _Levels.of(demands, scored)
    tables = [demand.table_bytes for demand in demands]
    best = _choose(levels, nbytes, tables, set() if scored else set(range(len(demands))))
    while True:
        opened = {t for t, rows in enumerate(best.rows) if rows}
        closed = [t for t, rows in enumerate(best.rows) if not rows]
        trials = [_choose(levels, nbytes, tables, opened | {t}) for t in closed]
        better = max(trials, key=lambda choice: choice.worth, default=best)
        if better.worth <= best.worth:
            return best.rows
        best = better


@dataclass(frozen=True, eq=False)
class _Choice:
    """Vertices of each type, and the reads they save."""

    rows: list[int]
    saved: float

    @property
    def worth(self) -> tuple[float, int]:
        """Of equal savings, more rows: vertices that are never drawn may be seeds."""
        return self.saved, sum(self.rows)


@dataclass(frozen=True, eq=False)
class _Levels:
    """Runs of vertices of one type with one score, most reads saved per byte first.

    Degrees of millions of vertices have thousands of values: all that follows is short.
    """

    types: Array
    counts: Array
    scores: Array
    row_bytes: Array

    @classmethod
    def of(cls, demands: Sequence[Demand], scored: bool) -> _Levels:
        runs = [_runs(_scores(demand) if scored else _even_scores(demand)) for demand in demands]
        types = np.repeat(np.arange(len(demands)), [len(counts) for counts, _ in runs])
        counts, scores = (np.concatenate(parts) for parts in zip(*runs, strict=True))
        row_bytes = np.array([demand.row_bytes for demand in demands], dtype=np.int64)[types]
        levels = cls(types, counts, scores, row_bytes)
        return levels.select(np.argsort(-scores / row_bytes, kind="stable"))

    def select(self, which: Array) -> _Levels:
        return _Levels(self.types[which], self.counts[which], self.scores[which], self.row_bytes[which])


def _choose(levels: _Levels, nbytes: int, tables: list[int], opened: set[int]) -> _Choice:
    """The best rows of the ``opened`` types; one that gets none pays no table."""
    while True:
        choice = _take(levels.select(np.isin(levels.types, list(opened))), nbytes, tables, opened)
        kept = {t for t in opened if choice.rows[t]}
        if kept == opened:
            return choice
        opened = kept


def _take(levels: _Levels, nbytes: int, tables: list[int], opened: set[int]) -> _Choice:
    """Rows in the order of ``levels`` as long as one fits."""
    rows, saved = np.zeros(len(tables), dtype=np.int64), 0.0
    left = nbytes - sum(tables[t] for t in opened)
    while len(levels.types) and left > 0:
        ends = np.cumsum(levels.counts * levels.row_bytes)
        whole = int(np.searchsorted(ends, min(left, int(ends[-1])), side="right"))
        np.add.at(rows, levels.types[:whole], levels.counts[:whole])
        saved += float(levels.counts[:whole] @ levels.scores[:whole])
        if whole == len(ends):
            break
        left -= int(ends[whole - 1]) if whole else 0
        cut, width = levels.types[whole], int(levels.row_bytes[whole])
        part = rows_that_fit(left, [width], int(levels.counts[whole]), table=False)
        rows[cut] += part
        saved += part * float(levels.scores[whole])
        left -= part * width
        # Not one more row of this type fits; narrower ones of other types may.
        levels = levels.select(np.flatnonzero((levels.types != cut) & (np.arange(len(ends)) > whole)))
    return _Choice([int(n) for n in rows], saved)


def _scores(demand: Demand) -> Array:
    scores = demand.ranking.scores
    assert scores is not None
    return scores.double().numpy()


def _even_scores(demand: Demand) -> Array:
    places = np.arange(len(demand.ranking.ids), dtype=np.float64)
    return demand.row_bytes * (1 - places / max(1, demand.num_nodes))


def _runs(scores: Array) -> tuple[Array, Array]:
    """Lengths and values of the runs of equal ``scores``."""
    starts = np.flatnonzero(np.diff(scores, prepend=np.nan))
    return np.diff(starts, append=len(scores)), scores[starts]
