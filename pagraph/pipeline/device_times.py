"""DeviceTimes: how long a device worked for the stages of an epoch, from events in its streams."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..accelerator import Accelerator, Event
    from .tracing import EpochTrace

__all__ = ["DeviceTimes"]


class DeviceTimes:
    """Adds up what lies between pairs of events, once they have happened; nothing waits for a device to know it.

    Args:
        accelerator: Whose events they are.
        trace: Told of every span that is known, on a track of the device.
    """

    def __init__(self, accelerator: Accelerator, trace: EpochTrace) -> None:
        self._accelerator = accelerator
        self._trace = trace
        self._lock = threading.Lock()
        self._pending: deque[tuple[str, Event, Event]] = deque()
        self._seconds: dict[str, float] = {}
        self._clock: tuple[Event, int] | None = None

    def add(self, stage: str, begin: Event, end: Event) -> None:
        """Add the device's time between two events to ``stage``; safe from any thread."""
        with self._lock:
            if self._clock is None and self._trace.tracer is not None:
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
        """Seconds by stage, of what is known now."""
        # No lock: the garbage collector may ask for statistics anywhere. Copying a dict is atomic.
        return dict(self._seconds)

    def _fold(self) -> None:
        """Add the times that are known. Streams overtake each other, so that any of them may be."""
        for _ in range(len(self._pending)):
            stage, begin, end = self._pending.popleft()
            if not (begin.has_happened and end.has_happened):
                self._pending.append((stage, begin, end))
                continue
            self._seconds[stage] = self._seconds.get(stage, 0.0) + end.seconds_since(begin)
            if self._clock is not None:
                reference, at = self._clock
                since = [at + int(event.seconds_since(reference) * 1e9) for event in (begin, end)]
                self._trace.device_span(f"{stage} on {self._accelerator.device}", stage, *since)

    def _set_clock(self) -> tuple[Event, int]:
        """An event, and when it happened by the host's clock: where a track of the device begins."""
        event = self._accelerator.stream("clock").record()
        event.wait()
        return event, time.perf_counter_ns()
