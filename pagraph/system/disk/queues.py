"""Queues of reads: the ways in which this process can give the disk many requests at once."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..._jit import signals_later
from ..threads import THREAD_NAME
from . import _reads

__all__ = ["DEPTH", "REQUEST_BYTES", "Advice", "Queue", "Requests", "Threads"]

Array = Any  # a NumPy array; its element type is a matter of the kernels

DEPTH = 128
REQUEST_BYTES = 128 << 10
QUEUE_BYTES = 8 << 20
"""Memory of a queue. Requests of ``REQUEST_BYTES`` fill the disk's queue with fewer of them than small ones do."""


_ANYWHERE: Array = np.empty(0, dtype=np.int64)


class Requests(NamedTuple):
    """What one call reads: see ``_reads``.

    ``slot_bytes`` is what the largest takes, in whole pages; ``out`` is only kept alive for the address in ``job``.
    """

    rows: Array
    places: Array
    edges: Array
    number: int
    slot_bytes: int
    job: tuple[int, ...]
    state: Array
    out: Array

    @classmethod
    def of(cls, rows: Array, out: Array, job: tuple[int, ...], gap: int, places: Array = _ANYWHERE) -> Requests:
        """Requests for ascending rows, merged over at most ``gap`` blocks that nobody needs."""
        edges = np.empty(len(rows) + 1, dtype=np.int64)
        number, largest = _reads.make_requests(rows, job, gap, REQUEST_BYTES, edges)
        slot_bytes = -(-largest // mmap.PAGESIZE) * mmap.PAGESIZE
        return cls(rows, places, edges, number, slot_bytes, job, np.zeros(_reads.WORDS, dtype=np.int64), out)

    def steps(self, size: int) -> Iterator[Requests]:
        """The same in parts of at most ``size`` requests."""
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
    """

    way: ClassVar[str]
    direct: ClassVar[bool | None] = None

    def __init__(self, depth: int = DEPTH) -> None:
        self.depth = depth
        # Shared, though with nobody: a fork would make copies of private pages, and reads that are under way could then
        # end in the child's.
        self._memory = mmap.mmap(-1, QUEUE_BYTES)
        self._slots: int = np.frombuffer(self._memory, dtype=np.uint8).ctypes.data

    @classmethod
    def check(cls) -> None:
        """Raise OSError where the system refuses this way."""

    def slots(self, requests: Requests) -> tuple[int, int, int]:
        """Address, bytes and number of the slots that requests of this size have."""
        return self._slots, requests.slot_bytes, min(self.depth, QUEUE_BYTES // requests.slot_bytes)

    def read(self, requests: Requests) -> None:
        """Read all requests into their places; an error is in ``state``. Nothing is under way when it returns."""
        raise NotImplementedError


_MOST_THREADS = 64


class Threads(Queue):
    """A thread for each request under way. They live for one call."""

    way = "threads"

    def read(self, requests: Requests) -> None:
        """As :meth:`Queue.read`; a system that allows no more threads gets by with those that it allowed."""
        address, slot_bytes, most = self.slots(requests)
        started: list[threading.Thread] = []
        with signals_later():  # an interrupt could lose a thread that writes into our slots
            for slot in range(1, min(most, _MOST_THREADS, requests.number // 4)):
                place = address + slot * slot_bytes
                thread = threading.Thread(target=_work, args=(requests, place), name=f"{THREAD_NAME}-reads")
                try:
                    thread.start()
                except RuntimeError:  # no more threads, or the interpreter ends
                    break
                started.append(thread)
            _work(requests, address)
            for thread in started:
                thread.join()


def _work(requests: Requests, slot: int) -> None:
    rows, places, edges, number, _, job, state, _ = requests
    _reads.read_by_pread(rows, places, edges, number, job, slot, state)


class Advice(Queue):
    """One thread, which tells the system what it will read ``DEPTH`` requests later; through the page cache only."""

    way, direct = "readahead", False

    def read(self, requests: Requests) -> None:
        """As :meth:`Queue.read`."""
        rows, places, edges, number, _, job, state, _ = requests
        _reads.read_behind_advice(rows, places, edges, number, job, self._slots, self.depth, state)
