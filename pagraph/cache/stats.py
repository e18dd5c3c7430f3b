"""Counts of rows and bytes by field and tier; reading them never resets them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

__all__ = ["CACHE_TIER", "CacheStats", "FieldStats", "ReadCounters"]

CACHE_TIER = "cache"
"""The tier of rows that a cache served; the others are "host", "disk" and "device"."""


@dataclass(frozen=True)
class FieldStats:
    """What was read of one field.

    Attributes:
        rows: Tier to the number of rows it served.
        nbytes: Tier to the bytes of these rows, as they were delivered.
        cacheable: Whether a cache may serve this field.
        seconds: Time spent reading it, over all threads.
        asked_by_hop: Rows asked for of the vertices that each hop found; hop 0 are the seeds. An edge's row counts for
            the hop that drew the edge. Empty where a read says nothing of hops.
        hits_by_hop: How many of these the cache served.
    """

    rows: Mapping[str, int] = field(default_factory=dict)
    nbytes: Mapping[str, int] = field(default_factory=dict)
    cacheable: bool = False
    seconds: float = 0.0
    asked_by_hop: tuple[int, ...] = ()
    hits_by_hop: tuple[int, ...] = ()

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

    @property
    def hit_rate_by_hop(self) -> tuple[float, ...]:
        """:attr:`hit_rate` of each hop; 0.0 where nothing was asked."""
        return tuple(
            hits / asked if asked else 0.0 for hits, asked in zip(self.hits_by_hop, self.asked_by_hop, strict=True)
        )

    def __add__(self, other: FieldStats) -> FieldStats:
        return FieldStats(
            _combine(self.rows, other.rows, 1),
            _combine(self.nbytes, other.nbytes, 1),
            self.cacheable or other.cacheable,
            self.seconds + other.seconds,
            _combine_hops(self.asked_by_hop, other.asked_by_hop, 1),
            _combine_hops(self.hits_by_hop, other.hits_by_hop, 1),
        )

    def __sub__(self, other: FieldStats) -> FieldStats:
        return FieldStats(
            _combine(self.rows, other.rows, -1),
            _combine(self.nbytes, other.nbytes, -1),
            self.cacheable,
            self.seconds - other.seconds,
            _combine_hops(self.asked_by_hop, other.asked_by_hop, -1),
            _combine_hops(self.hits_by_hop, other.hits_by_hop, -1),
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
        return self.cacheable.hit_rate

    @property
    def hit_rate_by_field(self) -> dict[Hashable, float]:
        """The hit rate of each field that a cache may serve."""
        return {key: stats.hit_rate for key, stats in self.fields.items() if stats.cacheable}

    @property
    def hit_rate_by_hop(self) -> tuple[float, ...]:
        """The hit rate of each hop, over the fields that a cache may serve; the seeds are hop 0."""
        return self.cacheable.hit_rate_by_hop

    @property
    def cacheable(self) -> FieldStats:
        """The sum over the fields that a cache may serve."""
        return sum((f for f in self.fields.values() if f.cacheable), FieldStats())

    def __sub__(self, earlier: CacheStats) -> CacheStats:
        nothing = FieldStats()
        return CacheStats({key: now - earlier.fields.get(key, nothing) for key, now in self.fields.items()})


def _combine(left: Mapping[str, int], right: Mapping[str, int], sign: int) -> dict[str, int]:
    tiers = {**left, **right}
    return {tier: left.get(tier, 0) + sign * right.get(tier, 0) for tier in tiers}


def _combine_hops(left: tuple[int, ...], right: tuple[int, ...], sign: int) -> tuple[int, ...]:
    return tuple(a + sign * b for a, b in zip_longest(left, right, fillvalue=0))


class ReadCounters:
    """Counts reads from any number of threads.

    Attributes:
        on_read: Told of every read with what ``record`` got, in the thread that has just done it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fields: dict[Hashable, FieldStats] = {}
        self.on_read: Callable[[Hashable, str, int, int, int, bool, float], object] | None = None

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
        asked_by_hop: Sequence[int] = (),
        hits_by_hop: Sequence[int] = (),
    ) -> None:
        """Add one read of ``asked`` rows: ``hits`` of them from the cache, the others from ``tier``.

        The two sequences divide them by hop, where that is known.
        """
        rows = {tier: asked - hits}
        if hits:
            rows[CACHE_TIER] = hits
        nbytes = {t: n * row_bytes for t, n in rows.items()}
        read = FieldStats(rows, nbytes, cacheable, seconds, tuple(asked_by_hop), tuple(hits_by_hop))
        with self._lock:
            self._fields[key] = self._fields.get(key, FieldStats()) + read
        if self.on_read is not None:
            self.on_read(key, tier, asked, hits, row_bytes, cacheable, seconds)

    def snapshot(self) -> CacheStats:
        """The counts now."""
        # Copying a dict of immutable values is atomic. No lock: the garbage collector may end an epoch, and so ask for
        # a snapshot, in a thread that is in the middle of a count.
        return CacheStats(dict(self._fields))
