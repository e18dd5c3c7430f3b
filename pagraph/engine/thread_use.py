"""ThreadUse: finds out by trying whether threads make batches faster than the reader itself."""

from __future__ import annotations

from collections import deque
from statistics import fmean

__all__ = ["ThreadUse"]

_TRIED = 16  # items that a choice is tried for
# Items that it is kept for: twice as many each time that it proves right, at most so many.
_KEPT = 2048, 16384
_MOST = 256  # times of the reader's own work that are kept for their mean
_GLANCE = 4  # items after which a trial ends that goes much worse
_AHEAD = 5e-5  # seconds of waiting for an item: below, threads are ahead of the reader
_LONG = 2e-3  # seconds of waiting for an item: above, the hand-over is little of it
_SHORT = 1e-3  # seconds between items: below, threads that are ahead may still slow the reader down


class ThreadUse:
    """Chooses between threads, ahead of the reader, and the reader itself when it asks; whichever
    is faster.

    To hand an item over takes two threads 0.1 to 0.3 ms, most of it waits for the interpreter's
    lock, which is more than a small batch takes; and while threads want that lock, all that the
    reader does takes longer. Both are tried in turn, and again after a while.

    Attributes:
        rests: The threads rest, the reader does everything.
    """

    def __init__(self) -> None:
        self.rests = False
        # Seconds an item, of threads and of the reader.
        self._means: list[float | None] = [None, None]
        self._count, self._sum, self._length, self._keep = 0, 0.0, _TRIED, _KEPT[0]
        self._before: deque[float] = deque(maxlen=_MOST)

    def note(self, waited: float, before: float, skipped: int) -> bool:
        """Take note of an item; returns whether the choice has changed.

        Args:
            waited: Seconds that the reader waited for it, or worked for it.
            before: Seconds that the reader did other things since it got the item before. The
                longest sixteenth of them does not count: a pause says nothing of threads.
            skipped: Items after a change that do not count: they were begun before.
        """
        self._count += 1
        if self._count > skipped:
            self._sum += waited
            self._before.append(before)
        counted, tried, other = (
            self._count - skipped,
            self._length == _TRIED,
            self._means[not self.rests],
        )
        glances = tried and other is not None and counted == _GLANCE
        if counted < self._length and not glances:
            return False
        wait = self._sum / counted
        mean = wait + fmean(sorted(self._before)[: len(self._before) - len(self._before) // 16])
        if counted < self._length and other is not None and mean < 1.5 * other:
            return False
        self._means[self.rests] = mean
        self._count, self._sum = 0, 0.0
        self._before.clear()
        # Threads that are ahead of a reader who takes his time, and those whose work is long, are
        # not put to the test.
        if not self.rests and ((wait < _AHEAD and mean > _SHORT) or wait > _LONG):
            self._length = _KEPT[0]
            return False
        if other is None or not tried:
            self._length = _TRIED
        elif mean <= other:
            self._length = self._keep = _KEPT[0]
            return False
        else:
            self._length = self._keep = min(2 * self._keep, _KEPT[1])
        self.rests = not self.rests
        return True
