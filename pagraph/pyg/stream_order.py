"""StreamOrder: the batches of samplers that do not know how many they have."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..sampling.keys import batch_key, epoch_key, random_key
from ..sampling.seeds import EpochPlan, Ticket
from .torch_samplers import places_of, ranks_of

__all__ = ["StreamOrder"]


@dataclass(frozen=True, eq=False)
class _Streamed(EpochPlan):
    """An epoch whose batches are drawn when they are wanted."""

    batches: Iterator[Any] = iter(())


class StreamOrder:
    """As ``SamplerOrder`` for samplers that do not know how many batches they have; perhaps they never end.

    Batches are drawn one by one, ahead as the pipeline asks for them; there is no place to go on from.
    """

    shuffle = True
    permutation = None
    has_length = False

    def __init__(self, batches: Any, num_items: int, *, seed: int | None, generator: torch.Generator | None) -> None:
        self._batches, self._num_items, self._generator = batches, num_items, generator
        self._ranks = ranks_of(getattr(batches, "sampler", None))
        self.seed = seed
        self.batch_size: int | None = getattr(batches, "batch_size", None)

    def __len__(self) -> int:
        return len(self._batches)  # torch's own TypeError

    @property
    def identity(self) -> dict[str, Any]:
        """See ``SeedOrder``."""
        raise TypeError("a loader whose sampler has no length has no place to save")

    def plan(self, epoch: int) -> EpochPlan:
        """Begin epoch number ``epoch``: this draws from torch's generator."""
        batches = iter(self._batches)
        drawn = random_key(self._generator)
        return _Streamed(epoch, epoch_key(self.seed, epoch, drawn), None, sys.maxsize, batches)

    def replan(self, epoch: int, key: int | None = None) -> EpochPlan:
        """Refused: what a sampler has given it does not give again."""
        raise TypeError("a loader whose sampler has no length has no place to go on from")

    def restore(self, permutation: Tensor | None, *, begun: bool) -> None:
        """Refused, as ``replan``."""
        self.replan(0)

    def ticket(self, plan: EpochPlan, index: int) -> Ticket | None:
        """The next batch; None at the end."""
        assert isinstance(plan, _Streamed)
        for batch in plan.batches:
            key = batch_key(plan.key, index, self._ranks)
            return Ticket(plan.epoch, index, key, places_of(batch, self._num_items))
        return None
