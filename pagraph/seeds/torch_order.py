"""Seed orders given by torch samplers, batch samplers and streams."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
)

from ..graph.csc import check_width, no_ids
from .keys import Ranks, batch_key, check_seed, epoch_key, random_key
from .order import (
    BatchOrder,
    DatasetOrder,
    EpochPlan,
    SeedOrder,
    Ticket,
    check_permutation,
    check_saved,
    check_shuffle,
)


def is_sequence(sampler: Any) -> bool:
    """Whether it is torch's ``SequentialSampler``."""
    return type(sampler) is SequentialSampler


def is_permutation(sampler: Any) -> bool:
    """Whether it is torch's ``RandomSampler``, and yields each of its items once."""
    return (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )


def has_length(batches: Any) -> bool:
    """Whether a sampler has a length."""
    try:
        len(batches)
    except (TypeError, NotImplementedError):
        # torch's classes raise either of these.
        return False
    return True


def ranks_of(sampler: Any) -> Ranks:
    """The processes that share a sampler's items."""
    if isinstance(sampler, DistributedSampler):
        return Ranks(sampler.rank, sampler.num_replicas)
    return Ranks(0, 1)


def places_of(items: Any, count: int, *, name: str = "a sampler's items") -> Tensor:
    """A sampler's items as places in ``range(count)``, negative ones counted from the end.

    Raises IndexError, with the ``name``, for an item out of range.
    """
    try:
        places = torch.as_tensor(items, dtype=torch.int64, device="cpu").reshape(-1)
    except (OverflowError, RuntimeError, ValueError):
        check_width(name, items, IndexError)
        raise
    if len(places) == 0:
        return places
    low = int(places.min())
    high = int(places.max())
    if low < -count or high >= count:
        raise IndexError(f"{name} must be in [0, {count}), got {low if low < -count else high}")
    return places if low >= 0 else places.remainder(count)


def tell_epoch(batches: Any, epoch: int) -> None:
    """Call ``set_epoch`` of samplers that have it, such as ``DistributedSampler``."""
    for sampler in (batches, getattr(batches, "sampler", None)):
        told = getattr(sampler, "set_epoch", None)
        if callable(told):
            told(epoch)


@dataclass(frozen=True, eq=False)
class _Listed(EpochPlan):
    """An epoch whose batches were drawn when it began; each is a slice of ``places``."""

    places: Tensor | None = None  # None for all items in order
    ends: Tensor | None = None


