"""Accelerators: streams, events, page-locked memory and kernels behind one thin layer, for CUDA and
for tests."""

from .accelerator import Accelerator, Event, Handover, OutOfMemory, StagingRing, Stream, with_room
from .cuda import CudaAccelerator, accelerator_for
from .host import HostAccelerator
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
