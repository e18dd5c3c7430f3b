"""Ranks: how the processes of a distributed training share the seeds of an epoch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Ranks"]


@dataclass(frozen=True)
class Ranks:
    """This process's place among those that share the seeds; every one can work out its own part alone.

    Args:
        rank: This process, in ``[0, size)``.
        size: Number of processes.
        seed: Of the order that all of them shuffle alike, for orders without a seed of their own.

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
        """How many of ``total`` seeds each rank gets: the same number on all, so that no rank waits for another.

        With ``drop_last`` up to ``size - 1`` seeds are left out; otherwise as many come twice.
        """
        return total // self.size if drop_last else -(-total // self.size)

    def rows(self, begin: int, stop: int, *, share: int, total: int) -> Tensor:
        """Positions in the order of all seeds of this rank's seeds ``begin`` to ``stop``, int64.

        Ranks have contiguous slices. What the last ones lack is taken from the front of the whole order, round and
        round: with fewer seeds than ranks a slice's own ids (as DGL takes them) would not be enough, or not exist.
        """
        first = self.rank * share
        return torch.arange(first + begin, first + stop) % max(total, 1)
