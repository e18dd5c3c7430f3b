"""When threads of this process loaded or compiled kernels, and the notice about compiling.

It is separate from ``_jit``, so that code that counts times does not import numba.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ._kernel_folder import kernel_folder
from ._streams import print_notice

_log = logging.getLogger("pagraph")

SAID_AFTER = 1_000_000_000
"""Nanoseconds of compiling after which the notice appears: users wonder after a second."""

ONE_TIME = "compiling kernels (one-time); run `pagraph warmup` to do this in advance"
"""What is said of compiling where kernels are kept."""

EVERYONE = 0
"""The thread of loads for which all threads wait."""
spans: list[tuple[int, int, int]] = []
"""Loads of kernels that are over: begin and end by ``time.perf_counter_ns``, and the thread.

A load includes compiling, and waiting for another thread that compiles. The ends ascend. Read
without a lock, because changes of one item are atomic.
"""
loads: dict[int, int] = {}
"""Loads under way: thread to begin."""
watchers: list[Callable[[int, int], object]] = []
"""Called after each load, in its thread, with its begin and end."""

_CLOSE = 2_000_000  # nanoseconds between the kernels of a module, of which one span is made
_compiled: list[int] = []  # nanoseconds of each compilation; appended under numba's lock
_running: list[int] = []  # begin of the compilation under way; also under numba's lock
_said: list[bool] = []
_damaged: list[str] = []  # files; appended under numba's lock, too
_ending = threading.Lock()  # Held while a load ends, so that the ends ascend. A leaf.


def _forked() -> None:
    """Forget the other threads, which a forked process does not have."""
    global _ending
    loads.clear()
    _ending = threading.Lock()


os.register_at_fork(after_in_child=_forked)


@contextmanager
def loading(*, everyone: bool = False) -> Iterator[None]:
    """Note the time of a block that makes, loads or compiles a kernel and those that it calls.

    With ``everyone``, all threads wait for it: while a module of kernels is imported, it is locked,
    and so is the interpreter.
    """
    thread = threading.get_ident()
    if thread in loads:
        yield
        return
    begin = loads[thread] = time.perf_counter_ns()
    whose = EVERYONE if everyone else thread
    try:
        yield
    finally:
        with _ending:
            end = time.perf_counter_ns()
            if everyone and spans and spans[-1][2] == whose and begin - spans[-1][1] < _CLOSE:
                spans[-1] = (spans[-1][0], end, whose)
            else:
                spans.append((begin, end, whose))
        # Only now, or others would miss it between the two.
        del loads[thread]
        for watcher in tuple(watchers):
            watcher(begin, end)


@contextmanager
def compiling() -> Iterator[None]:
    """:func:`loading` of a block that compiles a kernel, with a notice if it takes long.

    The caller holds numba's lock.
    """
    now = time.perf_counter_ns()
    if _running:
        # A batch's kernel takes seconds, so the notice must appear while it is compiled.
        _say_if_long(now - _running[0])
        yield
        return
    _running.append(now)
    _say_if_long(0)
    try:
        with loading():
            yield
    finally:
        _running.clear()
        _compiled.append(time.perf_counter_ns() - now)


def kernels_within(begin: int, end: int, thread: int | None = None) -> list[tuple[int, int]]:
    """The parts of a stretch of time in which a thread, or any, loaded kernels; they are disjoint.

    A thread that does something else meanwhile is not held up. So its own loads are what its work
    does not count, while one that waits for other threads does not count the loads of any.
    """
    if not loads and (not spans or spans[-1][1] <= begin):
        return []
    found = [(first, end) for of, first in loads.copy().items() if thread in (of, None)]
    for first, last, of in reversed(spans):
        if last <= begin:
            break
        if thread is None or of in (thread, EVERYONE):
            found.append((first, last))
    parts: list[tuple[int, int]] = []
    covered = begin
    for first, last in sorted(found):
        first = max(first, covered)
        covered = max(covered, min(last, end))
        if first < covered:
            parts.append((first, covered))
    return parts


def kernels_ns(begin: int, end: int, thread: int | None = None) -> int:
    """Nanoseconds of :func:`kernels_within`."""
    return sum(last - first for first, last in kernels_within(begin, end, thread))


def kernels_seconds(begin: float, end: float, thread: int | None = None) -> float:
    """Seconds of :func:`kernels_within` between two times of ``time.perf_counter``."""
    if not loads and (not spans or spans[-1][1] <= begin * 1e9):  # at once, as for each read
        return 0.0
    return kernels_ns(round(begin * 1e9), round(end * 1e9), thread) * 1e-9


@dataclass
class LoopTimes:
    """Seconds of a training loop: of waiting for batches, computing, and loading kernels.

    ``at`` is when the part under way began, by ``time.perf_counter``.
    """

    at: float
    loading: float = 0.0
    computing: float = 0.0
    kernels: float = 0.0

    def waited(self, now: float) -> None:
        """Count the time since the last call as waiting for the loader's threads."""
        self.loading += self._since(now, None)

    def computed(self, now: float) -> None:
        """Count the time since the last call as this thread's computing."""
        self.computing += self._since(now, threading.get_ident())

    def _since(self, now: float, thread: int | None) -> float:
        kernels = kernels_seconds(self.at, now, thread)
        seconds = now - self.at - kernels
        self.kernels += kernels
        self.at = now
        return seconds


def _say_if_long(under_way: int) -> None:
    if _said or under_way + sum(_compiled) < SAID_AFTER:
        return
    _said.append(True)
    _say(compiling_words())


def say_damaged(path: str) -> None:
    """Say that a file of a compiled kernel is damaged, for the first one of this process."""
    if not _damaged:
        _say(f"compiling kernels again, as {path} is damaged: is the disk full, or failing?")
    _damaged.append(path)


def _say(words: str) -> None:
    _log.info(words)
    # On stderr, where users look. PAGRAPH_QUIET is for programs whose stderr is parsed.
    if not os.environ.get("PAGRAPH_QUIET"):
        print_notice(f"pagraph: {words}")


def compiling_words() -> str:
    """That kernels are compiled, and whether the next process has to do so again."""
    why = kernel_folder().why_not_kept()
    return f"compiling kernels, which are not kept: {why}" if why else ONE_TIME
