"""Roofline of loading: gather and sampling rates of the engine on a GPU, as shares of the bandwidth
ceilings.

It measures copies to and within the GPU, then each way by which rows and neighbours come.

Run: ``python benchmarks/gpu_roofline.py`` (needs a CUDA device; half a minute); ``--json FILE``
writes the figures. ``--device interpreter`` runs the same code on the CPU, kernels under Triton's
interpreter and everything tiny: it shows that the code runs; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_ceilings import (
    DEVICE_COPY,
    PINNED_COPY,
    SECTOR,
    SHORT,
    DeviceTimer,
    Rate,
    copy_ceilings,
    random_ceilings,
    random_rows,
    word_of,
)
from torch import Tensor

from pagraph.accelerator import Accelerator, HostAccelerator, StagingRing, accelerator_for
from pagraph.accelerator.cuda import resolve_device
from pagraph.datasets import rmat
from pagraph.features.feature import DeviceFeature, HostFeature
from pagraph.features.gpu.accelerated import AcceleratedFeature
from pagraph.features.gpu.link import Link, fill_rows
from pagraph.features.gpu.transfer import Transfer
from pagraph.features.store import FeatureCache, slots_for
from pagraph.graph.graph import Graph
from pagraph.sampling import NeighborSampler
from pagraph.sampling.gpu.sampler import DeviceSampler
from pagraph.system.atomic import write_json
from pagraph.system.budget import Budget
from pagraph.system.checks import as_integer

HITS = "hits"
NEAR = "field on the device"
LOOKUP = "look-up alone"
OFF_LINE = "misses, zero-copy, table half a line off"
MODES = ("zero-copy", "staging")
PLACES = {"device": Budget(), "pinned host": None}
"""Place of the sampled graph's arrays, to the budget that puts them there."""

_SHARE = 0.8
_POISON = 0x5A
_SLOT_BYTES = 1 << 16
_LEAST_TABLE = 1024
_OFF = 64  # bytes: where torch's allocator often puts a large tensor's first row in a page
_PATTERN = 1 << 26
_PAGE = 4096
_EDGES_A_VERTEX = 8  # drawn; each is stored in both directions


