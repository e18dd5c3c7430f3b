"""A roofline of loading: what this machine can move at best, and which share of it each way of the engine reaches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..accelerator import Accelerator
from .ceilings import copy_ceilings, random_ceilings
from .device_timer import DeviceTimer, Rate
from .gather_paths import MODES, GatherPaths
from .sampling_paths import sampling_paths

__all__ = ["Roofline", "RooflineSizes", "measure_roofline"]


@dataclass(frozen=True)
class RooflineSizes:
    """How much is moved.

    Args:
        rows: Of the table that rows are read from.
        row_bytes: Of each.
        reads: Rows a run reads, at random.
        copy_bytes: Of the copies in one piece.
        scale: Base-2 logarithm of the vertices of the graph that is sampled.
        batch_size: Seeds a sampled batch.
        fanouts: Of the sampler.
        repeats: Timed runs of everything; the median counts.

    Raises:
        ValueError: A number is below 1, or the table is not larger than a sector of memory.
    """

    rows: int = 1 << 22
    row_bytes: int = 512
    reads: int = 1 << 19
    copy_bytes: int = 1 << 28
    scale: int = 20
    batch_size: int = 1024
    fanouts: tuple[int, ...] = (15, 10, 5)
    repeats: int = 7

    def __post_init__(self) -> None:
        for name in ("rows", "row_bytes", "reads", "copy_bytes", "scale", "batch_size", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.rows < 2 or self.rows * self.row_bytes < _LEAST_TABLE:
            raise ValueError(
                f"rows must be at least 2 and of {_LEAST_TABLE} bytes in all, got {self.rows} of {self.row_bytes}"
            )


_LEAST_TABLE = 1024
_OFF = 64  # bytes: where torch's allocator often puts a large tensor's first row in a page


@dataclass(frozen=True)
class Roofline:
    """What was measured on one device.

    Attributes:
        device: Its name.
        settings: What was moved.
        rates: Ceilings first; a rate's ``ceiling`` is the name of another one here.
        left_out: What could not be measured, and why.
    """

    device: str
    settings: Mapping[str, Any]
    rates: list[Rate]
    left_out: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Rate:
        """The rate of that name.

        Raises:
            KeyError: It was not measured.
        """
        for rate in self.rates:
            if rate.name == name:
                return rate
        raise KeyError(f"rate must be one of {[rate.name for rate in self.rates]}, got {name!r}")

    def share(self, rate: Rate) -> float | None:
        """A rate as a share of its ceiling; None where it has none, or that was not measured."""
        ceiling = next((other for other in self.rates if other.name == rate.ceiling), None)
        return None if ceiling is None else rate.bytes_per_second / ceiling.bytes_per_second

    def to_json(self) -> dict[str, Any]:
        """As what ``json.dumps`` takes."""
        return {
            "device": self.device,
            "settings": dict(self.settings),
            "rates": [rate.to_json() | {"share": self.share(rate)} for rate in self.rates],
            "left_out": self.left_out,
        }


def measure_roofline(accelerator: Accelerator, sizes: RooflineSizes | None = None) -> Roofline:
    """Measure the ceilings of a device and every way of the engine that moves rows to it; takes some seconds.

    Host memory for three such tables is needed; on the device, for two and for six times ``copy_bytes``.

    Args:
        accelerator: The device.
        sizes: How much is moved. Default: 4 M rows of 512 bytes.

    Raises:
        OutOfMemory: The device has not so much.
    """
    sizes = sizes or RooflineSizes()
    timer = DeviceTimer(accelerator, repeats=sizes.repeats, lead_bytes=sizes.copy_bytes)
    left_out: dict[str, str] = {}
    rates = [*copy_ceilings(timer, sizes.copy_bytes), *_rows(timer, sizes, left_out)]
    if accelerator.runs_kernels:
        rates += sampling_paths(
            DeviceTimer(accelerator, stream="sampling", repeats=sizes.repeats, lead_bytes=sizes.copy_bytes),
            scale=sizes.scale,
            batch_size=sizes.batch_size,
            fanouts=sizes.fanouts,
            left_out=left_out,
        )
    else:
        left_out |= dict.fromkeys(("random rows", "zero-copy", "sampling"), "Triton is not installed")
    return Roofline(_name_of(accelerator), asdict(sizes), rates, left_out)


def _rows(timer: DeviceTimer, sizes: RooflineSizes, left_out: dict[str, str]) -> Iterator[Rate]:
    """All that reads single rows."""
    table = random_table(sizes.rows, sizes.row_bytes)
    wanted = torch.from_numpy(np.random.default_rng(1).integers(0, sizes.rows, sizes.reads))
    kernels = timer.accelerator.runs_kernels
    if kernels:
        yield from random_ceilings(timer, table, wanted, left_out)
    paths = GatherPaths(timer, table, wanted)
    yield from paths.near()
    for mode in MODES if kernels else MODES[1:]:
        yield from paths.far(mode, left_out)
    if kernels:
        count = (table.numel() - _OFF) // sizes.row_bytes
        off = table.view(-1)[_OFF : _OFF + count * sizes.row_bytes].view(count, sizes.row_bytes)
        yield from GatherPaths(timer, off, wanted % count).off_line(left_out)


def random_table(rows: int, row_bytes: int) -> Tensor:
    """Rows of random bytes that differ from one another, uint8, shape ``(rows, row_bytes)``; begins with a page."""
    memory = np.empty(rows * row_bytes + _PAGE, dtype=np.uint8)
    begin = -memory.ctypes.data % _PAGE
    table = memory[begin : begin + rows * row_bytes].reshape(rows, row_bytes)
    pattern = np.random.default_rng(0).integers(0, 256, min(table.size, _PATTERN), dtype=np.uint8)
    flat = table.reshape(-1)
    for begin in range(0, table.size, _PATTERN):
        flat[begin : begin + _PATTERN] = pattern[: table.size - begin]
    if row_bytes >= 8:  # the pattern comes again
        table[:, :8] = np.arange(rows).view(np.uint8).reshape(rows, 8)
    return torch.from_numpy(table)


_PATTERN = 1 << 26
_PAGE = 4096


def _name_of(accelerator: Accelerator) -> str:
    if accelerator.device.type == "cuda":
        return torch.cuda.get_device_name(accelerator.device)
    return repr(accelerator)
