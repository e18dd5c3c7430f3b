"""Edges that a batch must not use: sampled as if they were there, then left out (as DGL does it)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

    from .hop import HopEdges

__all__ = ["ExcludedEdges"]


class ExcludedEdges:
    """A set of edges of one edge type, by position in its CSC.

    Args:
        positions: Shape ``(n,)``; repeated ones count once.
    """

    def __init__(self, positions: Tensor) -> None:
        from . import _excluded

        values: npt.NDArray[Any] = positions.numpy()
        bits = max(6, (2 * len(values)).bit_length())
        self._table = np.full(1 << bits, -1, dtype=np.int64)
        # 16 bits for each slot, 32 to 64 for each edge: 16 KiB for 1000 edges and their reverse ones.
        self._marks = np.zeros(1 << (bits + 1), dtype=np.uint8)
        self._shifts = np.uint64(64 - bits), np.uint64(64 - bits - 4)
        self._count = len(values)
        _excluded.insert(values, self._table, self._shifts[0], self._marks, self._shifts[1])

    def drop_from(self, edges: HopEdges) -> HopEdges:
        """The edges without the excluded ones, in order; the arrays are changed in place."""
        from . import _excluded

        if self._count == 0 or len(edges.positions) == 0:
            return edges
        weights = np.empty(0, dtype=np.float32) if edges.weights is None else edges.weights.numpy()
        kept = _excluded.drop(
            edges.indptr.numpy(),
            edges.positions.numpy(),
            weights,
            self._table,
            self._shifts[0],
            self._marks,
            self._shifts[1],
        )
        return edges.head(int(kept))
