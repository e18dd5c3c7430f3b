"""The order of a torch loader's batches: ours where torch's samplers and a seed allow it, else as its sampler draws."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader

from ..sampling.keys import check_seed
from ..sampling.seeds import BatchOrder, SeedOrder
from .sampler_order import SamplerOrder
from .stream_order import StreamOrder
from .torch_samplers import has_length, is_permutation, is_sequence

__all__ = ["order_of", "takes_all"]


def order_of(loader: DataLoader[Any], seed: int | None) -> SeedOrder | SamplerOrder | StreamOrder:
    """The order of a torch loader's batches; its items are places in the input.

    With a ``seed`` and torch's own samplers it is a function of (seed, epoch).

    Raises:
        TypeError, ValueError: ``seed`` is not an integer of 64 bits, or batches are not to be made.
    """
    seed, batches = check_seed("seed", seed), loader.batch_sampler
    if batches is None:
        raise ValueError("batch_size must be at least 1, got None")
    sampler = getattr(batches, "sampler", None)
    if seed is not None and type(batches) is BatchSampler and (is_sequence(sampler) or is_permutation(sampler)):
        return SeedOrder(
            torch.arange(len(sampler)),  # type: ignore[arg-type]
            batches.batch_size,
            shuffle=is_permutation(sampler),
            drop_last=batches.drop_last,
            seed=seed,
        )
    num_items = len(loader.dataset)  # type: ignore[arg-type]
    kind = SamplerOrder if has_length(batches) else StreamOrder
    return kind(batches, num_items, seed=seed, generator=loader.generator)


def takes_all(order: BatchOrder, num_items: int) -> bool:
    """Whether torch cuts the batches of an epoch, of all processes, from all items, each there once."""
    if isinstance(order, SeedOrder):
        return order.num_seeds == num_items
    return isinstance(order, SamplerOrder) and order.takes_all
