"""Seed order: the seeds of each mini-batch of an epoch, and the key of its random numbers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..graph.csc import no_ids
from ..system.arrays import Int64Array
from ..system.checks import check_batch_size
from .keys import Ranks, batch_key, check_seed, derive_key, epoch_key, random_key

Seeds = Tensor | dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Ticket:
    """A mini-batch before it is sampled: its place in the epoch, its seeds and its random key."""

    epoch: int
    index: int
    key: int
    seeds: Any


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """An epoch's number, its random key, and the order of this rank's seeds (None: as given).

    The key does not depend on the rank, so that from a plan that one rank saved each gets its own
    batches. ``num_batches`` is set if an epoch may have another number of batches than the order.
    """

    epoch: int
    key: int
    permutation: Tensor | None
    num_batches: int | None = None


class BatchOrder(Protocol):
    """Protocol of orders, which say which batches make an epoch; see :class:`SeedOrder`.

    Attributes:
        has_length: Whether the number of batches is known.
        batch_size: Seeds per batch; None if the user makes the batches.
    """

    seed: int | None
    shuffle: bool
    has_length: bool

    def __len__(self) -> int: ...

    @property
    def batch_size(self) -> int | None: ...  # noqa: D102

    @property
    def identity(self) -> dict[str, Any]: ...  # noqa: D102

    @property
    def permutation(self) -> Tensor | None: ...  # noqa: D102

    def plan(self, epoch: int) -> EpochPlan: ...  # noqa: D102

    def replan(self, epoch: int, key: int | None = None) -> EpochPlan: ...  # noqa: D102

    def restore(self, permutation: Tensor | None, *, begun: bool) -> None: ...  # noqa: D102

    def ticket(self, plan: EpochPlan, index: int) -> Ticket | None:
        """Batch ``index``, requested in order; None after the last one if the length is unknown."""


class SeedOrder:
    """Cuts seeds into batches, in order or shuffled.

    With a ``seed``, epoch ``e`` is a pure function of (seed, e). Without one it behaves like DGL:
    NumPy's global generator permutes the permutation of the epoch before, and the sampling key
    comes from torch's generator.

    With several ``ranks``, all of them compute the same order of all seeds, and each takes its
    slice. The order is a function of (seed, e), or of (``ranks.seed``, e) if there is no seed.
    Sampling keys differ between ranks.

    Args:
        seeds: Ids, shape ``(n,)``, or a mapping from type to ids, concatenated in the mapping's
            order. They may have more dimensions. Then each row is a seed, such as a pair of
            vertices, which the sampler interprets.
        batch_size: Seeds per batch, over all types.
        shuffle: Whether every epoch has a new order.
        drop_last: Whether to leave out an incomplete last batch, and seeds that do not divide by
            the number of ranks.
        seed: Makes order and sampling reproducible.
        generator: torch generator for the sampling key if there is no ``seed``.
        ranks: The processes that share the seeds. Default: this one has them all.

    Attributes:
        num_seeds: Seeds of this rank in an epoch, before ``drop_last`` leaves out an incomplete
            batch.

    Raises:
        TypeError: ``batch_size`` or ``seed`` is not an integer.
        ValueError: ``batch_size`` is below 1, ``seed`` is negative, or the seeds are scalars or
            rows of several shapes.
    """

    has_length = True

    def __init__(
        self,
        seeds: Tensor | Mapping[str, Tensor],
        batch_size: int,
        *,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.batch_size: int = check_batch_size(batch_size)
        self.seed: int | None = check_seed("seed", seed)
        self.shuffle: bool = bool(shuffle)
        self.drop_last: bool = bool(drop_last)
        self._generator = generator
        self._keys = list(seeds) if isinstance(seeds, Mapping) else None
        self._ids, self._types = _concatenate(seeds)
        self._ranks = ranks or Ranks(0, 1)
        self.num_seeds: int = self._ranks.share(len(self._ids), self.drop_last)
        self._shuffle_seed = ranks.seed if self.seed is None and ranks is not None else self.seed
        # The newest epoch's permutation, if there is no seed; the next epoch permutes it.
        self._permutation: Tensor | None = None

    @property
    def ids(self) -> Tensor | dict[str, Tensor]:
        """All seeds of all ranks, by type if they were given by type."""
        if self._keys is None or self._types is None:
            return self._ids
        return {key: self._ids[self._types == t] for t, key in enumerate(self._keys)}

    def __len__(self) -> int:
        whole, rest = divmod(self.num_seeds, self.batch_size)
        return whole if self.drop_last or rest == 0 else whole + 1

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that orders must share for a saved place to fit; independent of the rank."""
        return {
            "seed": self.seed,
            "shuffle": self.shuffle,
            "num_seeds": len(self._ids),
            "batch_size": self.batch_size,
            "world_size": self._ranks.size,
            "shuffle_seed": self._shuffle_seed if self.shuffle else None,
        }

    @property
    def permutation(self) -> Tensor | None:
        """A copy of the permutation that the next shuffle permutes; None if there is none."""
        return None if self._permutation is None else self._permutation.clone()

    def plan(self, epoch: int) -> EpochPlan:
        """Plan epoch number ``epoch``; without a ``seed`` this draws from global generators."""
        if self.seed is not None:
            return self.replan(epoch)
        key = random_key(self._generator)
        if self._permutes_last:
            # A copy, because plans of epochs that still run hold the permutation before.
            permutation = self.permutation
            if permutation is None:
                permutation = torch.arange(self.num_seeds, device="cpu")
            self._permutation = permutation
            np.random.shuffle(self._permutation.numpy())
        return self.replan(epoch, key)

    def replan(self, epoch: int, key: int | None = None) -> EpochPlan:
        """The plan of ``epoch`` from the ``seed``, or else from its ``key``; draws nothing.

        Raises:
            ValueError: There is neither.
        """
        key = epoch_key(self.seed, epoch, key)
        if self._shuffle_seed is None:
            # Also where it is no longer shuffled: DGL's keeps its last order.
            return EpochPlan(epoch, key, self._permutation)
        if not self.shuffle:
            return EpochPlan(epoch, key, None)
        # Counter-based, so that the order depends on the key alone. Part 1 makes it distinct from
        # the epoch's key. All ranks draw the whole order, and each keeps its slice.
        rng = np.random.Generator(np.random.Philox(key=derive_key(self._shuffle_seed, epoch, 1)))
        permutation = torch.from_numpy(rng.permutation(len(self._ids)))
        if self._ranks.size > 1:
            permutation = permutation[self._rows(self.num_seeds)]
        return EpochPlan(epoch, key, permutation)

    def restore(self, permutation: Tensor | None, *, begun: bool) -> None:
        """Continue from a saved ``permutation``, which the next shuffle permutes; None resets.

        Raises:
            ValueError: It is not a permutation of the seeds; it is given though none is kept; or it
                is None though an epoch has ``begun``.
        """
        if permutation is None:
            if self._permutes_last and begun:
                raise ValueError(
                    "the saved permutation must be given once an epoch without a seed has "
                    "begun, got None"
                )
            self._permutation = None
            return
        if self._shuffle_seed is not None:
            raise ValueError("the saved permutation must be None for an order with a seed")
        check_permutation(permutation, self.num_seeds)
        self._permutation = permutation.clone()

    def ticket(self, plan: EpochPlan, index: int) -> Ticket:
        """Batch ``index`` of a planned epoch; its seeds are a copy."""
        begin = index * self.batch_size
        stop = min(begin + self.batch_size, self.num_seeds)
        rows = self._rows(stop, begin) if plan.permutation is None else plan.permutation[begin:stop]
        return Ticket(
            plan.epoch, index, batch_key(plan.key, index, self._ranks), self._gather(rows)
        )

    @property
    def _permutes_last(self) -> bool:
        """Whether each shuffle permutes the order before, like DGL's."""
        return self.shuffle and self._shuffle_seed is None

    def _rows(self, stop: int, begin: int = 0) -> Tensor:
        return self._ranks.rows(begin, stop, share=self.num_seeds, total=len(self._ids))

    def _gather(self, rows: Tensor) -> Seeds:
        # Half the time of indexing by brackets: 4 us for 1,024 ids.
        ids = torch.index_select(self._ids, 0, rows.to(self._ids.device))
        if self._keys is None or self._types is None:
            return ids
        if len(self._keys) == 1:  # the usual case, which need not look at types
            return {self._keys[0]: ids} if len(ids) else {}
        types = self._types[rows]
        present = torch.unique(types).tolist()
        return {self._keys[t]: ids[types == t] for t in present}


