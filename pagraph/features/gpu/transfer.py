"""Transfer of host rows to a device, staged through page-locked memory."""

from __future__ import annotations

import statistics
import threading
import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ...accelerator import Accelerator, StagingRing
from ...graph.row_form import Decoding
from ..disk import DiskFeature
from ..feature import Array, HostFeature, as_words, word_bytes
from ..narrow import HostRows, NarrowFeature
from ..store import FeatureCache
from .reachable import ReachableRows, gather

__all__ = ["Transfer", "check_mode", "place_hits", "send"]

_ALIGN = 256
_PLACE_BYTES = 8


def send(
    source: HostRows,
    ids: Array,
    places: Array | None,
    out: Tensor,
    ring: StagingRing,
    decoding: Decoding | None = None,
) -> None:
    """Read stored rows on the CPU and write them, decoded, on the device, on the current stream.

    While one piece is copied the next is gathered; the device may still be at it when this returns.

    ``places`` are the rows of ``out`` where the rows of ``ids`` go, int64; None: row ``i``. ``out``
    is contiguous. Without a ``decoding`` it gets the rows as they are stored.
    """
    step = (ring.slot_bytes - _ALIGN) // (source.row_bytes + _PLACE_BYTES)
    if step < 1:  # no buffer of the ring can hold a row: one by one, each in several pieces
        for i in range(len(ids)):
            (row,) = ring.upload([source.read(torch.from_numpy(ids[i : i + 1]))])
            row = row if decoding is None else decoding.widened(row)
            out[i if places is None else int(places[i])].copy_(row[0])
        return
    for begin in range(0, len(ids), step):
        part = torch.from_numpy(ids[begin : begin + step])
        count, nbytes = len(part), len(part) * source.row_bytes
        with ring.slot() as memory:
            source.read(part, memory[:nbytes].view(source.dtype).view(count, *source.row_shape))
            if places is None and decoding is None:
                target = out[begin : begin + count]
                as_words(target, 1).copy_(memory[:nbytes], non_blocking=True)
                continue
            start = -(-nbytes // _ALIGN) * _ALIGN
            used = start + count * _PLACE_BYTES
            into = (
                np.arange(begin, begin + count) if places is None else places[begin : begin + count]
            )
            memory[start:used].view(torch.int64).copy_(torch.from_numpy(into))
            arrived = ring.accelerator.empty((used,), torch.uint8)
            arrived.copy_(memory[:used], non_blocking=True)
        rows = arrived[:nbytes].view(source.dtype).view(count, *source.row_shape)
        _put(rows, arrived[start:].view(torch.int64), out, decoding)


def place_hits(
    cache: FeatureCache,
    slots: Array,
    places: Array,
    out: Tensor,
    ring: StagingRing,
    decoding: Decoding | None,
) -> None:
    """Copy rows ``slots`` (int64) of the cache to ``places`` (int64) of ``out`` by torch, where no
    kernel runs."""
    there = ring.upload([torch.from_numpy(slots), torch.from_numpy(places)])
    word = word_bytes(cache.rows[:1].numel() * cache.rows.element_size(), cache.rows)
    rows = as_words(cache.rows, word).view(len(cache), -1).index_select(0, there[0])
    _put(
        rows.view(cache.rows.dtype).view(len(slots), *cache.rows.shape[1:]), there[1], out, decoding
    )


def _put(rows: Tensor, places: Tensor, out: Tensor, decoding: Decoding | None) -> None:
    """Write rows, which nothing else uses, to their places in ``out``, decoded."""
    if decoding is not None:
        out.index_copy_(0, places, decoding.widened(rows))
        return
    word = word_bytes(rows[:1].numel() * rows.element_size(), rows, out)
    as_words(out, word).view(len(out), -1).index_copy_(
        0, places, as_words(rows, word).view(len(rows), -1)
    )


ZERO_COPY, STAGING = "zero-copy", "staging"
_MODES = ("auto", ZERO_COPY, STAGING)
_SAMPLE_BYTES = 32 << 20
_FIRST_ROWS = 32
_LONG = 0.01  # seconds of a run that are enough to compare
_RUNS = 3


class Transfer:
    """Transfer path of the missed rows of one field to an accelerator. Safe from any thread.

    "zero-copy": the device reads host memory, which is pinned in place. "staging": the CPU gathers
    rows into pinned buffers, which are copied. "auto" measures both when rows are first missed, and
    keeps the faster. Staging is taken where host memory cannot be pinned or no kernel can run; for
    rows that the CPU rounds (``cache_dtype``), because a value that is too large must be refused
    before it is delivered (and half the bytes go over the bus); and, unless zero-copy is asked for,
    for rows on disk, which pinning would read into memory altogether.

    Zero-copy delivers rows as they are when the device reads them, shortly after the call; the
    loaders read batches anew whose fields were written since.

    Args:
        accelerator: Where the rows go.
        mode: "auto", "zero-copy" or "staging".

    Attributes:
        chosen: "zero-copy" or "staging"; None before rows were missed.
        reason: Why, in one sentence.

    Raises:
        ValueError: ``mode`` is not one of the three.
    """

    def __init__(self, accelerator: Accelerator, mode: str = "auto") -> None:
        check_mode(mode)
        self.mode = mode
        self.chosen: str | None = STAGING if mode == STAGING else None
        self.reason = "asked for" if mode == STAGING else "no row was missed yet"
        self._accelerator = accelerator
        self._deciding = threading.RLock()  # the collector may close it in the middle of anything
        self._reached: tuple[tuple[int, ...], ReachableRows] | None = None
        self._closed = False

    def reach(self, source: HostRows, ring: StagingRing) -> ReachableRows | None:
        """The rows as the device's kernels can read them; None: to be staged.

        Decides at the first call, on the current stream; threads that call meanwhile stage. The
        result keeps the memory pinned: drop it when the reading has been given to a stream. A
        source in other memory than before is pinned instead of that.

        Raises:
            OutOfMemory: There is not enough memory on the device to measure; nothing is decided
                then.
        """
        if self.chosen == STAGING or self._closed:
            return None
        reached = self._reached
        if self.chosen is not None and reached is not None and reached[0] == _memory_of(source):
            return reached[1]
        if not self._deciding.acquire(blocking=False):
            return None
        try:
            return self._decide(source, ring)
        finally:
            self._deciding.release()

    def close(self) -> None:
        """Unpin; rows are staged from now on. Reads that have begun go on, and then the rows are
        unpinned."""
        with self._deciding:
            self._closed = True
            self._reached = None

    def _decide(self, source: HostRows, ring: StagingRing) -> ReachableRows | None:
        if self._closed or self.chosen == STAGING:
            return None
        known = self._reached
        if known is not None and known[0] == _memory_of(source):
            return known[1]
        self._reached = known = None  # what replaces it may overlap it, and pages are pinned once
        obstacle = self._obstacle(source)
        rows = None
        if obstacle is None and isinstance(source, HostFeature):
            rows = ReachableRows.of_host(source, self._accelerator)
            obstacle = "its memory could not be pinned"
        if rows is None or not isinstance(source, HostFeature):
            self.chosen, self.reason = STAGING, str(obstacle)
            return None
        if self.mode == "auto" and self.chosen is None:
            self._compare(source, rows, ring)
        elif self.chosen is None:
            self.chosen, self.reason = ZERO_COPY, "asked for"
        if self.chosen == STAGING:
            return None
        if not self._closed:
            self._reached = _memory_of(source), rows
        return rows

    def _obstacle(self, source: HostRows) -> str | None:
        """Reason why zero-copy is impossible; None: it is not."""
        if isinstance(source, NarrowFeature):
            obstacle = "the CPU rounds its rows"
        elif not self._accelerator.runs_kernels:
            obstacle = "Triton is missing"
        elif source.rows is None:
            obstacle = "its rows are not contiguous"
        elif isinstance(source, DiskFeature) and self.mode == "auto":
            return "its rows are on disk"
        else:
            return None
        if self.mode == ZERO_COPY:
            warnings.warn(
                f"transfer 'zero-copy' is not possible for a field, because {obstacle}: its rows "
                "go through a staging "
                "buffer instead",
                RuntimeWarning,
                stacklevel=2,
            )
        return obstacle

    def _compare(self, source: HostFeature, rows: ReachableRows, ring: StagingRing) -> None:
        """Read the same random rows both ways, in turn, and choose."""
        accelerator = self._accelerator
        room = min(_SAMPLE_BYTES, accelerator.free_bytes()[0] // 8)
        most = max(1, min(source.num_rows, room // source.row_bytes))
        generator = np.random.default_rng(0)
        given = source if source.decoding is None else source.decoding

        def zero_copy(ids: Tensor, out: Tensor) -> None:
            (there,) = ring.upload([ids])
            gather(
                accelerator,
                there,
                out,
                num_rows=source.num_rows,
                rows=rows,
                cache=None,
                decoding=source.decoding,
            )

        def staging(ids: Tensor, out: Tensor) -> None:
            send(source, ids.numpy(), None, out, ring, source.decoding)

        def run(count: int) -> list[float]:
            ids = torch.from_numpy(generator.integers(source.num_rows, size=count))
            out = accelerator.empty((count, *given.row_shape), given.dtype)
            return [self._seconds(way, ids, out) for way in (zero_copy, staging)]

        count = min(_FIRST_ROWS, most)
        run(count)  # kernels are compiled
        while max(run(count)) < _LONG and count < most:
            count = min(8 * count, most)
        runs = [run(count) for _ in range(_RUNS)]
        speeds = [
            count * source.row_bytes / statistics.median(taken) * 1e-9
            for taken in zip(*runs, strict=True)
        ]
        self.reason = f"measured {ZERO_COPY} {speeds[0]:.3g} GB/s, {STAGING} {speeds[1]:.3g} GB/s"
        self.chosen = ZERO_COPY if speeds[0] >= speeds[1] else STAGING

    def _seconds(self, way: Callable[[Tensor, Tensor], None], ids: Tensor, out: Tensor) -> float:
        stream = self._accelerator.current_stream
        begin = stream.record()
        begin.wait()
        begin = stream.record()
        way(ids, out)
        end = stream.record()
        end.wait()
        return max(end.seconds_since(begin), 1e-9)

    def __repr__(self) -> str:
        return f"Transfer(mode={self.mode!r}, chosen={self.chosen!r}, reason={self.reason!r})"


def check_mode(mode: str) -> None:
    """Raise ValueError for an unknown transfer mode, also where there is no accelerator."""
    if mode not in _MODES:
        raise ValueError(f"transfer must be one of {', '.join(map(repr, _MODES))}, got {mode!r}")


def _memory_of(source: HostRows) -> tuple[int, ...]:
    """Addresses and layout that tell a field's memory from others', as long as it is held."""
    if isinstance(source, NarrowFeature) or source.rows is None:
        return ()
    table = (
        ()
        if source.table is None
        else (source.table.ctypes.data, len(source.table), source.table.itemsize)
    )
    return (
        source.rows.ctypes.data,
        len(source.rows),
        source.stride_bytes,
        source.source_rows,
        *table,
    )
