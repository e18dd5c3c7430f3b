"""When this process compiled kernels, and the notice about it.

It is separate from ``_jit``, so that code that counts times does not import numba.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ._kernel_folder import kernel_folder
from ._streams import say

_log = logging.getLogger("pagraph")

SAID_AFTER = 1_000_000_000
"""Nanoseconds of compiling after which the notice appears: users wonder after a second."""

ONE_TIME = "compiling kernels (one-time); run `pagraph warmup` to do this in advance"
"""What is said of compiling where kernels are kept."""

spans: list[tuple[int, int]] = []
"""When kernels were compiled: begins and ends by ``time.perf_counter_ns``.

They ascend and do not overlap, since numba compiles under one lock of the process. They are
appended under that lock, and read without a lock, because appending is atomic.
"""

_running: list[int] = []  # begin of the compilation under way; also under numba's lock
_said: list[bool] = []


@contextmanager
def compiling() -> Iterator[None]:
    """Note the time of a block that compiles a kernel, including the kernels that it calls.

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
        yield
    finally:
        _running.clear()
        spans.append((now, time.perf_counter_ns()))


def compiled_within(begin: int, end: int) -> set[tuple[int, int]]:
    """The spans that overlap a stretch of time, of all threads, since others wait for the lock."""
    found = set()
    for span in reversed(spans):
        if span[1] <= begin:
            break
        if span[0] < end:
            found.add(span)
    return found


def compiled_ns(begin: int, end: int) -> int:
    """Nanoseconds of a stretch of time in which kernels were compiled."""
    within = compiled_within(begin, end)
    return sum(min(last, end) - max(first, begin) for first, last in within)


def compiled_seconds(begin: float, end: float) -> float:
    """Seconds between two times, of ``time.perf_counter``, in which kernels were compiled."""
    return compiled_ns(round(begin * 1e9), round(end * 1e9)) * 1e-9


def _say_if_long(under_way: int) -> None:
    if _said or under_way + sum(end - begin for begin, end in spans) < SAID_AFTER:
        return
    _said.append(True)
    words = compiling_words()
    _log.info(words)
    # On stderr, where users look. PAGRAPH_QUIET is for programs whose stderr is parsed.
    if not os.environ.get("PAGRAPH_QUIET"):
        say(f"pagraph: {words}")


def compiling_words() -> str:
    """That kernels are compiled, and whether the next process has to do so again."""
    why = kernel_folder().why_not_kept()
    return f"compiling kernels, which are not kept: {why}" if why else ONE_TIME
