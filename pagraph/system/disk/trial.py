"""A short trial of a disk: seconds of a request, seconds of a byte."""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

import numpy as np

from ..threads import ForkLock
from .queues import DEPTH, QUEUE_BYTES, REQUEST_BYTES, Requests
from .ways import queue, usable_way

Array = Any  # a NumPy array; its element type is a matter of the kernels

_BLOCK = 4096  # aligned for every disk
_ROUNDS = 3
# Of a file that is tried: in a smaller one the trial costs more than it saves.
_LEAST_BYTES = 64 << 20


class Rates(NamedTuple):
    """Rates of a disk with its queue full.

    A request takes its own time and that of its bytes. On a virtual disk 40,000 rows of 1 KiB,
    merged over 0 to 31 blocks, took 0.19 to 0.25 seconds, each within 6 % of 5.8 us a request and
    0.66 ns a byte. As two limits, whichever is reached first, the rates promised a third of the
    time for five times the bytes, which took as long.

    Attributes:
        request: Seconds of a request of no bytes.
        byte: Seconds of each of its bytes.
    """

    request: float
    byte: float


USUAL = Rates(2e-5, 1e-9)
"""Rates of a disk that was not tried."""

_known: dict[int, Rates] = {}
_one_at_a_time = ForkLock()


def rates_of(descriptor: int) -> Rates:
    """Rates of the disk that an open file is on, tried once for each disk in a process; 0.1 s.

    Read past the page cache, from places spread over the file. ``USUAL`` where that cannot be, or
    for small files.
    """
    found = os.fstat(descriptor)
    with _one_at_a_time:
        if found.st_dev not in _known and found.st_size >= _LEAST_BYTES:
            try:
                direct = os.open(
                    f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT
                )
            except OSError:
                return USUAL
            try:
                _known[found.st_dev] = _try(direct, found.st_size)
            finally:
                os.close(direct)
        return _known.get(found.st_dev, USUAL)


def _try(descriptor: int, size: int) -> Rates:
    way = usable_way(direct=True)
    small = _seconds_of(descriptor, way, size, _BLOCK)
    large = _seconds_of(descriptor, way, size, REQUEST_BYTES)
    if small + large == np.inf:
        return USUAL
    byte = max(0.0, large - small) / (REQUEST_BYTES - _BLOCK)
    return Rates(max(small - _BLOCK * byte, 0.1 * small), byte)


def _seconds_of(descriptor: int, way: str, size: int, nbytes: int) -> float:
    """Seconds of a request of ``nbytes``, the least of some rounds: others may use the disk;
    infinite if one failed."""
    from . import _reads

    generator = np.random.default_rng(0)
    out = np.empty((1, nbytes), dtype=np.uint8)  # all go to the same place: nobody looks
    job = (descriptor, 0, nbytes, nbytes, _BLOCK, _BLOCK, out.ctypes.data, 0)
    count = 2 * min(DEPTH, QUEUE_BYTES // nbytes)
    least = np.inf
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
    """Blocks between neighbouring rows that are better read than left out, at most ``most`` bytes
    of them.

    Time counts in full, by ``Rates``, and bytes by their cube root, as they take room in memory and
    the disk's time from others: twice the bytes must save a fifth of the time. No share of the
    bytes bounds them: rows of 400 bytes, a fifth of them wanted, took 0.103 seconds with a tenth
    more bytes than their blocks, 0.045 with twice those.
    """
    from . import _reads

    align = job[4]
    counts = np.zeros(most // align + 1, dtype=np.int64)
    blocks = _reads.count_gaps(rows, job, counts)
    requests = len(rows) - np.cumsum(counts)
    nbytes = (blocks + np.cumsum(counts * np.arange(len(counts)))) * align
    return int(np.argmin((requests * rates.request + nbytes * rates.byte) * np.cbrt(nbytes)))
