"""Seed order: which seeds make up each mini-batch of an epoch, and the key its sampling starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .keys import derive_key

__all__ = ["DatasetOrder", "EpochPlan", "SeedOrder", "Ticket"]

Seeds = Tensor | dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Ticket:
    """One mini-batch before it is sampled: its place in the epoch, its seeds and its random key."""

    epoch: int
    index: int
    key: int
    seeds: Any


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """All that decides an epoch: its number, its random key, and the order of the seeds (None: as given)."""

    epoch: int
    key: int
    permutation: Tensor | None


class SeedOrder:
    """Cuts seeds into batches, in order or shuffled.

    With a ``seed``, epoch ``e`` is a pure function of (seed, e). Without one, it behaves as DGL does: the order comes
    from NumPy's global generator and permutes the permutation before; the sampling key comes from torch's.

    Args:
        seeds: Ids, shape ``(n,)``, or a mapping from type to ids, concatenated in the mapping's order.
        batch_size: Seeds a batch, over all types together.
        shuffle: Draw a new order for every epoch.
        drop_last: Leave out an incomplete last batch.
        seed: Makes order and sampling reproducible.
        generator: torch generator for the sampling key when there is no ``seed``.
        rank: This process's part of the seeds, with ``world_size``: a contiguous slice, equally long on every rank.
        world_size: Number of processes that share the seeds.

    Raises:
        TypeError: ``batch_size`` or ``seed`` is not an integer.
        ValueError: ``batch_size`` is below 1, ``seed`` negative, or the seeds are not 1-D.
    """

    def __init__(
        self,
        seeds: Tensor | Mapping[str, Tensor],
        batch_size: int,
        *,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.batch_size = check_batch_size(batch_size)
        self.seed = _check_seed(seed)
        self.shuffle = shuffle
        self.drop_last = drop_last
        self._generator = generator
        self._keys = list(seeds) if isinstance(seeds, Mapping) else None
        self._ids, self._types = _concatenate(seeds)
        self._part = _rank_slice(len(self._ids), rank, world_size, drop_last)
        self._permutation: Tensor | None = None  # of the newest epoch without a seed; the next one permutes it

    @property
    def ids(self) -> Tensor:
        """All seeds, of all types and ranks."""
        return self._ids

    @property
    def num_seeds(self) -> int:
        """Seeds an epoch hands out (on this rank)."""
        return len(self._ids) if self._part is None else len(self._part)

    def __len__(self) -> int:
        whole, rest = divmod(self.num_seeds, self.batch_size)
        return whole if self.drop_last or rest == 0 else whole + 1

    @property
    def identity(self) -> dict[str, Any]:
        """What two orders must have in common for a place in one to mean the same in the other."""
        return {
            "seed": self.seed,
            "shuffle": bool(self.shuffle),
            "num_seeds": self.num_seeds,
            "batch_size": self.batch_size,
        }

    @property
    def permutation(self) -> Tensor | None:
        """A copy of what the next shuffle permutes; None at the start, and for orders that need no memory."""
        return None if self._permutation is None else self._permutation.clone()

    def plan(self, epoch: int) -> EpochPlan:
        """Decide epoch number ``epoch``; without a ``seed`` this draws from the global generators."""
        if self.seed is not None:
            return self.replan(epoch)
        key = int(torch.empty((), dtype=torch.int64).random_(generator=self._generator))
        if self.shuffle:
            permutation = self.permutation
            self._permutation = torch.arange(self.num_seeds) if permutation is None else permutation
            np.random.shuffle(self._permutation.numpy())
        return EpochPlan(epoch, key, self._permutation)

    def replan(self, epoch: int) -> EpochPlan:
        """The plan of ``epoch`` from the ``seed`` alone: draws and changes nothing.

        Raises:
            ValueError: The order has no seed.
        """
        key = _epoch_key(self.seed, epoch)
        if not self.shuffle:
            return EpochPlan(epoch, key, None)
        rng = np.random.Generator(np.random.Philox(key=_epoch_key(self.seed, epoch, 1)))
        return EpochPlan(epoch, key, torch.from_numpy(rng.permutation(self.num_seeds)))

    def restore(self, permutation: Tensor | None, *, begun: bool) -> None:
        """Go on from a saved ``permutation``: the next shuffle permutes it.

        Args:
            permutation: What was saved; None goes back to the start.
            begun: An epoch has been planned before, so that an order that remembers must have something saved.

        Raises:
            ValueError: It is not a permutation of the seeds, or it is there (or not there) against the rule.
        """
        remembers = bool(self.shuffle) and self.seed is None
        if permutation is None:
            if remembers and begun:
                raise ValueError("the saved permutation must be there once an epoch without a seed has begun, got None")
            self._permutation = None
            return
        if not remembers:
            raise ValueError("the saved permutation must be None for an order with a seed or without shuffle")
        _check_permutation(permutation, self.num_seeds)
        self._permutation = permutation.clone()

    def ticket(self, plan: EpochPlan, index: int) -> Ticket:
        """Batch ``index`` of a planned epoch; its seeds are a copy."""
        begin = index * self.batch_size
        stop = min(begin + self.batch_size, self.num_seeds)
        rows = torch.arange(begin, stop) if plan.permutation is None else plan.permutation[begin:stop]
        if self._part is not None:
            rows = self._part[rows]
        return Ticket(plan.epoch, index, derive_key(plan.key, index), self._gather(rows))

    def _gather(self, rows: Tensor) -> Seeds:
        ids = self._ids[rows.to(self._ids.device)]
        if self._keys is None or self._types is None:
            return ids
        types = self._types[rows]
        present = torch.unique(types).tolist()
        return {self._keys[t]: ids[types == t] for t in present}


class DatasetOrder:
    """The order of a user's own dataset, whose items are whole batches (DGL's custom index datasets).

    Args:
        dataset: Map-style (``len`` and ``[i]``) or iterable.
        shuffle: Call the dataset's ``shuffle()`` before each epoch.
        seed: As in ``SeedOrder``, for the sampling key only.
    """

    def __init__(self, dataset: Any, *, shuffle: bool = False, seed: int | None = None) -> None:
        if shuffle and not callable(getattr(dataset, "shuffle", None)):
            raise AttributeError("shuffle=True needs an indices dataset with a shuffle() method, it has none")
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = _check_seed(seed)

    @property
    def ids(self) -> Tensor:
        """Nothing: what the items hold is not known before they are drawn."""
        return torch.empty(0, dtype=torch.int64)

    @property
    def identity(self) -> dict[str, Any]:
        """As in ``SeedOrder``; the dataset alone knows its seeds."""
        return {"seed": self.seed, "shuffle": bool(self.shuffle), "num_seeds": None, "batch_size": None}

    @property
    def permutation(self) -> None:
        """None: the dataset keeps its own order."""
        return None

    def __len__(self) -> int:
        return len(self.dataset)

    def plan(self, epoch: int) -> EpochPlan:
        """Shuffle the dataset if asked, and draw the sampling key."""
        if self.shuffle:
            self.dataset.shuffle()
        if self.seed is not None:
            return self.replan(epoch)
        return EpochPlan(epoch, int(torch.empty((), dtype=torch.int64).random_()), None)

    def replan(self, epoch: int) -> EpochPlan:
        """The plan of ``epoch`` from the ``seed`` alone; leaves the dataset as it is.

        Raises:
            ValueError: The order has no seed.
        """
        return EpochPlan(epoch, _epoch_key(self.seed, epoch), None)

    def restore(self, permutation: Tensor | None, *, begun: bool) -> None:
        """Nothing to restore: the dataset keeps its own order.

        Raises:
            ValueError: There is a permutation.
        """
        if permutation is not None:
            raise ValueError("the saved permutation must be None for a dataset, which keeps its own order")

    def ticket(self, plan: EpochPlan, index: int) -> Ticket:
        """Item ``index`` as a batch."""
        return Ticket(plan.epoch, index, derive_key(plan.key, index), self.dataset[index])


def check_batch_size(batch_size: Any) -> int:
    """``batch_size`` as an int.

    Raises:
        ValueError: It is not an integer of at least 1 (None included).
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise ValueError(f"batch_size must be an integer of at least 1, got {batch_size!r}")
    return int(batch_size)


