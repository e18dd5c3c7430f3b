"""Statistics of one epoch, and their tables: by epoch, by field and by hop."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from ..system.tables import Table, html_of
from .reads import RATE_NAMES, CacheStats, FieldStats, field_table, rate_cells

STAGES = ("filling", "sampling", "window", "fetching", "building", "waiting")
"""Where time goes: filling caches, drawing neighbours, reading the rows of several batches from
files, gathering rows, building the face's objects, the reader waiting.

All but the last are summed over threads; ``waiting`` is the reader's own time, whatever it waited
for."""


@dataclass(frozen=True)
class EpochStats:
    """One epoch, or several added up.

    Attributes:
        epoch: Number of the epoch; -1 for a total.
        batches: Batches delivered.
        seconds: Seconds by stage (see ``STAGES``).
        counts: Delivered "seeds", "edges" (sampled) and "input_nodes"; with look-ahead the
            "window_rows" that were read from files, each once a group of batches, and their
            "window_bytes".
        reads: Rows and bytes by tier and seconds, for every field.
        device_seconds: Seconds that a device worked, from events in its streams: for "sampling",
            "reading" rows and "copying" blocks. "waiting" is how long the reader's stream was idle,
            from the end of the work given before a batch was asked for until the batch was there.
            Empty on the CPU.
    """

    epoch: int
    batches: int
    seconds: Mapping[str, float]
    counts: Mapping[str, int]
    reads: CacheStats
    device_seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def hit_rate(self) -> float:
        """Rows served by the cache / rows asked for, over the fields that a cache may serve; 0.0 if
        there is none."""
        return self.reads.hit_rate

    @property
    def byte_hit_rate(self) -> float:
        """Bytes served by the cache / bytes read, over all fields, those that no cache may serve
        too; else 0.0."""
        return self.reads.byte_hit_rate

    @property
    def hit_rate_by_field(self) -> dict[Hashable, float]:
        """The hit rate of each field that a cache may serve."""
        return self.reads.hit_rate_by_field

    @property
    def hit_rate_by_hop(self) -> tuple[float, ...]:
        """The hit rate of the vertices that each hop found, over the fields that a cache may serve;
        seeds are hop 0."""
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
        seconds = {f"seconds/{stage}": self.seconds.get(stage, 0.0) for stage in STAGES}
        device = {f"device_seconds/{stage}": value for stage, value in self.device_seconds.items()}
        begun = {"epoch": self.epoch, "batches": self.batches}
        return {**begun, **self.counts, **seconds, **device, **self.reads.to_dict()}

    def __str__(self) -> str:
        return "\n\n".join(map(str, epoch_tables([self])))

    def _repr_html_(self) -> str:
        return html_of(epoch_tables([self]))


def epoch_tables(epochs: Sequence[EpochStats]) -> list[Table]:
    """Times and rates by epoch, the device's times, fields of the last epoch, which may be the
    total, and hops."""
    last, names = epochs[-1], ["total" if e.epoch < 0 else str(e.epoch) for e in epochs]
    head = ["epoch", "batches", *(f"{stage} s" for stage in STAGES), "edges", "rows", *RATE_NAMES]
    tables = [Table([head, *map(_epoch_row, names, epochs)])]
    if stages := list(last.device_seconds):
        head = ["epoch", *(f"{stage} on device s" for stage in stages)]
        rows = [[f"{e.device_seconds.get(stage, 0.0):.3f}" for stage in stages] for e in epochs]
        tables.append(
            Table([head, *([name, *cells] for name, cells in zip(names, rows, strict=True))])
        )
    if last.reads.fields:
        tables.append(field_table(last.reads))
    if last.hit_rate_by_field:
        tables.append(_hop_table(names, [e.reads for e in epochs]))
    return tables


def _epoch_row(name: str, e: EpochStats) -> list[str]:
    times = [f"{e.seconds.get(stage, 0.0):.3f}" for stage in STAGES]
    edges, total = e.counts.get("edges", 0), e.reads.total
    rates = rate_cells(e.reads.hit_rate, e.reads.byte_hit_rate, known=total.cacheable)
    return [name, str(e.batches), *times, f"{edges:,}", f"{total.asked:,}", *rates]


def _hop_table(names: Sequence[str], reads: Sequence[CacheStats]) -> Table:
    """Hit rates by epoch, field and hop, of the fields that a cache may serve; "-" where a hop read
    nothing."""
    lines: list[tuple[str, str, FieldStats]] = [
        (name, str(key), f)
        for name, of in zip(names, reads, strict=True)
        for key, f in of.fields.items()
        if f.cacheable and f.asked
    ]
    hops = max((len(f.asked_by_hop) for _, _, f in lines), default=0)
    rows = [["epoch", "field", "hit rate", *(f"hop {hop}" for hop in range(hops))]]
    for name, key, f in lines:
        rates = [
            f"{r:.1%}" if n else "-" for r, n in zip(f.hit_rate_by_hop, f.asked_by_hop, strict=True)
        ]
        rows.append([name, key, f"{f.hit_rate:.1%}", *rates, *["-"] * (hops - len(rates))])
    return Table(rows)
