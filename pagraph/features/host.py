"""HostFeature: rows of a CPU tensor in memory."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .feature import (
    Array,
    byte_view,
    check_ids,
    id_array,
    output_for,
    raise_bad_id,
    row_bytes,
    rows_are_contiguous,
)

__all__ = ["HostFeature"]


class HostFeature:
    """Rows of a CPU tensor, read where they are: nothing is copied up front, and later writes are seen.

    Args:
        tensor: Shape ``(num_rows, ...)``, any dtype and strides. Gradients are not followed.

    Raises:
        TypeError: ``tensor`` is not a dense CPU tensor.
        ValueError: ``tensor`` has no dimension.

    Example:
        >>> HostFeature(torch.arange(6).view(3, 2)).read(torch.tensor([2, 0])).tolist()
        [[4, 5], [0, 1]]
    """

    tier = "host"

    def __init__(self, tensor: Tensor) -> None:
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.device.type != "cpu":
            got = f"{tensor.layout} on {tensor.device}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"tensor must be a dense CPU tensor, got {got}")
        if tensor.dim() == 0:
            raise ValueError("tensor must have at least 1 dimension, got a scalar")
        self._tensor = tensor.detach()
        self.num_rows = int(tensor.shape[0])
        self.row_shape = tuple(tensor.shape[1:])
        self.dtype = tensor.dtype
        self.row_bytes = row_bytes(self.row_shape, self.dtype)
        self.device = torch.device("cpu")
        self.stride_bytes = tensor.stride(0) * tensor.element_size()
        self._rows = byte_view(tensor) if rows_are_contiguous(tensor) else None

    @property
    def rows(self) -> Array | None:
        """The rows as bytes, row ``i`` at ``i * stride_bytes``; None where a row is not one run of bytes."""
        return self._rows

    def announce(self, ids: Array, slots: Array | None = None, num_cached: int = 0) -> None:
        """Called before ``ids`` are read, but not those that a cache holds; rows in memory need nothing."""

    def read(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """The rows of ``ids``; see :class:`~pagraph.features.feature.Feature`."""
        from . import _gather

        index = id_array(ids)
        out = output_for(self, len(index), out)
        if self._rows is None or self.row_bytes == 0:
            check_ids(index, self.num_rows)
            if math.prod(out.shape):
                out.copy_(self._tensor.index_select(0, torch.from_numpy(index)))
            return out
        self.announce(index)
        bad = _gather.gather(self._rows, self.stride_bytes, self.row_bytes, self.num_rows, index, byte_view(out))
        if bad >= 0:
            raise_bad_id(index, bad, self.num_rows)
        return out

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_rows={self.num_rows}, row_shape={self.row_shape}, dtype={self.dtype})"
