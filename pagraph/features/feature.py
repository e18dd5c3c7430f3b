"""The Feature interface, rows in host memory and on a device, and tensors as bytes or words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from ..graph.row_form import Decoding
from ..graph.stored_rows import StoredRows, check_dense
from ..system.buffers import BufferPool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .padding import Padding

Array = Any  # a NumPy array; its element type is a matter of the kernels
_BYTES: Array = np.empty(0, dtype=np.uint8)
_NO_IDS: Array = np.empty(0, dtype=np.int64)


class Feature(Protocol):
    """Rows that can be read by id from any thread; copying releases the GIL.

    Attributes:
        num_rows: Number of rows; ids are below it.
        row_shape: Shape of one row.
        dtype: Element type.
        row_bytes: Bytes of one row.
        device: Where :meth:`read` delivers.
        tier: Where the rows come from: "host", "disk" or "device".
        decoding: How the rows become values; None if they are values.
    """

    num_rows: int
    row_shape: tuple[int, ...]
    dtype: torch.dtype
    row_bytes: int
    device: torch.device
    tier: str
    decoding: Decoding | None

    def read(self, ids: Tensor, out: Tensor | BufferPool | None = None) -> Tensor:
        """The rows of ``ids``, shape ``(len(ids), *row_shape)``.

        Args:
            ids: 1-D int32 or int64 tensor.
            out: A contiguous tensor of that shape, ``dtype`` and ``device`` to write to and return,
                or a pool for memory on the CPU.

        Raises:
            IndexError: An id is outside ``[0, num_rows)``.
        """


def id_array(ids: Tensor) -> Array:
    """Ids as a contiguous NumPy array, without a copy if possible.

    Raises TypeError or ValueError unless they are a 1-D int32 or int64 tensor.
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
    raise IndexError(
        f"ids must be in [0, {num_rows}), got {int(index[position])} at position {position}"
    )


def check_ids(index: Array, num_rows: int) -> None:
    """Raise IndexError unless every id is in ``[0, num_rows)``."""
    from . import _gather

    bad = _gather.first_bad(index, num_rows)
    if bad >= 0:
        raise_bad_id(index, bad, num_rows)


def output_for(feature: Feature, count: int, out: Tensor | BufferPool | None) -> Tensor:
    """A tensor for ``count`` rows of a feature.

    It is ``out``, if that is a tensor that fits (else ValueError). Else it is new, on the CPU from
    the pool if there is one.
    """
    shape = (count, *feature.row_shape)
    if isinstance(out, BufferPool) and feature.device.type == "cpu":
        return out.take(shape, feature.dtype)
    if out is None or isinstance(out, BufferPool):
        return torch.empty(shape, dtype=feature.dtype, device=feature.device)
    if tuple(out.shape) != shape or out.dtype != feature.dtype:
        raise ValueError(
            f"out must have shape {shape} and dtype {feature.dtype}, got {tuple(out.shape)} and "
            f"{out.dtype}"
        )
    if out.device != feature.device or not out.is_contiguous() or out.requires_grad:
        raise ValueError(
            f"out must be contiguous, on {feature.device} and without gradient, got strides "
            f"{out.stride()} on {out.device} with requires_grad={out.requires_grad}"
        )
    return out


def rows_are_contiguous(tensor: Tensor) -> bool:
    """Whether each row of a tensor is contiguous; rows may have gaps between them, or overlap."""
    return not tensor.is_conj() and not tensor.is_neg() and bool(tensor[:1].is_contiguous())


def byte_tensor(tensor: Tensor) -> Tensor:
    """The memory from the first row to the last as a 1-D uint8 tensor; rows are contiguous."""
    size = tensor.element_size()
    num_rows = tensor.shape[0]
    width = math.prod(tensor.shape[1:]) * size
    span = 0
    if num_rows and width:
        span = (num_rows - 1) * tensor.stride(0) * size + width
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return flat.set_(tensor.untyped_storage(), tensor.storage_offset() * size, (span,), (1,))


def byte_view(tensor: Tensor) -> Array:
    """:func:`byte_tensor` of a CPU tensor as a NumPy array, which keeps the memory alive."""
    return byte_tensor(tensor).numpy()


_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


