"""What a loader and its threads know of a trace: whether there is one, and how to tell it what they do."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import PipelineError
from .trace import Tracer

__all__ = ["EpochTrace", "Tracing"]


class Tracing:
    """Whether a loader is being traced: the one thing that its threads look at.

    Attributes:
        tracer: Collects; None when nothing is traced.
        label: What the loader is called in the trace.
        before_stop: Called before the trace stops: what is still to come from a device is waited for.
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
            raise PipelineError(f"a loader must have one trace at a time, this one is traced to {self.tracer.path}")
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

    @property
    def is_listening(self) -> bool:
        """Whether reads are traced."""
        return self.tracer is not None

    def read(
        self, key: Any, tier: str, asked: int, hits: int | None, row_bytes: int, cacheable: bool, seconds: float
    ) -> Callable[[int], None] | None:
        """Rows of a field have just been read in the calling thread.

        Where an accelerator has yet to count the hits, returns what is to be told of them.
        """
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
    """One pass over a loader's batches, as its threads report it; everything is one look when nothing is traced.

    Attributes:
        tracing: Whether the loader is traced.
    """

    def __init__(self, tracing: Tracing, epoch: int) -> None:
        self.tracing = tracing
        self._epoch = epoch
        self._lock = threading.Lock()
        self._pass: tuple[int, int] | None = None  # the tracer's serial: statistics must not keep a tracer

    def at(self, batch: int) -> None:
        """The calling thread is at work for ``batch`` from now on (-1: for all)."""
        tracer = self.tracing.tracer
        if tracer is not None:
            log = tracer.log
            log.number, log.batch = self._number(tracer), batch

    def begin(self, batch: int) -> int:
        """The calling thread begins something for ``batch``: when, or 0 if nothing is traced."""
        if self.tracing.tracer is None:
            return 0
        self.at(batch)
        return time.perf_counter_ns()

    def end(self, name: str, begin: int) -> None:
        """The calling thread has done what it began at ``begin``."""
        tracer = self.tracing.tracer
        if begin and tracer is not None:
            tracer.add(name, begin, time.perf_counter_ns())

    def device_span(self, stream: str, name: str, begin: int, end: int) -> None:
        """A device has done something in a stream, by the host's clock."""
        tracer = self.tracing.tracer
        if tracer is not None:
            tracer.add_to_stream(stream, name, begin, end)

    def depth(self, waiting: int, working: int) -> None:
        """The queue has changed."""
        tracer = self.tracing.tracer
        if tracer is not None:
            tracer.add_depth(self._number(tracer), waiting, working)

    def asked(self, batch: int, now: int) -> None:
        """The reader asks for ``batch``: it is done with the one before."""
        tracer = self.tracing.tracer
        if tracer is not None:
            tracer.end_computing(now)
            self.at(batch)

    def answered(self, begin: int, end: int, *, delivered: bool) -> None:
        """The reader, who asked at ``begin``, has got its batch at ``end``, or there was none."""
        tracer = self.tracing.tracer
        if tracer is not None:
            log = tracer.log
            if not delivered:
                log.batch = -1
            tracer.add("waiting", begin, end)
            log.computing = (end, log.number, log.batch) if delivered else None

    def close(self) -> None:
        """The pass is over."""
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
