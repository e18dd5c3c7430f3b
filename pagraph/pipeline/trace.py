"""Tracer: collects who did what, and when, in the threads of one or several loaders, and writes it."""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..atomic import check_writable
from ..errors import PipelineError
from .trace_record import Log, Pass, Record, clock_offset

if TYPE_CHECKING:
    from .tracing import Tracing

__all__ = ["MAX_EVENTS", "Tracer"]

MAX_EVENTS = 1_000_000

_serials = itertools.count()


class Tracer:
    """Collects what loaders do and writes it as one Chrome trace, which Perfetto opens.

    Every thread appends to a list of its own; no lock is taken while batches are made. The file is written by
    :meth:`stop`, at the end of the ``with`` block; if neither comes, when the tracer and the loaders that it traces are
    gone, or at the interpreter's exit. Until then nothing is at ``path``, or what was there before.

    Args:
        path: Of the file; a name that ends in ``.gz`` is compressed.
        max_events: Events to keep, about 200 bytes each; a batch takes about 15. What comes later is counted
            (``droppedEvents`` in the file), not kept.

    Raises:
        FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError: The path cannot be written.
        ValueError: ``max_events`` is below 1.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_events: int = MAX_EVENTS) -> None:
        if max_events < 1:
            raise ValueError(f"max_events must be at least 1, got {max_events}")
        self._record = Record(check_writable("trace", path), max_events, clock_offset())
        self._events, self._max_events = self._record.events, max_events
        self.serial = next(_serials)
        self._local = threading.local()
        self._traced: weakref.WeakSet[Tracing] = weakref.WeakSet()
        self._finish = weakref.finalize(self, _write, self._record)

    @property
    def path(self) -> Path:
        """Where the trace will be."""
        return self._record.path

    def __enter__(self) -> Tracer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Trace no more, and write the file. Does nothing when called again, or in a forked process.

        Raises:
            OSError: The file cannot be written; nothing is left of it.
            RuntimeError: A device has failed, of which times were still to come; the file is written.
        """
        traced = list(self._traced)
        try:
            for tracing in traced:
                if tracing.tracer is not None and tracing.before_stop is not None:
                    tracing.before_stop()
        finally:  # a device that has failed has a trace all the same
            for tracing in traced:
                tracing.tracer = None
            self._finish()

    def add_to_stream(self, stream: str, name: str, begin: int, end: int) -> None:
        """Add a span to a track of its own, as for a stream of a device.

        Args:
            stream: The track's name.
            name: What was done.
            begin: When, in nanoseconds of ``time.perf_counter_ns``.
            end: When it was done; the spans of a stream lie behind or inside each other.
        """
        record = self._record
        with record.lock:
            log = record.streams.setdefault(stream, Log(stream, 0))
        if next(self._events) < self._max_events:
            log.spans.append((name, begin, end, -1, -1, None))

    # -- for the pipeline ---------------------------------------------------------------------------------

    def follow(self, tracing: Tracing) -> None:
        """Detach this loader too when the trace stops.

        Raises:
            PipelineError: It has stopped already.
        """
        if not self._finish.alive:
            raise PipelineError(f"a trace must not have been stopped, got the one in {self.path}")
        self._traced.add(tracing)

    @property
    def log(self) -> Log:
        """The calling thread's."""
        try:
            return self._local.log  # type: ignore[no-any-return]
        except AttributeError:
            self._local.log = log = self._record.log_of_thread()
            return log

    def add(self, name: str, begin: int, end: int, read: Any = None) -> None:
        """Add a span to the calling thread, for the batch that it is at."""
        if next(self._events) < self._max_events:
            log = self.log
            log.spans.append((name, begin, end, log.number, log.batch, read))

    def add_later(self, name: str, begin: int, end: int) -> Callable[[Any], None]:
        """Add a span as :meth:`add` does, when what was read is known: then call what this returns, in any thread."""
        log, events, most = self.log, self._events, self._max_events  # not the tracer: who waits must not keep it
        number, batch = log.number, log.batch

        def add(read: Any) -> None:
            if next(events) < most:
                log.spans.append((name, begin, end, number, batch, read))

        return add

    def add_depth(self, number: int, waiting: int, working: int) -> None:
        """Add a sample of a pass's queue."""
        if next(self._events) < self._max_events:
            self.log.depths.append((time.perf_counter_ns(), number, waiting, working))

    def begin_pass(self, label: str, epoch: int) -> int:
        """The number of a new pass."""
        with self._record.lock:
            self._record.passes.append(Pass(label, epoch, time.perf_counter_ns()))
            return len(self._record.passes) - 1

    def delivered(self, counts: dict[str, int]) -> None:
        """What the batch that the calling thread is at turned out to hold."""
        log = self.log
        if log.number >= 0 and next(self._events) < self._max_events:
            self._record.passes[log.number].delivered[log.batch] = counts

    def end_pass(self, number: int) -> None:
        """The pass is over. No lock: the garbage collector may end it, anywhere."""
        now = time.perf_counter_ns()
        self._record.passes[number].end = self._record.passes[number].end or now
        log = getattr(self._local, "log", None)
        if log is not None and log.computing is not None and log.computing[1] == number:
            self.end_computing(now)

    def end_computing(self, now: int) -> None:
        """The calling thread's reader does no more with the batch that it has."""
        log = self.log
        if log.computing is not None:
            begin, number, batch = log.computing
            log.computing = None
            if next(self._events) < self._max_events:
                log.spans.append(("computing", begin, now, number, batch, None))


def _write(record: Record) -> None:
    if record.pid == os.getpid():
        from .trace_file import write_record

        write_record(record)
        for log in [*record.logs, *record.streams.values()]:
            log.spans, log.depths = [], []
