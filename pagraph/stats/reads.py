"""Counts of rows and bytes by field and tier; reading them never resets them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..system.tables import Table, Tabled

if TYPE_CHECKING:
    from ..accelerator import Event
    from ..features.store import Hits


class ReadObserver(Protocol):
    """Is called after every read, in the thread that did it, while :attr:`tracer` is set."""

    @property
    def tracer(self) -> object | None:
        """Collects what is observed; None while nothing is."""

    def read(
        self,
        key: Any,
        tier: str,
        asked: int,
        hits: int | None,
        row_bytes: int,
        cacheable: bool,
        seconds: float,
    ) -> Callable[[int], object] | None:
        """Report a read.

        ``hits`` is None if they are not known yet: then call the returned function with them.
        """


RATE_NAMES = ("hit rate", "of bytes")
"""Heads of the columns that :func:`rate_cells` fills."""
CACHE_TIER = "cache"
"""The tier of rows that a cache served; the others are "host", "disk" and "device"."""


@dataclass(frozen=True)
class FieldStats:
    """Counts of the reads of one field.

    Attributes:
        rows: Tier to the number of rows it served.
        nbytes: Tier to the bytes of these rows, as they were delivered.
        cacheable: Whether a cache may serve this field.
        seconds: Time spent reading it, over all threads, without loading kernels.
        asked_by_hop: Rows asked for of the vertices that each hop found (0: the seeds), or of the
            edges that it drew. Empty where a read says nothing of hops.
        hits_by_hop: Rows of these that the cache served.
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
        """Rows served by the cache / rows asked for; 0.0 if nothing was asked for."""
        return self.hits / self.asked if self.asked else 0.0

    @property
    def byte_hit_rate(self) -> float:
        """Bytes served by the cache / bytes read; 0.0 if nothing was read."""
        read = sum(self.nbytes.values())
        return self.nbytes.get(CACHE_TIER, 0) / read if read else 0.0

    @property
    def hit_rate_by_hop(self) -> tuple[float, ...]:
        """:attr:`hit_rate` of each hop; 0.0 where nothing was asked for."""
        # Both tuples are empty, or as long as the deepest read: record() grows them together.
        return tuple(
            hits / asked if asked else 0.0
            for hits, asked in zip(self.hits_by_hop, self.asked_by_hop, strict=True)
        )

    def to_dict(self) -> dict[str, float]:
        """The numbers of the field: "rows", "hits", "seconds" and "bytes/TIER".

        A cacheable field also has "hit_rate", "byte_hit_rate" and "hit_rate/hop_N".
        """
        numbers = {"rows": self.asked, "hits": self.hits, "seconds": self.seconds}
        for tier, nbytes in self.nbytes.items():
            numbers[f"bytes/{tier}"] = nbytes
        # A rate of 0.0 would read as a cache that never hits; there is no cache to hit.
        if not self.cacheable:
            return numbers
        numbers["hit_rate"] = self.hit_rate
        numbers["byte_hit_rate"] = self.byte_hit_rate
        for hop, rate in enumerate(self.hit_rate_by_hop):
            numbers[f"hit_rate/hop_{hop}"] = rate
        return numbers

    def __add__(self, other: FieldStats) -> FieldStats:
        return self._combined(other, 1)

    def __sub__(self, other: FieldStats) -> FieldStats:
        return self._combined(other, -1)

    def _combined(self, other: FieldStats, sign: int) -> FieldStats:
        return FieldStats(
            _combine(self.rows, other.rows, sign),
            _combine(self.nbytes, other.nbytes, sign),
            # A difference takes it from the later moment, which knows of every read.
            self.cacheable or (sign > 0 and other.cacheable),
            self.seconds + sign * other.seconds,
            _combine_hops(self.asked_by_hop, other.asked_by_hop, sign),
            _combine_hops(self.hits_by_hop, other.hits_by_hop, sign),
        )


@dataclass(frozen=True)
class CacheStats(Tabled):
    """Counts by field up to one moment; the difference of two is what was read between them."""

    fields: Mapping[Hashable, FieldStats] = field(default_factory=dict)

    @property
    def total(self) -> FieldStats:
        """The sum over all fields."""
        return sum(self.fields.values(), FieldStats())

    @property
    def hit_rate(self) -> float:
        """Rows served by the cache / rows asked for, over cacheable fields; 0.0 without any."""
        return self.cacheable.hit_rate

    @property
    def byte_hit_rate(self) -> float:
        """Bytes served by the cache / bytes read, over all fields, cacheable or not."""
        return self.total.byte_hit_rate

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

    def to_dict(self) -> dict[str, float]:
        """All numbers by flat names: "rows", "hit_rate", "byte_hit_rate", and "field/NAME/..." of
        each field.

        What follows the field's name is a name of :meth:`FieldStats.to_dict`.
        """
        numbers = {
            "rows": self.total.asked,
            "hit_rate": self.hit_rate,
            "byte_hit_rate": self.byte_hit_rate,
        }
        for key, read in self.fields.items():
            for name, number in read.to_dict().items():
                numbers[f"field/{key}/{name}"] = number
        return numbers

    def _tables(self) -> list[Table]:
        return [field_table(self)]

    def __sub__(self, earlier: CacheStats) -> CacheStats:
        nothing = FieldStats()  # a field that was first read after the earlier moment
        return CacheStats(
            {key: now - earlier.fields.get(key, nothing) for key, now in self.fields.items()}
        )


