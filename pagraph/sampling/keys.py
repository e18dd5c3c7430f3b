"""Keys of the counter-based random numbers: one 64-bit number for every (seed, epoch, batch, hop)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .ranks import Ranks

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def derive_key(parent: int, *parts: int) -> int:
    """A 64-bit key for ``parts`` under ``parent``; equal inputs give equal keys, on every machine.

    >>> derive_key(1, 2) == derive_key(1, 2), derive_key(1, 2) == derive_key(1, 3)
    (True, False)
    """
    key = _mix((parent + _GOLDEN) & _MASK)
    for part in parts:
        key = _mix((key ^ _mix((part + _GOLDEN) & _MASK)) + _GOLDEN & _MASK)
    return key


def epoch_key(seed: int | None, epoch: int, drawn: int | None = None) -> int:
    """The key of an epoch: of its ``seed``, or without one the number ``drawn`` when it began.

    Raises:
        ValueError: There is neither.
    """
    if seed is not None:
        return derive_key(seed, epoch)
    if drawn is None:
        raise ValueError("seed or key must be given to plan an epoch again, got None for both")
    return drawn


def batch_key(epoch_key: int, index: int, ranks: Ranks) -> int:
    """The key of a batch. Ranks draw differently for the same vertex, whatever seeds their generators had."""
    return derive_key(epoch_key, index) if ranks.size == 1 else derive_key(epoch_key, index, ranks.rank)
