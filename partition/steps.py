"""Wall time and peak memory of the steps of some work."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .._compiling import kernels_seconds

_STATM = Path("/proc/self/statm")
_STATUS = Path("/proc/self/status")
# Between two samples. One takes 30 microseconds, so that watching takes 0.3 % of a core.
_SECONDS = 0.01
# Share of the peak that a sample must have seen, or its private bytes say nothing about the peak.
_SEEN = 0.95


@dataclass(frozen=True)
class MemoryUse:
    """Memory of a process while some work was done, in bytes.

    Attributes:
        peak_bytes: Peak resident memory, including the interpreter, its libraries, memory held
            before, and resident pages of mapped files. Exact if it is the peak of the process's
            life, which the system records; else the maximum of samples 10 ms apart.
        before_bytes: Resident memory when the work began.
        private_bytes: Peak resident memory without pages of files, of samples 10 ms apart. None if
            the system has no ``/proc``, or if samples missed the peak because other code held the
            GIL.
    """

    peak_bytes: int
    before_bytes: int
    private_bytes: int | None

    @property
    def added_bytes(self) -> int:
        """Memory that the work added to what was held before."""
        return max(0, self.peak_bytes - self.before_bytes)

    def to_json(self) -> dict[str, Any]:
        """Numbers as a JSON object."""
        return asdict(self)


class PeakMemory:
    """Measures this process's memory while a block runs, from a separate thread.

    Example:
        >>> with PeakMemory() as memory:
        ...     block = b"1" * 50_000_000
        >>> # Equal where free memory of this process was enough.
        >>> memory.use.peak_bytes >= memory.use.before_bytes
        True
    """

    def __init__(self) -> None:
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pagraph-memory", daemon=True)
        # Highest samples. No lock: the block's thread samples only before the watching thread
        # starts and after it was joined.
        self._resident = 0
        self._private = 0
        self._before = 0
        self._high = 0  # of the process's life, before the block

    def __enter__(self) -> PeakMemory:
        self._high = _highest()
        self._look()
        self._before = self._resident or self._high
        if _STATM.exists():
            self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._look()

    @property
    def use(self) -> MemoryUse:
        """Memory since the block began."""
        high = _highest()
        # If the peak of the process's life rose, it rose in this block. Without /proc nothing else
        # is known.
        is_exact = high > self._high or not self._resident
        peak = max(high, self._before) if is_exact else self._resident
        private: int | None = self._private or None
        if self._resident < _SEEN * peak:
            private = None
        return MemoryUse(peak, self._before, private)

    def _watch(self) -> None:
        while not self._done.wait(_SECONDS):
            self._look()

    def _look(self) -> None:
        try:
            _, resident, shared, *_ = _STATM.read_text().split()
        except OSError:
            return
        page = os.sysconf("SC_PAGE_SIZE")
        self._resident = max(self._resident, int(resident) * page)
        self._private = max(self._private, (int(resident) - int(shared)) * page)


def _highest() -> int:
    """The most resident memory of the process's life, in bytes."""
    try:
        # Not ru_maxrss, which starts at the peak of the parent process.
        lines = _STATUS.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # Bytes on macOS, KiB elsewhere.
        return highest if sys.platform == "darwin" else highest * 1024


class Steps:
    """Measures wall time (``seconds``) and ``memory`` of consecutive steps.

    Kernels that a step loads or compiles count as the step "kernels". A step that fails is not
    recorded.

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
        end = time.perf_counter()
        kernels = 0.0 if step == "kernels" else kernels_seconds(begin, end)
        self.seconds[step] = end - begin - kernels
        if kernels:
            self.seconds["kernels"] = self.seconds.get("kernels", 0.0) + kernels
        self.memory[step] = memory.use
