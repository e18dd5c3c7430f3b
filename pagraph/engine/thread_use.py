"""ThreadUse: finds out by trying whether threads make batches faster than the reader itself."""

from __future__ import annotations

from collections import deque
from statistics import median

_GROUP = 4
"""Items whose mean is one measurement. Threads hand items over in bursts, several at once after a
long wait, so that single items say little."""

_TRIED = 24
"""Items of a trial, six groups. With four groups, two long pauses in one trial decided it."""

_KEPT = 512, 16384
"""Items for which a choice is kept, at first and at most; twice as many each time it proves right.
A trial costs at most 24 slower items, so 512 bound that at a few percent, and what two pauses of
the system have decided wrongly is soon mended."""

_LATEST = 64
"""Groups that a measurement of a kept choice looks back on."""

_MUCH_WORSE = 1.5
"""A trial ends after two groups where both took this many times as long."""

_GAIN = 0.95
"""Threads must take less than this share of the reader's time: they take a second processor."""

_AHEAD_SECONDS = 5e-5
"""Of waiting for an item: below, threads are ahead of the reader."""

_SLOW_READER_SECONDS = 1e-3
"""Between items: above, the few microseconds by which threads slow a reader down do not count."""

_LONG_SECONDS = 1e-2
"""Of waiting for an item: above, handing it over (0.1 to 0.3 ms) is little of it. With 2 ms, items
of 3 ms never went to a trial, and threads that took half as long again were kept."""


class ThreadUse:
    """Chooses between threads, ahead of the reader, and the reader itself when it asks; whichever
    is faster.

    To hand an item over takes two threads 0.1 to 0.3 ms, most of it waits for the interpreter's
    lock, which is more than a small batch takes; and while threads want that lock, all that the
    reader does takes longer. Both are tried in turn, and again after a while. The time of an item
    is the median over groups of items: the system interrupts a process for milliseconds, and a mean
    would let one such pause decide.

    Attributes:
        rests: The threads rest, the reader does everything.
    """

    def __init__(self) -> None:
        self.rests: bool = False
        # Seconds an item, of threads and of the reader; None until they were tried.
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
        """Take note of an item; returns whether the choice has changed.

        Args:
            waited: Seconds that the reader waited for it, or worked for it.
            before: Seconds that the reader did other things since it got the item before.
            skipped: Items after a change that do not count: they were begun before.
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
            # Both: one pause of the system must not end a trial.
            if min(self._totals) < _MUCH_WORSE * other:
                return False
        return self._choose(median(self._totals), median(self._waits), other)

    def _choose(self, seconds: float, wait: float, other: float | None) -> bool:
        """End a trial, or the time for which a choice was kept; returns whether the choice has
        changed."""
        self._start_over()
        if self.rests:
            self._of_reader = seconds
        else:
            self._of_threads = seconds
            is_ahead = wait < _AHEAD_SECONDS and seconds > _SLOW_READER_SECONDS
            # Long waits are no reason to keep threads that a trial has found slower.
            is_long = wait > _LONG_SECONDS and (other is None or seconds < other)
            if is_ahead or is_long:  # Nothing to be won by a trial.
                self._is_trial = False
                self._kept = _KEPT[0]
                return False
        if other is not None and self._is_trial:
            is_better = seconds <= other / _GAIN if self.rests else seconds < other * _GAIN
            self._is_trial = False
            if is_better:
                self._kept = _KEPT[0]
                return False
            # Back to the choice before, which has proved right.
            self._kept = min(2 * self._kept, _KEPT[1])
        else:
            self._is_trial = True
        self.rests = not self.rests
        return True