def word_bytes(row_bytes: int, *tensors: Tensor) -> int:
    """The widest word, 8, 4, 2 or 1 bytes, that divides rows and the tensors' first addresses.

    >>> word_bytes(400), word_bytes(12), word_bytes(7)
    (8, 4, 1)
    >>> word_bytes(8, torch.zeros(4, dtype=torch.int16)[1:])
    2
    """
    begins = [tensor.data_ptr() for tensor in tensors]
    # as_words counts words from the begin of the storage, which may not be aligned itself.
    offsets = [int(tensor.storage_offset()) * tensor.element_size() for tensor in tensors]
    return math.gcd(8, row_bytes, *begins, *offsets)


def as_words(tensor: Tensor, word: int) -> Tensor:
    """The memory of a contiguous tensor as words of ``word`` bytes, shape ``(nbytes // word,)``."""
    flat = torch.empty(0, dtype=_WORDS[word], device=tensor.device)
    size = tensor.element_size()
    offset = tensor.storage_offset() * size // word
    return flat.set_(tensor.untyped_storage(), offset, (tensor.numel() * size // word,), (1,))


def word_view(tensor: Tensor, *others: Tensor) -> Tensor:
    """A contiguous tensor as rows of words, since torch cannot index every dtype.

    Words are the widest that divide its rows and that the ``others`` allow too.

    >>> word_view(torch.zeros(3, 2, 2, dtype=torch.bfloat16)).shape
    torch.Size([3, 1])
    """
    row_bytes = math.prod(tensor.shape[1:]) * tensor.element_size()
    word = word_bytes(row_bytes, tensor, *others)
    return as_words(tensor, word).view(tensor.shape[0], row_bytes // word)


class HostFeature:
    """Rows of a CPU tensor, read in place: nothing is copied up front, and later writes are seen.

    Args:
        tensor: Shape ``(num_rows, ...)``, any dtype and strides, or rows by reference. Rows in
            fewer bytes are read as they are stored; a ``WideFeature`` reads their values. Gradients
            are not propagated.

    Attributes:
        source_rows: Number of rows of the tensor that is read.
        table: The tensor's row for each row of the feature, int32 or int64; None for the same row.
        stride_bytes: Bytes from one row of the tensor to the next.
        rows: The tensor's rows as bytes, row ``i`` at ``i * stride_bytes``; None if rows are not
            contiguous.

    Raises:
        TypeError: ``tensor`` is not a dense CPU tensor.
        ValueError: ``tensor`` has no dimension.

    Example:
        >>> HostFeature(torch.arange(6).view(3, 2)).read(torch.tensor([2, 0])).tolist()
        [[4, 5], [0, 1]]
    """

    tier = "host"
    announces = False

    def __init__(self, tensor: Tensor | StoredRows) -> None:
        self.table: Array | None = None
        self.decoding: Decoding | None = None
        if isinstance(tensor, StoredRows):
            self.decoding = tensor.decoding
            if tensor.ids is not None:
                self.table = id_array(tensor.ids)
            tensor = tensor.tensor
        check_dense("tensor", tensor)
        if tensor.dim() == 0:
            raise ValueError("tensor must have at least 1 dimension, got a scalar")
        self._tensor = tensor.detach()
        self.source_rows: int = int(tensor.shape[0])
        self.num_rows: int = self.source_rows if self.table is None else len(self.table)
        self.row_shape: tuple[int, ...] = tuple(tensor.shape[1:])
        self.dtype: torch.dtype = tensor.dtype
        self.row_bytes: int = math.prod(self.row_shape) * self.dtype.itemsize
        self.device: torch.device = torch.device("cpu")
        self.stride_bytes: int = tensor.stride(0) * tensor.element_size()
        self.rows: Array | None = byte_view(tensor) if rows_are_contiguous(tensor) else None
        self.address = 0 if self.rows is None else self.rows.ctypes.data

    @property
    def is_plain(self) -> bool:
        """Whether these are contiguous rows in memory, not by reference; see :func:`read_each`."""
        return (
            type(self) is HostFeature
            and self.table is None
            and self.rows is not None
            and self.row_bytes > 0
        )

    def announce(self, ids: Array, slots: Array | None = None, num_cached: int = 0) -> None:
        """Prefetch ``ids`` that a cache does not hold before they are read; no-op for memory."""

    def read(self, ids: Tensor, out: Tensor | BufferPool | None = None) -> Tensor:
        """The rows of ``ids``; see :class:`~pagraph.features.feature.Feature`."""
        from . import _gather

        index = id_array(ids)
        if isinstance(out, BufferPool):
            out = out.take((len(index), *self.row_shape), self.dtype)
        else:
            out = output_for(self, len(index), out)
        if self.rows is None or self.row_bytes == 0:
            # The kernel copies contiguous rows only. Others, as of a transposed matrix, torch does.
            # Ids of rows without bytes must be checked, too.
            check_ids(index, self.num_rows)
            if out.numel():
                where = index if self.table is None else self.table[index]
                out.copy_(self._tensor.index_select(0, torch.from_numpy(where)))
            return out
        if self.announces:
            self.announce(index)
        bad = _gather.gather(
            self.rows,
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
        """Raise the error for the id at ``position``, which a kernel has refused."""
        row = int(index[position])
        # The user has overwritten the ids of rows by reference after they were checked.
        if self.table is not None and 0 <= row < self.num_rows:
            raise IndexError(
                f"ids of rows must be in [0, {self.source_rows}), got {self.table[row]} for row "
                f"{row}"
            )
        raise_bad_id(index, position, self.num_rows)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(num_rows={self.num_rows}, row_shape={self.row_shape}, "
            f"dtype={self.dtype})"
        )


def read_each(
    reads: Sequence[tuple[HostFeature, Tensor, BufferPool | None, Padding | None]],
) -> list[Tensor]:
    """Read several features, each with its ids, pool and padding, in one call of a kernel.

    All features must be ``is_plain``, and all ids of one dtype.
    """
    from . import _gather

    read = []
    fields = []
    ids = None
    index = _NO_IDS
    held = []
    for feature, own_ids, pool, padding in reads:
        # Most fields have the same ids as the one before.
        if own_ids is not ids:
            ids = own_ids
            index = id_array(ids)
            address = index.ctypes.data
        shape = (len(index) if padding is None else sum(padding.room), *feature.row_shape)
        dtype = feature.dtype
        out = (
            torch.empty(shape, dtype=dtype, device="cpu")
            if pool is None
            else pool.take(shape, dtype)
        )
        read.append(out)
        # The layout is that of _gather.gather_each.
        source = feature.address, feature.stride_bytes, feature.row_bytes, feature.source_rows
        begin = out.data_ptr()
        if padding is None:
            held.append((feature, index))
            fields.append((*source, begin, address, len(index)))
            continue
        for part in padding.parts():
            part_ids = index[part.sampled]
            held.append((feature, part_ids))
            where = begin + part.placed.start * feature.row_bytes
            ids_at = address + part.sampled.start * index.itemsize
            fields.append((*source, where, ids_at, len(part_ids)))
        padding.fill(out)
    field, bad = _gather.gather_each(np.array(fields, dtype=np.int64), _BYTES, index[:0])
    if bad >= 0:
        feature, index = held[field]
        feature.raise_bad(index, bad)
    return read


class DeviceFeature:
    """Rows of a tensor on a device; a loader that delivers there reads them without the CPU.

    Args:
        tensor: Shape ``(num_rows, ...)``. Gradients are not propagated.
        device: Where rows are delivered. Default: where the tensor is.
    """

    tier = "device"
    decoding: Decoding | None = None

    def __init__(self, tensor: Tensor, device: torch.device | None = None) -> None:
        if tensor.dim() == 0:
            raise ValueError("tensor must have at least 1 dimension, got a scalar")
        self.tensor: Tensor = tensor.detach()
        self.num_rows: int = int(tensor.shape[0])
        self.row_shape: tuple[int, ...] = tuple(tensor.shape[1:])
        self.dtype: torch.dtype = tensor.dtype
        self.row_bytes: int = math.prod(self.row_shape) * self.dtype.itemsize
        self.device: torch.device = device if device is not None else tensor.device

    def read(self, ids: Tensor, out: Tensor | BufferPool | None = None) -> Tensor:
        """The rows of ``ids``; see :class:`~pagraph.features.feature.Feature`."""
        index = id_array(ids)
        check_ids(index, self.num_rows)  # on a GPU a bad id would break the CUDA context
        picked = self.tensor.index_select(0, ids.to(self.tensor.device, non_blocking=True))
        # A copy to the CPU must be complete, because the caller may read it at once.
        non_blocking = self.device.type != "cpu"
        if not isinstance(out, Tensor):
            return picked.to(self.device, non_blocking=non_blocking)
        return output_for(self, len(index), out).copy_(picked, non_blocking=non_blocking)


PlainFeature = HostFeature | DeviceFeature
"""Rows of a field, read where they are."""
