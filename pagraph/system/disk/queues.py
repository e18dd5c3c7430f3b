"""Queues of reads: the ways in which this process can give the disk many requests at once."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..._postponed import signals_later
from ..threads import THREAD_NAME

Array = Any  # a NumPy array; its element type is a matter of the kernels

# Requests/s of 1 KiB past the page cache by AIO at 64, 128, 256: 111,000, 151,000, 140,000.
DEPTH = 128
REQUEST_BYTES = 128 << 10
QUEUE_BYTES = 8 << 20
"""Memory of a queue. Requests of ``REQUEST_BYTES`` fill the disk's queue with fewer of them than
small ones do."""


_ANYWHERE: Array = np.empty(0, dtype=np.int64)


_NO_LOG: Array = np.empty((0, 2), dtype=np.int64)
# Depths of the queue that are noted for a timeline; a second of reading takes some thousands.
_MOST_SAMPLES = 1 << 14

Watcher = Callable[[Array], object]
_watchers: list[Watcher] = []


def watch(watcher: Watcher) -> None:
    """Have a function called after each read from now on, with samples of its queue: (n, 2), ns and
    depth.

    Times are those of ``time.perf_counter_ns``, half a millisecond apart; the last sample has depth
    0.
    """
    _watchers.append(watcher)


def unwatch(watcher: Watcher) -> None:
    """Call a function no more; nothing happens where it was not."""
    if watcher in _watchers:
        _watchers.remove(watcher)


def _new_log() -> Array:
    return np.empty((_MOST_SAMPLES, 2), dtype=np.int64) if _watchers else _NO_LOG


class Requests(NamedTuple):
    """Requests of one call: see ``_reads``.

    ``slot_bytes`` is what the largest takes, in whole pages; ``log`` has room for samples of the
    queue's depth, if someone wants them; ``out`` is only kept alive for the address in ``job``.
    """

    rows: Array
    places: Array
    edges: Array
    number: int
    slot_bytes: int
    job: tuple[int, ...]
    state: Array
    log: Array
    out: Array

    @classmethod
    def of(
        cls, rows: Array, out: Array, job: tuple[int, ...], gap: int, places: Array = _ANYWHERE
    ) -> Requests:
        """Requests for ascending rows, merged over at most ``gap`` blocks that nobody needs."""
        from . import _reads

        edges = np.empty(len(rows) + 1, dtype=np.int64)
        number, largest = _reads.make_requests(rows, job, gap, REQUEST_BYTES, edges)
        slot_bytes = -(-largest // mmap.PAGESIZE) * mmap.PAGESIZE
        return cls(
            rows,
            places,
            edges,
            number,
            slot_bytes,
            job,
            np.zeros(_reads.WORDS, dtype=np.int64),
            _new_log(),
            out,
        )

    def tell(self) -> None:
        """Hand the samples of the queue's depth to whoever watches."""
        from . import _reads

        samples = self.log[: self.state[_reads.SAMPLES]].copy()
        if len(samples):
            for watcher in list(_watchers):
                watcher(samples)

    def steps(self, size: int) -> Iterator[Requests]:
        """The same in parts of at most ``size`` requests."""
        from . import _reads

        for first in range(0, self.number, size):
            count = min(size, self.number - first)
            self.state[_reads.CURSOR] = 0
            yield self._replace(edges=self.edges[first : first + count + 1], number=count)


