"""Timeline of epochs: recording of spans by the loader's threads, and the tracer that collects
them."""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .. import _compiling
from .._postponed import interrupt_later
from ..errors import PipelineError
from ..system.atomic import check_writable
from ..system.checks import StrPath, as_integer
from ..system.disk.queues import unwatch, watch
from .trace_file import Log, Pass, Record, clock_offset, write_record

# Who may call what: workers, the reader and the disk's threads call the methods that add; each
# appends to the log of its own thread, and a list's append is atomic under the interpreter's lock,
# so that a span costs no lock. `Record.lock` is for the lists that threads share (logs, streams,
# passes); no other lock is taken while it is held, but `EpochTrace._lock` may be held when it is
# taken. The garbage collector may close an epoch in any thread, whichever locks that thread
# holds: `close` and `end_pass` take none.


class Tracing:
    """Switch of a loader's tracing: the one attribute that its threads look at.

    Attributes:
        tracer: Collects the spans; None when nothing is traced.
        label: Name of the loader in the trace.
        before_stop: Called before the trace stops, to wait for times that a device still owes.
    """

    def __init__(self) -> None:
        self.tracer: Tracer | None = None
        self.label: str = "loader"
        self.before_stop: Callable[[], object] | None = None

    def start(self, trace: StrPath | Tracer, label: str) -> Tracer:
        """Trace from now on, into a new file or with a tracer that is shared with other loaders.

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
        # The label first: a thread that sees the tracer begins a pass under it.
        self.label = label
        self.tracer = tracer
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
                # A worker that goes on in this thread sets both again with its next batch.
                log.number = -1
                log.batch = -1
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
        # A thread that was held up since comes late; the read began before the kernels it loaded.
        for name, first, last, *_ in reversed(tracer.log.spans):
            if last <= begin:
                break
            if name == "kernels":
                begin = min(begin, first)
        if hits is not None:
            tracer.add("reading", begin, end, (str(key), tier, asked, hits, row_bytes, cacheable))
            return None
        # A device counts the hits; the span's time, thread and batch are those of now.
        add = tracer.add_later("reading", begin, end)
        return lambda hits: add((str(key), tier, asked, hits, row_bytes, cacheable))


class EpochTrace:
    """One pass over a loader's batches, as its threads report it.

    While nothing is traced, every call costs one look at ``tracing.tracer``.
    """

    def __init__(self, tracing: Tracing, epoch: int) -> None:
        self.tracing = tracing
        self._epoch = epoch
        # Only for beginning the pass once, whichever worker comes first.
        self._lock = threading.Lock()
        # The tracer's serial and the pass's number in it. Not the tracer: statistics outlive a
        # trace, and would keep its million spans.
        self._pass: tuple[int, int] | None = None

    def at(self, batch: int) -> None:
        """Attribute the calling thread's spans to ``batch`` from now on (-1: to all)."""
        tracer = self.tracing.tracer
        if tracer is not None:
            log = tracer.log
            log.number = self._number(tracer)
            log.batch = batch

    def begin(self, batch: int) -> int:
        """Begin a span of the calling thread for ``batch``; the time, or 0 if nothing is traced."""
        if self.tracing.tracer is None:
            return 0
        self.at(batch)
        return time.perf_counter_ns()

    def end(self, name: str, begin: int) -> None:
        """End the calling thread's span that began at ``begin``."""
        tracer = self.tracing.tracer
        # 0: tracing began in the middle of the span.
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
        """Record that the reader, done with the batch before, asks for ``batch``."""
        tracer = self.tracing.tracer
        if tracer is not None:
            tracer.end_computing(now)
            self.at(batch)

    def answered(self, begin: int, end: int, *, delivered: bool) -> None:
        """Record the reader's wait from ``begin`` to ``end``, and whether it got a batch."""
        tracer = self.tracing.tracer
        if tracer is None:
            return
        log = tracer.log
        if delivered:
            tracer.add("waiting", begin, end)
            # Until it asks again, see `Tracer.end_computing`.
            log.computing = (end, log.number, log.batch)
        else:
            # The wait for the end of the epoch belongs to no batch.
            log.batch = -1
            tracer.add("waiting", begin, end)
            log.computing = None

    def close(self) -> None:
        """End the pass. Takes no lock: the garbage collector may call it anywhere."""
        tracer = self.tracing.tracer
        begun = self._pass
        # The serial differs if the pass was begun under an earlier trace.
        if tracer is not None and begun is not None and begun[0] == tracer.serial:
            tracer.end_pass(begun[1])

    def _number(self, tracer: Tracer) -> int:
        """The pass's number in ``tracer``; begins it there at the first call."""
        # Without the lock first: this is on the path of every span.
        begun = self._pass
        if begun is not None and begun[0] == tracer.serial:
            return begun[1]
        with self._lock:
            begun = self._pass
            if begun is None or begun[0] != tracer.serial:
                begun = (tracer.serial, tracer.begin_pass(self.tracing.label, self._epoch))
                self._pass = begun
            return begun[1]


# 200 MB of memory at 200 bytes each; at 15 events a batch, 65,000 batches.
MAX_EVENTS = 1_000_000

# Instead of id(): that of a collected tracer may be given to a new one.
_serials = itertools.count()


