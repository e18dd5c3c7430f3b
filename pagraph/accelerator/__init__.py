"""Accelerators: streams, events, pinned memory and kernels, for CUDA and for tests on the CPU."""

from .accelerator import (
    Accelerator,
    Event,
    Handover,
    HostAccelerator,
    OutOfMemory,
    StagingRing,
    Stream,
    with_room,
)
from .cuda import CudaAccelerator, accelerator_for
from .pinning import Pin

__all__ = [
    "Accelerator",
    "CudaAccelerator",
    "Event",
    "Handover",
    "HostAccelerator",
    "OutOfMemory",
    "Pin",
    "StagingRing",
    "Stream",
    "accelerator_for",
    "with_room",
]

__dir__ = __all__.copy
