"""Statistics of a loader by epoch, stage, tier and field. Reading never resets."""

from __future__ import annotations

import bisect
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..system.tables import Table, html_of
from .epoch import EpochStats, epoch_tables
from .reads import CacheStats
from .trace import EpochTrace, Tracing

if TYPE_CHECKING:
    from ..accelerator import Accelerator, Event

# Seconds after which times count from a later event: a device tells milliseconds by 24 bits.
_LONG = 60.0
_MOST_SPANS = 256


class _Covered:
    """Stretches of time in which a device was at work, disjoint and in order; the oldest are
    forgotten."""

    def __init__(self) -> None:
        self._begins: list[float] = []
        self._ends: list[float] = []

    def add(self, begin: float, end: float) -> list[tuple[float, float]]:
        """Add a stretch; returns the parts of it that were not covered yet."""
        new, first = [], bisect.bisect_left(self._ends, begin)
        last, at, low, high = first, begin, begin, end
        while last < len(self._ends) and self._begins[last] <= end:
            if at < self._begins[last]:
                new.append((at, self._begins[last]))
            at = max(at, self._ends[last])
            low, high = min(low, self._begins[last]), max(high, self._ends[last])
            last += 1
        if at < end:
            new.append((at, end))
        self._begins[first:last], self._ends[first:last] = [low], [high]
        del self._begins[:-_MOST_SPANS], self._ends[:-_MOST_SPANS]
        return new

    def shift(self, seconds: float) -> None:
        """Count from so many seconds later."""
        self._begins = [begin - seconds for begin in self._begins]
        self._ends = [end - seconds for end in self._ends]


class DeviceTimes:
    """Adds up the time between pairs of events, once they have happened, without waiting for the
    device.

    Threads share streams, so that one's pair may enclose work of another: time that several pairs
    of a stage enclose counts once. ``trace`` gets every span that is known, on a track of the
    device.
    """

    def __init__(self, accelerator: Accelerator, trace: EpochTrace) -> None:
        self._accelerator = accelerator
        self._trace = trace
        self._lock = threading.Lock()
        self._pending: deque[tuple[str, Event, Event]] = deque()
        self._seconds: dict[str, float] = {}
        self._covered: defaultdict[str, _Covered] = defaultdict(_Covered)
        self._origin: Event | None = None  # from which the covered times count
        self._clock: tuple[Event, int] | None = None

    def add(self, stage: str, begin: Event, end: Event) -> None:
        """Add the device's time between two events to ``stage``; safe from any thread."""
        with self._lock:
            if self._clock is None and self._trace.tracing.tracer is not None:
                self._clock = self._set_clock()
            self._pending.append((stage, begin, end))
            self._fold()

    def settle(self) -> None:
        """Wait until all events have happened, and add their times."""
        with self._lock:
            for _, _, end in self._pending:
                end.wait()
            self._fold()

    def seconds(self) -> dict[str, float]:
        """Seconds by stage, as far as they are known now."""
        # No lock: the garbage collector may ask for statistics anywhere. Copying a dict is atomic.
        return dict(self._seconds)

    def _fold(self) -> None:
        """Add the times that are known. Streams overtake each other, so that any of them may be."""
        for _ in range(len(self._pending)):
            stage, begin, end = self._pending.popleft()
            if not (begin.has_happened and end.has_happened):
                self._pending.append((stage, begin, end))
                continue
            origin, since = self._since_origin(begin)
            new = self._covered[stage].add(since, since + end.seconds_since(begin))
            self._seconds[stage] = self._seconds.get(stage, 0.0) + sum(
                last - first for first, last in new
            )
            if self._clock is not None:
                reference, at = self._clock
                at += int(origin.seconds_since(reference) * 1e9)
                for first, last in new:
                    track = f"{stage} on {self._accelerator.device}"
                    self._trace.device_span(
                        track, stage, at + int(first * 1e9), at + int(last * 1e9)
                    )

    def _since_origin(self, event: Event) -> tuple[Event, float]:
        """The event from which times count, which is moved now and then, and another's seconds
        since."""
        origin = self._origin = event if self._origin is None else self._origin
        since = event.seconds_since(origin)
        if since > _LONG:
            for covered in self._covered.values():
                covered.shift(since)
            origin, since, self._origin = event, 0.0, event
        return origin, since

    def _set_clock(self) -> tuple[Event, int]:
        """An event, and when it happened by the host's clock: where a track of the device
        begins."""
        event = self._accelerator.stream("clock").record()
        event.wait()
        return event, time.perf_counter_ns()


