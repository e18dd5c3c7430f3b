"""Statistics of a loader by epoch, stage, tier and field, with tables. Reading never resets."""

from __future__ import annotations

import bisect
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .. import _compiling
from ..system.tables import Table, Tabled
from ..system.threads import fork_lock
from .reads import RATE_NAMES, CacheStats, FieldStats, field_table, rate_cells
from .trace import EpochTrace, Tracing

if TYPE_CHECKING:
    from ..accelerator import Accelerator, Event

STAGES = (
    "filling",
    "sampling",
    "window",
    "fetching",
    "building",
    "transform",
    "waiting",
    "kernels",
)
"""Stages whose time is counted.

They are: filling caches, drawing neighbours, reading the rows of several batches from files,
gathering rows, building DGL's or PyG's objects, the user's ``transform``, the reader waiting, and
kernels: compiling them, loading compiled ones, and waiting for a thread that does. A process needs
this time once, so it is in no other stage and in no field's. All but the last two are summed over
threads. ``waiting`` is the reader's time, waiting for anything."""

REQUESTS = -2
"""Number of an epoch that stands for batches made on request."""

# Seconds after which times count from a later event. CUDA returns elapsed milliseconds as a float
# of 24 bits: over a minute its step is 4 microseconds, over an hour it would be 250.
_LONG = 60.0
# Epochs with figures of their own, 3 KB each: a loop may look at a first batch 100,000 times.
_MOST_EPOCHS = 1000
# Stretches to remember for each stage. A pair of events may settle late, but only by the batches in
# flight, of which there are tens; more would make `_Covered.shift` slow.
_MOST_SPANS = 256


@dataclass(frozen=True)
class EpochStats(Tabled):
    """One epoch, or several added up.

    Attributes:
        epoch: Number of the epoch; -1 for a total, -2 for batches made on request.
        batches: Batches delivered.
        seconds: Seconds by stage (see ``STAGES``).
        counts: Delivered "seeds", "edges" (sampled) and "input_nodes". With look-ahead,
            "window_rows" read from files, each once in a group of batches, and their
            "window_bytes". "late_reads": how often a field was read for a batch on delivery, as its
            rows were not there or outdated. If a device samples, "overflows": batches that were
            larger than expected and made twice.
        reads: Rows and bytes by tier and seconds, for every field.
        device_seconds: Seconds that a device worked, from events in its streams: for "sampling",
            "reading" rows (with sampling, in batches of one launch) and "copying" blocks.
            "waiting" is how long the reader's stream was idle, from the end of the work enqueued
            before a batch was requested until the batch was there. Loads of kernels between two
            launches are not taken out. Empty on the CPU.
    """

    epoch: int
    batches: int
    seconds: Mapping[str, float]
    counts: Mapping[str, int]
    reads: CacheStats
    device_seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def hit_rate(self) -> float:
        """Rows served by the cache / rows asked for, over cacheable fields; 0.0 without any."""
        return self.reads.hit_rate

    @property
    def byte_hit_rate(self) -> float:
        """Bytes served by the cache / bytes read, over all fields, cacheable or not."""
        return self.reads.byte_hit_rate

    @property
    def hit_rate_by_field(self) -> dict[Hashable, float]:
        """The hit rate of each field that a cache may serve."""
        return self.reads.hit_rate_by_field

    @property
    def hit_rate_by_hop(self) -> tuple[float, ...]:
        """The hit rate of each hop, over the fields that a cache may serve; the seeds are hop 0."""
        return self.reads.hit_rate_by_hop

    @property
    def loading_seconds(self) -> float:
        """Seconds that the reader waited for batches."""
        return self.seconds.get("waiting", 0.0)

    def to_dict(self) -> dict[str, float]:
        """All numbers by flat names, for TensorBoard, W&B or a ``pandas.DataFrame`` with a row for
        each epoch.

        "epoch", "batches", "seeds", "edges", "input_nodes", "seconds/STAGE" (see ``STAGES``), on a
        GPU "device_seconds/STAGE", and those of :meth:`CacheStats.to_dict`.
        """
        numbers: dict[str, float] = {"epoch": self.epoch, "batches": self.batches}
        numbers |= self.counts
        # Every stage, also one that took no time: rows of a data frame need the same columns.
        for stage in STAGES:
            numbers[f"seconds/{stage}"] = self.seconds.get(stage, 0.0)
        for stage, seconds in self.device_seconds.items():
            numbers[f"device_seconds/{stage}"] = seconds
        return numbers | self.reads.to_dict()

    def _tables(self) -> list[Table]:
        return _epoch_tables([self])


