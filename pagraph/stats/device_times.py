"""DeviceTimes: a device's seconds by stage of an epoch, from events in its streams."""

from __future__ import annotations

import bisect
import threading
import time
from collections import defaultdict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..accelerator import Accelerator, Event
    from .trace import EpochTrace

__all__ = ["DeviceTimes"]

_LONG = 60.0  # seconds after which times count from a later event: a device tells milliseconds by 24 bits
_MOST_SPANS = 256


class _Covered:
    """Stretches of time in which a device was at work, disjoint and in order; the oldest are forgotten."""

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
    """Adds up the time between pairs of events, once they have happened, without waiting for the device.

    Threads share streams, so that one's pair may enclose work of another: time that several pairs of a stage enclose
    counts once.

    Args:
        accelerator: The device.
        trace: Gets every span that is known, on a track of the device.
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
            self._seconds[stage] = self._seconds.get(stage, 0.0) + sum(last - first for first, last in new)
            if self._clock is not None:
                reference, at = self._clock
                at += int(origin.seconds_since(reference) * 1e9)
                for first, last in new:
                    track = f"{stage} on {self._accelerator.device}"
                    self._trace.device_span(track, stage, at + int(first * 1e9), at + int(last * 1e9))

    def _since_origin(self, event: Event) -> tuple[Event, float]:
        """The event from which times count, which is moved now and then, and another's seconds since."""
        origin = self._origin = event if self._origin is None else self._origin
        since = event.seconds_since(origin)
        if since > _LONG:
            for covered in self._covered.values():
                covered.shift(since)
            origin, since, self._origin = event, 0.0, event
        return origin, since

    def _set_clock(self) -> tuple[Event, int]:
        """An event, and when it happened by the host's clock: where a track of the device begins."""
        event = self._accelerator.stream("clock").record()
        event.wait()
        return event, time.perf_counter_ns()