class Queue:
    """Slots that reads go to, and a way to have many under way; serves one call at a time.

    Args:
        depth: Most reads under way; fewer where ``QUEUE_BYTES`` hold fewer.

    Attributes:
        way: Its name.
        direct: Whether descriptors must be of O_DIRECT, or must not; None: either.
        is_lost: It failed with reads under way, and must not be used again.
    """

    way: ClassVar[str]
    direct: ClassVar[bool | None] = None

    def __init__(self, depth: int = DEPTH) -> None:
        self.depth = depth
        self.is_lost = False
        # Shared, though with nobody: a fork would make copies of private pages, and reads that are
        # under way could then end in the child's.
        self._memory = mmap.mmap(-1, QUEUE_BYTES)
        self._slots: int = np.frombuffer(self._memory, dtype=np.uint8).ctypes.data

    @classmethod
    def check(cls) -> None:
        """Raise OSError where the system refuses this way."""

    def slots(self, requests: Requests) -> tuple[int, int, int]:
        """Address, bytes and number of the slots that requests of this size have."""
        return self._slots, requests.slot_bytes, min(self.depth, QUEUE_BYTES // requests.slot_bytes)

    def read(self, requests: Requests) -> None:
        """Read all requests into their places; an error is in ``state``. Nothing is under way when
        it returns."""
        raise NotImplementedError


# Where threads read: a disk that needs more requests at once than these is one for AIO.
_MOST_THREADS = 64


class Threads(Queue):
    """A thread for each request under way. They live for one call."""

    way = "threads"

    def read(self, requests: Requests) -> None:
        """Read, see :meth:`Queue.read`; a system that allows no more threads gets by with those
        that it allowed."""
        from . import _reads

        address, slot_bytes, most = self.slots(requests)
        started: list[threading.Thread] = []
        others = requests._replace(log=_NO_LOG)  # one samples for all
        with signals_later():  # an interrupt could lose a thread that writes into our slots
            for slot in range(1, min(most, _MOST_THREADS, requests.number // 4)):
                place = address + slot * slot_bytes
                thread = threading.Thread(
                    target=_work, args=(others, place), name=f"{THREAD_NAME}-reads"
                )
                try:
                    thread.start()
                except RuntimeError:  # no more threads, or the interpreter ends
                    break
                started.append(thread)
            _work(requests, address)
            for thread in started:
                thread.join()
        _reads.note_depth(requests.state, requests.log, 0)


def _work(requests: Requests, slot: int) -> None:
    from . import _reads

    rows, places, edges, number, _, job, state, log, _ = requests
    _reads.read_by_pread(rows, places, edges, number, job, slot, state, log)


class Advice(Queue):
    """One thread, which tells the system what it will read ``DEPTH`` requests later; through the
    page cache only."""

    way = "readahead"
    direct = False

    def read(self, requests: Requests) -> None:
        """Read, see :meth:`Queue.read`."""
        from . import _reads

        rows, places, edges, number, _, job, state, log, _ = requests
        _reads.read_behind_advice(
            rows, places, edges, number, job, self._slots, self.depth, state, log
        )


# Reads to wait for at a time, so that one system call serves several: with 32 a queue of 128 ran
# dry (65,700 requests/s of 4 KiB, with 8 105,800; of 64 KiB 11,200 and 14,300).
WAIT = 8
_AIO = {  # io_setup, io_destroy, io_getevents, io_submit
    "x86_64": (206, 207, 208, 209),
    "aarch64": (0, 1, 4, 2),
}


def system_call(number: int, *arguments: int) -> int:
    """Result of a system call; OSError where it failed."""
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    result: int = function(*(ctypes.c_long(each) for each in (number, *arguments)))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


class Aio(Queue):
    """A context of Linux AIO: truly asynchronous past the page cache only."""

    way = "aio"
    direct = True

    def __init__(self, depth: int = DEPTH) -> None:
        super().__init__(depth)
        numbers = _AIO.get(platform.machine())
        if numbers is None:
            raise OSError(errno.ENOSYS, f"AIO is not known on {platform.machine()}")
        setup, destroy, self._get_events, self._submit = numbers
        context = np.zeros(1, dtype=np.uint64)
        system_call(setup, depth, context.ctypes.data)
        self._context = int(context[0])
        self._close = weakref.finalize(self, _destroy, destroy, self._context, os.getpid())
        self._close.atexit = False
        self._blocks: Array = np.zeros(depth * 13, dtype=np.uint64)

    @classmethod
    def check(cls) -> None:
        """Raise OSError where the system refuses AIO, or has no more."""
        cls()

    def read(self, requests: Requests) -> None:
        """Read, see :meth:`Queue.read`."""
        rows, places, edges, number, _, job, state, log, _ = requests
        from . import _reads

        slots = *self.slots(requests), WAIT
        own = self._submit, self._get_events, self._context, self._blocks
        if not _reads.read_by_aio(rows, places, edges, number, job, *slots, *own, state, log):
            self.is_lost = True
            _lost.append(self)


_lost: list[Queue] = []
"""Queues that failed with reads under way: their memory must stay."""


def _destroy(number: int, context: int, process: int) -> None:
    if os.getpid() == process:  # a forked child has none of its parent's contexts
        system_call(number, context)
