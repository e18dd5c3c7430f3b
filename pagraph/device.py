"""Devices as arguments: resolved and checked once."""

from __future__ import annotations

from typing import Any

import torch

from .accelerator import Accelerator, accelerator_for

__all__ = ["resolve_accelerator", "resolve_device", "samples_on_device"]


def resolve_device(device: Any, *, name: str = "device") -> torch.device:
    """``device`` as a ``torch.device`` that is there; "cuda" means the current CUDA device.

    Raises:
        ValueError: A CUDA device that this machine does not have.
    """
    resolved = torch.device(device)
    if resolved.type != "cuda":
        return resolved
    if not torch.cuda.is_available():
        raise ValueError(
            f"{name}={str(device)!r} needs a CUDA device, this machine has none that torch {torch.__version__} can use"
        )
    index = torch.cuda.current_device() if resolved.index is None else resolved.index
    if index >= torch.cuda.device_count():
        raise ValueError(f"{name} must be one of {torch.cuda.device_count()} CUDA devices, got {str(device)!r}")
    return torch.device("cuda", index)


def resolve_accelerator(device: Any, *, name: str = "device") -> tuple[torch.device, Accelerator | None]:
    """A device as :func:`resolve_device` gives it, with its accelerator; an accelerator stands for its own device.

    Raises:
        ValueError: A CUDA device that this machine does not have, or another kind of device.
    """
    if isinstance(device, Accelerator):
        return device.device, device
    resolved = resolve_device(device, name=name)
    accelerator = accelerator_for(resolved)
    if accelerator is None and resolved.type != "cpu":
        raise ValueError(f"{name} must be 'cpu' or a CUDA device, got {str(device)!r}")
    return resolved, accelerator


def samples_on_device(sampling_device: Any, device: torch.device, accelerator: Accelerator | None) -> bool:
    """Whether batches are sampled on the device that they are delivered on, not on the CPU.

    Raises:
        ValueError: The sampling device is neither.
    """
    where, sampler = resolve_accelerator(sampling_device, name="sampling_device")
    if sampler is None and where.type == "cpu":
        return False
    if sampler is None or sampler is not accelerator:
        raise ValueError(f"sampling_device must be 'cpu' or the batches' device {str(device)!r}, got {str(where)!r}")
    return True
