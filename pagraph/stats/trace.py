"""Timeline of epochs: recording of spans by the loader's threads, and the tracer that collects
them."""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import PipelineError
from ..system.atomic import check_writable
from ..system.checks import as_integer
from ..system.disk.queues import unwatch, watch
from .trace_file import Log, Pass, Record, clock_offset, write_record


class Tracing:
    """Switch of a loader's tracing, the one thing that its threads look at.

    Attributes:
        tracer: Collects; None when nothing is traced.
        label: Name of the loader in the trace.
        before_stop: Called before the trace stops, to wait for what is still to come from a device.
    """

    def __init__(self) -> None:
        self.tracer: Tracer | None = None
        self.label = "loader"
        self.before_stop: Callable[[], object] | None = None

    def start(self, trace: str | os.PathLike[str] | Tracer, label: str) -> Tracer:
        """Trace from now on, into a new file or with a tracer that other loaders have too.

        Raises:
            PipelineError: The loader is being traced already.
            OSError: The path cannot be written.
        """
        if self.tracer is not None:
            raise PipelineError(
                f"a loader must have one trace at a time, this one is traced to {self.tracer.path}"
            )
        tracer = trace if isinstance(trace, Tracer) else Tracer(trace)
        tracer.follow(self)
        self.tracer, self.label = tracer, label
        return tracer

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Trace the ``with`` body in the calling thread; it belongs to no batch."""
        begin = time.perf_counter_ns()
        try:
            yield
        finally:
            tracer = self.tracer
            if tracer is not None:
                log = tracer.log
                log.number = log.batch = -1
                tracer.add(name, begin, time.perf_counter_ns())

    def read(
        self,
        key: Any,
        tier: str,
        asked: int,
        hits: int | None,
        row_bytes: int,
        cacheable: bool,
        seconds: float,
    ) -> Callable[[int], None] | None:
        """Trace a read that the calling thread has just done; see ``ReadObserver``."""
        tracer = self.tracer
        if tracer is None:
            return None
        end = time.perf_counter_ns()
        begin = end - int(seconds * 1e9)
        if hits is not None:
            tracer.add("reading", begin, end, (str(key), tier, asked, hits, row_bytes, cacheable))
            return None
        add = tracer.add_later("reading", begin, end)
        return lambda hits: add((str(key), tier, asked, hits, row_bytes, cacheable))


class EpochTrace:
    """One pass over a loader's batches, as its threads report it; every call is one look when
    nothing is traced."""

    def __init__(self, tracing: Tracing, epoch: int) -> None:
        self.tracing = tracing
        self._epoch = epoch
        self._lock = threading.Lock()
        # The tracer's serial: statistics must not keep a tracer.
        self._pass: tuple[int, int] | None = None

    def at(self, batch: int) -> None:
        """Attribute the calling thread's spans to ``batch`` from now on (-1: to all)."""
        tracer = self.tracing.tracer
        if tracer is not None:
            log = tracer.log
            log.number, log.batch = self._number(tracer), batch

    def begin(self, batch: int) -> int:
        """Begin a span of the calling thread for ``batch``; the time, or 0 if nothing is traced."""
        if self.tracing.tracer is None:
            return 0
        self.at(batch)
        return time.perf_counter_ns()

    def end(self, name: str, begin: int) -> None:
        """End the calling thread's span that began at ``begin``."""
        tracer = self.tracing.tracer
        if begin and tracer is not None:
            tracer.add(name, begin, time.perf_counter_ns())

    def device_span(self, stream: str, name: str, begin: int, end: int) -> None:
        """Add a span of a device's stream, by the host's clock."""
        tracer = self.tracing.tracer
        if tracer is not None:
            tracer.add_to_stream(stream, name, begin, end)

    def depth(self, waiting: int, working: int) -> None:
        """Sample the queue's depths."""
        tracer = self.tracing.tracer
        if tracer is not None:
            tracer.add_depth(self._number(tracer), waiting, working)

    def asked(self, batch: int, now: int) -> None:
        """Record that the reader asks for ``batch``, done with the one before."""
        tracer = self.tracing.tracer
        if tracer is not None:
            tracer.end_computing(now)
            self.at(batch)

    def answered(self, begin: int, end: int, *, delivered: bool) -> None:
        """Record that the reader, who asked at ``begin``, got its batch at ``end``, or there was
        none."""
        tracer = self.tracing.tracer
        if tracer is not None:
            log = tracer.log
            if not delivered:
                log.batch = -1
            tracer.add("waiting", begin, end)
            log.computing = (end, log.number, log.batch) if delivered else None

    def close(self) -> None:
        """End the pass."""
        tracer, begun = self.tracing.tracer, self._pass
        if tracer is not None and begun is not None and begun[0] == tracer.serial:
            tracer.end_pass(begun[1])

    def _number(self, tracer: Tracer) -> int:
        begun = self._pass
        if begun is None or begun[0] != tracer.serial:
            with self._lock:
                if self._pass is None or self._pass[0] != tracer.serial:
                    self._pass = (tracer.serial, tracer.begin_pass(self.tracing.label, self._epoch))
                begun = self._pass
        return begun[1]