def _check_seed(seed: Any) -> int | None:
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(f"seed must be an integer or None, got {seed!r}")
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed must be in [0, 2**64), got {seed}")
    return int(seed)


def _epoch_key(seed: int | None, *numbers: int) -> int:
    if seed is None:
        raise ValueError("seed must be set to plan an epoch again, got None")
    return derive_key(seed, *numbers)


def _check_permutation(permutation: Any, length: int) -> None:
    if not isinstance(permutation, Tensor) or permutation.dtype != torch.int64 or permutation.dim() != 1:
        got = tuple(permutation.shape) if isinstance(permutation, Tensor) else type(permutation).__name__
        raise ValueError(f"the saved permutation must be a 1-D int64 tensor, got {got}")
    if len(permutation) != length:
        raise ValueError(f"the saved permutation must have one entry per seed ({length}), got {len(permutation)}")
    if not torch.equal(permutation.sort().values, torch.arange(length)):
        raise ValueError(f"the saved permutation must hold each number in [0, {length}) once, it does not")


def _concatenate(seeds: Tensor | Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """All ids behind each other, and the number of each one's type (None when there are no types)."""
    parts = dict(seeds) if isinstance(seeds, Mapping) else {"": seeds}
    for name, ids in parts.items():
        if ids.dim() != 1:
            where = f"seeds[{name!r}]" if isinstance(seeds, Mapping) else "seeds"
            raise ValueError(f"{where} must be 1-D, got shape {tuple(ids.shape)}")
    if not isinstance(seeds, Mapping):
        return seeds, None
    if not parts:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    types = [torch.full((len(ids),), t, dtype=torch.int64) for t, ids in enumerate(parts.values())]
    return torch.cat(list(parts.values())), torch.cat(types)


def _rank_slice(length: int, rank: int, world_size: int, drop_last: bool) -> Tensor | None:
    """Positions of this rank's seeds; a short last slice is filled up from the front of the whole list."""
    if world_size == 1:
        return None
    each = length // world_size if drop_last else -(-length // world_size)
    rows = torch.arange(rank * each, (rank + 1) * each)
    return rows % length if length else rows