def _epoch_tables(epochs: Sequence[EpochStats]) -> list[Table]:
    """Times and rates by epoch, device times, fields and hops.

    Fields are those of the last entry, which may be the total.
    """
    last = epochs[-1]
    tables = [_time_table(epochs)]
    if last.device_seconds:
        tables.append(_device_table(epochs, list(last.device_seconds)))
    if last.reads.fields:
        tables.append(field_table(last.reads))
    # Without a cacheable field every cell of the hop table would be "-".
    if last.hit_rate_by_field:
        tables.append(_hop_table(epochs))
    return tables


def _name(stats: EpochStats) -> str:
    if stats.epoch == REQUESTS:
        return "requests"
    return "total" if stats.epoch < 0 else str(stats.epoch)


def _time_table(epochs: Sequence[EpochStats]) -> Table:
    stages = [f"{stage} s" for stage in STAGES]
    rows = [["epoch", "batches", *stages, "edges", "rows", *RATE_NAMES]]
    for stats in epochs:
        times = [f"{stats.seconds.get(stage, 0.0):.3f}" for stage in STAGES]
        edges = stats.counts.get("edges", 0)
        total = stats.reads.total
        rates = rate_cells(stats.hit_rate, stats.byte_hit_rate, known=total.cacheable)
        counts = [f"{edges:,}", f"{total.asked:,}"]
        rows.append([_name(stats), str(stats.batches), *times, *counts, *rates])
    return Table(rows)


def _device_table(epochs: Sequence[EpochStats], stages: Sequence[str]) -> Table:
    rows = [["epoch", *(f"{stage} on device s" for stage in stages)]]
    for stats in epochs:
        times = [f"{stats.device_seconds.get(stage, 0.0):.3f}" for stage in stages]
        rows.append([_name(stats), *times])
    return Table(rows)


def _hop_table(epochs: Sequence[EpochStats]) -> Table:
    """Hit rates of cacheable fields by epoch and hop; "-" where a hop read nothing."""
    lines: list[tuple[str, str, FieldStats]] = []
    for stats in epochs:
        for key, read in stats.reads.fields.items():
            if read.cacheable and read.asked:
                lines.append((_name(stats), str(key), read))
    # Fields differ in depth (labels are read of the seeds alone), so short rows are filled up.
    hops = max((len(read.asked_by_hop) for _, _, read in lines), default=0)
    rows = [["epoch", "field", "hit rate", *(f"hop {hop}" for hop in range(hops))]]
    for name, key, read in lines:
        cells = ["-"] * hops
        for hop, asked in enumerate(read.asked_by_hop):
            if asked:
                cells[hop] = f"{read.hit_rate_by_hop[hop]:.1%}"
        rows.append([name, key, f"{read.hit_rate:.1%}", *cells])
    return Table(rows, left=(1,))


