"""The Feature contract: rows by id, the same for rows in memory, on disk, on a device or in a cache."""

from __future__ import annotations

import math
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from ..buffers import BufferPool

__all__ = ["Feature", "byte_view", "check_ids", "id_array", "output_for", "raise_bad_id"]

Array = Any  # a NumPy array; its element type is a matter of the kernels


class Feature(Protocol):
    """Rows that can be read by id, from any thread, without holding the interpreter's lock while copying."""

    @property
    def num_rows(self) -> int:
        """Number of rows; ids are below it."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""

    @property
    def device(self) -> torch.device:
        """Where :meth:`read` delivers."""

    @property
    def tier(self) -> str:
        """Where the rows come from: "host", "disk" or "device"."""

    def read(self, ids: Tensor, out: Tensor | BufferPool | None = None) -> Tensor:
        """The rows of ``ids``, shape ``(len(ids), *row_shape)``.

        Args:
            ids: 1-D int32 or int64 tensor.
            out: A contiguous tensor of that shape, ``dtype`` and ``device`` to write to and return, or where memory on
                the CPU is taken from.

        Raises:
            IndexError: An id is outside ``[0, num_rows)``.
        """


def row_bytes(row_shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Bytes of one row."""
    return math.prod(row_shape) * dtype.itemsize


def id_array(ids: Tensor) -> Array:
    """Ids as a contiguous NumPy array that shares the tensor's memory where it can.

    Raises:
        TypeError: ``ids`` is not an int32 or int64 tensor.
        ValueError: ``ids`` is not 1-D.
    """
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int32, torch.int64):
        got = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise TypeError(f"ids must be an int32 or int64 tensor, got {got}")
    if ids.dim() != 1:
        raise ValueError(f"ids must be 1-D, got shape {tuple(ids.shape)}")
    if ids.requires_grad or ids.device.type != "cpu" or not ids.is_contiguous():
        ids = ids.detach().cpu().contiguous()
    return ids.numpy()


def raise_bad_id(index: Array, position: int, num_rows: int) -> NoReturn:
    """Raise the error for the id at ``position``."""
    raise IndexError(f"ids must be in [0, {num_rows}), got {int(index[position])} at position {position}")


def check_ids(index: Array, num_rows: int) -> None:
    """Check every id.

    Raises:
        IndexError: An id is outside ``[0, num_rows)``.
    """
    from . import _gather

    bad = _gather.first_bad(index, num_rows)
    if bad >= 0:
        raise_bad_id(index, bad, num_rows)


def output_for(feature: Feature, count: int, out: Tensor | BufferPool | None) -> Tensor:
    """``out`` when it fits, or a new tensor on the feature's device, on the CPU out of the pool.

    Raises:
        ValueError: ``out`` has another shape, dtype or device, or is not contiguous.
    """
    shape = (count, *feature.row_shape)
    if isinstance(out, BufferPool) and feature.device.type == "cpu":
        return out.take(shape, feature.dtype)
    if out is None or isinstance(out, BufferPool):
        return torch.empty(shape, dtype=feature.dtype, device=feature.device)
    if tuple(out.shape) != shape or out.dtype != feature.dtype:
        raise ValueError(
            f"out must have shape {shape} and dtype {feature.dtype}, got {tuple(out.shape)} and {out.dtype}"
        )
    if out.device != feature.device or not out.is_contiguous() or out.requires_grad:
        raise ValueError(
            f"out must be contiguous, on {feature.device} and without gradient, got strides {out.stride()} "
            f"on {out.device} with requires_grad={out.requires_grad}"
        )
    return out


def rows_are_contiguous(tensor: Tensor) -> bool:
    """Whether each row of a CPU tensor is one run of bytes; the rows may be apart, or overlap."""
    return not tensor.is_conj() and not tensor.is_neg() and bool(tensor[:1].is_contiguous())


def byte_view(tensor: Tensor) -> Array:
    """The memory from the first to the last row of a CPU tensor as a 1-D uint8 array that keeps it alive.

    Works for every dtype (NumPy has no bfloat16), for column slices and for misaligned memory. The rows
    must be contiguous, see :func:`rows_are_contiguous`.
    """
    size = tensor.element_size()
    num_rows, width = tensor.shape[0], math.prod(tensor.shape[1:]) * size
    span = (num_rows - 1) * tensor.stride(0) * size + width if num_rows and width else 0
    flat = torch.empty(0, dtype=torch.uint8)
    flat.set_(tensor.untyped_storage(), tensor.storage_offset() * size, (span,), (1,))
    array: np.ndarray[Any, np.dtype[np.uint8]] = flat.numpy()
    return array
