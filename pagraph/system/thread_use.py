"""ThreadUse: measures whether threads make batches faster than the reader itself."""

from __future__ import annotations

from collections import deque
from statistics import median

_GROUP = 4
"""Items averaged into one measurement. Threads deliver in bursts, so single items say little."""

_TRIED = 24
"""Items per trial: six groups. With four, two long pauses could decide a trial."""

_KEPT = 512, 16384
"""Items for which a choice is kept, at first and at most; doubled each time it proves right.
A trial costs at most 24 slower items: a few percent of 512. A wrong choice is soon corrected."""

_LATEST = 64
"""Latest groups from which a kept choice is measured."""

_MUCH_WORSE = 1.5
"""A trial ends after two groups if both were this many times slower."""

_GAIN = 0.95
"""Threads must take less than this share of the reader's time, as they use a second CPU."""

_AHEAD_SECONDS = 5e-5
"""Wait per item below which threads are ahead of the reader."""

_SLOW_READER_SECONDS = 1e-3
"""Time per item above which the few microseconds that threads cost the reader do not matter."""

_LONG_SECONDS = 1e-2
"""Wait per item above which the hand-over (0.1 to 0.3 ms) is negligible. With 2 ms, items of 3 ms
were never tried, and threads that were 1.5x slower were kept."""


class ThreadUse:
    """Chooses the faster of two: threads that prefetch, or the reader on demand.

    A hand-over between threads takes 0.1 to 0.3 ms, mostly waiting for the GIL: more than a small
    batch takes. Threads that contend for the GIL also slow the reader down. Both are tried in turn,
    and again after a while. The time of an item is the median over groups: with a mean, one
    scheduler pause of milliseconds would decide.

    Attributes:
        rests: Whether the threads rest and the reader does everything.
    """

    def __init__(self) -> None:
        self.rests: bool = False
        # Seconds per item; None until tried.
        self._of_threads: float | None = None
        self._of_reader: float | None = None
        self._is_trial = True
        self._kept = _KEPT[0]
        self._start_over()

    def _start_over(self) -> None:
        self._count = 0
        self._group_total = 0.0
        self._group_wait = 0.0
        self._totals: deque[float] = deque(maxlen=_LATEST)
        self._waits: deque[float] = deque(maxlen=_LATEST)

    def note(self, waited: float, before: float, skipped: int) -> bool:
        """Record an item; returns whether the choice has changed.

        Args:
            waited: Seconds that the reader waited for it, or worked on it.
            before: Seconds that the reader spent elsewhere since the previous item.
            skipped: Items after a change that do not count, as they were begun before it.
        """
        self._count += 1
        counted = self._count - skipped
        if counted <= 0:
            return False
        self._group_total += waited + before
        self._group_wait += waited
        if counted % _GROUP:
            return False
        self._totals.append(self._group_total / _GROUP)
        self._waits.append(self._group_wait / _GROUP)
        self._group_total = self._group_wait = 0.0
        other = self._of_threads if self.rests else self._of_reader
        if counted < (_TRIED if self._is_trial else self._kept):
            if not self._is_trial or counted != 2 * _GROUP or other is None:
                return False
            # Both, so that one scheduler pause does not end a trial.
            if min(self._totals) < _MUCH_WORSE * other:
                return False
        return self._choose(median(self._totals), median(self._waits), other)

    def _choose(self, seconds: float, wait: float, other: float | None) -> bool:
        """End a trial or a kept choice; returns whether the choice has changed."""
        self._start_over()
        if self.rests:
            self._of_reader = seconds
        else:
            self._of_threads = seconds
            is_ahead = wait < _AHEAD_SECONDS and seconds > _SLOW_READER_SECONDS
            # Long waits are no reason to keep threads that a trial has found slower.
            is_long = wait > _LONG_SECONDS and (other is None or seconds < other)
            if is_ahead or is_long:  # A trial could win nothing.
                self._is_trial = False
                self._kept = _KEPT[0]
                return False
        if other is not None and self._is_trial:
            is_better = seconds <= other / _GAIN if self.rests else seconds < other * _GAIN
            self._is_trial = False
            if is_better:
                self._kept = _KEPT[0]
                return False
            # Back to the previous choice, which proved right.
            self._kept = min(2 * self._kept, _KEPT[1])
        else:
            self._is_trial = True
        self.rests = not self.rests
        return True
