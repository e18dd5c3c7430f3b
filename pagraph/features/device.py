"""Features that deliver on an accelerator: rows that live there, and host rows that are copied there."""

from __future__ import annotations

import torch
from torch import Tensor

from .feature import Feature, check_ids, id_array, output_for, row_bytes

__all__ = ["DeviceFeature", "UploadedFeature", "staging", "word_view"]

_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


def word_view(tensor: Tensor) -> Tensor:
    """A contiguous tensor as rows of the widest integers that fit: indexing then works for every dtype.

    >>> word_view(torch.zeros(3, 2, 2, dtype=torch.bfloat16)).shape
    torch.Size([3, 1])
    """
    size = row_bytes(tuple(tensor.shape[1:]), tensor.dtype)
    aligned = tensor.storage_offset() * tensor.element_size()
    word = next(w for w in _WORDS if size % w == 0 and aligned % w == 0)
    flat = torch.empty(0, dtype=_WORDS[word], device=tensor.device)
    return flat.set_(tensor.untyped_storage(), aligned // word, (tensor.shape[0], size // word), (size // word, 1))


def staging(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """CPU memory to copy to ``device`` from: pinned for CUDA, whose allocator recycles it after the copy."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


class DeviceFeature:
    """Rows of a tensor that is on an accelerator already.

    Not yet measured on a GPU.

    Args:
        tensor: Shape ``(num_rows, ...)``. Gradients are not followed.
        device: Where rows are delivered. Default: where the tensor is.

    Attributes:
        tensor: As given, detached.
    """

    tier = "device"

    def __init__(self, tensor: Tensor, device: torch.device | None = None) -> None:
        if tensor.dim() == 0:
            raise ValueError("tensor must have at least 1 dimension, got a scalar")
        self.tensor = tensor.detach()
        self.num_rows = int(tensor.shape[0])
        self.row_shape = tuple(tensor.shape[1:])
        self.dtype = tensor.dtype
        self.row_bytes = row_bytes(self.row_shape, self.dtype)
        self.device = device if device is not None else tensor.device

    def read(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """The rows of ``ids``; see :class:`~pagraph.features.feature.Feature`."""
        index = id_array(ids)
        check_ids(index, self.num_rows)  # on a GPU a bad id would end the process
        picked = self.tensor.index_select(0, ids.to(self.tensor.device, non_blocking=True))
        if out is None:
            return picked.to(self.device, non_blocking=self.device.type != "cpu")
        return output_for(self, len(index), out).copy_(picked, non_blocking=self.device.type != "cpu")


class UploadedFeature:
    """Host rows delivered on an accelerator: gathered into pinned memory, then copied on the current stream.

    Not yet measured on a GPU.

    Args:
        source: A feature that delivers on the CPU.
        device: Where rows are delivered.
    """

    def __init__(self, source: Feature, device: torch.device) -> None:
        self._source = source
        self.device = device
        self.num_rows = source.num_rows
        self.row_shape = source.row_shape
        self.dtype = source.dtype
        self.row_bytes = source.row_bytes
        self.tier = source.tier

    def read(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """The rows of ``ids``; see :class:`~pagraph.features.feature.Feature`."""
        staged = staging((len(ids), *self.row_shape), self.dtype, self.device)
        self._source.read(ids, staged)
        if out is None:
            return staged.to(self.device, non_blocking=True)
        return output_for(self, len(ids), out).copy_(staged, non_blocking=True)
