"""What a tracer collects: spans and samples by thread, and the epochs they belong to."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .stage import THREAD_NAME

__all__ = ["Depth", "Log", "Pass", "Record", "Span", "clock_offset"]

Span = tuple[str, int, int, int, int, Any]
"""Name, begin and end (``perf_counter_ns``), pass, batch (both -1: none), what was read. Flat, and only of what the
garbage collector need not follow: it stops looking at such tuples, however many there are."""

Depth = tuple[int, int, int, int]
"""When, pass, finished batches that wait, batches in work."""


@dataclass(eq=False)
class Log:
    """What happened in one thread, or on one stream: a track of the timeline."""

    name: str
    track: int
    thread: threading.Thread | None = None
    spans: list[Span] = field(default_factory=list)
    depths: list[Depth] = field(default_factory=list)
    number: int = -1  # of the pass that the thread is at work for
    batch: int = -1
    computing: tuple[int, int, int] | None = None  # since when, pass and batch: the reader has it


@dataclass(eq=False)
class Pass:
    """One epoch of one loader; ``end`` is 0 while it goes on, ``delivered`` has each batch's counts."""

    label: str
    epoch: int
    begin: int
    end: int = 0
    delivered: dict[int, dict[str, int]] = field(default_factory=dict)


@dataclass(eq=False)
class Record:
    """All that a tracer has collected.

    Attributes:
        path: Where it will be written.
        max_events: What comes after that many is counted, not kept.
        epoch_ns: Add to ``perf_counter_ns`` for nanoseconds since 1970.
        begin: When the trace began.
        pid: The process it is of.
        logs: The threads' tracks; guarded by ``lock`` while they are made.
        streams: Other tracks by name.
        passes: Epochs, by number.
        events: Spans and depths so far, those left out included.
    """

    path: Path
    max_events: int
    epoch_ns: int
    begin: int = field(default_factory=time.perf_counter_ns)
    pid: int = field(default_factory=os.getpid)
    logs: list[Log] = field(default_factory=list)
    streams: dict[str, Log] = field(default_factory=dict)
    passes: list[Pass] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    events: Iterator[int] = field(default_factory=itertools.count)

    def log_of_thread(self) -> Log:
        """A log for the calling thread.

        An epoch has threads of its own: worker i goes on in the track of the one before, or there would be a track for
        every epoch and worker. The track bears the number of the first.
        """
        thread = threading.current_thread()
        with self.lock:
            if thread.name.startswith(THREAD_NAME):
                for log in self.logs:
                    if log.name == thread.name and (log.thread is None or not log.thread.is_alive()):
                        log.thread, log.number, log.batch = thread, -1, -1
                        return log
            log = Log(thread.name, threading.get_native_id(), thread)
            self.logs.append(log)
            return log


def clock_offset() -> int:
    """Nanoseconds since 1970 at ``perf_counter_ns() == 0``, from the quickest of some looks at both clocks.

    Both run at the same rate (the system slews them together), so one look serves for the whole trace.
    """
    looks = []
    for _ in range(20):
        before = time.perf_counter_ns()
        wall = time.time_ns()
        after = time.perf_counter_ns()
        looks.append((after - before, wall - (before + after) // 2))
    return min(looks)[1]
