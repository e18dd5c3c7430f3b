"""Ticks: progress of steps of which each may end before all of its work was needed."""

from __future__ import annotations

from ..partition import Progress

__all__ = ["Ticks"]


class Ticks:
    """Counts work that is done.

    Args:
        progress: Who is told; None: nobody.
        whole: The most work of all steps.

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
        self._done = self._end = 0

    def step(self, work: int) -> None:
        """The step before has ended, and one of at most so much work begins."""
        self._done, self._end = self._end, self._end + work
        self._tell()

    def add(self, count: int) -> None:
        """So much more of the step is done."""
        self._done = min(self._done + count, self._end)
        self._tell()

    def finish(self) -> None:
        """All is done."""
        self._done = self._whole
        self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._done, self._whole)
