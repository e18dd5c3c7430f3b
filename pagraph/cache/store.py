"""FeatureCache: which rows are kept, and where; knows no graph and no policy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from ..features.feature import Feature

__all__ = ["FeatureCache", "slots_for"]

_CHUNK_BYTES = 64 << 20


def slots_for(ids: Tensor, num_nodes: int) -> Tensor:
    """The table from vertex to place in the cache, or -1; int32, shape ``(num_nodes,)``.

    >>> slots_for(torch.tensor([3, 1]), 4).tolist()
    [-1, 1, -1, 0]
    """
    slots = torch.full((num_nodes,), -1, dtype=torch.int32)
    slots[ids.long()] = torch.arange(len(ids), dtype=torch.int32)
    return slots


def _empty_rows(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory for rows; on the CPU NumPy's, in huge pages (100 000 rows of 1 KiB: 8.2 ms, torch's 10.9)."""
    nbytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or nbytes == 0:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.empty(nbytes, dtype=np.uint8)).view(dtype).view(shape)


class FeatureCache:
    """Some rows of a feature, on a device. Never changes: a cache of newer values is another object.

    Args:
        rows: Shape ``(num_cached, ...)``, contiguous, on the device that reads them.
        slots: Shape ``(num_nodes,)``, int32 on the CPU: the row of each vertex in ``rows``. Negative and
            ``num_cached`` or more mean that it is not there, so that features of one vertex type can share
            the table even if they cache different numbers of its vertices.
    """

    def __init__(self, rows: Tensor, slots: Tensor) -> None:
        if slots.dtype != torch.int32 or slots.dim() != 1 or slots.device.type != "cpu":
            raise TypeError(
                f"slots must be a 1-D int32 CPU tensor, got {slots.dim()}-D {slots.dtype} on {slots.device}"
            )
        if rows.dim() == 0 or not rows.is_contiguous():
            raise ValueError(f"rows must be contiguous with at least 1 dimension, got {tuple(rows.shape)}")
        self.rows = rows
        self.slots = slots.contiguous()

    @classmethod
    def fill(
        cls,
        source: Feature,
        ids: Tensor,
        *,
        device: torch.device,
        num_nodes: int,
        slots: Tensor | None = None,
    ) -> FeatureCache:
        """Read the rows of ``ids`` into a new cache; row ``i`` is that of ``ids[i]``.

        Args:
            source: Delivers on the CPU.
            ids: The vertices to keep, most valuable first, without repeats.
            device: Where the rows are kept.
            num_nodes: Number of vertices.
            slots: ``slots_for`` of ``ids``, or of a longer list that starts with them, to be shared.
        """
        from ..features.device import word_view

        rows = _empty_rows((len(ids), *source.row_shape), source.dtype, device)
        # Most valuable first keeps the hottest rows together in the cache; a disk is read in its own order.
        # (NumPy sorts: torch wakes its thread pool first, 0.15 s for 100 000 ids on a busy machine.)
        places = torch.from_numpy(np.argsort(ids.numpy()))
        step = max(1, _CHUNK_BYTES // max(1, source.row_bytes))
        for start in range(0, len(ids), step):
            chunk = places[start : start + step]
            words = word_view(source.read(ids[chunk])).to(device)
            word_view(rows).index_copy_(0, chunk.to(device), words)
        return cls(rows, slots_for(ids, num_nodes) if slots is None else slots)

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes of the rows and of the table, which may be shared with other caches."""
        return self.row_nbytes + self.slots.numel() * self.slots.element_size()

    @property
    def row_nbytes(self) -> int:
        """Bytes of the rows alone."""
        return self.rows.numel() * self.rows.element_size()

    def __repr__(self) -> str:
        return f"FeatureCache(rows={tuple(self.rows.shape)}, dtype={self.rows.dtype}, device={self.rows.device})"
