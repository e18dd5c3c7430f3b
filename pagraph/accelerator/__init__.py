"""Accelerators: streams, events, page-locked memory and kernels behind one thin layer, for CUDA and for tests."""

from .accelerator import Accelerator, Event, OutOfMemory, Stream
from .choose import accelerator_for
from .cuda import CudaAccelerator
from .handover import Handover
from .host import HostAccelerator
from .pinning import Pin
from .room import with_room
from .staging import StagingRing

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