class DatasetOrder:
    """The order of a user's dataset whose items are whole batches (DGL's custom index datasets).

    See ``DatasetStream`` for iterable datasets, and for those that are read by a torch sampler.

    Args:
        dataset: Map-style: ``len`` and ``[i]``.
        shuffle: Whether to call the dataset's ``shuffle()`` before each epoch.
        seed: Makes the sampling key reproducible.
        generator: torch generator for the sampling key if there is no ``seed``.
        ranks: Makes the sampling keys of several processes distinct. The dataset decides which
            batches each process gets.
    """

    batch_size = None
    permutation = None  # the dataset keeps its own order
    has_length = True

    def __init__(
        self,
        dataset: Any,
        *,
        shuffle: bool = False,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        check_shuffle(dataset, shuffle)
        self.dataset = dataset
        self.shuffle: bool = bool(shuffle)
        self.seed: int | None = check_seed("seed", seed)
        self._generator = generator
        self._ranks = ranks or Ranks(0, 1)

    @property
    def ids(self) -> Tensor:
        """Empty, because the items are unknown before they are drawn."""
        return no_ids()

    @property
    def identity(self) -> dict[str, Any]:
        """See :attr:`SeedOrder.identity`; the seeds are unknown."""
        ours = {"seed": self.seed, "shuffle": self.shuffle, "world_size": self._ranks.size}
        return ours | {"num_seeds": None, "batch_size": None, "shuffle_seed": None}

    def __len__(self) -> int:
        return len(self.dataset)

    def plan(self, epoch: int) -> EpochPlan:
        """Shuffle the dataset if ``shuffle`` is set, and draw the sampling key."""
        if self.shuffle:
            self.dataset.shuffle()
        key = random_key(self._generator) if self.seed is None else None
        return self.replan(epoch, key)

    def replan(self, epoch: int, key: int | None = None) -> EpochPlan:
        """See :meth:`SeedOrder.replan`; does not shuffle the dataset."""
        return EpochPlan(epoch, epoch_key(self.seed, epoch, key), None)

    def restore(self, permutation: Tensor | None, *, begun: bool) -> None:
        """Raise ValueError for a permutation, since the dataset keeps its own order."""
        if permutation is not None:
            raise ValueError(
                "the saved permutation must be None for a dataset, which keeps its own order"
            )

    def ticket(self, plan: EpochPlan, index: int) -> Ticket:
        """Item ``index`` as a batch."""
        return Ticket(
            plan.epoch, index, batch_key(plan.key, index, self._ranks), self.dataset[index]
        )


def check_shuffle(dataset: Any, shuffle: bool) -> None:
    """Raise AttributeError for a dataset to ``shuffle`` that cannot."""
    if shuffle and not callable(getattr(dataset, "shuffle", None)):
        raise AttributeError(
            "shuffle=True needs an indices dataset with a shuffle() method, it has none"
        )


def num_seeds(seeds: Tensor | Mapping[Any, Tensor]) -> int:
    """Number of seeds over all types; TypeError or ValueError unless they are 1-D or more."""
    count = 0
    for ids in seeds.values() if isinstance(seeds, Mapping) else [seeds]:
        if not isinstance(ids, Tensor):
            raise TypeError(f"seeds must be a tensor of integers, got {type(ids).__name__}")
        if ids.dim() == 0:
            raise ValueError("seeds must be 1-D, got shape ()")
        count += len(ids)
    return count


def warn_of_no_batches(order: BatchOrder) -> None:
    """Warn if an epoch has no batches: there are no seeds, or too few with ``drop_last``.

    A user's batches are not counted, because a dataset or sampler may be filled later.
    """
    if not order.has_length or order.batch_size is None or len(order):
        return
    count = order.identity["num_seeds"]
    reason = "there are no seeds"
    if count:
        reason = (
            f"the {count} seeds are fewer than batch_size={order.batch_size}, and drop_last "
            "leaves them out"
        )
    warnings.warn(f"an epoch has no batches: {reason}", RuntimeWarning, stacklevel=3)


def check_saved(saved: Any, *, empty: bool = True) -> None:
    """Raise ValueError unless ``saved`` is a 1-D int64 tensor, which may be empty if ``empty``."""
    if (
        not isinstance(saved, Tensor)
        or saved.dtype != torch.int64
        or saved.dim() != 1
        or not (empty or len(saved))
    ):
        got = tuple(saved.shape) if isinstance(saved, Tensor) else type(saved).__name__
        raise ValueError(f"the saved permutation must be a 1-D int64 tensor, got {got}")


def check_permutation(permutation: Any, length: int) -> None:
    """Raise ValueError unless it is a 1-D int64 tensor with each number in ``[0, length)`` once."""
    check_saved(permutation)
    if len(permutation) != length:
        raise ValueError(
            f"the saved permutation must have one entry per seed ({length}), got {len(permutation)}"
        )
    if not torch.equal(permutation.sort().values, torch.arange(length, device="cpu")):
        raise ValueError(
            f"the saved permutation must hold each number in [0, {length}) once, it does not"
        )


def _concatenate(seeds: Tensor | Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """All ids, type after type, and the number of each id's type; None if there are no types."""
    parts = dict(seeds) if isinstance(seeds, Mapping) else {None: seeds}
    for name, ids in parts.items():
        if ids.dim() == 0:
            where = "seeds" if name is None else f"seeds[{name!r}]"
            raise ValueError(f"{where} must have at least one dimension, got shape ()")
    if not isinstance(seeds, Mapping):
        return seeds, None
    if not parts:
        return no_ids(), no_ids()
    if len({ids.shape[1:] for ids in parts.values()}) > 1:
        shapes = [tuple(ids.shape) for ids in parts.values()]
        raise ValueError(f"seeds must have rows of one shape for all types, got shapes {shapes}")
    types = [
        torch.full((len(ids),), t, dtype=torch.int64, device="cpu")
        for t, ids in enumerate(parts.values())
    ]
    return torch.cat(list(parts.values())), torch.cat(types)


def share_size(count: int, fraction: float) -> int:
    """The number that is a fraction of ``count``, rounded down but at least one."""
    # 0.29 * 100 is below 29 in floating point, so a small number is added first.
    return max(1, math.floor(fraction * count + 1e-6))


def drawn_order(count: int, seed: int) -> Int64Array:
    """All numbers below ``count`` in random order; commands that draw seeds take the first."""
    # Orders of epochs use the keys (epoch, 1), so this one is independent of them.
    rng = np.random.Generator(np.random.Philox(key=derive_key(seed, 2)))
    return rng.permutation(count)
