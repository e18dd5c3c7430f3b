"""How much memory a cache may take without getting in the way of training."""

from __future__ import annotations

import torch

from ..accelerator import Accelerator, accelerator_for
from ..host_memory import host_available

__all__ = [
    "HOST_SHARE",
    "accelerator_budget",
    "auto_budget",
    "device_bytes",
    "device_reserve",
    "host_bytes",
]

HOST_SHARE = 0.5
"""The part of the available system memory that "auto" takes on a CPU."""

_GIB = 1 << 30


def auto_budget(device: torch.device, *, reserve: int | None = None) -> int:
    """Bytes that a cache on ``device`` may take now; ask after a full training step.

    Args:
        device: Where the cache will live.
        reserve: Bytes to leave on a CUDA device. Default: :func:`device_reserve`.

    Returns:
        At least 0. Devices whose memory torch cannot tell get 0.
    """
    if device.type == "cpu":
        return host_bytes(host_available())
    accelerator = accelerator_for(device)
    return 0 if accelerator is None else accelerator_budget(accelerator, reserve=reserve)


def accelerator_budget(accelerator: Accelerator, *, reserve: int | None = None) -> int:
    """Bytes that a cache on an accelerator may take now; ask after a full training step.

    What that step needed at its largest stays free, whether it is in use now or not: the model, its gradients and the
    optimiser's state, activations, and the batches that were in flight. ``reserve`` comes on top, for what nobody has
    seen yet: larger batches, batches in flight that were not there during the first step, fragments between tensors.

    Args:
        accelerator: Where the cache will live.
        reserve: Bytes to leave besides. Default: :func:`device_reserve`.

    Returns:
        At least 0.
    """
    free, total = accelerator.free_bytes()
    allocated = peak = 0  # other devices than CUDA's do not tell
    if accelerator.device.type == "cuda":
        allocated = torch.cuda.memory_allocated(accelerator.device)
        peak = torch.cuda.max_memory_allocated(accelerator.device)
    reserve = device_reserve(total) if reserve is None else reserve
    return device_bytes(free=free, allocated=allocated, peak=peak, reserve=reserve)


def device_reserve(total: int) -> int:
    """What stays free on a device of ``total`` bytes: 5 %, at least 1 GiB, but no more than a quarter of it."""
    return max(min(_GIB, total // 4), total // 20)


def device_bytes(*, free: int, allocated: int, peak: int, reserve: int) -> int:
    """What is left on a device after the largest step so far.

    Args:
        free: Bytes that could be allocated now, those included that torch's allocator keeps for reuse.
        allocated: Bytes in use by tensors now.
        peak: The most bytes in use by tensors at any time.
        reserve: Bytes to leave.

    Example:
        >>> device_bytes(free=6000, allocated=1000, peak=2500, reserve=500)
        4000
    """
    return max(0, free - max(0, peak - allocated) - reserve)


def host_bytes(available: int, *, share: float = HOST_SHARE) -> int:
    """The share of ``available`` bytes of system memory that a cache may take; never negative."""
    return max(0, int(available * share))