def field_table(reads: CacheStats) -> Table:
    """Rows and bytes by field."""
    tiers = sorted({tier for f in reads.fields.values() for tier in f.nbytes})
    rows = [["field", "read s", "rows", "hits", *RATE_NAMES, *(f"{tier} bytes" for tier in tiers)]]
    for key, f in reads.fields.items():
        nbytes = [f"{f.nbytes.get(tier, 0):,}" for tier in tiers]
        rates = rate_cells(f.hit_rate, f.byte_hit_rate, known=f.cacheable)
        rows.append([str(key), f"{f.seconds:.3f}", f"{f.asked:,}", f"{f.hits:,}", *rates, *nbytes])
    return Table(rows, left=(0,))


def rate_cells(*rates: float, known: bool) -> list[str]:
    """Format hit rates; "-" for those of fields that are not cacheable."""
    return [f"{rate:.1%}" if known else "-" for rate in rates]


def _combine(left: Mapping[str, int], right: Mapping[str, int], sign: int) -> dict[str, int]:
    tiers = {**left, **right}
    return {tier: left.get(tier, 0) + sign * right.get(tier, 0) for tier in tiers}


def _combine_hops(left: tuple[int, ...], right: tuple[int, ...], sign: int) -> tuple[int, ...]:
    # Reads of one field may differ in hops: two samplers, or one read that names none.
    return tuple(a + sign * b for a, b in zip_longest(left, right, fillvalue=0))


@dataclass(frozen=True, eq=False)
class PendingRead:
    """A read that an accelerator may not have finished: its time and hits become known later.

    Attributes:
        key, tier, asked, row_bytes, cacheable, bounds: As for :meth:`ReadCounters.record`.
        hits: Rows that the cache served, by hop if there are ``bounds``.
        begun: When the accelerator began.
        ready: When it had done everything, counting included.
        share: Of the time between them that is this read's.
        kernels: Seconds between them in which the host loaded kernels.
    """

    key: Hashable
    tier: str
    asked: int
    hits: Hits
    row_bytes: int
    cacheable: bool
    begun: Event
    ready: Event
    bounds: Sequence[int] | None = None
    share: float = 1.0
    kernels: float = 0.0

    @property
    def is_done(self) -> bool:
        """Whether everything is known; does not wait."""
        return self.ready.has_happened and self.hits.now() is not None

    def wait(self) -> None:
        """Wait until everything is known."""
        self.ready.wait()
        self.hits.wait()

    @property
    def seconds(self) -> float:
        """Time that a read took which is done."""
        # A device that was busy with other work may not have waited for the host's loads.
        return self.share * max(0.0, self.ready.seconds_since(self.begun) - self.kernels)


class _Count:
    """Running totals of one field."""

    __slots__ = ("asked_by_hop", "cacheable", "hits_by_hop", "nbytes", "rows", "seconds")

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.nbytes: dict[str, int] = {}
        self.cacheable = False
        self.seconds = 0.0
        self.asked_by_hop: list[int] = []
        self.hits_by_hop: list[int] = []

    def stats(self) -> FieldStats:
        """The totals now."""
        return FieldStats(
            dict(self.rows),
            dict(self.nbytes),
            self.cacheable,
            self.seconds,
            tuple(self.asked_by_hop),
            tuple(self.hits_by_hop),
        )


class CountedRead(NamedTuple):
    """A read that is done, as :class:`ReadCounters` take it.

    Attributes:
        key: The field.
        tier: Tier of the rows that the cache does not have.
        asked: Rows asked for.
        hits: Rows that the cache served, by hop where ``bounds`` is given; None without a cache.
        row_bytes: Bytes of a row, as it is delivered.
        cacheable: Whether a cache may serve the field.
        seconds: Time taken.
        bounds: Where the ids of each hop end.
        kernels: Seconds of it in which kernels were loaded.
    """

    key: Hashable
    tier: str
    asked: int
    hits: Sequence[int] | None
    row_bytes: int
    cacheable: bool
    seconds: float = 0.0
    bounds: Sequence[int] | None = None
    kernels: float = 0.0


