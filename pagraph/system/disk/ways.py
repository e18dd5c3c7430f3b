"""Ways to read that this system allows, idle queues of each, and a short trial of a disk's
rates."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ..threads import fork_lock
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

Measured on a virtual disk, cold, 128 requests at once::

                         requests/s of 1, 4, 16 KiB    CPU us for 4 KiB
    O_DIRECT, AIO          151,000  120,000  53,000    2.8
    O_DIRECT, threads      131,000  108,000  57,000    7.9
    O_DIRECT, io_uring     125,000   94,000  43,000    4.3
    page cache, advice     141,000  122,000  52,000    4.0
    page cache, threads    114,000   96,000  45,000    9.5

io_uring is not used: it is slower than AIO, and containers often forbid it.
"""


_refused: dict[str, OSError | None] = {}


def refusal(way: str) -> OSError | None:
    """Why this system does not allow a way, None if it does; tried once."""
    if way not in _refused:
        try:
            WAYS[way].check()
            _refused[way] = None
        except OSError as error:
            _refused[way] = error
    return _refused[way]


def usable_way(way: str | None = None, *, direct: bool) -> str:
    """The given way to read, or by default the best one that this system allows.

    Raises:
        OSError: The system refuses the given way.
        ValueError: The given way needs descriptors with O_DIRECT, or without.
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


_MOST_IDLE = 8  # of each way; each queue keeps its memory
_idle: dict[str, list[Queue]] = {way: [] for way in WAYS}


@contextmanager
def queue(way: str) -> Iterator[Queue]:
    """Borrow an idle queue, or a new one, for the ``with`` block; thread-safe.

    It is of :class:`Threads` if the system has no more descriptors or contexts.
    """
    try:
        taken = _idle[way].pop()
    except IndexError:
        try:
            taken = WAYS[way]()
        except OSError:
            taken = Threads()
    yield taken
    # No lock, because list.pop and append are atomic, and one idle queue too many does no harm.
    idle = _idle[taken.way]
    # Not reached after an exception, when reads may still use the queue.
    if not taken.is_lost and len(idle) < _MOST_IDLE:
        idle.append(taken)


def _forget() -> None:
    """Drop the idle queues in a forked child, where their threads and kernel contexts are gone."""
    for idle in _idle.values():
        idle.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


Array = Any  # a NumPy array; its element type is a matter of the kernels

_BLOCK = 4096  # an alignment that suits every disk
_ROUNDS = 3
# For smaller files a trial costs more than it saves.
_LEAST_BYTES = 64 << 20


class Rates(NamedTuple):
    """Rates of a disk with its queue full.

    A request's time is ``request + bytes * byte``. On a virtual disk 40,000 rows of 1 KiB, merged
    over gaps of 0 to 31 blocks, took 0.19 to 0.25 s, all within 6 % of 5.8 us a request plus 0.66
    ns a byte. A model of two limits, ``max`` instead of the sum, predicted a third of the time for
    five times the bytes, which in fact took as long.

    Attributes:
        request: Seconds per request.
        byte: Seconds per byte.
    """

    request: float
    byte: float


USUAL = Rates(2e-5, 1e-9)
"""Rates assumed for a disk that was not tried."""

_known: dict[int, Rates] = {}
_one_at_a_time = fork_lock()


def rates_of(descriptor: int) -> Rates:
    """Rates of the disk that an open file is on.

    Each disk is tried once in a process, in 0.1 s, by direct reads spread over the file. ``USUAL``
    if direct reads are impossible or the file is small.
    """
    found = os.fstat(descriptor)
    # Two trials at once would disturb each other.
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
    """Seconds per request of ``nbytes``, the minimum of some rounds; infinite if a read failed."""
    from . import _reads

    generator = np.random.default_rng(0)
    out = np.empty((1, nbytes), dtype=np.uint8)  # all rows go here, as the content is not used
    job = (descriptor, 0, nbytes, nbytes, _BLOCK, _BLOCK, out.ctypes.data, 0)
    count = 2 * min(DEPTH, QUEUE_BYTES // nbytes)
    least = np.inf
    with queue(way) as reads:
        for number in (1, *[count] * _ROUNDS):  # the first round compiles the kernels
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
    """The gap, in blocks, over which neighbouring rows are merged into one request.

    It minimises time, by ``Rates``, multiplied by the cube root of the bytes: twice the bytes must
    save a fifth of the time, because they take memory, and the disk from other readers. There is no
    limit to the extra bytes, except ``most`` for one gap. Of rows of 400 bytes, a fifth of them
    wanted, reads took 0.103 s with a tenth more bytes than the rows' blocks, and 0.045 s with twice
    as many.
    """
    from . import _reads

    align = job[4]
    counts = np.zeros(most // align + 1, dtype=np.int64)
    blocks = _reads.count_gaps(rows, job, counts)
    requests = len(rows) - np.cumsum(counts)
    nbytes = (blocks + np.cumsum(counts * np.arange(len(counts)))) * align
    return int(np.argmin((requests * rates.request + nbytes * rates.byte) * np.cbrt(nbytes)))
