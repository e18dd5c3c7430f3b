"""Options of preparing batches ahead: threads, prefetch and look-ahead."""

from __future__ import annotations

from dataclasses import dataclass

from ..system.checks import as_integer
from ..system.threads import usable_cpus

_MOST = 2**14
"""Limit of threads and of waiting batches. More is a mistake, and would take all memory."""


def default_workers() -> int:
    """Default number of threads: half the processors, 1 to 4. The model keeps the rest."""
    return max(1, min(4, usable_cpus() // 2))


def parse_lookahead(value: object) -> int | None:
    """Parse ``lookahead``, an integer of at least 0 or "auto"; returns None for "auto".

    Raises:
        TypeError, ValueError: It is something else.
    """
    if isinstance(value, str):
        if value.strip().lower() == "auto":
            return None
        raise ValueError(f'lookahead must be "auto" or an integer, got {value!r}')
    return as_integer("lookahead", value, least=0)


@dataclass(frozen=True)
class PipelineOptions:
    """Options of preparing batches ahead.

    Args:
        workers: Threads that prepare batches. 0 takes ``default_workers()``.
        prefetch: Finished batches that may wait for the reader. 0 prepares each batch when it is
            asked for, in the reader's thread, and starts no thread.
        lookahead: Batches that are sampled before the rows of any of them are read, each row once.
            0: none. None: the loader chooses, by use and free memory.

    Raises:
        TypeError, ValueError: A value is not an integer, is negative, or is above 16384.
    """

    workers: int = 0
    prefetch: int = 2
    lookahead: int | None = None

    def __post_init__(self) -> None:
        given = {
            "num_workers": self.workers,
            "prefetch": self.prefetch,
            "lookahead": self.lookahead or 0,
        }
        for name, value in given.items():
            if as_integer(name, value, least=0) > _MOST:
                raise ValueError(f"{name} must be at most {_MOST}, got {value}")

    @property
    def threads(self) -> int:
        """Threads that will run."""
        return (self.workers or default_workers()) if self.prefetch else 0

    @property
    def max_batches(self) -> int:
        """Batches that may be in memory at once: in work, waiting, and the reader's."""
        return self.threads + self.prefetch + 1