class ReadCounters:
    """Counts reads; every method may be called from any thread.

    ``observer`` is told of each read while its tracer is set.
    """

    def __init__(self) -> None:
        # Guards _fields and _counting. Reentrant: the garbage collector may close an epoch, which
        # takes a snapshot, in a thread that holds the lock already. No other lock is taken while
        # it is held; observers are called after it.
        self._lock = threading.RLock()
        # Set while a thread adds pending reads, for that same interrupted thread alone: the lock
        # keeps others out, but lets it in again between popleft and add.
        self._counting = False
        self._fields: dict[Hashable, _Count] = {}
        # Oldest first; appended to without the lock (a deque's append is atomic), popped under it.
        self._pending: deque[tuple[PendingRead, Callable[[int], object] | None]] = deque()
        self.observer: ReadObserver | None = None

    @property
    def is_traced(self) -> bool:
        """Whether each read is traced by itself."""
        return self.observer is not None and self.observer.tracer is not None

    def record_each(self, reads: Sequence[CountedRead], *, observed: bool = False) -> None:
        """Add some reads."""
        with self._lock:
            for key, tier, asked, hits, row_bytes, cacheable, seconds, bounds, kernels in reads:
                served = sum(hits) if hits else 0
                count = self._fields.get(key)
                if count is None:
                    count = self._fields[key] = _Count()
                rows = count.rows
                nbytes = count.nbytes
                rows[tier] = rows.get(tier, 0) + asked - served
                nbytes[tier] = nbytes.get(tier, 0) + (asked - served) * row_bytes
                if served:  # without hits no column of the cache in the tables
                    rows[CACHE_TIER] = rows.get(CACHE_TIER, 0) + served
                    nbytes[CACHE_TIER] = nbytes.get(CACHE_TIER, 0) + served * row_bytes
                count.cacheable = count.cacheable or cacheable
                count.seconds += seconds - kernels
                if bounds is None:
                    continue
                missing = len(bounds) - len(count.asked_by_hop)
                if missing > 0:
                    count.asked_by_hop += [0] * missing
                    count.hits_by_hop += [0] * missing
                begin = 0
                for hop, end in enumerate(bounds):
                    count.asked_by_hop[hop] += end - begin
                    if served and hits is not None:
                        count.hits_by_hop[hop] += hits[hop]
                    begin = end
        # Its own look at the tracer decides: tracing may stop between here and there.
        observer = self.observer
        if observer is None or observer.tracer is None or observed:
            return
        for key, tier, asked, hits, row_bytes, cacheable, seconds, *_ in reads:
            served = sum(hits) if hits else 0
            observer.read(key, tier, asked, served, row_bytes, cacheable, seconds)

    def record_pending(self, reads: Sequence[PendingRead], seconds: float) -> None:
        """Add reads once they are done; does not wait.

        ``seconds`` is the calling thread's time for all of them, for the trace: the statistics
        count the device's.
        """
        observer = self.observer
        for read in reads:
            tell = None
            if observer is not None and observer.tracer is not None:
                known = read.key, read.tier, read.asked, None, read.row_bytes, read.cacheable
                tell = observer.read(*known, seconds * read.share)
            self._pending.append((read, tell))
        self._add_what_is_done()

    def settle(self) -> None:
        """Wait until all reads so far have been done, and add them."""
        # A copy (atomic under the interpreter's lock): other threads go on appending. Waiting is
        # done without our lock, or no thread could count a read meanwhile.
        for read, _ in tuple(self._pending.copy()):
            read.wait()
        self._add_what_is_done()

    def snapshot(self) -> CacheStats:
        """The counts now, of all reads that are known to be done; does not wait."""
        if self._pending:
            self._add_what_is_done()
        with self._lock:
            return CacheStats({key: count.stats() for key, count in self._fields.items()})

    def _add_what_is_done(self) -> None:
        told: list[tuple[Callable[[int], object], int]] = []
        with self._lock:
            # This same thread is counting: the garbage collector interrupted it, and it goes on.
            if self._counting:
                return
            self._counting = True
            try:
                # In order: an undone read holds up the ones after it, but costs one look.
                while self._pending and self._pending[0][0].is_done:
                    read, tell = self._pending.popleft()
                    served = read.hits.wait()
                    counted = read.tier, read.asked, served, read.row_bytes, read.cacheable
                    of_read = CountedRead(read.key, *counted, read.seconds, read.bounds)
                    self.record_each([of_read], observed=True)
                    if tell is not None:
                        told.append((tell, sum(served)))
            finally:
                self._counting = False
        # Without the lock: an observer may take its own, and ask for a snapshot.
        for tell, hits in told:
            tell(hits)
