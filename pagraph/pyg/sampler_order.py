"""SamplerOrder: the batches of torch's own samplers, in the order in which torch's loader would draw them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DistributedSampler

from ..sampling.keys import batch_key, epoch_key, random_key
from ..sampling.seeds import EpochPlan, Ticket, check_permutation
from .torch_samplers import is_permutation, is_sequence, places_of, ranks_of

__all__ = ["SamplerOrder"]


@dataclass(frozen=True, eq=False)
class _Listed(EpochPlan):
    """An epoch whose batches were drawn when it began: from one end to the next among the places."""

    places: Tensor | None = None  # None: all items, as they are
    ends: Tensor | None = None


class SamplerOrder:
    """What ``pagraph.sampling.seeds.SeedOrder`` is to seeds, for the batches of a torch batch sampler.

    Everything is drawn when an epoch begins, in the reader's thread, in the order in which torch's loader draws it:
    first the number that seeds the workers, which here is the key of the sampling, then the sampler's own. So a script
    that calls ``torch.manual_seed`` sees the batches that torch's loader would give.

    A saved state holds the batches of the epoch, which only torch's own ``DistributedSampler`` can draw once more: of
    it the epoch is saved, so that what one process saved gives each process its own batches.

    Args:
        batches: Gives lists of places; has a length, which an epoch need not keep to.
        num_items: How many places there are.
        seed: Of the sampling. Default: torch's generator.
        generator: Of the sampling's seed. Default: the global one.
    """

    has_length = True

    def __init__(self, batches: Any, num_items: int, *, seed: int | None, generator: torch.Generator | None) -> None:
        self._batches, self._num_items, self._generator = batches, num_items, generator
        self._is_cut = type(batches) is BatchSampler  # by torch, from what a sampler gives
        self._sampler: Any = getattr(batches, "sampler", None)
        self._in_order = self._is_cut and is_sequence(self._sampler)
        self._distributed = self._is_cut and type(self._sampler) is DistributedSampler
        self._ranks = ranks_of(self._sampler)
        self._listed: tuple[Tensor, Tensor] | None = None  # places and ends of the newest epoch
        self.seed = seed
        self.shuffle = not is_sequence(self._sampler)
        self.batch_size: int | None = getattr(batches, "batch_size", None)

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def takes_all(self) -> bool:
        """Whether torch cuts the batches of an epoch, of all processes, from all items, each there once."""
        if self._distributed:
            return len(self._sampler.dataset) == self._num_items
        all_once = self._in_order or (self._is_cut and is_permutation(self._sampler))
        return all_once and len(self._sampler) == self._num_items

    @property
    def identity(self) -> dict[str, Any]:
        """See ``SeedOrder``; a user's batch sampler alone knows its items."""
        return {
            "seed": self.seed,
            "shuffle": self.shuffle,
            "num_seeds": len(self._sampler) if self._is_cut else None,
            "batch_size": self.batch_size,
            "world_size": self._ranks.size,
            "shuffle_seed": None,
        }

    @property
    def permutation(self) -> Tensor | None:
        """What is to be saved of the newest epoch, int64; None before the first, and where there is nothing to save."""
        if self._listed is None:
            return None
        if self._distributed:
            return torch.tensor([self._sampler.epoch])
        places, ends = self._listed
        return places.clone() if self._is_cut else torch.cat([torch.tensor([len(ends)]), ends, places])

    def plan(self, epoch: int) -> EpochPlan:
        """Decide epoch number ``epoch``: this draws from torch's generator, and runs the sampler."""
        batches = None if self._is_cut else iter(self._batches)  # torch calls this first, too
        drawn = random_key(self._generator)
        if batches is not None:
            self._listed = _joined([places_of(batch, self._num_items) for batch in batches])
        elif not self._in_order:
            self._listed = self._cut(self._drawn_places())
        return self.replan(epoch, drawn)

    def replan(self, epoch: int, key: int | None = None) -> EpochPlan:
        """The plan of ``epoch`` from its ``key``, with the batches of the newest epoch: draws nothing.

        Raises:
            ValueError: There is neither a key nor a seed.
        """
        key = epoch_key(self.seed, epoch, key)
        if self._listed is None:
            return _Listed(epoch, key, None)
        places, ends = self._listed
        return _Listed(epoch, key, None, len(ends), places, ends)

    def restore(self, permutation: Tensor | None, *, begun: bool) -> None:
        """Take up what was saved.

        Raises:
            ValueError: It cannot be that of such an epoch, or is there (or not there) against the rule.
        """
        if self._in_order:
            if permutation is not None:
                raise ValueError("the saved permutation must be None without shuffle")
        elif permutation is None:
            if begun:
                raise ValueError("the saved permutation must be there once an epoch has begun, got None")
            self._listed = None
        else:
            self._listed = self._restored(permutation)

    def _restored(self, saved: Tensor) -> tuple[Tensor, Tensor]:
        if is_permutation(self._sampler) and self._is_cut:
            check_permutation(saved, len(self._sampler))
        elif not isinstance(saved, Tensor) or saved.dtype != torch.int64 or saved.dim() != 1 or not len(saved):
            got = tuple(saved.shape) if isinstance(saved, Tensor) else type(saved).__name__
            raise ValueError(f"the saved permutation must be a 1-D int64 tensor, got {got}")
        if self._distributed:
            self._sampler.set_epoch(int(saved[0]))
            return self._cut(places_of(list(self._sampler), self._num_items))
        count = 0 if self._is_cut else int(saved[0])
        places, ends = (saved, None) if self._is_cut else (saved[1 + count :], saved[1 : 1 + count])
        if len(places) and not 0 <= int(places.min()) <= int(places.max()) < self._num_items:
            raise ValueError(f"the saved permutation must hold places in [0, {self._num_items}), it does not")
        if ends is None:
            return self._cut(places.clone())
        if count < 0 or len(ends) < count or (torch.diff(ends, prepend=torch.tensor([0])) < 0).any():
            raise ValueError("the saved permutation must begin with where batches end, it does not")
        if len(places) != (int(ends[-1]) if count else 0):
            raise ValueError("the saved permutation must have one entry for each item of its batches, it does not")
        return places.clone(), ends.clone()

    def _drawn_places(self) -> Tensor:
        if not is_permutation(self._sampler) or self._sampler.generator is not None:
            return places_of(list(self._sampler), self._num_items)
        # What torch's sampler does, without a Python integer for each item (0.04 s for 100,000).
        generator = torch.Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
        return places_of(torch.randperm(len(self._sampler), generator=generator), self._num_items)

    def _cut(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Cut places into batches as torch's ``BatchSampler`` does."""
        size, count = self._batches.batch_size, len(places)
        whole, rest = divmod(count, size)
        number = whole if self._batches.drop_last or rest == 0 else whole + 1
        return places, (torch.arange(1, number + 1) * size).clamp(max=count)

    def ticket(self, plan: EpochPlan, index: int) -> Ticket:
        """Batch ``index`` of a planned epoch."""
        key = batch_key(plan.key, index, self._ranks)
        if isinstance(plan, _Listed) and plan.places is not None and plan.ends is not None:
            begin, end = 0 if index == 0 else int(plan.ends[index - 1]), int(plan.ends[index])
            # A copy: as ``input_id`` it is the user's to write to, and the epoch's places may be saved yet.
            return Ticket(plan.epoch, index, key, plan.places[begin:end].clone())
        begin = index * self._batches.batch_size
        return Ticket(
            plan.epoch, index, key, torch.arange(begin, min(begin + self._batches.batch_size, len(self._sampler)))
        )


def _joined(batches: list[Tensor]) -> tuple[Tensor, Tensor]:
    """All places, and where each batch ends."""
    ends = torch.tensor([len(batch) for batch in batches], dtype=torch.int64).cumsum(0)
    return torch.cat(batches) if batches else torch.empty(0, dtype=torch.int64), ends