class EpochRecorder:
    """Collects one epoch's figures from all threads."""

    def __init__(
        self,
        epoch: int,
        reads: Callable[[], CacheStats],
        trace: EpochTrace,
        accelerator: Accelerator | None = None,
    ) -> None:
        self.epoch = epoch
        self.trace = trace
        self._device_times = None if accelerator is None else DeviceTimes(accelerator, trace)
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._batches = 0
        self._reads = reads
        self._reads_before = reads()
        self._reads_after: CacheStats | None = None

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Add the time of the ``with`` body to ``stage``."""
        begin = time.perf_counter_ns()
        try:
            yield
        finally:
            self.spent(stage, begin)

    def spent(self, stage: str, begin: int) -> None:
        """Add the time since ``begin``, of ``time.perf_counter_ns``, to ``stage``."""
        end, seconds = time.perf_counter_ns(), self._seconds
        with self._lock:
            seconds[stage] = seconds.get(stage, 0.0) + (end - begin) * 1e-9
        tracer = self.trace.tracing.tracer
        if tracer is not None:
            tracer.add(stage, begin, end)

    def waited(self, begin: int, *, delivered: bool) -> None:
        """Record that the reader, who asked at ``begin``, has got its batch now, or there was
        none."""
        end = time.perf_counter_ns()
        with self._lock:
            self._seconds["waiting"] = self._seconds.get("waiting", 0.0) + (end - begin) * 1e-9
        if self.trace.tracing.tracer is not None:
            self.trace.answered(begin, end, delivered=delivered)

    def device_time(self, stage: str, begin: Event | None, end: Event | None) -> None:
        """Add the device's time between two events to ``stage``, when they have happened."""
        if self._device_times is not None and begin is not None and end is not None:
            self._device_times.add(stage, begin, end)

    def settle(self) -> None:
        """Wait for what the device still has to do, so that its times are known."""
        if self._device_times is not None:
            self._device_times.settle()

    def delivered(self, **counts: int) -> None:
        """Count one delivered batch and what it holds."""
        with self._lock:
            self._batches += 1
        self.count(**counts)
        tracer = self.trace.tracing.tracer
        if tracer is not None:
            tracer.delivered(counts)

    def count(self, **counts: int) -> None:
        """Add to the epoch's counts."""
        with self._lock:
            for name, value in counts.items():
                self._counts[name] = self._counts.get(name, 0) + value

    def close(self) -> None:
        """Fix the field counters: what other epochs read from now on is theirs."""
        self.trace.close()
        if self._reads_after is None:
            self._reads_after = self._reads()

    def snapshot(self) -> EpochStats:
        """The figures so far."""
        after = self._reads_after if self._reads_after is not None else self._reads()
        reads = after - self._reads_before
        with self._lock:
            seconds, counts = dict(self._seconds), dict(self._counts)
        on_device = {} if self._device_times is None else self._device_times.seconds()
        return EpochStats(self.epoch, self._batches, seconds, counts, reads, on_device)


class LoaderStats:
    """A loader's figures: ``epochs``, one entry each, and their ``total``; ``str()`` gives tables,
    as does a notebook.

    Field counters belong to the loader: of two epochs that run at the same time, each counts the
    reads of both.
    """

    def __init__(
        self, reads: Callable[[], CacheStats], accelerator: Accelerator | None = None
    ) -> None:
        self._reads = reads
        self._accelerator = accelerator
        self._recorders: list[EpochRecorder] = []

    def begin(self, epoch: int, tracing: Tracing | None = None) -> EpochRecorder:
        """Begin recording an epoch; its iterator ends that."""
        trace = EpochTrace(tracing or Tracing(), epoch)
        self._recorders.append(EpochRecorder(epoch, self._reads, trace, self._accelerator))
        return self._recorders[-1]

    def settle(self) -> None:
        """Wait until everything that a device does for the epochs so far is counted."""
        for recorder in list(self._recorders):
            recorder.settle()

    @property
    def epochs(self) -> list[EpochStats]:
        """One entry for every epoch begun, in order."""
        return [recorder.snapshot() for recorder in self._recorders]

    @property
    def total(self) -> EpochStats:
        """All epochs added up."""
        epochs = self.epochs
        seconds, on_device = _sum(e.seconds for e in epochs), _sum(e.device_seconds for e in epochs)
        counts = _sum(e.counts for e in epochs)
        return EpochStats(
            -1, sum(e.batches for e in epochs), seconds, counts, self._reads(), on_device
        )

    def to_dict(self) -> dict[str, float]:
        """The numbers of :attr:`total`, see :meth:`EpochStats.to_dict`, with "epochs", how many
        began, for "epoch"."""
        numbers = self.total.to_dict()
        del numbers["epoch"]
        return {"epochs": len(self._recorders), **numbers}

    def __str__(self) -> str:
        return "\n\n".join(map(str, self._tables()))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_of(self._tables())

    def _tables(self) -> list[Table]:
        return epoch_tables([*self.epochs, self.total])


def _sum(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0) + value
    return total
