"""Steps: how long each step of some work took, and how much memory the process held in it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from .peak_memory import MemoryUse, PeakMemory

__all__ = ["Steps"]


class Steps:
    """Measures steps one after the other; a step that fails is not recorded.

    Attributes:
        seconds: Wall time by step.
        memory: Memory by step.

    Example:
        >>> steps = Steps()
        >>> with steps("dividing"):
        ...     pass
        >>> list(steps.seconds), list(steps.memory)
        (['dividing'], ['dividing'])
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.memory: dict[str, MemoryUse] = {}

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        """Measure what happens in the block."""
        begin = time.perf_counter()
        with PeakMemory() as memory:
            yield
        self.seconds[step] = time.perf_counter() - begin
        self.memory[step] = memory.use
