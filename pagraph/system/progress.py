"""Progress of long work, counted over steps and threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

Progress = Callable[[int, int], object]
"""Called with the work done so far and the total, by the threads that work."""

# Steps with different units share one bar, which counts in millionths.
_MILLION = 10**6


def part_of(progress: Progress | None, begin: float, end: float) -> Progress | None:
    """Progress of a step that takes the whole work from ``begin`` to ``end``, shares in [0, 1]."""
    if progress is None:
        return None
    return lambda done, total: progress(
        round(_MILLION * (begin + (end - begin) * done / max(total, 1))), _MILLION
    )


class Ticks:
    """Adds up work and reports it to ``progress``; thread-safe.

    Work may come in steps of known size that end early. The next step then begins where the one
    before would have ended.

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
        self._end = 0  # end of the step; 0 if there are no steps
        # Held for the sum alone, not while `progress` runs, which may take other locks. So two
        # threads may report in the wrong order, and a bar may step back for a moment.
        self._lock = threading.Lock()

    def step(self, work: int) -> None:
        """End the current step and begin one of at most ``work``."""
        self._done = self._end
        self._end += work
        self._tell(self._done)

    def add(self, count: int = 1) -> None:
        """Count ``count`` more of the step as done, or of the whole if there are no steps."""
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
