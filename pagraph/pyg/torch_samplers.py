"""What must be known of torch's samplers: whether they are torch's own, whose items they share, what they give."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler

from ..sampling.ranks import Ranks

__all__ = ["has_length", "is_permutation", "is_sequence", "places_of", "ranks_of", "tell_epoch"]


def is_sequence(sampler: Any) -> bool:
    """Whether it is torch's own that gives all items as they are."""
    return type(sampler) is SequentialSampler


def is_permutation(sampler: Any) -> bool:
    """Whether it is torch's own, and gives each of its items once."""
    return (
        type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    )


def has_length(batches: Any) -> bool:
    """Whether a sampler says how many batches it has."""
    try:
        len(batches)
    except (TypeError, NotImplementedError):
        return False
    return True


def ranks_of(sampler: Any) -> Ranks:
    """The processes that share a sampler's items: their sampling differs."""
    if isinstance(sampler, DistributedSampler):
        return Ranks(sampler.rank, sampler.num_replicas)
    return Ranks(0, 1)


def places_of(items: Any, count: int) -> Tensor:
    """What a sampler gave, as torch's loader would look it up in ``range(count)``.

    Raises:
        IndexError: An item is not in it.
    """
    places = torch.as_tensor(items, dtype=torch.int64).reshape(-1)
    if len(places) == 0:
        return places
    low, high = int(places.min()), int(places.max())
    if low < -count or high >= count:
        raise IndexError(f"a sampler's items must be in [0, {count}), got {low if low < -count else high}")
    return places if low >= 0 else places.remainder(count)


def tell_epoch(batches: Any, epoch: int) -> None:
    """Tell torch samplers which epoch comes, those that want to know (``DistributedSampler``)."""
    for sampler in (batches, getattr(batches, "sampler", None)):
        told = getattr(sampler, "set_epoch", None)
        if callable(told):
            told(epoch)