class _Covered:
    """Disjoint, sorted stretches of time; the oldest are dropped."""

    def __init__(self) -> None:
        self._begins: list[float] = []
        self._ends: list[float] = []

    def add(self, begin: float, end: float) -> list[tuple[float, float]]:
        """Add a stretch; returns the parts of it that were not covered yet."""
        new = []
        # Stretches first:last overlap the new one; they are merged with it into low..high.
        first = bisect.bisect_left(self._ends, begin)
        last = first
        at = begin  # covered, or in `new`, up to here
        low = begin
        high = end
        while last < len(self._ends) and self._begins[last] <= end:
            if at < self._begins[last]:
                new.append((at, self._begins[last]))
            at = max(at, self._ends[last])
            low = min(low, self._begins[last])
            high = max(high, self._ends[last])
            last += 1
        if at < end:
            new.append((at, end))
        self._begins[first:last] = [low]
        self._ends[first:last] = [high]
        del self._begins[:-_MOST_SPANS]
        del self._ends[:-_MOST_SPANS]
        return new

    def shift(self, seconds: float) -> None:
        """Move the origin of the times ``seconds`` later."""
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
        # Guards all below. Held over `Event.wait` in `settle`: events are the device's and take no
        # lock of ours, so nothing can wait for a thread that waits here.
        self._lock = threading.Lock()
        self._pending: deque[tuple[str, Event, Event]] = deque()
        self._seconds: dict[str, float] = {}
        self._covered: defaultdict[str, _Covered] = defaultdict(_Covered)
        self._origin: Event | None = None  # from which the covered times count
        # An event and its `perf_counter_ns`: ties the device's clock to the host's. Set at the
        # first pair after tracing began; without a trace the wait for the event is saved.
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
        """Add the times that are known by now; the caller holds the lock."""
        # One look at every pair, not only at the oldest: streams overtake each other.
        for _ in range(len(self._pending)):
            stage, begin, end = self._pending.popleft()
            if not (begin.has_happened and end.has_happened):
                self._pending.append((stage, begin, end))
                continue
            if self._origin is None:
                self._origin = begin
            since = begin.seconds_since(self._origin)
            if since > _LONG:
                for covered in self._covered.values():
                    covered.shift(since)
                self._origin = begin
                since = 0.0
            new = self._covered[stage].add(since, since + end.seconds_since(begin))
            seconds = sum(last - first for first, last in new)
            self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds
            if self._clock is not None:
                self._show(stage, self._origin, new, *self._clock)

    def _show(
        self,
        stage: str,
        origin: Event,
        spans: Iterable[tuple[float, float]],
        reference: Event,
        at: int,
    ) -> None:
        """Put spans, in seconds since ``origin``, into the trace.

        The event ``reference`` happened ``at`` this time of the host.
        """
        at += int(origin.seconds_since(reference) * 1e9)
        track = f"{stage} on {self._accelerator.device}"
        for first, last in spans:
            self._trace.device_span(track, stage, at + int(first * 1e9), at + int(last * 1e9))

    def _set_clock(self) -> tuple[Event, int]:
        """An event, and when it happened by the host's clock."""
        # On a stream of its own: on a busy one it would wait for all work queued before it.
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
        self._device_times: DeviceTimes | None = None
        if accelerator is not None:
            self._device_times = DeviceTimes(accelerator, trace)
        # Workers and the reader add under it; no other lock is taken while it is held.
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._batches = 0
        self._kernels = _Covered()  # the loads of kernels that are booked
        # Field counters run on over all epochs of a loader: this epoch's are a difference.
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
        end = time.perf_counter_ns()
        hidden = 0
        # Asked here, not in a function: a call for each stage of each batch would be seen.
        if _compiling.spans and _compiling.spans[-1][1] > begin:
            hidden = self._book_kernels(begin, end, threading.get_ident())
        with self._lock:
            self._seconds[stage] = self._seconds.get(stage, 0.0) + (end - begin - hidden) * 1e-9
        tracer = self.trace.tracing.tracer
        if tracer is not None:
            tracer.add(stage, begin, end)

    def waited(self, begin: int, *, delivered: bool) -> None:
        """Record that the reader's request of time ``begin`` is answered now.

        Args:
            begin: When the reader asked, by ``time.perf_counter_ns``.
            delivered: Whether it got a batch; False at the end of the epoch or on an error.
        """
        end = time.perf_counter_ns()
        hidden = 0
        # Of any thread: the reader waits for all of them.
        if _compiling.loads or (_compiling.spans and _compiling.spans[-1][1] > begin):
            hidden = self._book_kernels(begin, end)
        with self._lock:
            waited = (end - begin - hidden) * 1e-9
            self._seconds["waiting"] = self._seconds.get("waiting", 0.0) + waited
        if self.trace.tracing.tracer is not None:
            self.trace.answered(begin, end, delivered=delivered)

    def _book_kernels(self, begin: int, end: int, thread: int | None = None) -> int:
        """Book the kernels that a thread, or any, loaded in a stretch of time; their nanoseconds.

        They are booked once, however many threads loaded them or waited for them.
        """
        within = _compiling.kernels_within(begin, end, thread)
        if not within:
            return 0
        with self._lock:
            new = [part for span in within for part in self._kernels.add(*span)]
            seconds = sum(last - first for first, last in new) * 1e-9
            self._seconds["kernels"] = self._seconds.get("kernels", 0.0) + seconds
        return sum(last - first for first, last in within)

    def device_time(self, stage: str, begin: Event | None, end: Event | None) -> None:
        """Add the device's time between two events to ``stage``, once they have happened."""
        if self._device_times is not None and begin is not None and end is not None:
            self._device_times.add(stage, begin, end)

    def settle(self) -> None:
        """Wait for the device's pending work, so that its times are known."""
        if self._device_times is not None:
            self._device_times.settle()

    def delivered(self, **counts: int) -> None:
        """Count one delivered batch and what it holds."""
        # Written out: a call of `count`, and its lock, for each batch.
        with self._lock:
            self._batches += 1
            for name, value in counts.items():
                self._counts[name] = self._counts.get(name, 0) + value
        tracer = self.trace.tracing.tracer
        if tracer is not None:
            tracer.delivered(counts)

    def count(self, **counts: int) -> None:
        """Add to the epoch's counts."""
        with self._lock:
            for name, value in counts.items():
                self._counts[name] = self._counts.get(name, 0) + value

    def close(self) -> None:
        """Fix the field counters: later reads belong to other epochs."""
        self.trace.close()
        # May be called twice: by the iterator's end and by the garbage collector.
        if self._reads_after is None:
            self._reads_after = self._reads()

    @property
    def is_over(self) -> bool:
        """Whether the epoch is closed."""
        return self._reads_after is not None

    def snapshot(self) -> EpochStats:
        """The figures so far."""
        after = self._reads_after
        if after is None:
            after = self._reads()
        reads = after - self._reads_before
        with self._lock:
            seconds = dict(self._seconds)
            counts = dict(self._counts)
        on_device: dict[str, float] = {}
        if self._device_times is not None:
            on_device = self._device_times.seconds()
        return EpochStats(self.epoch, self._batches, seconds, counts, reads, on_device)


