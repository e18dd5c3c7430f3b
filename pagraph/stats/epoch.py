"""Statistics of one epoch, and their tables: by epoch, by field and by hop."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from ..system.tables import Table, Tabled
from .reads import RATE_NAMES, CacheStats, FieldStats, field_table, rate_cells

STAGES = (
    "filling",
    "sampling",
    "window",
    "fetching",
    "building",
    "transform",
    "waiting",
    "compiling",
)
"""Stages whose time is counted.

They are: filling caches, drawing neighbours, reading the rows of several batches from files,
gathering rows, building DGL's or PyG's objects, the user's ``transform``, the reader waiting, and
compiling kernels. Kernels are compiled once on a machine, and this time is in no other stage. All
but the last two are summed over threads. ``waiting`` is the reader's time, waiting for anything."""


REQUESTS = -2
"""Number of an epoch that stands for batches made on request."""


@dataclass(frozen=True)
class EpochStats(Tabled):
    """One epoch, or several added up.

    Attributes:
        epoch: Number of the epoch; -1 for a total, -2 for batches made on request.
        batches: Batches delivered.
        seconds: Seconds by stage (see ``STAGES``).
        counts: Delivered "seeds", "edges" (sampled) and "input_nodes". With look-ahead,
            "window_rows" read from files, each once in a group of batches, and their
            "window_bytes". If a device samples, "overflows": batches that were larger than expected
            and made twice.
        reads: Rows and bytes by tier and seconds, for every field.
        device_seconds: Seconds that a device worked, from events in its streams: for "sampling",
            "reading" rows (with sampling, in batches of one launch) and "copying" blocks.
            "waiting" is how long the reader's stream was idle, from the end of the work enqueued
            before a batch was requested until the batch was there. Empty on the CPU.
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
        return epoch_tables([self])


def epoch_tables(epochs: Sequence[EpochStats]) -> list[Table]:
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
    return Table(rows)
