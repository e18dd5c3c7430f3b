"""Edges that batches leave out."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..system.arrays import Array
from .hop import HopEdges


class ExcludedEdges:
    """A set of edges of one edge type, by position in its CSC.

    Args:
        positions: Shape ``(n,)``; repeats are allowed.
    """

    def __init__(self, positions: Tensor) -> None:
        from .kernels import edges as _excluded

        values: Array = positions.numpy()
        bits = max(6, (2 * len(values)).bit_length())
        self._table = np.full(1 << bits, -1, dtype=np.int64)
        # 16 bits per slot, 32 to 64 per edge: 16 KiB for 1000 edges and their reverse edges, which
        # stay in the L1 cache.
        self._marks = np.zeros(1 << (bits + 1), dtype=np.uint8)
        self._shifts = np.uint64(64 - bits), np.uint64(64 - bits - 4)
        self.count: int = len(values)
        _excluded.insert(values, self._table, self._shifts[0], self._marks, self._shifts[1])

    def for_kernels(self) -> tuple[int, ...]:
        """A row of the kernels' ``excluded``."""
        arrays = self._table.ctypes.data, len(self._table), self._marks.ctypes.data
        return *arrays, *(int(shift) for shift in self._shifts)

    def drop_from(self, edges: HopEdges) -> HopEdges:
        """The edges without excluded ones, in order; changes their arrays in place."""
        from .kernels import edges as _excluded

        if self.count == 0 or len(edges.positions) == 0:
            return edges
        weights = np.empty(0, dtype=np.float32) if edges.weights is None else edges.weights.numpy()
        arrays = edges.indptr.numpy(), edges.positions.numpy(), weights
        kept = int(
            _excluded.drop(*arrays, self._table, self._shifts[0], self._marks, self._shifts[1])
        )
        weights_left = None if edges.weights is None else edges.weights[:kept]
        return HopEdges(edges.indptr, edges.indices[:kept], edges.positions[:kept], weights_left)

    def left_of(self, positions: Tensor) -> Tensor:
        """Indices of the positions that are not excluded, ascending, int64."""
        from .kernels import edges as _excluded

        places = np.empty(len(positions), dtype=np.int64)
        arrays = self._table, self._shifts[0], self._marks, self._shifts[1], places
        return torch.from_numpy(places[: int(_excluded.left(positions.numpy(), *arrays))])
