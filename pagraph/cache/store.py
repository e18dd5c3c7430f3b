"""FeatureCache: which rows are kept, and where; knows no graph and no policy."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["FeatureCache", "slots_for"]


def slots_for(ids: Tensor, num_nodes: int) -> Tensor:
    """The table from vertex to place in the cache, or -1; int32, shape ``(num_nodes,)``.

    >>> slots_for(torch.tensor([3, 1]), 4).tolist()
    [-1, 1, -1, 0]
    """
    slots = torch.full((num_nodes,), -1, dtype=torch.int32)
    slots[ids.long()] = torch.arange(len(ids), dtype=torch.int32)
    return slots


class FeatureCache:
    """Some rows of a feature, on a device. Never changes: a cache of newer values is another object.

    Args:
        rows: Shape ``(num_cached, ...)``, contiguous, on the device that reads them.
        slots: Shape ``(num_nodes,)``, int32 on the CPU: the row of each vertex in ``rows``. Negative and
            ``num_cached`` or more mean that it is not there, so that features of one vertex type can share
            the table even if they cache different numbers of its vertices.
        device_slots: The same table where the rows are, for an accelerator that looks places up itself.
    """

    def __init__(self, rows: Tensor, slots: Tensor, device_slots: Tensor | None = None) -> None:
        if slots.dtype != torch.int32 or slots.dim() != 1 or slots.device.type != "cpu":
            raise TypeError(
                f"slots must be a 1-D int32 CPU tensor, got {slots.dim()}-D {slots.dtype} on {slots.device}"
            )
        if rows.dim() == 0 or not rows.is_contiguous():
            raise ValueError(f"rows must be contiguous with at least 1 dimension, got {tuple(rows.shape)}")
        if device_slots is not None and (device_slots.dtype, device_slots.shape) != (slots.dtype, slots.shape):
            raise ValueError(
                f"device_slots must be the table {tuple(slots.shape)}, {slots.dtype}, "
                f"got {tuple(device_slots.shape)}, {device_slots.dtype}"
            )
        self.rows = rows
        self.slots = slots.contiguous()
        self.device_slots = device_slots

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes of the rows and of the table beside them, which may be shared with other caches."""
        return self.row_nbytes + self.slots.numel() * self.slots.element_size()

    @property
    def row_nbytes(self) -> int:
        """Bytes of the rows alone."""
        return self.rows.numel() * self.rows.element_size()

    def __repr__(self) -> str:
        return f"FeatureCache(rows={tuple(self.rows.shape)}, dtype={self.rows.dtype}, device={self.rows.device})"
