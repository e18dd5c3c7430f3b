"""Devices as arguments: resolved and checked once."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["resolve_device"]


def resolve_device(device: Any) -> torch.device:
    """``device`` as a ``torch.device`` that is there; "cuda" means the current CUDA device.

    Raises:
        ValueError: A CUDA device that this machine does not have.
    """
    resolved = torch.device(device)
    if resolved.type != "cuda":
        return resolved
    if not torch.cuda.is_available():
        raise ValueError(
            f"device={str(device)!r} needs a CUDA device, this machine has none that torch {torch.__version__} can use"
        )
    index = torch.cuda.current_device() if resolved.index is None else resolved.index
    if index >= torch.cuda.device_count():
        raise ValueError(f"device must be one of {torch.cuda.device_count()} CUDA devices, got {str(device)!r}")
    return torch.device("cuda", index)