class LoaderStats(Tabled):
    """A loader's figures: one entry of ``epochs`` each, and their ``total``.

    ``str()`` and notebooks show them as tables. Field counters belong to the loader: if two epochs
    run at the same time, each counts the reads of both. Of epochs before the last 1,000 only the
    total is kept.
    """

    def __init__(
        self, reads: Callable[[], CacheStats], accelerator: Accelerator | None = None
    ) -> None:
        self._reads = reads
        self._accelerator = accelerator
        self._lock = fork_lock()  # held while an epoch begins
        self._recorders: deque[EpochRecorder] = deque()
        self._earlier = 0  # epochs that are only in `_sum`
        self._sum: EpochStats | None = None
        # By process: a recorder's lock that a thread holds while the process forks is never free in
        # the child.
        self._requests: dict[int, EpochRecorder] = {}

    def begin(self, epoch: int, tracing: Tracing | None = None) -> EpochRecorder:
        """Begin recording an epoch; the epoch's iterator closes the recorder."""
        trace = EpochTrace(tracing or Tracing(), epoch)
        with self._lock:
            recorder = EpochRecorder(epoch, self._reads, trace, self._accelerator)
            self._recorders.append(recorder)
            if len(self._recorders) > _MOST_EPOCHS and self._recorders[0].is_over:
                oldest = self._recorders.popleft().snapshot()
                self._sum = oldest if self._sum is None else _added([self._sum, oldest])
                self._earlier += 1
        return recorder

    def requested(self, tracing: Tracing) -> EpochRecorder:
        """This process's recorder of the batches made on request; the engine calls it under a
        lock."""
        recorder = self._requests.get(os.getpid())
        if recorder is None:
            # Without reads: they are counted by loader, and epochs may run between requests.
            trace = EpochTrace(tracing, REQUESTS)
            recorder = EpochRecorder(REQUESTS, CacheStats, trace, self._accelerator)
            self._requests[os.getpid()] = recorder
        return recorder

    def settle(self) -> None:
        """Wait until everything that a device does for the epochs so far is counted."""
        for recorder in list(self._recorders):  # another thread may begin an epoch meanwhile
            recorder.settle()

    @property
    def epochs(self) -> list[EpochStats]:
        """One entry for every epoch begun, in order; at most the last 1,000."""
        return [recorder.snapshot() for recorder in list(self._recorders)]

    @property
    def requests(self) -> EpochStats | None:
        """Batches made by ``loader.batch``, which are in no epoch; None before the first. The rows
        that they read are in the total alone."""
        recorder = self._requests.get(os.getpid())
        return None if recorder is None else recorder.snapshot()

    @property
    def total(self) -> EpochStats:
        """All epochs and requests added up."""
        parts = self._parts()
        if self._sum is not None:
            parts.append(self._sum)
        # Not the sum over epochs: epochs that overlap count the same reads.
        return replace(_added(parts), reads=self._reads())

    def to_dict(self) -> dict[str, float]:
        """The numbers of :attr:`total`, see :meth:`EpochStats.to_dict`.

        "epochs", the number of epochs begun, stands in place of "epoch".
        """
        numbers = self.total.to_dict()
        del numbers["epoch"]
        return {"epochs": self._earlier + len(self._recorders), **numbers}

    __repr__ = Tabled.__str__

    def _tables(self) -> list[Table]:
        return _epoch_tables([*self._parts(), self.total])

    def _parts(self) -> list[EpochStats]:
        requests = self.requests
        return self.epochs if requests is None else [*self.epochs, requests]


def _added(parts: Sequence[EpochStats]) -> EpochStats:
    """Epochs added up, without their reads."""
    return EpochStats(
        epoch=-1,
        batches=sum(stats.batches for stats in parts),
        seconds=_sum(stats.seconds for stats in parts),
        counts=_sum(stats.counts for stats in parts),
        reads=CacheStats(),
        device_seconds=_sum(stats.device_seconds for stats in parts),
    )


def _sum(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0) + value
    return total
