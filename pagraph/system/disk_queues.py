"""Queues of reads: the ways in which this process can give the disk many requests at once."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, NamedTuple

import numpy as np

from . import _disk_reads
from .threads import THREAD_NAME

__all__ = ["DEPTH", "REQUEST_BYTES", "WAYS", "Queue", "Requests", "queue", "usable_way"]

Array = Any  # a NumPy array; its element type is a matter of the kernels

DEPTH = 64
REQUEST_BYTES = 128 << 10


_ANYWHERE: Array = np.empty(0, dtype=np.int64)


class Requests(NamedTuple):
    """What one call reads: see ``_disk_reads``; ``out`` is only kept alive for the address that is in ``job``."""

    rows: Array
    places: Array
    edges: Array
    number: int
    job: tuple[int, ...]
    state: Array
    out: Array

    @classmethod
    def of(cls, rows: Array, out: Array, job: tuple[int, ...], gap: int, places: Array = _ANYWHERE) -> Requests:
        """Requests for ascending rows, merged over at most ``gap`` blocks that nobody needs."""
        edges = np.empty(len(rows) + 1, dtype=np.int64)
        number = _disk_reads.make_requests(rows, job, gap, REQUEST_BYTES, edges)
        return cls(rows, places, edges, number, job, np.zeros(_disk_reads.WORDS, dtype=np.int64), out)

    def steps(self, size: int) -> Iterator[Requests]:
        """The same in parts of at most ``size`` requests."""
        for first in range(0, self.number, size):
            count = min(size, self.number - first)
            self.state[_disk_reads.CURSOR] = 0
            yield self._replace(edges=self.edges[first : first + count + 1], number=count)


class Queue:
    """Slots that reads go to, and a way to have many under way; serves one call at a time.

    Attributes:
        way: Its name.
        direct: Whether descriptors must be of O_DIRECT, or must not; None: either.
    """

    way: ClassVar[str]
    direct: ClassVar[bool | None] = None
    num_slots: ClassVar[int] = DEPTH

    def __init__(self) -> None:
        # Shared, though with nobody: a fork would make copies of private pages, and reads that are under way could then
        # end in the child's.
        self._memory = mmap.mmap(-1, self.num_slots * REQUEST_BYTES)
        self._slots: int = np.frombuffer(self._memory, dtype=np.uint8).ctypes.data

    @classmethod
    def check(cls) -> None:
        """Raise OSError where the system refuses this way."""

    def read(self, requests: Requests) -> None:
        """Read all requests into their places; an error is in ``state``. Nothing is under way when it returns."""
        raise NotImplementedError


class Threads(Queue):
    """A thread for each request under way. They live for one call."""

    way = "threads"

    def read(self, requests: Requests) -> None:
        """As :meth:`Queue.read`; a system that allows no more threads gets by with those that it allowed."""
        started: list[threading.Thread] = []
        try:
            for slot in range(1, min(self.num_slots, requests.number // 4)):
                work = threading.Thread(target=self._work, args=(requests, slot), name=f"{THREAD_NAME}-reads")
                try:
                    work.start()
                except RuntimeError:  # no more threads, or the interpreter ends
                    break
                started.append(work)
            self._work(requests, 0)
        finally:
            _join(started, requests.state)

    def _work(self, requests: Requests, slot: int) -> None:
        rows, places, edges, number, job, state, _ = requests
        _disk_reads.read_by_pread(rows, places, edges, number, job, self._slots + slot * REQUEST_BYTES, state)


def _join(threads: list[threading.Thread], state: Array) -> None:
    """Wait for all threads; when interrupted, until each has done what it is at."""
    interrupt: BaseException | None = None
    for thread in threads:
        while thread.is_alive():
            try:
                thread.join()
            except BaseException as error:
                state[_disk_reads.STOP] = 1
                interrupt = error
    if interrupt is not None:
        raise interrupt


class Advice(Queue):
    """One thread, which tells the system what it will read ``DEPTH`` requests later; through the page cache only."""

    way, direct, num_slots = "readahead", False, 1

    def read(self, requests: Requests) -> None:
        """As :meth:`Queue.read`."""
        rows, places, edges, number, job, state, _ = requests
        _disk_reads.read_behind_advice(rows, places, edges, number, job, self._slots, DEPTH, state)


WAYS: dict[str, type[Queue]] = {kind.way: kind for kind in (Advice, Threads)}
"""Ways by name, the best first."""


def usable_way(way: str | None = None, *, direct: bool) -> str:
    """The best way to read, of those that this system allows; or the given one, if it is.

    Raises:
        OSError: The system refuses the given way.
        ValueError: It does not fit to descriptors that are, or are not, of O_DIRECT.
    """
    if way is not None:
        kind = WAYS[way]
        if kind.direct not in (None, direct):
            raise ValueError(f"way must be one of reads that are {'' if direct else 'not '}direct, got {way!r}")
        kind.check()
        return way
    for name, kind in WAYS.items():
        if kind.direct in (None, direct):
            with suppress(OSError):
                kind.check()
                return name
    raise AssertionError  # threads are always there


_MOST_IDLE = 8
_idle: dict[str, list[Queue]] = {way: [] for way in WAYS}


@contextmanager
def queue(way: str) -> Iterator[Queue]:
    """A queue for the time of the ``with`` block, from those that are idle or a new one; safe from any thread.

    Raises:
        OSError: The system has no more, or does not know the way.
    """
    idle = _idle[way]
    try:
        taken = idle.pop()
    except IndexError:
        taken = WAYS[way]()
    yield taken
    if len(idle) < _MOST_IDLE:  # not after an exception: who knows what still uses it
        idle.append(taken)


def _forget() -> None:
    for idle in _idle.values():
        idle.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
