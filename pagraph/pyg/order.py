"""SamplerOrder: the batches of torch's own samplers, in the order in which torch's loader would draw them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from ..sampling.keys import batch_key, check_seed, epoch_key
from ..sampling.ranks import Ranks
from ..sampling.seeds import EpochPlan, SeedOrder, Ticket, check_permutation

__all__ = ["SamplerOrder", "order_of"]

_ALONE = Ranks(0, 1)


def order_of(loader: DataLoader[Any], seed: int | None) -> SeedOrder | SamplerOrder:
    """The order of a torch loader's batches; its items are places in the input.

    With a ``seed`` and torch's own samplers it is a function of (seed, epoch).

    Raises:
        TypeError, ValueError: ``seed`` is not an integer of 64 bits, or batches are not to be made.
        TypeError: The loader's own sampler has no length.
    """
    seed, batches = check_seed("seed", seed), _batches_of(loader)
    if seed is not None and _is_plain(batches):
        count, shuffle = len(loader.dataset), isinstance(batches.sampler, RandomSampler)  # type: ignore[arg-type]
        return SeedOrder(
            torch.arange(count), batches.batch_size, shuffle=shuffle, drop_last=batches.drop_last, seed=seed
        )
    return SamplerOrder(batches, seed=seed, generator=loader.generator)


def _batches_of(loader: DataLoader[Any]) -> Any:
    if loader.batch_sampler is None:
        raise ValueError("batch_size must be at least 1, got None")
    return loader.batch_sampler


def _is_plain(batches: Any) -> bool:
    """Whether batches are cut by torch's own classes from the items as they are, or from a permutation of them."""
    if type(batches) is not BatchSampler:
        return False
    if type(batches.sampler) is SequentialSampler:
        return True
    random = batches.sampler
    return type(random) is RandomSampler and not random.replacement and random._num_samples is None


@dataclass(frozen=True, eq=False)
class _Listed(EpochPlan):
    """An epoch of a user's own sampler, drawn when it began."""

    batches: list[Tensor]


class SamplerOrder:
    """What ``pagraph.sampling.seeds.SeedOrder`` is to seeds, for the batches of a torch batch sampler.

    Everything is drawn when an epoch begins, in the reader's thread, in the order in which torch's loader draws it:
    first the number that seeds the workers, which here is the key of the sampling, then the sampler's own. So a script
    that calls ``torch.manual_seed`` sees the batches that torch's loader would give.

    Args:
        batches: Gives lists of places; has a length.
        seed: Of the sampling. Default: torch's generator.
        generator: Of torch's samplers. Default: the global one.
    """

    def __init__(self, batches: Any, *, seed: int | None, generator: torch.Generator | None) -> None:
        len(batches)
        self._batches = batches
        self._plain = _is_plain(batches)
        self._generator = generator
        self._permutation: Tensor | None = None  # of the newest epoch
        self.seed = seed
        self.shuffle = not isinstance(getattr(batches, "sampler", None), SequentialSampler)
        self.batch_size: int | None = getattr(batches, "batch_size", None)

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def identity(self) -> dict[str, Any]:
        """See ``SeedOrder``; a user's sampler alone knows its items."""
        return {
            "seed": self.seed,
            "shuffle": self.shuffle,
            "num_seeds": len(self._batches.sampler) if self._plain else None,
            "batch_size": self.batch_size,
            "world_size": 1,
            "shuffle_seed": None,
        }

    @property
    def permutation(self) -> Tensor | None:
        """A copy of the newest epoch's order; None where there is none to remember."""
        return None if self._permutation is None else self._permutation.clone()

    def plan(self, epoch: int) -> EpochPlan:
        """Decide epoch number ``epoch``: this draws from torch's generator."""
        drawn = int(torch.empty((), dtype=torch.int64).random_(generator=self._generator))
        if self._plain and self.shuffle:
            self._permutation = self._shuffled()
        return self.replan(epoch, drawn)

    def replan(self, epoch: int, key: int | None = None) -> EpochPlan:
        """The plan of ``epoch`` from its ``key``; a user's own sampler is run again.

        Raises:
            ValueError: There is neither a key nor a seed.
        """
        key = epoch_key(self.seed, epoch, key)
        if self._plain:
            return EpochPlan(epoch, key, self._permutation)
        return _Listed(epoch, key, None, [torch.as_tensor(batch, dtype=torch.int64) for batch in self._batches])

    def restore(self, permutation: Tensor | None, *, begun: bool) -> None:
        """Take up a saved order.

        Raises:
            ValueError: It is not a permutation of the items, or is there (or not there) against the rule.
        """
        remembers = self._plain and self.shuffle
        if permutation is None:
            if remembers and begun:
                raise ValueError("the saved permutation must be there once an epoch has begun, got None")
        elif not remembers:
            raise ValueError("the saved permutation must be None for a sampler that is not torch's own shuffle")
        else:
            check_permutation(permutation, len(self._batches.sampler))
            permutation = permutation.clone()
        self._permutation = permutation

    def ticket(self, plan: EpochPlan, index: int) -> Ticket:
        """Batch ``index`` of a planned epoch."""
        if isinstance(plan, _Listed):
            places = plan.batches[index]
        else:
            begin = index * self._batches.batch_size
            stop = min(begin + self._batches.batch_size, len(self._batches.sampler))
            places = torch.arange(begin, stop) if plan.permutation is None else plan.permutation[begin:stop]
        return Ticket(plan.epoch, index, batch_key(plan.key, index, _ALONE), places)

    def _shuffled(self) -> Tensor:
        """What torch's ``RandomSampler`` draws."""
        generator = self._generator
        if generator is None:
            generator = torch.Generator()
            generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
        return torch.randperm(len(self._batches.sampler), generator=generator)
