"""Statistics of a loader by epoch, stage, tier and field. Reading never resets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .device_times import DeviceTimes
from .reads import CacheStats, FieldStats
from .trace import EpochTrace, Tracing

if TYPE_CHECKING:
    from ..accelerator import Accelerator, Event

__all__ = ["EpochStats", "LoaderStats"]

STAGES = ("filling", "sampling", "fetching", "building", "waiting")
"""Where time goes: filling caches, drawing neighbours, reading rows, building the face's objects, the reader waiting.

All but the last are summed over threads; ``waiting`` is the reader's own time, whatever it waited for."""


@dataclass(frozen=True)
class EpochStats:
    """One epoch, or several added up.

    Attributes:
        epoch: Number of the epoch; -1 for a total.
        batches: Batches delivered.
        seconds: Seconds by stage (see ``STAGES``).
        counts: Delivered "seeds", "edges" (sampled) and "input_nodes".
        reads: Rows and bytes by tier and seconds, for every field.
        device_seconds: Seconds that a device worked, from events in its streams: for "sampling", "reading" rows and
            "copying" blocks. "waiting" is how long the reader's stream was idle, from the end of the work given before
            a batch was asked for until the batch was there. Empty on the CPU.
    """

    epoch: int
    batches: int
    seconds: Mapping[str, float]
    counts: Mapping[str, int]
    reads: CacheStats
    device_seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def hit_rate(self) -> float:
        """Rows served by the cache / rows asked for, over the fields that a cache may serve; 0.0 if there is none."""
        return self.reads.hit_rate

    @property
    def hit_rate_by_field(self) -> dict[Hashable, float]:
        """The hit rate of each field that a cache may serve."""
        return self.reads.hit_rate_by_field

    @property
    def hit_rate_by_hop(self) -> tuple[float, ...]:
        """The hit rate of the vertices that each hop found, over the fields that a cache may serve; seeds are hop 0."""
        return self.reads.hit_rate_by_hop

    @property
    def loading_seconds(self) -> float:
        """Seconds that the reader waited for batches."""
        return self.seconds.get("waiting", 0.0)


class EpochRecorder:
    """Collects one epoch's figures from all threads."""

    def __init__(
        self, epoch: int, reads: Callable[[], CacheStats], trace: EpochTrace, accelerator: Accelerator | None = None
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
        """Record that the reader, who asked at ``begin``, has got its batch now, or there was none."""
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
            for name, value in counts.items():
                self._counts[name] = self._counts.get(name, 0) + value
        tracer = self.trace.tracing.tracer
        if tracer is not None:
            tracer.delivered(counts)

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
    """A loader's figures: ``epochs``, one entry each, and their ``total``; ``str()`` gives a table.

    Field counters belong to the loader: of two epochs that run at the same time, each counts the reads of both.

    Args:
        reads: Gives the field counters.
        accelerator: Where batches are made, if not on the CPU.
    """

    def __init__(self, reads: Callable[[], CacheStats], accelerator: Accelerator | None = None) -> None:
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
        return EpochStats(-1, sum(e.batches for e in epochs), seconds, counts, self._reads(), on_device)

    def __str__(self) -> str:
        epochs, total = self.epochs, self.total
        rows = [["epoch", "batches", *(f"{s} s" for s in STAGES), "edges", "rows", "hit rate"]]
        rows += [_row(str(e.epoch), e) for e in epochs]
        rows.append(_row("total", total))
        tables = [rows]
        if total.device_seconds:
            tables.append(_device_rows(epochs, total))
        if total.reads.fields:
            tables.append(_field_rows(total.reads))
        if total.hit_rate_by_field:
            tables.append(_hop_rows([*((str(e.epoch), e.reads) for e in epochs), ("total", total.reads)]))
        return "\n\n".join(map(_table, tables))

    __repr__ = __str__


def _device_rows(epochs: list[EpochStats], total: EpochStats) -> list[list[str]]:
    """Seconds of the device by epoch and stage."""
    stages = list(total.device_seconds)
    lines = [*((str(e.epoch), e) for e in epochs), ("total", total)]
    rows = [[name, *(f"{e.device_seconds.get(stage, 0.0):.3f}" for stage in stages)] for name, e in lines]
    return [["epoch", *(f"{stage} on device s" for stage in stages)], *rows]


def _field_rows(reads: CacheStats) -> list[list[str]]:
    """Rows and bytes by field."""
    tiers = sorted({tier for f in reads.fields.values() for tier in f.nbytes})
    rows = [["field", "read s", "rows", "hits", "hit rate", *(f"{tier} bytes" for tier in tiers)]]
    for key, f in reads.fields.items():
        nbytes = [f"{f.nbytes.get(tier, 0):,}" for tier in tiers]
        rows.append([str(key), f"{f.seconds:.3f}", f"{f.asked:,}", f"{f.hits:,}", _hit_rate([f]), *nbytes])
    return rows


def _hop_rows(reads: list[tuple[str, CacheStats]]) -> list[list[str]]:
    """Hit rates by epoch, field and hop, of the fields that a cache may serve; "-" where a hop read nothing."""
    lines = [(name, str(key), f) for name, r in reads for key, f in r.fields.items() if f.cacheable and f.asked]
    hops = max((len(f.asked_by_hop) for _, _, f in lines), default=0)
    rows = [["epoch", "field", "hit rate", *(f"hop {hop}" for hop in range(hops))]]
    for name, key, f in lines:
        rates = [f"{r:.1%}" if n else "-" for r, n in zip(f.hit_rate_by_hop, f.asked_by_hop, strict=True)]
        rows.append([name, key, f"{f.hit_rate:.1%}", *rates, *["-"] * (hops - len(rates))])
    return rows


def _row(name: str, e: EpochStats) -> list[str]:
    times = [f"{e.seconds.get(stage, 0.0):.3f}" for stage in STAGES]
    edges, asked = e.counts.get("edges", 0), e.reads.total.asked
    return [name, str(e.batches), *times, f"{edges:,}", f"{asked:,}", _hit_rate(e.reads.fields.values())]


def _hit_rate(fields: Iterable[FieldStats]) -> str:
    """Format the hit rate of the fields that a cache may serve; "-" where there is none."""
    cacheable = CacheStats({i: f for i, f in enumerate(fields) if f.cacheable})
    return f"{cacheable.hit_rate:.1%}" if cacheable.fields else "-"


def _table(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)


def _sum(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0) + value
    return total
