"""Keys of the counter-based random numbers, 64 bits for every (seed, epoch, batch, hop), and
ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy.typing as npt

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB


def derive_key(parent: int, *parts: int) -> int:
    """A 64-bit key for ``parts`` under ``parent``; equal inputs give equal keys on every machine.

    >>> derive_key(1, 2) == derive_key(1, 2), derive_key(1, 2) == derive_key(1, 3)
    (True, False)
    """
    # SplitMix64's finaliser, written out three times, because calls would take a third longer, and
    # a batch needs three keys.
    x = (parent + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * _M1) & _MASK
    x = ((x ^ (x >> 27)) * _M2) & _MASK
    key = x ^ (x >> 31)
    for part in parts:
        x = (part + _GOLDEN) & _MASK
        x = ((x ^ (x >> 30)) * _M1) & _MASK
        x = ((x ^ (x >> 27)) * _M2) & _MASK
        x = ((key ^ x ^ (x >> 31)) + _GOLDEN) & _MASK
        x = ((x ^ (x >> 30)) * _M1) & _MASK
        x = ((x ^ (x >> 27)) * _M2) & _MASK
        key = x ^ (x >> 31)
    return key


def random_key(generator: torch.Generator | None = None) -> int:
    """A key drawn from a torch generator (default: the global one), like torch's workers' seed."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator))


def epoch_key(seed: int | None, epoch: int, drawn: int | None = None) -> int:
    """The key of an epoch: derived from ``seed``, or else ``drawn`` when the epoch began.

    Raises:
        ValueError: Both are None.
    """
    if seed is not None:
        return derive_key(seed, epoch)
    if drawn is None:
        raise ValueError("seed or key must be given to plan an epoch again, got None for both")
    return drawn


class BatchKey(int):
    """The key of a batch that knows its place in the epoch; otherwise a plain number.

    Attributes:
        epoch: Key of the epoch, and this process's rank if there are several.
        index: Place of the batch in the epoch.
    """

    epoch: tuple[int, ...]
    index: int


def batch_key(epoch_key: int, index: int, ranks: Ranks) -> BatchKey:
    """The key of a batch; different ranks get different keys, even from equal epoch keys."""
    rank = () if ranks.size == 1 else (ranks.rank,)
    key = BatchKey(derive_key(epoch_key, index, *rank))
    key.epoch = (epoch_key, *rank)
    key.index = index
    return key


# "shar": keeps numbers that batches share distinct from those of single batches.
_SHARED = 0x73686172


@dataclass(frozen=True, eq=False)
class Renewal:
    """Random numbers that consecutive batches share; each vertex renews its own every ``period``.

    A vertex has a random phase, uniform in ``[0, period)``, and draws in batch ``i`` with the
    numbers of group ``(i + phase) // period``. Within a batch that is group ``i // period`` or the
    next one: vertices with a phase in the first ``i % period`` parts of ``period`` have moved on.
    Phases are independent of the numbers, so that each batch alone is distributed as if it shared
    nothing.

    Numbers are ``mix(key + offset + counter * A + j * B)``. A vertex that has moved on adds a step
    to its counter.

    Attributes:
        key: Used in place of the batch's key.
        numbers: For kernels, uint64: the key of the phases; the phase, as 64 bits, below which
            vertices have moved on; the step that they add; and the offset, which is added to the
            key of every hop.
    """

    key: int
    numbers: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, key: int, period: int) -> Renewal:
        """The numbers of the batch with this key; a plain number shares with no other batch."""
        epoch, index = (key.epoch, key.index) if isinstance(key, BatchKey) else ((key,), 0)
        # Not derived from ``shared``, as the keys of its hops are, because phases must be
        # independent of every hop's numbers.
        shared, phase, step = (derive_key(*epoch, _SHARED + part) for part in range(3))
        group, passed = divmod(index, period)
        offset = group * step * _GOLDEN & _MASK
        numbers = [phase, (passed << 64) // period, step, offset]
        return cls(shared, np.array(numbers, np.uint64))


def check_seed(name: str, seed: Any) -> int | None:
    """A seed as an int, or None.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is negative, or has more than 64 bits.
    """
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(f"{name} must be an integer or None, got {seed!r}")
    if not 0 <= seed < 2**64:
        raise ValueError(f"{name} must be in [0, 2**64), got {seed}")
    return int(seed)


def check_key(key: Any) -> int:
    """The key of a request as an int; raises like :func:`check_seed`, and for None."""
    checked = check_seed("key", key)
    if checked is None:
        raise TypeError("key must be an integer, got None")
    return checked


@dataclass(frozen=True)
class Ranks:
    """This process's rank among those that share the seeds of an epoch.

    Each process computes its part without communication.

    Args:
        rank: This process, in ``[0, size)``.
        size: Number of processes.
        seed: Seed of the order that all processes shuffle, for orders that have no seed.

    Raises:
        ValueError: ``rank`` or ``size`` is out of range.
    """

    rank: int
    size: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be at least 1, got {self.size}")
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank must be in [0, {self.size}), got {self.rank}")

    def share(self, total: int, drop_last: bool) -> int:
        """Number of seeds of ``total`` that each rank gets, equal so that no rank waits for others.

        With ``drop_last`` up to ``size - 1`` seeds are left out; otherwise up to that many are
        repeated.
        """
        return total // self.size if drop_last else -(-total // self.size)

    def rows(self, begin: int, stop: int, *, share: int, total: int) -> Tensor:
        """Positions of this rank's seeds ``begin`` to ``stop`` in the order of all seeds, int64.

        Ranks have contiguous slices. The last ranks wrap round to the front of the whole order. DGL
        repeats ids of the slice itself, but with fewer seeds than ranks a slice may be empty.
        """
        first = self.rank * share
        return torch.arange(first + begin, first + stop, device="cpu") % max(total, 1)


def process_ranks(ddp_seed: Any) -> Ranks:
    """This process's rank in ``torch.distributed``'s default group, without communication.

    Raises ValueError if there is no group, and like :func:`check_seed` for ``ddp_seed``.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        raise ValueError("use_ddp=True needs torch.distributed.init_process_group() first")
    seed = check_seed("ddp_seed", ddp_seed) or 0
    return Ranks(torch.distributed.get_rank(), torch.distributed.get_world_size(), seed)
