"""Transfer of host rows to a device, by zero-copy or staged through page-locked memory."""

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
from ...system.threads import try_lock
from ..disk import DiskFeature
from ..feature import Array, HostFeature, as_words, word_view
from ..narrow import HostRows, NarrowFeature
from ..store import FeatureCache
from .reachable import ReachableRows, gather

# A piece has this layout in a pinned buffer, and then on the device:
#
#     | rows, row_bytes each | padding to _ALIGN | their places in the output, int64 each |
#
# The padding aligns the places for int64, for rows of any width.
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
    """Read stored rows on the CPU and write them to the device, on the current stream.

    The next piece is gathered while one is copied. The device may still be working when this
    returns.

    Args:
        source: The rows.
        ids: Rows to send, int64.
        places: Row of ``out`` for each of ``ids``, int64. None for row ``i``.
        out: On the device, contiguous.
        ring: Pinned buffers.
        decoding: How rows are decoded. Default: they are written as they are stored.
    """
    step = (ring.slot_bytes - _ALIGN) // (source.row_bytes + _PLACE_BYTES)
    if step < 1:
        _send_wide(source, ids, places, out, ring, decoding)
        return
    for begin in range(0, len(ids), step):
        part = torch.from_numpy(ids[begin : begin + step])
        count = len(part)
        nbytes = count * source.row_bytes
        with ring.slot() as memory:
            source.read(part, memory[:nbytes].view(source.dtype).view(count, *source.row_shape))
            if places is None and decoding is None:
                # Rows in order, as they are stored, are copied straight to the output.
                target = out[begin : begin + count]
                as_words(target, 1).copy_(memory[:nbytes], non_blocking=True)
                continue
            start = -(-nbytes // _ALIGN) * _ALIGN
            used = start + count * _PLACE_BYTES
            if places is None:
                into: Array = np.arange(begin, begin + count)
            else:
                into = places[begin : begin + count]
            memory[start:used].view(torch.int64).copy_(torch.from_numpy(into))
            arrived = ring.accelerator.empty((used,), torch.uint8)
            arrived.copy_(memory[:used], non_blocking=True)
        rows = arrived[:nbytes].view(source.dtype).view(count, *source.row_shape)
        _put(rows, arrived[start:].view(torch.int64), out, decoding)


def _send_wide(
    source: HostRows,
    ids: Array,
    places: Array | None,
    out: Tensor,
    ring: StagingRing,
    decoding: Decoding | None,
) -> None:
    """:func:`send` for rows that are wider than a buffer of the ring: one by one, in pieces."""
    for i in range(len(ids)):
        (row,) = ring.upload([source.read(torch.from_numpy(ids[i : i + 1]))])
        if decoding is not None:
            row = decoding.widened(row)
        out[i if places is None else int(places[i])].copy_(row[0])


def place_hits(
    cache: FeatureCache,
    slots: Array,
    places: Array,
    out: Tensor,
    ring: StagingRing,
    decoding: Decoding | None,
) -> None:
    """Copy rows ``slots`` of the cache to ``places`` of ``out`` with torch; both are int64."""
    from_slots, to_places = ring.upload([torch.from_numpy(slots), torch.from_numpy(places)])
    rows = word_view(cache.rows).index_select(0, from_slots)
    rows = rows.view(cache.rows.dtype).view(len(slots), *cache.rows.shape[1:])
    _put(rows, to_places, out, decoding)


def _put(rows: Tensor, places: Tensor, out: Tensor, decoding: Decoding | None) -> None:
    """Write rows, which nothing else uses, to their places in ``out``, and decode them."""
    if decoding is not None:
        out.index_copy_(0, places, decoding.widened(rows))
        return
    word_view(out, rows).index_copy_(0, places, word_view(rows, out))


ZERO_COPY = "zero-copy"
STAGING = "staging"
_MODES = ("auto", ZERO_COPY, STAGING)
# How the two paths are measured. Runs grow eightfold from _FIRST_ROWS rows until one takes _LONG
# seconds, so that its set-up no longer counts, or _SAMPLE_BYTES. Then the medians of _RUNS runs are
# compared. Staging must be _CLEARLY times as fast.
_SAMPLE_BYTES = 32 << 20
_FIRST_ROWS = 32
_LONG = 0.01
_RUNS = 3
_CLEARLY = 2.0


class Transfer:
    """Transfer path of the missed rows of one field to an accelerator; thread-safe.

    "zero-copy": the device reads host memory, which is pinned in place. "staging": the CPU gathers
    rows into pinned buffers, which are copied. "auto" measures both when rows are first missed, and
    keeps zero-copy unless staging is clearly faster.

    Staging is always used if host memory cannot be pinned or no kernel can run. It is also used for
    rows that the CPU rounds (``cache_dtype``): a value that is too large must be refused before it
    is delivered, and only half the bytes cross the bus. Rows on disk are staged unless the user
    asks for zero-copy, since pinning would read all of them into memory.

    Zero-copy delivers rows as they are when the device reads them, shortly after the call. The
    loaders read a batch again if its fields were written since.

    Args:
        accelerator: Where the rows go.
        mode: "auto", "zero-copy" or "staging".

    Attributes:
        chosen: "zero-copy" or "staging"; None before the first miss.
        reason: Why, in one sentence.

    Raises:
        ValueError: ``mode`` is not one of the three.
    """

    def __init__(self, accelerator: Accelerator, mode: str = "auto") -> None:
        check_mode(mode)
        self.mode = mode
        self.chosen: str | None = STAGING if mode == STAGING else None
        self.reason = "asked for" if mode == STAGING else "no row has missed the cache yet"
        self._accelerator = accelerator
        # Held while the path is chosen and measured, which waits for the device. Threads that need
        # rows meanwhile do not wait but stage. It is re-entrant because the garbage collector may
        # run `close` in the thread that holds it.
        self._deciding = threading.RLock()
        self._reached: tuple[tuple[int, ...], ReachableRows] | None = None
        self._closed = False

    def reach(self, source: HostRows, ring: StagingRing) -> ReachableRows | None:
        """The rows as the device's kernels can read them; None if they must be staged.

        The first call decides, on the current stream; threads that call meanwhile stage. The result
        keeps the memory pinned: drop it when the read has been enqueued. If the source has moved to
        other memory, that is pinned instead.

        Raises:
            OutOfMemory: The device has not enough memory to measure; nothing is decided then.
        """
        if self.chosen == STAGING or self._closed:
            return None
        reached = self._reached
        if self.chosen is not None and reached is not None and reached[0] == _memory_of(source):
            return reached[1]
        held: list[bool] = []
        try:
            return self._decide(source, ring) if try_lock(self._deciding, held) else None
        finally:
            if held:
                self._deciding.release()

    def reached(self, source: HostRows) -> ReachableRows | None:
        """What :meth:`reach` returns if nothing is left to decide; else None."""
        reached = self._reached
        if self.chosen != ZERO_COPY or reached is None or reached[0] != _memory_of(source):
            return None
        return reached[1]

    def close(self) -> None:
        """Unpin the rows and stage from now on; reads under way keep them pinned until the end."""
        with self._deciding:
            self._closed = True
            self._reached = None

    def _decide(self, source: HostRows, ring: StagingRing) -> ReachableRows | None:
        if self._closed or self.chosen == STAGING:
            return None
        known = self._reached
        if known is not None and known[0] == _memory_of(source):
            return known[1]
        # Unpin first: the new memory may overlap the old, and a page can be pinned only once.
        self._reached = known = None
        obstacle = self._obstacle(source)
        rows = None
        if obstacle is None and isinstance(source, HostFeature):
            rows = ReachableRows.of_host(source, self._accelerator)
            obstacle = "its memory could not be pinned"
        if rows is None or not isinstance(source, HostFeature):
            self.chosen = STAGING
            self.reason = str(obstacle)
            return None
        if self.mode == "auto" and self.chosen is None:
            self._compare(source, rows, ring)
        elif self.chosen is None:
            self.chosen = ZERO_COPY
            self.reason = "asked for"
        if self.chosen == STAGING:
            return None
        if not self._closed:
            self._reached = _memory_of(source), rows
        return rows

    def _obstacle(self, source: HostRows) -> str | None:
        """Why zero-copy is impossible; None if it is possible."""
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
                "go through a staging buffer instead",
                RuntimeWarning,
                stacklevel=2,
            )
        return obstacle

    def _compare(self, source: HostFeature, rows: ReachableRows, ring: StagingRing) -> None:
        """Read the same random rows by both paths, in turn, and choose."""
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
        run(count)  # compiles the kernels
        while max(run(count)) < _LONG and count < most:
            count = min(8 * count, most)
        runs = [run(count) for _ in range(_RUNS)]
        speeds = [
            count * source.row_bytes / statistics.median(taken) * 1e-9
            for taken in zip(*runs, strict=True)
        ]
        self.reason = f"measured {ZERO_COPY} {speeds[0]:.3g} GB/s, {STAGING} {speeds[1]:.3g} GB/s"
        # Staging also takes a core and the GIL. On a busy machine either path may look half as fast
        # as it is.
        self.chosen = STAGING if speeds[1] > _CLEARLY * speeds[0] else ZERO_COPY

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
    """Raise ValueError for an unknown transfer mode."""
    if mode not in _MODES:
        raise ValueError(f"transfer must be one of {', '.join(map(repr, _MODES))}, got {mode!r}")


def _memory_of(source: HostRows) -> tuple[int, ...]:
    """Addresses and layout that identify a field's memory while it is held."""
    if isinstance(source, NarrowFeature) or source.rows is None:
        return ()
    memory = (source.address, len(source.rows), source.stride_bytes, source.source_rows)
    table = source.table
    if table is None:
        return memory
    return (*memory, table.ctypes.data, len(table), table.itemsize)
