"""Ways to read: which of them this system allows, idle queues of each, and a short trial of a
disk's rates."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ..threads import ForkLock
from .queues import (
    DEPTH,
    QUEUE_BYTES,
    REQUEST_BYTES,
    Advice,
    Aio,
    Queue,
    Requests,
    Threads,
)

WAYS: dict[str, type[Queue]] = {kind.way: kind for kind in (Aio, Advice, Threads)}
"""Ways by name, the best first.

Cold requests/s of 1, 4 and 16 KiB, 128 at once, and microseconds of processor for one of 4 KiB, on
a virtual disk, past the page cache: AIO 151,000, 120,000, 53,000, 2.8; threads 131,000, 108,000,
57,000, 7.9. io_uring, which containers often forbid, gave 125,000, 94,000, 43,000, 4.3. Through the
page cache: advice 141,000, 122,000, 52,000, 4.0; threads 114,000, 96,000, 45,000, 9.5.
"""


_refused: dict[str, OSError | None] = {}


def refusal(way: str) -> OSError | None:
    """Why this system does not allow a way, None if it does; asked once."""
    if way not in _refused:
        try:
            WAYS[way].check()
            _refused[way] = None
        except OSError as error:
            _refused[way] = error
    return _refused[way]


def usable_way(way: str | None = None, *, direct: bool) -> str:
    """The best way to read, of those that this system allows; or the given one, if it is.

    Raises:
        OSError: The system refuses the given way.
        ValueError: It does not fit to descriptors that are, or are not, of O_DIRECT.
    """
    if way is not None:
        kind = WAYS[way]
        if kind.direct not in (None, direct):
            raise ValueError(
                f"way must be one of reads that are {'' if direct else 'not '}direct, got {way!r}"
            )
        if error := refusal(way):
            raise error
        return way
    return next(
        name
        for name, kind in WAYS.items()
        if kind.direct in (None, direct) and refusal(name) is None
    )


_MOST_IDLE = 8  # by way; each holds descriptors and, with threads, their stacks
_idle: dict[str, list[Queue]] = {way: [] for way in WAYS}


@contextmanager
def queue(way: str) -> Iterator[Queue]:
    """A queue for the time of the ``with`` block, from those that are idle or a new one; safe from
    any thread.

    Threads serve where the system has no more descriptors or contexts.
    """
    try:
        taken = _idle[way].pop()
    except IndexError:
        try:
            taken = WAYS[way]()
        except OSError:
            taken = Threads()
    yield taken
    # No lock: list.pop and append are atomic, and one queue too many does no harm.
    idle = _idle[taken.way]
    # Not after an exception: who knows what still uses it.
    if not taken.is_lost and len(idle) < _MOST_IDLE:
        idle.append(taken)


def _forget() -> None:
    """Drop the idle queues in a forked child, where their threads and kernel contexts are gone."""
    for idle in _idle.values():
        idle.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


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
    # Two trials at once would measure each other.
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
