"""The budgets of a curve: rows, shares and bytes, and how many of a ranking's vertices each of them buys."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cache.budget import SLOT_BYTES, Budget
from ..cache.division import Demand, divide_each

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..cache.policy import Ranking

__all__ = ["DEFAULT_BUDGETS", "GRID", "RowSizes", "Spending"]

DEFAULT_BUDGETS: tuple[float, ...] = (
    *(0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.13, 0.16, 0.2, 0.25),
    *(0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
)
"""Shares of the vertices: close together where curves bend."""
GRID: tuple[float, ...] = tuple(percent / 100 for percent in range(1, 101))
"""Shares that are summed up whatever budgets are asked for: what is recommended does not depend on those."""


@dataclass(frozen=True)
class Spending:
    """A budget of a curve as bytes.

    Attributes:
        nbytes: What rows may take, and the tables if they are paid from it.
        pays_tables: Whether the tables from vertex to place are.
    """

    nbytes: int
    pays_tables: bool = False


@dataclass(frozen=True)
class RowSizes:
    """What a vertex takes in the cache.

    Attributes:
        num_nodes: Vertex type to its number of vertices.
        row_bytes: Vertex type to the bytes of a vertex's rows of all fields; types without fields are not in it.
            None: no field is named; then all vertices take the same.
    """

    num_nodes: Mapping[str, int]
    row_bytes: Mapping[str, int] | None

    @property
    def cached_types(self) -> dict[str, int]:
        """The types that can be cached, and what a vertex of each takes."""
        return dict(self.row_bytes) if self.row_bytes is not None else dict.fromkeys(self.num_nodes, 1)

    @property
    def vertices(self) -> int:
        """Vertices of all types that can be cached."""
        return sum(self.num_nodes[ntype] for ntype in self.cached_types)

    @property
    def all_bytes(self) -> int:
        """Bytes of all their rows."""
        return sum(self.num_nodes[ntype] * width for ntype, width in self.cached_types.items())

    def spending(self, value: Any) -> Spending:
        """What a budget buys with.

        Args:
            value: Rows as an int, a share of the vertices (0.1, "10%"), or bytes with a unit ("2GiB"), tables included.
                A string of digits is rows.

        Raises:
            ValueError: It is negative, NaN, more than all vertices, no number at all, or in bytes without any field.
            TypeError: It is something else.
        """
        number = _number(value)
        if isinstance(number, Budget):
            if self.row_bytes is None:
                raise ValueError(f"budgets must be rows or shares where no field is named, got {value!r}")
            return Spending(number.limit or 0, pays_tables=True)
        if isinstance(number, float):
            types = [(width, self.num_nodes[ntype]) for ntype, width in self.cached_types.items()]
            return Spending(Budget(share=number).nbytes(types, free=int) if number else 0)
        if not 0 <= number <= self.vertices:
            raise ValueError(f"budgets must be from 0 to {self.vertices} rows (all vertices), got {value!r}")
        return Spending(number * self.all_bytes // max(1, self.vertices))

    def spendings(self, values: Iterable[Any]) -> list[Spending]:
        """The same for several budgets.

        Raises:
            ValueError, TypeError: As :meth:`spending`; or there is none, or all of it is one string.
        """
        if isinstance(values, str):
            raise TypeError(f"budgets must be a list, got {values!r}")
        result = [self.spending(value) for value in values]
        if not result:
            raise ValueError("budgets must hold at least 1 budget, got none")
        return result

    def rows(self, spending: Spending) -> int:
        """How many vertices of average size a budget buys."""
        left = spending.nbytes - (self._tables if spending.pays_tables else 0)
        return max(0, min(self.vertices, left * self.vertices // max(1, self.all_bytes)))

    def nbytes(self, spending: Spending) -> int | None:
        """What a loader must be given as ``cache`` for this, tables included; None where no field is named."""
        if self.row_bytes is None:
            return None
        if not self.rows(spending):
            return 0
        return min(spending.nbytes + (0 if spending.pays_tables else self._tables), self.all_bytes + self._tables)

    def divide(self, rankings: Mapping[str, Ranking], budgets: Sequence[Spending]) -> dict[str, npt.NDArray[np.int64]]:
        """How many of each type's best vertices each budget buys, shape ``(len(budgets),)``; as a loader divides it."""
        types = self.cached_types
        rows = np.zeros((len(budgets), len(types)), np.int64)
        for pays in (False, True):
            demands = [
                Demand(n := self.num_nodes[t], width, SLOT_BYTES * n * pays, rankings[t]) for t, width in types.items()
            ]
            places = [place for place, budget in enumerate(budgets) if budget.pays_tables == pays]
            if places:
                rows[places] = divide_each([budgets[place].nbytes for place in places], demands)
        return {ntype: rows[:, column] for column, ntype in enumerate(types)}

    @property
    def _tables(self) -> int:
        return SLOT_BYTES * self.vertices


def _number(value: Any) -> int | float | Budget:
    """Rows as an int, a share as a float, bytes as a ``Budget``."""
    problem = f"budgets must be rows (1000), shares in [0, 1] (0.1, '10%') or bytes ('2GiB'), got {value!r}"
    if isinstance(value, str):
        text = value.strip()
        if text.isdecimal():
            return int(text)
        try:
            budget = Budget.parse(text)
        except ValueError:
            raise ValueError(problem) from None
        if budget is None:
            return 0
        if budget.is_auto:
            raise ValueError(problem)
        return budget if budget.share is None else budget.share
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(problem)
    if isinstance(value, Integral):
        return int(value)
    share = float(value)
    if math.isnan(share) or not 0 <= share <= 1:
        raise ValueError(problem)
    return share
