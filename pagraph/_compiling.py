"""When this process compiled kernels, and the one line that says so.

Apart from ``_jit``, which imports numba: whoever books times needs only this.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_log = logging.getLogger("pagraph")

SAID_AFTER = 1_000_000_000
"""Nanoseconds of compiling after which a line says so: who waits a second begins to wonder."""

NOTICE = (
    "pagraph: compiling kernels for this machine, once: some seconds; `pagraph warmup` does it "
    "ahead"
)

spans: list[tuple[int, int]] = []
"""When kernels were compiled, as begins and ends by ``time.perf_counter_ns``.

Ascending and apart: numba compiles under one lock of the process. Appended to under that lock, and
read without one, as an append is atomic.
"""

_running: list[int] = []  # when the compilation under way began; under numba's lock, too
_said: list[bool] = []


@contextmanager
def compiling() -> Iterator[None]:
    """Around the compilation of a kernel; those within, of the kernels that it calls, count as part
    of it. The caller holds numba's lock."""
    now = time.perf_counter_ns()
    if _running:
        # A batch's kernel takes seconds: the line appears meanwhile, not when it is done.
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
    """The spans that overlap a stretch of time, whichever thread compiled: the others wait for the
    same lock."""
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
    _log.info(NOTICE.removeprefix("pagraph: "))
    # Where a person looks; PAGRAPH_QUIET is for programs whose stderr another one reads.
    if not os.environ.get("PAGRAPH_QUIET"):
        sys.stderr.write(NOTICE + "\n")
