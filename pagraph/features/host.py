"""HostFeature: rows of a CPU tensor in memory, or of another by reference."""

from __future__ import annotations

import math
from typing import NoReturn

import torch
from torch import Tensor

from ..buffers import BufferPool
from ..indexed_rows import FieldValue, IndexedRows
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
        tensor: Shape ``(num_rows, ...)``, any dtype and strides, or rows by reference: one pass looks up where a row
            is and copies it. Gradients are not followed.

    Attributes:
        num_rows: Ids are below it.
        source_rows: Rows of the tensor that they are read from.
        table: Which of those each row is, int32 or int64; None where row ``i`` is row ``i``.
        stride_bytes: From one row of that tensor to the next.

    Raises:
        TypeError: ``tensor`` is not a dense CPU tensor.
        ValueError: ``tensor`` has no dimension.

    Example:
        >>> HostFeature(torch.arange(6).view(3, 2)).read(torch.tensor([2, 0])).tolist()
        [[4, 5], [0, 1]]
    """

    tier = "host"

    def __init__(self, tensor: FieldValue) -> None:
        self.table: Array | None = None
        if isinstance(tensor, IndexedRows):
            self.table, tensor = id_array(tensor.ids), tensor.source
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.device.type != "cpu":
            got = f"{tensor.layout} on {tensor.device}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"tensor must be a dense CPU tensor, got {got}")
        if tensor.dim() == 0:
            raise ValueError("tensor must have at least 1 dimension, got a scalar")
        self._tensor = tensor.detach()
        self.source_rows = int(tensor.shape[0])
        self.num_rows = self.source_rows if self.table is None else len(self.table)
        self.row_shape = tuple(tensor.shape[1:])
        self.dtype = tensor.dtype
        self.row_bytes = row_bytes(self.row_shape, self.dtype)
        self.device = torch.device("cpu")
        self.stride_bytes = tensor.stride(0) * tensor.element_size()
        self._rows = byte_view(tensor) if rows_are_contiguous(tensor) else None

    @property
    def rows(self) -> Array | None:
        """The tensor's rows as bytes, row ``i`` at ``i * stride_bytes``; None where a row is not one run of bytes."""
        return self._rows

    def announce(self, ids: Array, slots: Array | None = None, num_cached: int = 0) -> None:
        """Called before ``ids`` are read, but not those that a cache holds; rows in memory need nothing."""

    def read(self, ids: Tensor, out: Tensor | BufferPool | None = None) -> Tensor:
        """The rows of ``ids``; see :class:`~pagraph.features.feature.Feature`."""
        from . import _gather

        index = id_array(ids)
        out = output_for(self, len(index), out)
        if self._rows is None or self.row_bytes == 0:
            check_ids(index, self.num_rows)
            if math.prod(out.shape):
                where = index if self.table is None else self.table[index]
                out.copy_(self._tensor.index_select(0, torch.from_numpy(where)))
            return out
        self.announce(index)
        bad = _gather.gather(
            self._rows,
            self.stride_bytes,
            self.row_bytes,
            self.source_rows,
            self.table,
            index,
            out.view(-1).view(torch.uint8).numpy(),
        )
        if bad >= 0:
            self.raise_bad(index, bad)
        return out

    def raise_bad(self, index: Array, position: int) -> NoReturn:
        """Raise the error for the id at ``position``, which a kernel did not find."""
        row = int(index[position])
        if self.table is not None and 0 <= row < self.num_rows:  # its ids were written since they were checked
            raise IndexError(f"ids of rows must be in [0, {self.source_rows}), got {self.table[row]} for row {row}")
        raise_bad_id(index, position, self.num_rows)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_rows={self.num_rows}, row_shape={self.row_shape}, dtype={self.dtype})"
