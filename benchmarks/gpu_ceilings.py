"""Bandwidth ceilings of a device: its timer, bulk copies between host and device, reads of random
rows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from pagraph.accelerator import Accelerator
from pagraph.accelerator.triton_kernels import launch
from pagraph.system.checks import as_integer


@dataclass(frozen=True)
class Rate:
    """Measured throughput.

    Attributes:
        name, note: Name of the measurement, and details for readers.
        nbytes: Bytes a run moves, as ``ceiling`` counts them.
        seconds: Seconds of each run.
        ceiling: Name of the rate that it cannot exceed; "" where it is one itself.
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
        """Bytes / median seconds."""
        return self.nbytes / self.median if self.median > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """All of it for ``json.dumps``."""
        seconds = {"median": self.median, "min": min(self.seconds), "max": max(self.seconds)}
        return asdict(self) | {"seconds": seconds, "bytes_per_second": self.bytes_per_second}


class DeviceTimer:
    """Times work on the stream "reading" of a device between two events.

    Every run begins behind a few large copies on the same stream, which are not timed: a kernel
    that takes less time than the CPU needs to launch it would be timed with the gaps before it.

    Args:
        accelerator: The device.
        repeats: Timed runs, after some that are not.
        lead_bytes: Bytes of each of these copies.

    Raises:
        ValueError: ``repeats`` is below 1.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        *,
        repeats: int = 7,
        lead_bytes: int = 1 << 28,
    ) -> None:
        self.accelerator = accelerator
        self.repeats = as_integer("repeats", repeats, least=1)
        self._stream = accelerator.stream("reading")
        with self._stream.use():
            self._lead = [accelerator.empty((lead_bytes,), torch.uint8) for _ in range(2)]

    def __call__(self, work: Callable[[], object], *, times: int = 1) -> tuple[float, ...]:
        """Measure the seconds of one ``work()``, in each run.

        Args:
            work: Gives work to the stream in use; called in the calling thread.
            times: Calls in a run: several for what takes microseconds.
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
        """Median seconds that the calling thread needs for one ``work()``, which must not wait for
        the device."""
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


DEVICE_COPY = "device copy"
PINNED_COPY = "pinned copy to device"
PAGEABLE_COPY = "pageable copy to device"

SECTOR = 32
"""Bytes that memory hands out at least: what a random read of one id costs."""

SHORT = 8
"""Calls a timed run is made of where one takes well under a millisecond."""

_WARMUPS = 2
_LEAD_COPIES = 16
_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


def random_rows(where: str, row_bytes: int) -> str:
    """Name of the ceiling of random rows that lie in ``where``, "device" or "pinned host"."""
    return f"random {row_bytes}-byte rows, {where}"


def word_of(row_bytes: int) -> torch.dtype:
    """The widest integers of which rows of so many bytes consist."""
    return next(dtype for size, dtype in _WORDS.items() if row_bytes % size == 0)


def copy_ceilings(timer: DeviceTimer, nbytes: int) -> Iterator[Rate]:
    """Measure copies of ``nbytes`` in one piece: within the device, from pinned and from pageable
    memory.

    Bytes are counted once, though a copy within the device reads and writes them.
    """
    accelerator = timer.accelerator
    with accelerator.stream("reading").use():
        target, source = (accelerator.empty((nbytes,), torch.uint8) for _ in range(2))
    pinned = accelerator.host_memory(nbytes)
    pageable = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
    # Other bytes than zeros, which some memory systems move faster than what people have.
    pattern = torch.randint(0, 256, (min(nbytes, 1 << 20),), dtype=torch.uint8, device="cpu")
    for memory in (pinned, pageable):
        for begin in range(0, nbytes, len(pattern)):
            memory[begin : begin + len(pattern)] = pattern[: nbytes - begin]
    with accelerator.stream("reading").use():
        source.copy_(pageable)
    yield Rate(
        DEVICE_COPY,
        nbytes,
        timer(lambda: target.copy_(source), times=SHORT),
        note="each byte read and written",
    )
    yield Rate(PINNED_COPY, nbytes, timer(lambda: target.copy_(pinned, non_blocking=True)))
    yield Rate(PAGEABLE_COPY, nbytes, timer(lambda: target.copy_(pageable)), PINNED_COPY)


def random_ceilings(
    timer: DeviceTimer, table: Tensor, ids: Tensor, left_out: dict[str, str]
) -> Iterator[Rate]:
    """Measure a kernel that only reads random rows, or sectors: on the device, and in pinned host
    memory in place.

    Args:
        timer: With an accelerator that runs kernels.
        table, ids: Host memory, uint8, shape ``(rows, row_bytes)``, contiguous; rows to read,
            int64, on the CPU.
        left_out: Takes the reason if host memory cannot be read in place.
    """
    accelerator = timer.accelerator
    pin = accelerator.pin(table)
    if pin is None:
        left_out[random_rows("pinned host", table.shape[1])] = "its memory could not be pinned"
    try:
        with accelerator.stream("reading").use():
            near = accelerator.empty(tuple(table.shape), torch.uint8)
            near.copy_(table)
            there = accelerator.empty((len(ids),), torch.int64)
            there.copy_(ids)
        for row_bytes in dict.fromkeys((table.shape[1], SECTOR)):
            yield _random_rate(timer, near, there, row_bytes, "device", DEVICE_COPY)
            if pin is not None:
                yield _random_rate(timer, table, there, row_bytes, "pinned host", PINNED_COPY)
    finally:
        accelerator.synchronize()
        if pin is not None:
            pin.release()


def _random_rate(
    timer: DeviceTimer, table: Tensor, ids: Tensor, row_bytes: int, where: str, ceiling: str
) -> Rate:
    dtype = word_of(row_bytes)
    rows = (
        table.view(-1)[: table.numel() // row_bytes * row_bytes]
        .view(dtype)
        .view(-1, row_bytes // dtype.itemsize)
    )
    with timer.accelerator.stream("reading").use():
        ids = ids * (len(rows) // len(table)) if len(rows) >= len(table) else ids % len(rows)
        out = timer.accelerator.empty((len(ids), rows.shape[1]), dtype)
    seconds = timer(
        lambda: read_rows(timer.accelerator, rows, ids, out),
        times=SHORT if where == "device" else 1,
    )
    return Rate(random_rows(where, row_bytes), len(ids) * row_bytes, seconds, ceiling)


def read_rows(accelerator: Accelerator, rows: Tensor, ids: Tensor, out: Tensor) -> None:
    """Copy rows by id with the measuring kernel; ``rows`` is on the device or pinned, ``ids`` and
    ``out`` there."""
    from gpu_rows_kernel import TILE_WORDS
    from gpu_rows_kernel import read_rows as kernel

    width = rows.shape[1]
    columns = min(TILE_WORDS, 1 << (width - 1).bit_length())
    block = TILE_WORDS // columns
    launch(
        kernel,
        -(-len(ids) // block),
        ids,
        rows,
        out,
        len(ids),
        width=width,
        block=block,
        columns=columns,
    )
