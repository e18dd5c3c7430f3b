"""Hits: how many rows a cache served, which a device may not have counted yet."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..accelerator import Event

__all__ = ["Hits"]


class Hits:
    """How many rows the cache served, of each part of a read.

    Args:
        counts: On the CPU, int64, shape ``(parts,)``.
        ready: When they have arrived there; None: they have.

    Example:
        >>> Hits.known([3, 0]).now()
        (3, 0)
    """

    def __init__(self, counts: Tensor, ready: Event | None = None) -> None:
        self._counts = counts
        self._ready = ready

    @classmethod
    def known(cls, counts: Iterable[int]) -> Hits:
        """Hits that the CPU has counted."""
        return cls(torch.tensor(list(counts), dtype=torch.int64))

    def now(self) -> tuple[int, ...] | None:
        """The counts, one a part; None: not known yet. Waits for nothing."""
        if self._ready is not None and not self._ready.has_happened:
            return None
        return tuple(self._counts.tolist())

    def wait(self) -> tuple[int, ...]:
        """The counts, one a part; waits for the device."""
        if self._ready is not None:
            self._ready.wait()
        return tuple(self._counts.tolist())

    def __repr__(self) -> str:
        counts = self.now()
        return f"Hits({'not known yet' if counts is None else ', '.join(map(str, counts))})"
