"""What a ranking's best vertices are read, for all budgets at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..cache.policy import Ranking
    from .budgets import RowSizes, Spending

__all__ = ["Cut", "column_sums"]

_INT32 = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Cut:
    """A ranking cut at several budgets.

    Attributes:
        ids: Vertex type to the vertices that the largest budget buys, best first.
        rows: Vertex type to how many of them each budget buys, shape ``(num_budgets,)``.
    """

    ids: dict[str, Tensor]
    rows: dict[str, npt.NDArray[np.int64]]

    @classmethod
    def of(cls, rankings: Mapping[str, Ranking], sizes: RowSizes, budgets: Sequence[Spending]) -> Cut:
        """Divide every budget over the types."""
        rows = sizes.divide(rankings, budgets)
        ids = {ntype: _narrow(rankings[ntype].ids[: int(counts.max(initial=0))]) for ntype, counts in rows.items()}
        return cls(ids, rows)

    def hits(self, counts: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """The sums of the counts of the vertices that each budget buys.

        Args:
            counts: Vertex type to counts, shape ``(num_nodes, columns)``, for every type of the ranking.

        Returns:
            Shape ``(num_types, num_budgets, columns)``, int64, or float64 for floating-point counts.
        """
        return np.stack([self._hits_of(ntype, counts[ntype]) for ntype in self.rows])

    def _hits_of(self, ntype: str, counts: npt.NDArray[Any]) -> npt.NDArray[Any]:
        from . import _hits

        ends, places = np.unique(self.rows[ntype], return_inverse=True)
        sums = np.zeros((len(ends), counts.shape[1]), np.float64 if counts.dtype.kind == "f" else np.int64)
        _hits.add_segments(self.ids[ntype].numpy(), ends, counts, sums)
        result: npt.NDArray[Any] = sums.cumsum(0)[places.reshape(-1)]
        return result


def column_sums(counts: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Sums of the columns of integers, shape ``(columns,)``."""
    from . import _hits

    sums = np.zeros(counts.shape[1], np.int64)
    _hits.add_columns(counts, sums)
    return sums


def _narrow(ids: Tensor) -> Tensor:
    """A copy, with half the bytes where ids fit: rankings of all policies are in memory at once."""
    fits = len(ids) == 0 or int(ids.max()) <= _INT32
    return ids.to(torch.int32) if fits else ids.clone()