MAX_EVENTS = 1_000_000

_serials = itertools.count()


class Tracer:
    """Collects what loaders do and writes it as one Chrome trace, which Perfetto opens.

    Every thread appends to a list of its own, without locks. The file is written by :meth:`stop`,
    at the end of the ``with`` block; if neither comes, when the tracer and its loaders are gone, or
    at the interpreter's exit. Until then nothing is at ``path``, or what was there before.

    Args:
        path: The file; a name that ends in ``.gz`` is compressed.
        max_events: Events to keep, about 200 bytes each; a batch takes about 15. Later ones are
            counted (``droppedEvents`` in the file), not kept.

    Raises:
        OSError: The path cannot be written.
        ValueError: ``max_events`` is below 1.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_events: int = MAX_EVENTS) -> None:
        as_integer("max_events", max_events, least=1)
        self._record = Record(check_writable("trace", path), max_events, clock_offset())
        self._events, self._max_events = self._record.events, max_events
        self.serial = next(_serials)
        self._local = threading.local()
        self._traced: weakref.WeakSet[Tracing] = weakref.WeakSet()
        watch(self._record.add_disk)
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
        """Trace no more, and write the file. Does nothing when called again, or in a forked
        process.

        Raises:
            OSError: The file cannot be written; nothing is left of it.
            RuntimeError: A device has failed, of which times were still to come; the file is
                written.
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
        """Add a span, in nanoseconds of ``time.perf_counter_ns``, to a track of its own, as for a
        stream of a device.

        The spans of a stream lie behind or inside each other.
        """
        record = self._record
        with record.lock:
            log = record.streams.setdefault(stream, Log(stream, 0))
        if next(self._events) < self._max_events:
            log.spans.append((name, begin, end, -1, -1, None))

    # -- for the pipeline
    # ---------------------------------------------------------------------------------

    def follow(self, tracing: Tracing) -> None:
        """Detach this loader too when the trace stops; PipelineError if it has."""
        if not self._finish.alive:
            raise PipelineError(f"a trace must not have been stopped, got the one in {self.path}")
        self._traced.add(tracing)

    @property
    def log(self) -> Log:
        """The calling thread's log."""
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
        """Like :meth:`add`, once what was read is known: then call what this returns, in any
        thread."""
        # Not the tracer: who waits must not keep it.
        log, events, most = self.log, self._events, self._max_events
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
        """Add the counts of the batch that the calling thread is at."""
        log = self.log
        if log.number >= 0 and next(self._events) < self._max_events:
            self._record.passes[log.number].delivered[log.batch] = counts

    def end_pass(self, number: int) -> None:
        """End a pass. No lock: the garbage collector may end it, anywhere."""
        now = time.perf_counter_ns()
        self._record.passes[number].end = self._record.passes[number].end or now
        log = getattr(self._local, "log", None)
        if log is not None and log.computing is not None and log.computing[1] == number:
            self.end_computing(now)

    def end_computing(self, now: int) -> None:
        """End the span in which the calling reader computes with a batch."""
        log = self.log
        if log.computing is not None:
            begin, number, batch = log.computing
            log.computing = None
            if next(self._events) < self._max_events:
                log.spans.append(("computing", begin, now, number, batch, None))


def _write(record: Record) -> None:
    unwatch(record.add_disk)
    if record.pid == os.getpid():
        write_record(record)
        for log in [*record.logs, *record.streams.values()]:
            log.spans, log.depths = [], []