@dataclass(frozen=True)
class RooflineSizes:
    """Sizes of a roofline's tables, copies and batches.

    Args:
        rows: Rows of the table in host memory.
        row_bytes: Bytes of a row.
        reads: Rows a run reads, at random.
        copy_bytes: Bytes of the copies in one piece.
        scale: Base-2 logarithm of the vertices of the graph that is sampled.
        batch_size: Seeds a sampled batch.
        fanouts: Fan-outs of the sampler.
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
            as_integer(name, getattr(self, name), least=1)
        if self.rows < 2 or self.rows * self.row_bytes < _LEAST_TABLE:
            raise ValueError(
                f"rows must be at least 2 and of {_LEAST_TABLE} bytes in all, got {self.rows} of "
                f"{self.row_bytes}"
            )


@dataclass(frozen=True)
class Roofline:
    """Rates of one device.

    Attributes:
        device, settings: Its name, and the sizes.
        rates: Ceilings first; a rate's ``ceiling`` is the name of another one here.
        left_out: Rates that could not be measured, to the reason.
    """

    device: str
    settings: Mapping[str, Any]
    rates: list[Rate]
    left_out: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Rate:
        """The rate of that name; KeyError if it was not measured."""
        for rate in self.rates:
            if rate.name == name:
                return rate
        raise KeyError(f"rate must be one of {[rate.name for rate in self.rates]}, got {name!r}")

    def share(self, rate: Rate) -> float | None:
        """A rate as a share of its ceiling; None where it has none, or that was not measured."""
        ceiling = next((other for other in self.rates if other.name == rate.ceiling), None)
        return None if ceiling is None else rate.bytes_per_second / ceiling.bytes_per_second

    def to_json(self) -> dict[str, Any]:
        """All of it for ``json.dumps``."""
        return {
            "device": self.device,
            "settings": dict(self.settings),
            "rates": [rate.to_json() | {"share": self.share(rate)} for rate in self.rates],
            "left_out": self.left_out,
        }


def measure_roofline(accelerator: Accelerator, sizes: RooflineSizes | None = None) -> Roofline:
    """Measure the ceilings of a device and every path of the engine that moves rows to it; takes
    some seconds.

    Needs host memory for three such tables; on the device, for two and for six times
    ``copy_bytes``.

    Args:
        accelerator: The device.
        sizes: Sizes of tables, copies and batches. Default: 4 M rows of 512 bytes.

    Raises:
        OutOfMemory: The device has not so much.
    """
    sizes = sizes or RooflineSizes()
    timer = DeviceTimer(accelerator, repeats=sizes.repeats, lead_bytes=sizes.copy_bytes)
    left_out: dict[str, str] = {}
    rates = [*copy_ceilings(timer, sizes.copy_bytes), *_rows(timer, sizes, left_out)]
    if accelerator.runs_kernels:
        rates += _sampling_paths(timer, sizes, left_out)
    else:
        left_out |= dict.fromkeys(
            ("random rows", "zero-copy", "sampling"), "Triton is not installed"
        )
    name = (
        torch.cuda.get_device_name(accelerator.device)
        if accelerator.device.type == "cuda"
        else repr(accelerator)
    )
    return Roofline(name, asdict(sizes), rates, left_out)


def _rows(timer: DeviceTimer, sizes: RooflineSizes, left_out: dict[str, str]) -> Iterator[Rate]:
    """Rates of everything that reads single rows."""
    table = random_table(sizes.rows, sizes.row_bytes)
    wanted = torch.from_numpy(np.random.default_rng(1).integers(0, sizes.rows, sizes.reads))
    kernels = timer.accelerator.runs_kernels
    if kernels:
        yield from random_ceilings(timer, table, wanted, left_out)
    paths = _GatherPaths(timer, table, wanted)
    yield from paths.near()
    for mode in MODES if kernels else MODES[1:]:
        yield from paths.far(mode, left_out)
    if kernels:
        count = (table.numel() - _OFF) // sizes.row_bytes
        off = table.view(-1)[_OFF : _OFF + count * sizes.row_bytes].view(count, sizes.row_bytes)
        yield from _GatherPaths(timer, off, wanted % count).off_line(left_out)


def random_table(rows: int, row_bytes: int) -> Tensor:
    """Make page-aligned rows of random bytes, all different, uint8, shape ``(rows, row_bytes)``."""
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


def misses(mode: str) -> str:
    """Name of the rate of rows that no cache holds; ``mode`` is one of ``MODES``."""
    return f"misses, {mode}"


def mixed(mode: str) -> str:
    """Name of the rate of rows of which a cache holds 80 %."""
    return f"{_SHARE:.0%} hits, {mode}"


def filling(mode: str) -> str:
    """Name of the rate at which a cache of these rows is filled."""
    return f"filling a cache of {_SHARE:.0%}, {mode}"


class _GatherPaths:
    """Times the engine's own gather paths, each compared with plain indexing first; see
    :func:`random_ceilings`."""

    def __init__(self, timer: DeviceTimer, table: Tensor, ids: Tensor) -> None:
        self._timer = timer
        self._accelerator = timer.accelerator
        self._stream = timer.accelerator.stream("reading")
        self._rows = table.view(word_of(table.shape[1]))
        self._row_bytes = table.shape[1]
        self._source = HostFeature(self._rows)
        self._order = torch.randperm(
            len(table), generator=torch.Generator().manual_seed(2), device="cpu"
        )
        self._ring = StagingRing(self._accelerator)
        self._wanted = ids
        with self._stream.use():
            self._ids = self._accelerator.empty((len(ids),), torch.int64)
            self._ids.copy_(ids)
            self._out = self._accelerator.empty((len(ids), self._rows.shape[1]), self._rows.dtype)

    def near(self) -> Iterator[Rate]:
        """Measure reads within the device: hits, rows of a field that is there, and the look-up of
        slots alone."""
        transfer = Transfer(self._accelerator, "staging")
        cache, slots = self._cache(1.0)
        # Its calls take so little time that they are given ahead of the device: none may wait for a
        # free slot.
        ring = StagingRing(self._accelerator, slots=8 * SHORT, slot_bytes=_SLOT_BYTES)
        on_device = AcceleratedFeature(
            DeviceFeature(cache.rows), None, self._accelerator, ring, transfer
        )
        cached = AcceleratedFeature(self._source, cache, self._accelerator, ring, transfer)
        of_places = self._rows[self._order[self._wanted]]
        hits = self._seconds(cached, self._rows[self._wanted], times=SHORT)
        calls = self._timer.host_seconds(lambda: cached.read(self._ids, self._out), times=SHORT)
        yield Rate(
            HITS,
            self._nbytes(len(self._ids)),
            hits,
            DEVICE_COPY,
            f"{calls * 1e6:,.0f} us of the CPU a call",
        )
        near = self._seconds(on_device, of_places, times=SHORT)
        yield Rate(NEAR, self._nbytes(len(self._ids)), near, DEVICE_COPY)
        with self._stream.use():
            found = self._accelerator.empty((len(self._ids),), torch.int32)
        looking = self._timer(
            lambda: torch.index_select(slots, 0, self._ids, out=found), times=SHORT
        )
        note = f"a sector for each id; {sum(looking) / sum(hits):.1%} of the time of {HITS}"
        yield Rate(LOOKUP, len(self._ids) * SECTOR, looking, random_rows("device", SECTOR), note)

    def far(self, mode: str, left_out: dict[str, str]) -> Iterator[Rate]:
        """Measure misses alone, misses among hits, a cache being filled; or leave them out, with
        the reason."""
        with (
            closing(Transfer(self._accelerator, mode)) as transfer,
            closing(Link(self._accelerator, mode)) as link,
        ):
            alone = self._missed(transfer, left_out, misses(mode))
            if alone is None:
                return
            yield alone
            cache, _ = self._cache(_SHARE)
            held, missed = self._order[: len(cache)], cache.slots[self._wanted] >= len(cache)
            seconds = self._seconds(self._feature(cache, transfer), self._rows[self._wanted])
            delivered = self._nbytes(len(missed)) / statistics.median(seconds) / 1e9
            note = f"missed rows alone; {delivered:,.1f} GB/s delivered"
            yield Rate(mixed(mode), self._nbytes(int(missed.sum())), seconds, PINNED_COPY, note)
            del cache
            seconds = self._timer(lambda: fill_rows(self._source, held, link, transfer))
            yield Rate(filling(mode), self._nbytes(len(held)), seconds, PINNED_COPY)

    def off_line(self, left_out: dict[str, str]) -> Iterator[Rate]:
        """Measure misses by zero-copy of a table that does not begin with a line of memory."""
        with closing(Transfer(self._accelerator, MODES[0])) as transfer:
            alone = self._missed(transfer, left_out, OFF_LINE)
            if alone is not None:
                yield alone

    def _missed(self, transfer: Transfer, left_out: dict[str, str], name: str) -> Rate | None:
        """Rows that no cache holds; None and a reason if they would not come as the transfer should
        bring them."""
        seconds = self._seconds(self._feature(None, transfer), self._rows[self._wanted])
        if transfer.chosen != transfer.mode:
            left_out[name] = transfer.reason
            return None
        return Rate(name, self._nbytes(len(self._wanted)), seconds, PINNED_COPY)

    def _cache(self, share: float) -> tuple[FeatureCache, Tensor]:
        """A cache of that share of the rows, at random places, and its table on the device."""
        held = self._order[: round(share * len(self._order))]
        table = slots_for(self._order, len(self._order))
        with self._stream.use():
            rows = self._accelerator.empty((len(held), self._rows.shape[1]), self._rows.dtype)
            slots = self._accelerator.empty((len(table),), torch.int32)
            rows.copy_(self._rows[held])
            slots.copy_(table)
        return FeatureCache(rows, table, slots), slots

    def _feature(self, cache: FeatureCache | None, transfer: Transfer) -> AcceleratedFeature:
        return AcceleratedFeature(self._source, cache, self._accelerator, self._ring, transfer)

    def _seconds(
        self, feature: AcceleratedFeature, expected: Tensor, *, times: int = 1
    ) -> tuple[float, ...]:
        with self._stream.use():
            self._out.fill_(_POISON)
            feature.read(self._ids, self._out)
            came = self._out.cpu()
        if not torch.equal(came, expected):
            raise RuntimeError(f"{feature.tier} rows were delivered wrong on {self._accelerator}")
        return self._timer(lambda: feature.read(self._ids, self._out), times=times)

    def _nbytes(self, rows: int) -> int:
        return rows * self._row_bytes


def sampling(where: str) -> str:
    """Name of the rate of sampled neighbours; ``where`` is a key of ``PLACES``."""
    return f"sampling, graph: {where}"


def _sampling_paths(
    timer: DeviceTimer, sizes: RooflineSizes, left_out: dict[str, str]
) -> Iterator[Rate]:
    """Measure sampling of an RMAT graph, compared with the CPU's edges; a neighbour counts as the
    sector of its id."""
    graph = rmat(sizes.scale, edge_factor=_EDGES_A_VERTEX, undirected=True, seed=0)
    sampler = NeighborSampler(sizes.fanouts)
    generator = torch.Generator().manual_seed(3)
    batches = [
        torch.randperm(graph.num_nodes, generator=generator, device="cpu")[: sizes.batch_size]
        for _ in range(timer.repeats)
    ]
    for where, budget in PLACES.items():
        try:
            on_device = DeviceSampler(graph, sampler, timer.accelerator, budget)
        except ValueError as error:
            left_out[sampling(where)] = str(error)
            continue
        with closing(on_device):
            edges = sum(
                _compared(on_device, sampler, graph, seeds, key)
                for key, seeds in enumerate(batches)
            )
            runs = []
            for key, seeds in enumerate(batches):
                timer.occupy()  # so that all kernels of a batch have been launched when they run
                sampled = on_device.sample(seeds, key)
                sampled.ready.wait()
                runs.append(sampled.ready.seconds_since(sampled.begun))
            begin = time.perf_counter()
            for key, seeds in enumerate(batches):
                on_device.sample(seeds, key).ready.wait()
            alone = (time.perf_counter() - begin) / len(batches)
            rate = edges / len(batches) / statistics.median(runs)
        note = (
            f"{rate / 1e6:,.0f} M edges/s; {alone * 1e3:,.2f} ms a batch with its launches; "
            f"{on_device.placement}"
        )
        yield Rate(
            sampling(where),
            edges * SECTOR // len(batches),
            tuple(runs),
            random_rows(where, SECTOR),
            note,
        )


def _compared(
    on_device: DeviceSampler, sampler: NeighborSampler, graph: Graph, seeds: Tensor, key: int
) -> int:
    """Count the edges of a batch; RuntimeError if they are not those that the CPU samples."""
    sampled, expected = on_device.sample(seeds, key), sampler.sample(graph, seeds, key)
    sampled.ready.wait()
    for block, on_cpu in zip(sampled.batch.blocks, expected.blocks, strict=True):
        if not torch.equal(block.indices.cpu(), on_cpu.indices):
            raise RuntimeError(
                "sampled other neighbours than the CPU, with the graph's arrays "
                f"{on_device.placement}"
            )
    return sum(block.num_edges for block in expected.blocks)


INTERPRETER = "interpreter"
TINY = {
    "rows": 256,
    "row_bytes": 64,
    "reads": 40,
    "copy_bytes": 4096,
    "scale": 7,
    "batch_size": 8,
    "fanouts": (3, 2),
    "repeats": 1,
}
"""Sizes for the interpreter."""


def print_table(roofline: Roofline) -> None:
    """Print every rate and its share of its ceiling."""
    print(roofline.device)
    for rate in roofline.rates:
        share = roofline.share(rate)
        of_ceiling = "" if share is None else f"{share:6.1%} of {rate.ceiling}"
        moved = f"{rate.nbytes / 2**20:10,.1f} MiB {rate.median * 1e3:10.3f} ms"
        speed = f"{rate.bytes_per_second / 1e9:8,.1f} GB/s"
        print(f"{rate.name:42} {moved} {speed}  {of_ceiling:32} {rate.note}")
    for what, reason in roofline.left_out.items():
        print(f"not measured: {what}: {reason}")


def main() -> None:
    """Measure one device."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cuda[:N] or interpreter")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    options = parser.parse_args()
    if options.device == INTERPRETER:
        os.environ["TRITON_INTERPRET"] = "1"  # before a kernel is imported
        roofline = measure_roofline(HostAccelerator(), RooflineSizes(**TINY))
    else:
        accelerator = accelerator_for(resolve_device(options.device))
        if accelerator is None:
            parser.error(f"--device must be cuda, cuda:N or {INTERPRETER}, got {options.device!r}")
        roofline = measure_roofline(accelerator, RooflineSizes())
    print_table(roofline)
    if options.device == INTERPRETER:
        print("run by the interpreter on the CPU: these figures mean nothing")
    if options.json is not None:
        write_json(options.json, roofline.to_json())


if __name__ == "__main__":
    main()
