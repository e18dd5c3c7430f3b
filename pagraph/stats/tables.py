"""Tables of a loader's statistics: by epoch, by field and by hop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..system.tables import Table

if TYPE_CHECKING:
    from .reads import CacheStats, FieldStats
    from .stats import EpochStats

__all__ = ["STAGES", "epoch_tables", "field_table"]

STAGES = ("filling", "sampling", "window", "fetching", "building", "waiting")
"""Where time goes: filling caches, drawing neighbours, reading the rows of several batches from files, gathering rows,
building the face's objects, the reader waiting.

All but the last are summed over threads; ``waiting`` is the reader's own time, whatever it waited for."""

_RATES = ("hit rate", "of bytes")


def epoch_tables(epochs: Sequence[EpochStats]) -> list[Table]:
    """Times and rates by epoch, the device's times, fields of the last epoch, which may be the total, and hops."""
    last, names = epochs[-1], ["total" if e.epoch < 0 else str(e.epoch) for e in epochs]
    head = ["epoch", "batches", *(f"{stage} s" for stage in STAGES), "edges", "rows", *_RATES]
    tables = [Table([head, *map(_epoch_row, names, epochs)])]
    if stages := list(last.device_seconds):
        head = ["epoch", *(f"{stage} on device s" for stage in stages)]
        rows = [[f"{e.device_seconds.get(stage, 0.0):.3f}" for stage in stages] for e in epochs]
        tables.append(Table([head, *([name, *cells] for name, cells in zip(names, rows, strict=True))]))
    if last.reads.fields:
        tables.append(field_table(last.reads))
    if last.hit_rate_by_field:
        tables.append(_hop_table(names, [e.reads for e in epochs]))
    return tables


def _epoch_row(name: str, e: EpochStats) -> list[str]:
    times = [f"{e.seconds.get(stage, 0.0):.3f}" for stage in STAGES]
    edges, total = e.counts.get("edges", 0), e.reads.total
    rates = _rates(e.reads.hit_rate, e.reads.byte_hit_rate, known=total.cacheable)
    return [name, str(e.batches), *times, f"{edges:,}", f"{total.asked:,}", *rates]


def field_table(reads: CacheStats) -> Table:
    """Rows and bytes by field."""
    tiers = sorted({tier for f in reads.fields.values() for tier in f.nbytes})
    rows = [["field", "read s", "rows", "hits", *_RATES, *(f"{tier} bytes" for tier in tiers)]]
    for key, f in reads.fields.items():
        nbytes = [f"{f.nbytes.get(tier, 0):,}" for tier in tiers]
        rates = _rates(f.hit_rate, f.byte_hit_rate, known=f.cacheable)
        rows.append([str(key), f"{f.seconds:.3f}", f"{f.asked:,}", f"{f.hits:,}", *rates, *nbytes])
    return Table(rows)


def _hop_table(names: Sequence[str], reads: Sequence[CacheStats]) -> Table:
    """Hit rates by epoch, field and hop, of the fields that a cache may serve; "-" where a hop read nothing."""
    lines: list[tuple[str, str, FieldStats]] = [
        (name, str(key), f)
        for name, of in zip(names, reads, strict=True)
        for key, f in of.fields.items()
        if f.cacheable and f.asked
    ]
    hops = max((len(f.asked_by_hop) for _, _, f in lines), default=0)
    rows = [["epoch", "field", "hit rate", *(f"hop {hop}" for hop in range(hops))]]
    for name, key, f in lines:
        rates = [f"{r:.1%}" if n else "-" for r, n in zip(f.hit_rate_by_hop, f.asked_by_hop, strict=True)]
        rows.append([name, key, f"{f.hit_rate:.1%}", *rates, *["-"] * (hops - len(rates))])
    return Table(rows)


def _rates(*rates: float, known: bool) -> list[str]:
    """Format hit rates; "-" where no cache may serve what they are of."""
    return [f"{rate:.1%}" if known else "-" for rate in rates]
