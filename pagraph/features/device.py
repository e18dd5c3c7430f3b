"""DeviceFeature: rows of a tensor that is on a device already."""

from __future__ import annotations

import torch
from torch import Tensor

from ..buffers import BufferPool
from .feature import check_ids, id_array, output_for, row_bytes

__all__ = ["DeviceFeature"]


class DeviceFeature:
    """Rows of a tensor that is on a device already. A loader that delivers there reads them without the CPU.

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

    def read(self, ids: Tensor, out: Tensor | BufferPool | None = None) -> Tensor:
        """The rows of ``ids``; see :class:`~pagraph.features.feature.Feature`."""
        index = id_array(ids)
        check_ids(index, self.num_rows)  # on a GPU a bad id would end the process
        picked = self.tensor.index_select(0, ids.to(self.tensor.device, non_blocking=True))
        if not isinstance(out, Tensor):
            return picked.to(self.device, non_blocking=self.device.type != "cpu")
        return output_for(self, len(index), out).copy_(picked, non_blocking=self.device.type != "cpu")
