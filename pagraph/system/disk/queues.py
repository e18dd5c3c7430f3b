"""Queues of reads, which give the disk many requests at once."""

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

# Direct AIO of 1 KiB reached 111,000, 151,000, 140,000 requests/s at depths of 64, 128, 256.
DEPTH = 128
REQUEST_BYTES = 128 << 10
QUEUE_BYTES = 8 << 20
"""Memory of a queue. It holds 64 requests of ``REQUEST_BYTES``, which fill a disk's queue."""


_ANYWHERE: Array = np.empty(0, dtype=np.int64)


_NO_LOG: Array = np.empty((0, 2), dtype=np.int64)
# Samples of the queue's depth for a timeline. A second of reading takes 2,000.
_MOST_SAMPLES = 1 << 14

Watcher = Callable[[Array], object]
_watchers: list[Watcher] = []


def watch(watcher: Watcher) -> None:
    """Call a function after each read from now on, with samples of its queue's depth.

    Samples have the shape ``(n, 2)``: the time of ``time.perf_counter_ns`` and the depth. They are
    half a millisecond apart, and the last has depth 0.
    """
    _watchers.append(watcher)


def unwatch(watcher: Watcher) -> None:
    """Stop calling a function of :func:`watch`, if it is one."""
    if watcher in _watchers:
        _watchers.remove(watcher)


def _new_log() -> Array:
    return np.empty((_MOST_SAMPLES, 2), dtype=np.int64) if _watchers else _NO_LOG


class Requests(NamedTuple):
    """The requests of one call; see ``_reads``.

    ``slot_bytes`` is the size of the largest request in whole pages. ``log`` has room for samples
    of the queue's depth if there is a watcher. ``out`` is kept alive for its address in ``job``.
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
        """Requests for ascending rows, merged over gaps of at most ``gap`` blocks."""
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

    def read_by(self, kernel: Callable[..., Any], *own: Any) -> Any:
        """Call a kernel that reads them; ``own`` are what only this kernel takes."""
        return kernel(
            self.rows,
            self.places,
            self.edges,
            self.number,
            self.job,
            *own,
            self.state,
            self.log,
        )

    def tell(self) -> None:
        """Pass the samples of the queue's depth to the watchers."""
        from . import _reads

        samples = self.log[: self.state[_reads.SAMPLES]].copy()
        if len(samples):
            for watcher in list(_watchers):
                watcher(samples)

    def steps(self, size: int) -> Iterator[Requests]:
        """The requests in parts of at most ``size``."""
        from . import _reads

        for first in range(0, self.number, size):
            count = min(size, self.number - first)
            self.state[_reads.CURSOR] = 0
            yield self._replace(edges=self.edges[first : first + count + 1], number=count)


class Queue:
    """A way to have many reads under way, and the slots that they fill; serves one call at a time.

    Args:
        depth: Most reads under way; fewer if ``QUEUE_BYTES`` hold fewer.

    Attributes:
        way: Its name.
        direct: Whether descriptors must have O_DIRECT, or must not; None if both will do.
        is_lost: Whether it failed with reads under way, and must not be used again.
    """

    way: ClassVar[str]
    direct: ClassVar[bool | None] = None

    def __init__(self, depth: int = DEPTH) -> None:
        self.depth = depth
        self.is_lost = False
        # MAP_SHARED, though no process shares it: after a fork, private pages would be copied, and
        # reads under way could complete into the child's copy.
        self._memory = mmap.mmap(-1, QUEUE_BYTES)
        self._slots: int = np.frombuffer(self._memory, dtype=np.uint8).ctypes.data

    @classmethod
    def check(cls) -> None:
        """Raise OSError if the system refuses this way."""

    def slots(self, requests: Requests) -> tuple[int, int, int]:
        """Address, size and number of the slots for requests of this size."""
        return self._slots, requests.slot_bytes, min(self.depth, QUEUE_BYTES // requests.slot_bytes)

    def read(self, requests: Requests) -> None:
        """Read all requests into their places; no read is under way when it returns.

        Errors are stored in ``state``.
        """
        raise NotImplementedError


# A disk that needs more requests at once is better served by AIO.
_MOST_THREADS = 64


class Threads(Queue):
    """Reads with one thread for each request under way; they live for one call."""

    way = "threads"

    def read(self, requests: Requests) -> None:
        """Read, see :meth:`Queue.read`; with fewer threads if the system allows no more."""
        from . import _reads

        address, slot_bytes, most = self.slots(requests)
        started: list[threading.Thread] = []
        others = requests._replace(log=_NO_LOG)  # this thread samples for all
        with signals_later():  # an interrupt could leave a thread that still writes into the slots
            for slot in range(1, min(most, _MOST_THREADS, requests.number // 4)):
                place = address + slot * slot_bytes
                thread = threading.Thread(
                    target=_work, args=(others, place), name=f"{THREAD_NAME}-reads"
                )
                try:
                    thread.start()
                except RuntimeError:  # no more threads, or the interpreter is shutting down
                    break
                started.append(thread)
            _work(requests, address)
            for thread in started:
                thread.join()
        _reads.note_depth(requests.state, requests.log, 0)


def _work(requests: Requests, slot: int) -> None:
    from . import _reads

    requests.read_by(_reads.read_by_pread, slot)


class Advice(Queue):
    """Reads in one thread, which advises the system ``DEPTH`` requests ahead; page cache only."""

    way = "readahead"
    direct = False

    def read(self, requests: Requests) -> None:
        """Read, see :meth:`Queue.read`."""
        from . import _reads

        requests.read_by(_reads.read_behind_advice, self._slots, self.depth)


# Reads to wait for in a system call. With 32, a queue of 128 ran dry: 65,700 requests/s of 4 KiB
# against 105,800 with 8, and 11,200 of 64 KiB against 14,300.
WAIT = 8
_AIO = {  # io_setup, io_destroy, io_getevents, io_submit
    "x86_64": (206, 207, 208, 209),
    "aarch64": (0, 1, 4, 2),
}


def system_call(number: int, *arguments: int) -> int:
    """The result of a system call; OSError if it fails."""
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    result: int = function(*(ctypes.c_long(each) for each in (number, *arguments)))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


class Aio(Queue):
    """Reads through Linux AIO, which is asynchronous with O_DIRECT only."""

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
        """Raise OSError if the system refuses AIO, or has no more contexts."""
        cls()

    def read(self, requests: Requests) -> None:
        """Read, see :meth:`Queue.read`."""
        from . import _reads

        whole = requests.read_by(
            _reads.read_by_aio,
            *self.slots(requests),
            WAIT,
            self._submit,
            self._get_events,
            self._context,
            self._blocks,
        )
        if not whole:
            self.is_lost = True
            _lost.append(self)


_lost: list[Queue] = []
"""Queues that failed with reads under way. Their memory must stay mapped."""


def _destroy(number: int, context: int, process: int) -> None:
    if os.getpid() == process:  # a forked child does not have its parent's contexts
        system_call(number, context)
