"""Counts of rows and bytes by field and tier; reading them never resets them."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

__all__ = ["CACHE_TIER", "CacheStats", "FieldStats", "ReadCounters"]

CACHE_TIER = "cache"
"""The tier of rows that a cache served; the others are "host", "disk" and "device"."""


@dataclass(frozen=True)
class FieldStats:
    """What was read of one field.

    Attributes:
        rows: Tier to the number of rows it served.
        nbytes: Tier to the bytes of these rows.
        cacheable: Whether a cache may serve this field.
        seconds: Time spent reading it, over all threads.
    """

    rows: Mapping[str, int] = field(default_factory=dict)
    nbytes: Mapping[str, int] = field(default_factory=dict)
    cacheable: bool = False
    seconds: float = 0.0

    @property
    def asked(self) -> int:
        """Rows asked for."""
        return sum(self.rows.values())

    @property
    def hits(self) -> int:
        """Rows that the cache served."""
        return self.rows.get(CACHE_TIER, 0)

    @property
    def misses(self) -> int:
        """Rows that the cache did not serve."""
        return self.asked - self.hits

    @property
    def hit_rate(self) -> float:
        """Rows served by the cache / rows asked for; 0.0 when none was."""
        return self.hits / self.asked if self.asked else 0.0

    def __add__(self, other: FieldStats) -> FieldStats:
        return FieldStats(
            _combine(self.rows, other.rows, 1),
            _combine(self.nbytes, other.nbytes, 1),
            self.cacheable or other.cacheable,
            self.seconds + other.seconds,
        )

    def __sub__(self, other: FieldStats) -> FieldStats:
        return FieldStats(
            _combine(self.rows, other.rows, -1),
            _combine(self.nbytes, other.nbytes, -1),
            self.cacheable,
            self.seconds - other.seconds,
        )


@dataclass(frozen=True)
class CacheStats:
    """What was read of all fields up to one moment; the difference of two is what happened between them.

    Attributes:
        fields: Field key to its counts.
    """

    fields: Mapping[Hashable, FieldStats] = field(default_factory=dict)

    @property
    def total(self) -> FieldStats:
        """The sum over all fields."""
        return sum(self.fields.values(), FieldStats())

    @property
    def hit_rate(self) -> float:
        """Rows served by the cache / rows asked for, over the fields that a cache may serve; else 0.0."""
        return sum((f for f in self.fields.values() if f.cacheable), FieldStats()).hit_rate

    def __sub__(self, earlier: CacheStats) -> CacheStats:
        nothing = FieldStats()
        return CacheStats({key: now - earlier.fields.get(key, nothing) for key, now in self.fields.items()})


def _combine(left: Mapping[str, int], right: Mapping[str, int], sign: int) -> dict[str, int]:
    tiers = {**left, **right}
    return {tier: left.get(tier, 0) + sign * right.get(tier, 0) for tier in tiers}


class ReadCounters:
    """Counts reads from any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fields: dict[Hashable, FieldStats] = {}

    def record(
        self,
        key: Hashable,
        tier: str,
        *,
        asked: int,
        hits: int,
        row_bytes: int,
        cacheable: bool,
        seconds: float = 0.0,
    ) -> None:
        """Add one read of ``asked`` rows: ``hits`` of them from the cache, the others from ``tier``."""
        rows = {tier: asked - hits}
        if hits:
            rows[CACHE_TIER] = hits
        read = FieldStats(rows, {t: n * row_bytes for t, n in rows.items()}, cacheable, seconds)
        with self._lock:
            self._fields[key] = self._fields.get(key, FieldStats()) + read

    def snapshot(self) -> CacheStats:
        """The counts now."""
        # Copying a dict of immutable values is atomic. No lock: the garbage collector may end an epoch, and so ask for
        # a snapshot, in a thread that is in the middle of a count.
        return CacheStats(dict(self._fields))
