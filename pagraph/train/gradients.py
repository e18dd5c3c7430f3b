"""Gradients averaged over processes, whole or compressed: torch's DistributedDataParallel and its hooks."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from .distributed import World

__all__ = ["data_parallel"]

POWERSGD_RANK = 4
POWERSGD_START = 10
"""Steps with whole gradients before PowerSGD begins: it needs a start that is not noise, and buckets that stay."""


def data_parallel(model: nn.Module, world: World, *, compression: str = "none") -> nn.Module:
    """The model with gradients averaged over all processes in ``backward``; one alone gets it back as it is.

    Args:
        model: On its device; every process gets the first one's weights.
        world: The processes.
        compression: ``"fp16"`` sends half the bytes; ``"powersgd"`` (Vogels et al., 2019) sends rank-4 factors of each
            weight matrix after the first 10 steps, and keeps what they miss for the next step; small tensors go whole.
    """
    if not world.connected:
        return model
    device = next(model.parameters()).device
    parallel = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    if compression == "fp16":
        parallel.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif compression == "powersgd":
        state: Any = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=POWERSGD_RANK, start_powerSGD_iter=POWERSGD_START
        )
        parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return parallel
