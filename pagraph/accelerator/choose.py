"""Which accelerator serves a device."""

from __future__ import annotations

import threading

import torch

from .accelerator import Accelerator
from .cuda import CudaAccelerator

__all__ = ["accelerator_for"]

_lock = threading.Lock()
_known: dict[torch.device, CudaAccelerator] = {}


def accelerator_for(device: torch.device) -> Accelerator | None:
    """The accelerator of a device, one object for each CUDA device; None for the CPU and for other kinds.

    Args:
        device: As ``resolve_device`` gives it: a CUDA device has an index.
    """
    if device.type != "cuda":
        return None
    with _lock:
        return _known.setdefault(device, CudaAccelerator(device))