class SamplerOrder:
    """The order of a torch batch sampler; see :class:`~pagraph.seeds.order.SeedOrder`.

    Everything is drawn when an epoch begins, in the reader's thread, in the order in which torch's
    loader draws: first the seed of the workers, which is the sampling key here, then the sampler's
    items. So a script that calls ``torch.manual_seed`` gets the same batches as from torch's
    loader.

    A saved state holds the batches of the epoch. Only torch's ``DistributedSampler`` can draw them
    again. For it the epoch number is saved, so that from one process's state each process gets its
    own batches.

    Args:
        batches: Yields lists of places; has a length, from which an epoch's may differ.
        num_items: Number of places.
        seed: Seed of the sampling. Default: torch's generator.
        generator: Draws the sampling key. Default: the global generator.
    """

    has_length = True

    def __init__(
        self, batches: Any, num_items: int, *, seed: int | None, generator: torch.Generator | None
    ) -> None:
        self._batches = batches
        self._num_items = num_items
        self._generator = generator
        self._is_cut = type(batches) is BatchSampler  # torch cuts a sampler's items into batches
        self._sampler: Any = getattr(batches, "sampler", None)
        self._in_order = self._is_cut and is_sequence(self._sampler)
        self._distributed = self._is_cut and type(self._sampler) is DistributedSampler
        self._ranks = ranks_of(self._sampler)
        self._listed: tuple[Tensor, Tensor] | None = None  # places and ends of the newest epoch
        self.seed = seed
        self.shuffle: bool = not is_sequence(self._sampler)
        self.batch_size: int | None = getattr(batches, "batch_size", None)

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def takes_all(self) -> bool:
        """Whether the batches of an epoch, of all processes, hold all items, each once."""
        if self._distributed:
            return len(self._sampler.dataset) == self._num_items
        all_once = self._in_order or (self._is_cut and is_permutation(self._sampler))
        return all_once and len(self._sampler) == self._num_items

    @property
    def identity(self) -> dict[str, Any]:
        """See ``SeedOrder``; the items of a user's batch sampler are unknown."""
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
        """The newest epoch's state to save, int64; None if there is nothing to save."""
        if self._listed is None:
            return None
        if self._distributed:
            return torch.tensor([self._sampler.epoch], device="cpu")
        places, ends = self._listed
        if self._is_cut:
            return places.clone()
        # For a user's batches, one tensor: their number, their ends, and all places.
        return torch.cat([torch.tensor([len(ends)], device="cpu"), ends, places])

    def plan(self, epoch: int) -> EpochPlan:
        """Plan epoch number ``epoch``; this draws from torch's generator and runs the sampler."""
        # torch's order is: the batch sampler's iterator, the seed of the workers, the batches.
        batches = None if self._is_cut else iter(self._batches)
        drawn = random_key(self._generator)
        if batches is not None:
            places = [places_of(batch, self._num_items) for batch in batches]
            lengths = [len(batch) for batch in places]
            ends = torch.tensor(lengths, dtype=torch.int64, device="cpu").cumsum(0)
            self._listed = torch.cat([no_ids(), *places]), ends
        elif not self._in_order:
            self._listed = self._cut(self._drawn_places())
        return self.replan(epoch, drawn)

    def replan(self, epoch: int, key: int | None = None) -> EpochPlan:
        """See :meth:`SeedOrder.replan`; the batches are those of the newest epoch."""
        key = epoch_key(self.seed, epoch, key)
        if self._listed is None:
            return _Listed(epoch, key, None)
        places, ends = self._listed
        return _Listed(epoch, key, None, len(ends), places, ends)

    def restore(self, permutation: Tensor | None, *, begun: bool) -> None:
        """Restore a saved :attr:`permutation`; ValueError if it does not fit the sampler."""
        if self._in_order:
            if permutation is not None:
                raise ValueError("the saved permutation must be None without shuffle")
        elif permutation is None:
            if begun:
                raise ValueError(
                    "the saved permutation must be given once an epoch has begun, got None"
                )
            self._listed = None
        else:
            self._listed = self._restored(permutation)

    def _restored(self, saved: Tensor) -> tuple[Tensor, Tensor]:
        if is_permutation(self._sampler) and self._is_cut:
            check_permutation(saved, len(self._sampler))
        else:
            check_saved(saved, empty=False)
        if self._distributed:
            self._sampler.set_epoch(int(saved[0]))
            return self._cut(places_of(list(self._sampler), self._num_items))
        places = saved
        ends = None
        if not self._is_cut:
            count = int(saved[0])
            ends = saved[1 : 1 + count]
            places = saved[1 + count :]
        if len(places) and not 0 <= int(places.min()) <= int(places.max()) < self._num_items:
            raise ValueError(
                f"the saved permutation must hold places in [0, {self._num_items}), it does not"
            )
        if ends is None:
            return self._cut(places.clone())
        steps = torch.diff(ends, prepend=torch.tensor([0], device="cpu"))
        if count < 0 or len(ends) < count or (steps < 0).any():
            raise ValueError(
                "the saved permutation must begin with the ends of batches, it does not"
            )
        if len(places) != (int(ends[-1]) if count else 0):
            raise ValueError(
                "the saved permutation must have one entry for each item of its batches, it does "
                "not"
            )
        return places.clone(), ends.clone()

    def _drawn_places(self) -> Tensor:
        if not is_permutation(self._sampler) or self._sampler.generator is not None:
            return places_of(list(self._sampler), self._num_items)
        # This draws like torch's sampler, without a Python integer per item (0.04 s for 100,000).
        generator = torch.Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64, device="cpu").random_()))
        return places_of(
            torch.randperm(len(self._sampler), generator=generator, device="cpu"), self._num_items
        )

    def _cut(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Cut places into batches as torch's ``BatchSampler`` does."""
        size = self._batches.batch_size
        count = len(places)
        whole, rest = divmod(count, size)
        number = whole if self._batches.drop_last or rest == 0 else whole + 1
        return places, (torch.arange(1, number + 1, device="cpu") * size).clamp(max=count)

    def ticket(self, plan: EpochPlan, index: int) -> Ticket:
        """Batch ``index`` of a planned epoch."""
        key = batch_key(plan.key, index, self._ranks)
        if isinstance(plan, _Listed) and plan.places is not None and plan.ends is not None:
            begin = 0 if index == 0 else int(plan.ends[index - 1])
            end = int(plan.ends[index])
            # A copy, because the user may write to it as ``input_id``, and the epoch's places may
            # still be saved.
            return Ticket(plan.epoch, index, key, plan.places[begin:end].clone())
        size = self._batches.batch_size
        stop = min((index + 1) * size, len(self._sampler))
        return Ticket(plan.epoch, index, key, torch.arange(index * size, stop, device="cpu"))


@dataclass(frozen=True, eq=False)
class _Streamed(EpochPlan):
    """An epoch whose batches are drawn when they are requested."""

    batches: Iterator[Any] = iter(())


class StreamOrder:
    """The order of a torch batch sampler without a length, which may be endless.

    Batches are drawn one by one as the pipeline requests them. Its place cannot be saved.

    Args:
        batches: Iterated in each epoch.
        seeds_of: Turns an item into the seeds of its batch.
        seed: Seed of the sampling. Default: torch's generator.
        generator: Draws the sampling key. Default: the global generator.
    """

    shuffle = True
    permutation = None
    has_length = False
    _kind = "sampler has no length"

    def __init__(
        self,
        batches: Any,
        seeds_of: Callable[[Any], Any],
        *,
        seed: int | None,
        generator: torch.Generator | None,
    ) -> None:
        self._batches = batches
        self._seeds_of = seeds_of
        self._generator = generator
        self._ranks = ranks_of(getattr(batches, "sampler", None))
        self.seed = seed
        self.batch_size: int | None = getattr(batches, "batch_size", None)

    def __len__(self) -> int:
        return len(self._batches)  # raises torch's TypeError

    @property
    def identity(self) -> dict[str, Any]:
        """See ``SeedOrder``."""
        raise TypeError(f"a loader whose {self._kind} cannot save its position")

    def plan(self, epoch: int) -> EpochPlan:
        """Begin epoch number ``epoch``; this draws from torch's generator."""
        batches = iter(self._batches)
        return self._begun(epoch, random_key(self._generator), batches)

    def _begun(self, epoch: int, drawn: int, batches: Iterator[Any]) -> EpochPlan:
        return _Streamed(epoch, epoch_key(self.seed, epoch, drawn), None, sys.maxsize, batches)

    def replan(self, epoch: int, key: int | None = None) -> EpochPlan:
        """Raise TypeError, since items do not come again."""
        raise TypeError(f"a loader whose {self._kind} cannot resume from a position")

    def restore(self, permutation: Tensor | None, *, begun: bool) -> None:
        """Raise TypeError like :meth:`replan`."""
        self.replan(0)

    def ticket(self, plan: EpochPlan, index: int) -> Ticket | None:
        """The next batch; None at the end."""
        assert isinstance(plan, _Streamed)
        for batch in plan.batches:
            key = batch_key(plan.key, index, self._ranks)
            return Ticket(plan.epoch, index, key, self._seeds_of(batch))
        return None


class DatasetStream(StreamOrder):
    """The order of a user's dataset whose items are whole batches, read one after the other.

    It draws random numbers in the order in which torch's loader does.

    Args:
        dataset: Iterable; or map-style, and read by the ``sampler``.
        sampler: Yields the keys of the items. None: the dataset is iterable.
        shuffle: Whether to call the dataset's ``shuffle()`` before each epoch.
        seed, generator: See ``StreamOrder``.
    """

    _kind = "indices are read one after the other"

    def __init__(
        self,
        dataset: Any,
        sampler: Any = None,
        *,
        shuffle: bool,
        seed: int | None,
        generator: torch.Generator | None,
    ) -> None:
        check_shuffle(dataset, shuffle)
        self.dataset = dataset
        self._is_iterable = sampler is None
        batches = dataset if sampler is None else sampler
        seeds_of = _unchanged if sampler is None else dataset.__getitem__
        super().__init__(batches, seeds_of, seed=check_seed("seed", seed), generator=generator)
        self.shuffle = bool(shuffle)
        self.has_length = has_length(batches)  # which an epoch need not have

    @property
    def ids(self) -> Tensor:
        """Empty, because the items are unknown before they are drawn."""
        return no_ids()

    def plan(self, epoch: int) -> EpochPlan:
        """See ``StreamOrder``."""
        if self.shuffle:
            self.dataset.shuffle()
        if not self._is_iterable:
            return super().plan(epoch)
        # Unlike a sampler, torch begins an iterable dataset after it has drawn.
        drawn = random_key(self._generator)
        return self._begun(epoch, drawn, iter(self.dataset))


UsersOrder = DatasetOrder | DatasetStream
"""Orders of a user's dataset."""


def _unchanged(item: Any) -> Any:
    return item


def order_of(
    loader: DataLoader[Any], seed: int | None, ranks: Ranks | None = None
) -> SeedOrder | SamplerOrder | StreamOrder:
    """The order of a torch loader's batches; its items are places in the input.

    With a ``seed`` and torch's own samplers it is a function of (seed, epoch).

    Args:
        loader: A loader with torch's samplers or a user's.
        seed: Seed of order and sampling. Default: torch's generator.
        ranks: The processes that share the items, unless a ``DistributedSampler`` divides them.

    Raises:
        TypeError: ``seed`` is not an integer; or ``ranks`` with a user's sampler, which they cannot
            share.
        ValueError: ``seed`` does not fit 64 bits, or ``batch_size`` is None.
    """
    seed = check_seed("seed", seed)
    batches: Any = loader.batch_sampler
    if batches is None:
        raise ValueError("batch_size must be at least 1, got None")
    sampler: Any = getattr(batches, "sampler", None)
    is_torchs = type(batches) is BatchSampler and (is_sequence(sampler) or is_permutation(sampler))
    if is_torchs and (seed is not None or ranks is not None):
        return SeedOrder(
            torch.arange(len(sampler), device="cpu"),
            batches.batch_size,
            shuffle=is_permutation(sampler),
            drop_last=batches.drop_last,
            seed=seed,
            generator=loader.generator,
            ranks=ranks,
        )
    if ranks is not None and not isinstance(sampler, DistributedSampler):
        own = sampler if type(batches) is BatchSampler else batches
        raise TypeError(
            f"sampler must be torch's, or a DistributedSampler, for {ranks.size} processes to "
            f"share its items, got {type(own).__name__}"
        )
    num_items = len(loader.dataset)  # type: ignore[arg-type]
    if not has_length(batches):
        seeds_of = partial(places_of, count=num_items)
        return StreamOrder(batches, seeds_of, seed=seed, generator=loader.generator)
    return SamplerOrder(batches, num_items, seed=seed, generator=loader.generator)


def takes_all(order: BatchOrder, num_items: int) -> bool:
    """Whether the batches of an epoch, of all processes, hold all items, each once."""
    if isinstance(order, SeedOrder):
        return bool(order.identity["num_seeds"] == num_items)
    return isinstance(order, SamplerOrder) and order.takes_all