class Tracer:
    """Collects what loaders do and writes it as one Chrome trace, which Perfetto opens.

    Every thread appends to its own list, without locks. The file is written by :meth:`stop` or at
    the end of the ``with`` block; otherwise when the tracer and its loaders are gone, or at the
    interpreter's exit. Until then ``path`` is left as it was.

    Args:
        path: The file; a name that ends in ``.gz`` is compressed.
        max_events: Events to keep, about 200 bytes each; a batch takes about 15. Later ones are
            counted (``droppedEvents`` in the file), not kept.

    Raises:
        OSError: The path cannot be written.
        ValueError: ``max_events`` is below 1.
    """

    def __init__(self, path: StrPath, *, max_events: int = MAX_EVENTS) -> None:
        as_integer("max_events", max_events, least=1)
        self._record = Record(check_writable("trace", path), max_events, clock_offset())
        # next() of a count is one atomic step: a budget for all threads without a lock.
        self._events = self._record.events
        self._max_events = max_events
        self.serial: int = next(_serials)
        self._local = threading.local()
        # Weak: a trace must not keep loaders, with their graphs and caches.
        self._traced: weakref.WeakSet[Tracing] = weakref.WeakSet()
        # The record and not self, here and below: a callback that held the tracer would keep it,
        # and the file would not be written when it is dropped.
        watch(self._record.add_disk)
        _compiling.watchers.append(self._record.add_kernels)
        self._finish = weakref.finalize(self, _write_last, self._record)

    @property
    def path(self) -> Path:
        """Where the trace will be."""
        return self._record.path

    def __enter__(self) -> Tracer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop tracing and write the file; does nothing if called again or in a forked process.

        Raises:
            OSError: The file cannot be written; no part of it is left.
            RuntimeError: A device failed that still owed times; the file is written.
        """
        traced = list(self._traced)
        try:
            for tracing in traced:
                if tracing.tracer is not None and tracing.before_stop is not None:
                    tracing.before_stop()
        finally:  # also if a device has failed: the trace shows what came before
            for tracing in traced:
                tracing.tracer = None
            self._finish()

    def add_to_stream(self, stream: str, name: str, begin: int, end: int) -> None:
        """Add a span, in nanoseconds of ``time.perf_counter_ns``, to the track named ``stream``.

        Such a track is for a stream of a device. Its spans must follow or enclose one another, not
        overlap in part: Perfetto draws a track as a stack.
        """
        record = self._record
        with record.lock:
            # Track 0 for now: the writer numbers these tracks after the threads.
            log = record.streams.setdefault(stream, Log(stream, 0))
        if next(self._events) < self._max_events:
            log.spans.append((name, begin, end, -1, -1, None))

    # What follows is for the pipeline.

    def follow(self, tracing: Tracing) -> None:
        """Detach this loader too when the trace stops; PipelineError if it has stopped."""
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
        """Like :meth:`add`, for a read whose numbers are not known yet.

        Call the returned function with them, from any thread.
        """
        # The closure holds these and not self: a pending read must not keep the tracer. The log's
        # batch moves on, so it is taken now.
        log = self.log
        events = self._events
        most = self._max_events
        number = log.number
        batch = log.batch

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
        # Locked: the number must be that of this pass, whoever else appends.
        with self._record.lock:
            self._record.passes.append(Pass(label, epoch, time.perf_counter_ns()))
            return len(self._record.passes) - 1

    def delivered(self, counts: dict[str, int]) -> None:
        """Add the counts of the batch that the calling thread is at."""
        log = self.log
        if log.number >= 0 and next(self._events) < self._max_events:
            self._record.passes[log.number].delivered[log.batch] = counts

    def end_pass(self, number: int) -> None:
        """End a pass. Takes no lock: the garbage collector may call it anywhere."""
        now = time.perf_counter_ns()
        ended = self._record.passes[number]
        # The first end counts: an iterator that was closed is closed again when it is collected.
        ended.end = ended.end or now
        # Not self.log, which takes the record's lock to make one. The collector's thread may be
        # another than the reader's; then the writer ends the computing at the pass's end.
        log = getattr(self._local, "log", None)
        if log is not None and log.computing is not None and log.computing[1] == number:
            self.end_computing(now)

    def end_computing(self, now: int) -> None:
        """End the span in which the calling reader computes with a batch."""
        log = self.log
        if log.computing is None:
            return
        begin, number, batch = log.computing
        log.computing = None
        if next(self._events) < self._max_events:
            log.spans.append(("computing", begin, now, number, batch, None))


def _write_last(record: Record) -> None:
    try:
        _write(record)
    except KeyboardInterrupt:
        # Where the tracer was dropped, Python would print it and go on.
        interrupt_later()


def _write(record: Record) -> None:
    unwatch(record.add_disk)
    with suppress(ValueError):
        _compiling.watchers.remove(record.add_kernels)
    # A forked process inherits the finaliser; its exit must not write over the parent's file.
    if record.pid != os.getpid():
        return
    write_record(record)
    # Threads keep their logs for as long as they live; the spans are no longer needed.
    for log in [*record.logs, *record.streams.values()]:
        log.spans = []
        log.depths = []
