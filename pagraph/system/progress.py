"""Progress of long work: what is called with it, and its counting over steps and threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

Progress = Callable[[int, int], object]
"""Called with the work done so far and the whole of it, by the threads that do it."""

# Steps of different units share one bar, which counts in millionths of the work.
_MILLION = 10**6


def part_of(progress: Progress | None, begin: float, end: float) -> Progress | None:
    """Progress of a step that is the part from ``begin`` to ``end`` of the whole work."""
    if progress is None:
        return None
    return lambda done, total: progress(
        round(_MILLION * (begin + (end - begin) * done / max(total, 1))), _MILLION
    )


class Ticks:
    """Adds up work for a ``progress`` of the whole; safe from any thread.

    Work may come in steps of known size that end early: the next step begins where the one before
    would have ended.

    Example:
        >>> ticks = Ticks(lambda done, whole: print(done, "of", whole), 10)
        >>> ticks.step(6)
        0 of 10
        >>> ticks.add(2)
        2 of 10
        >>> ticks.step(4)
        6 of 10
        >>> ticks.finish()
        10 of 10
    """

    def __init__(self, progress: Progress | None, whole: int) -> None:
        self._progress = progress
        self._whole = whole
        self._done = 0
        self._end = 0  # of the step; 0 without any
        # Held for the sum alone, never while `progress` runs, which may take locks of its own. So
        # two threads may report in the wrong order, and a bar may step back for a moment.
        self._lock = threading.Lock()

    def step(self, work: int) -> None:
        """End the step before and begin one of at most ``work``."""
        self._done = self._end
        self._end += work
        self._tell(self._done)

    def add(self, count: int = 1) -> None:
        """Count ``count`` more of the step as done; without any step, of the whole."""
        with self._lock:
            self._done = done = min(self._done + count, self._end or self._whole)
        self._tell(done)

    def finish(self) -> None:
        """Count everything as done."""
        self._done = self._whole
        self._tell(self._whole)

    def _tell(self, done: int) -> None:
        if self._progress is not None:
            self._progress(done, self._whole)
