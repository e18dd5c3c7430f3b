"""A short trial of a disk: the way to read it, seconds of a request, seconds of a byte."""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

import numpy as np

from ..threads import ForkLock
from .queues import DEPTH, QUEUE_BYTES, REQUEST_BYTES, Requests
from .ways import WAYS, queue, refusal, usable_way

__all__ = ["Rates", "best_gap", "rates_of"]

Array = Any  # a NumPy array; its element type is a matter of the kernels

_BLOCK = 4096  # aligned for every disk
_ROUNDS = 3
_BETTER = 1.25  # times as fast as the first must another way be
_LEAST_BYTES = 64 << 20  # of a file that is tried: in a smaller one the trial costs more than it saves


class Rates(NamedTuple):
    """Rates of a disk with its queue full.

    A disk is modelled by two limits, whichever is reached first: requests a second, whatever their size, and bytes a
    second. On a virtual disk requests of 0.5 to 4 KiB were 120,000 to 151,000 a second, and those of 16 to 128 KiB
    brought 0.9 to 1.6 GB/s.

    Attributes:
        request: Seconds of a request.
        byte: Seconds of a byte.
        way: The way to read past the page cache; None: the first one that the system allows.
    """

    request: float
    byte: float
    way: str | None = None


USUAL = Rates(2e-5, 1e-9)
"""Rates of a disk that was not tried."""

_known: dict[int, Rates] = {}
_one_at_a_time = ForkLock()


def rates_of(descriptor: int) -> Rates:
    """Rates of the disk that an open file is on, tried once for each disk in a process; 0.1 s.

    Read past the page cache, from places spread over the file. ``USUAL`` where that cannot be, or for small files.
    """
    found = os.fstat(descriptor)
    with _one_at_a_time:
        if found.st_dev not in _known and found.st_size >= _LEAST_BYTES:
            try:
                direct = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
            except OSError:
                return USUAL
            try:
                _known[found.st_dev] = _try(direct, found.st_size)
            finally:
                os.close(direct)
        return _known.get(found.st_dev, USUAL)


def _try(descriptor: int, size: int) -> Rates:
    ways = [way for way, kind in WAYS.items() if kind.direct and refusal(way) is None] or [usable_way(direct=True)]
    seconds = {way: _seconds_of(descriptor, way, size, _BLOCK) for way in ways}
    way = min(ways, key=lambda each: seconds[each] * (1 if each == ways[0] else _BETTER))
    byte = _seconds_of(descriptor, way, size, REQUEST_BYTES) / REQUEST_BYTES
    return Rates(seconds[way], byte, way) if seconds[way] + byte < np.inf else USUAL


def _seconds_of(descriptor: int, way: str, size: int, nbytes: int) -> float:
    """Seconds of a request of ``nbytes``, the least of some rounds: others may use the disk; infinite if one failed."""
    from . import _reads

    generator = np.random.default_rng(0)
    out = np.empty((1, nbytes), dtype=np.uint8)  # all go to the same place: nobody looks
    job = (descriptor, 0, nbytes, nbytes, _BLOCK, _BLOCK, out.ctypes.data, 0)
    count, least = 2 * min(DEPTH, QUEUE_BYTES // nbytes), np.inf
    with queue(way) as reads:
        for number in (1, *[count] * _ROUNDS):  # the first waits for kernels to be compiled
            rows = np.sort(generator.choice(size // nbytes, number, replace=False)).astype(np.int64)
            requests = Requests.of(rows, out, job, -1)
            begin = time.perf_counter()
            reads.read(requests)
            seconds = time.perf_counter() - begin
            if requests.state[_reads.ERROR]:
                return np.inf
            if number > 1:
                least = min(least, seconds / number)
    return least


def best_gap(rows: Array, job: tuple[int, ...], rates: Rates, most: int) -> int:
    """Blocks between neighbouring rows that are better read than left out, at most ``most`` bytes of them.

    Time counts in full, by the two limits of ``Rates``, and bytes by their square root, as they take room in memory and
    the disk's time from others: twice the bytes must save three tenths of the time.
    """
    from . import _reads

    _, _, _, row_bytes, align, *_ = job
    counts = np.zeros(most // align + 1, dtype=np.int64)
    _reads.count_gaps(rows, job, counts)
    requests = len(rows) - np.cumsum(counts)
    nbytes = len(rows) * -(-row_bytes // align) * align + np.cumsum(counts * np.arange(len(counts)) * align)
    return int(np.argmin(np.maximum(requests * rates.request, nbytes * rates.byte) * np.sqrt(nbytes)))
