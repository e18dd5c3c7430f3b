"""DeviceTimer: how long a device needs for some work, by events on its stream."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..accelerator import Accelerator

__all__ = ["DeviceTimer", "Rate"]

_WARMUPS = 2
_LEAD_COPIES = 16


@dataclass(frozen=True)
class Rate:
    """How fast something moved bytes.

    Attributes:
        name: Of what was measured.
        nbytes: Bytes a run moves, as ``ceiling`` counts them.
        seconds: Of each run.
        ceiling: Name of the rate that it cannot exceed; "" where it is one itself.
        note: How it was done, or what was counted.
    """

    name: str
    nbytes: int
    seconds: tuple[float, ...]
    ceiling: str = ""
    note: str = ""

    @property
    def median(self) -> float:
        """Median of the seconds."""
        return statistics.median(self.seconds)

    @property
    def bytes_per_second(self) -> float:
        """Bytes over the median of the seconds."""
        return self.nbytes / self.median if self.median > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """As what ``json.dumps`` takes."""
        return {
            "name": self.name,
            "nbytes": self.nbytes,
            "seconds": {"median": self.median, "min": min(self.seconds), "max": max(self.seconds)},
            "bytes_per_second": self.bytes_per_second,
            "ceiling": self.ceiling,
            "note": self.note,
        }


class DeviceTimer:
    """Times work between two events, while the device is kept busy until all of it has been given.

    A kernel that takes less time than the CPU needs to launch it would otherwise be timed with the gaps before it.
    So every run begins behind a few large copies on the same stream, which are not timed.

    Args:
        accelerator: The device.
        stream: Name of the stream that the work is given to.
        repeats: Timed runs, after some that are not.
        lead_bytes: Bytes of each copy that goes before.

    Raises:
        ValueError: ``repeats`` is below 1.
    """

    def __init__(
        self, accelerator: Accelerator, *, stream: str = "reading", repeats: int = 7, lead_bytes: int = 1 << 28
    ) -> None:
        if repeats < 1:
            raise ValueError(f"repeats must be at least 1, got {repeats}")
        self.accelerator = accelerator
        self.repeats = repeats
        self._stream = accelerator.stream(stream)
        with self._stream.use():
            self._lead = [accelerator.empty((lead_bytes,), torch.uint8) for _ in range(2)]

    def __call__(self, work: Callable[[], object], *, times: int = 1) -> tuple[float, ...]:
        """Seconds of one ``work()`` in each run.

        Args:
            work: Gives work to the stream in use; called in the calling thread.
            times: How often a run calls it, one after the other: several for what takes microseconds.
        """
        runs = []
        with self._stream.use():
            for run in range(_WARMUPS + self.repeats):
                self.occupy()
                begin = self._stream.record()
                for _ in range(times):
                    work()
                end = self._stream.record()
                end.wait()
                if run >= _WARMUPS:
                    runs.append(end.seconds_since(begin) / times)
        return tuple(runs)

    def host_seconds(self, work: Callable[[], object], *, times: int = 1) -> float:
        """Seconds that the calling thread needs for one ``work()``, which must not wait for the device; the median."""
        runs = []
        with self._stream.use():
            for _ in range(_WARMUPS + self.repeats):
                self.accelerator.synchronize()
                begin = time.perf_counter()
                for _ in range(times):
                    work()
                runs.append((time.perf_counter() - begin) / times)
        return statistics.median(runs[_WARMUPS:])

    def occupy(self) -> None:
        """Keep the stream busy for a few milliseconds."""
        with self._stream.use():
            for _ in range(_LEAD_COPIES):
                self._lead[0].copy_(self._lead[1])
