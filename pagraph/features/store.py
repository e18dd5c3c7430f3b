"""Caches of rows: their index table, filling them, reading through them, counting hits."""

from __future__ import annotations

import math
import mmap
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ..accelerator import Event
from ..graph.stored_rows import decode, rows_per_chunk
from ..system.buffers import BufferPool
from .feature import (
    Array,
    Feature,
    HostFeature,
    byte_view,
    id_array,
    output_for,
    raise_bad_id,
    word_view,
)
from .narrow import WideFeature, gather_wide, is_direct
from .padding import Padding


def slots_for(ids: Tensor, num_nodes: int) -> Tensor:
    """The table from vertex to cache slot, or -1; int32, shape ``(num_nodes,)``.

    >>> slots_for(torch.tensor([3, 1]), 4).tolist()
    [-1, 1, -1, 0]
    """
    slots = torch.full((num_nodes,), -1, dtype=torch.int32, device="cpu")
    slots[ids.long()] = torch.arange(len(ids), dtype=torch.int32, device="cpu")
    return slots


class FeatureCache:
    """Immutable cache of some rows of a feature, on a device.

    Args:
        rows: Shape ``(num_cached, ...)``, contiguous, on the device that reads them.
        slots: Shape ``(num_nodes,)``, int32 on the CPU: the row of each vertex in ``rows``. A
            negative slot, or one from ``num_cached`` on, means not cached. So features with
            different numbers of cached rows share one table.
        device_slots: A copy of the table on the rows' device, for kernels.
    """

    def __init__(self, rows: Tensor, slots: Tensor, device_slots: Tensor | None = None) -> None:
        if slots.dtype != torch.int32 or slots.dim() != 1 or slots.device.type != "cpu":
            raise TypeError(
                f"slots must be a 1-D int32 CPU tensor, got {slots.dim()}-D {slots.dtype} on "
                f"{slots.device}"
            )
        if rows.dim() == 0 or not rows.is_contiguous():
            raise ValueError(
                f"rows must be contiguous with at least 1 dimension, got {tuple(rows.shape)}"
            )
        if device_slots is not None:
            want = (tuple(slots.shape), slots.dtype)
            got = (tuple(device_slots.shape), device_slots.dtype)
            if got != want:
                raise ValueError(
                    f"device_slots must be the table {want[0]}, {want[1]}, got {got[0]}, {got[1]}"
                )
        self.rows = rows
        self.slots: Tensor = slots.contiguous()
        self.device_slots = device_slots

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes of the rows and of the table, which other caches may share."""
        return self.row_nbytes + self.slots.numel() * self.slots.element_size()

    @property
    def row_nbytes(self) -> int:
        """Bytes of the rows alone."""
        return self.rows.numel() * self.rows.element_size()

    def __repr__(self) -> str:
        return (
            f"FeatureCache(rows={tuple(self.rows.shape)}, dtype={self.rows.dtype}, "
            f"device={self.rows.device})"
        )


class GrowingCache(FeatureCache):
    """A cache that is filled with rows that batches read; each row is served from then on.

    Args:
        rows: Memory for all rows, uninitialised.
        target: The table of the full cache.
    """

    def __init__(self, rows: Tensor, target: Tensor) -> None:
        super().__init__(rows, torch.full_like(target, -1))
        self._target: Array = target.numpy()
        # One writer at a time, which waits for nothing and takes no other lock. Two writers of the
        # same row write the same bits.
        self._lock = threading.Lock()

    def wanted(self, ids: Array) -> Array:
        """Positions of the ids whose rows are still missing."""
        slots = self._target[ids]
        positions: Array = np.flatnonzero(
            (slots >= 0) & (slots < len(self)) & (self.slots.numpy()[ids] < 0)
        )
        return positions

    def absorb(self, ids: Array, rows: Tensor) -> None:
        """Store the rows of ``ids``, which are wanted, in the dtype of the cache."""
        from . import _gather

        slots = self._target[ids]
        with self._lock:
            word_view(self.rows).index_copy_(0, torch.from_numpy(slots).long(), word_view(rows))
            # After the rows, and with a release store: readers take no lock, and a slot in this
            # table means that its row is there.
            _gather.publish(self.slots.numpy(), ids, slots)


class Hits:
    """Cache hits in each part of a read, which a device may still be counting.

    Args:
        counts: On the CPU, int64, shape ``(parts,)``.
        ready: Event when the counts have arrived; None if they have.

    Example:
        >>> Hits.known([3, 0]).now()
        (3, 0)
    """

    def __init__(self, counts: Tensor, ready: Event | None = None) -> None:
        self._counts = counts
        self._ready = ready

    @classmethod
    def known(cls, counts: Iterable[int]) -> Hits:
        """Hits that the CPU has counted."""
        return cls(torch.tensor(list(counts), dtype=torch.int64, device="cpu"))

    def now(self) -> tuple[int, ...] | None:
        """The counts, one per part; None if they are not known yet."""
        if self._ready is not None and not self._ready.has_happened:
            return None  # the copy is still being written
        return tuple(self._counts.tolist())

    def wait(self) -> tuple[int, ...]:
        """The counts, one per part; waits for the device."""
        if self._ready is not None:
            self._ready.wait()
        return tuple(self._counts.tolist())

    def __repr__(self) -> str:
        counts = self.now()
        return f"Hits({'not known yet' if counts is None else ', '.join(map(str, counts))})"


class CachedFeature(WideFeature):
    """Rows on the CPU, from a cache if it has them, else from the fallback.

    One kernel copies from both. Rows that are not contiguous in memory are read separately. For
    accelerators there is ``AcceleratedFeature``.

    Args:
        fallback: All rows, in the cache's form; delivers on the CPU.
        cache: Filled from ``fallback``, on the CPU.

    Raises:
        ValueError: The rows of the two differ in shape or dtype, or the cache is not on the CPU.
    """

    def __init__(self, fallback: Feature, cache: FeatureCache) -> None:
        check_rows(cache, fallback)
        if cache.rows.device.type != "cpu":
            raise ValueError(f"cache must be on the CPU, got {cache.rows.device}")
        super().__init__(fallback, cache.rows.device)
        self._cache = cache
        self._slots: Array = cache.slots.numpy()
        self._near = byte_view(cache.rows)

    def read(self, ids: Tensor, out: Tensor | BufferPool | None = None) -> Tensor:
        """The rows of ``ids``; see :class:`~pagraph.features.feature.Feature`."""
        return self.read_counted(ids, out)[0]

    def read_counted(
        self,
        ids: Tensor,
        out: Tensor | BufferPool | None = None,
        bounds: Sequence[int] | None = None,
    ) -> tuple[Tensor, tuple[int, ...]]:
        """:meth:`read`, with the cache hits of each part of the ids; see :func:`part_ends`."""
        index = id_array(ids)
        ends = part_ends(bounds, len(index))
        out = output_for(self, len(index), out)
        stored = self._stored
        if self._decoding is None:
            hits = self._read_stored(index, ends, out)
        elif is_direct(stored):
            hits = gather_wide(stored, index, ends, out, self._near, self._slots, len(self._cache))
        else:
            # The kernel decodes no float64, and no rows that are not contiguous.
            rows = torch.empty((len(index), *stored.row_shape), dtype=stored.dtype, device="cpu")
            hits = self._read_stored(index, ends, rows)
            decode(self._decoding, rows, out)
        return out, tuple(hits.tolist())

    def _read_stored(self, index: Array, ends: Array, out: Tensor) -> Array:
        """Copy stored rows to ``out``; returns the hits of each part."""
        source = self._stored
        if isinstance(source, HostFeature) and source.rows is not None:
            return self._read_near(source, source.rows, index, ends, out)
        return self._read_split(index, ends, out)

    def _read_near(
        self, source: HostFeature, rows: Array, index: Array, ends: Array, out: Tensor
    ) -> Array:
        from . import _gather

        source.announce(index, self._slots, len(self._cache))
        hits = np.zeros(len(ends), dtype=np.int64)
        bad = _gather.gather_cached(
            self._near,
            len(self._cache),
            self._slots,
            rows,
            source.stride_bytes,
            source.row_bytes,
            source.source_rows,
            source.table,
            index,
            ends,
            byte_view(out),
            hits,
        )
        if bad >= 0:
            source.raise_bad(index, bad)
        return hits

    def _read_split(self, index: Array, ends: Array, out: Tensor) -> Array:
        slots, places, missed, missed_places = split_ids(self._cache, index, self.num_rows)
        if out.numel():
            parts = out, self._cache.rows, self._stored.read(torch.from_numpy(missed))
            target, cached, others = (word_view(part, *parts) for part in parts)
            target.index_copy_(
                0, torch.from_numpy(places), cached.index_select(0, torch.from_numpy(slots))
            )
            target.index_copy_(0, torch.from_numpy(missed_places), others)
        return np.diff(np.searchsorted(places, ends), prepend=0)


def read_counted(
    feature: Feature, ids: Tensor, pool: Tensor | BufferPool | None, bounds: Sequence[int] | None
) -> tuple[Tensor, tuple[int, ...] | None]:
    """Rows on the CPU, with the cache hits of each part of the ids, or None without a cache."""
    if isinstance(feature, CachedFeature):
        return feature.read_counted(ids, pool, bounds)
    return feature.read(ids, pool), None


def read_padded(
    feature: Feature, ids: Tensor, pool: BufferPool | None, padding: Padding
) -> tuple[Tensor, tuple[int, ...] | None]:
    """:func:`read_counted` with padding.

    Each hop is read to its place, since moving the rows afterwards would take as long as reading.
    """
    out = output_for(feature, sum(padding.room), pool)
    hits: list[int] = []
    for part in padding.parts():
        _, found = read_counted(feature, ids[part.sampled], out[part.placed], None)
        if found is not None:
            hits += found
    padding.fill(out)
    return out, tuple(hits) or None


def check_rows(cache: FeatureCache, source: Feature) -> None:
    """Raise ValueError unless a cache holds rows of the source's shape and dtype."""
    if tuple(cache.rows.shape[1:]) != source.row_shape or cache.rows.dtype != source.dtype:
        raise ValueError(
            f"cache must hold rows of shape {source.row_shape} and dtype {source.dtype}, "
            f"got {tuple(cache.rows.shape[1:])} and {cache.rows.dtype}"
        )


def split_ids(
    cache: FeatureCache, index: Array, num_rows: int
) -> tuple[Array, Array, Array, Array]:
    """Divide ids into hits and misses; IndexError for an id out of range.

    Returns:
        Slots and places of the hits, ids and places of the misses, all int64.
    """
    from . import _gather

    count = len(index)
    slots, places, missed, missed_places = np.empty((4, count), dtype=np.int64)
    hits = _gather.split(
        cache.slots.numpy(), len(cache), num_rows, index, slots, places, missed, missed_places
    )
    if hits < 0:
        raise_bad_id(index, -1 - hits, num_rows)
    return slots[:hits], places[:hits], missed[: count - hits], missed_places[: count - hits]


def part_ends(bounds: Sequence[int] | None, count: int) -> Array:
    """Ends of the parts of ``count`` ids, int64; one part if ``bounds`` is None.

    Raises ValueError unless ``bounds`` ascend to ``count``.
    """
    # A loop, since NumPy's diff takes 8 us, and every read comes here with a few numbers.
    known = (0, *([count] if bounds is None else bounds))
    if known[-1] != count or any(end < begin for begin, end in pairwise(known)):
        raise ValueError(f"bounds must ascend to the number of ids, {count}, got {list(known[1:])}")
    return np.array(known[1:], dtype=np.int64)


# Bytes of rows in memory at once, besides the cache, while it is filled or compared.
_CHUNK_BYTES = 16 << 20
_LINE = 64


def fill_cache(
    source: Feature,
    ids: Tensor,
    *,
    device: torch.device,
    num_nodes: int,
    slots: Tensor | None = None,
) -> FeatureCache:
    """Read the rows of ``ids`` from a CPU source into a cache on ``device``.

    ``ids`` has the most valuable rows first, without repeats. ``slots`` is ``slots_for`` of
    ``ids``, or of a longer list that starts with them, so that caches can share it.
    """
    rows = _empty_rows((len(ids), *source.row_shape), source.dtype, device)
    target = word_view(rows)
    for places, words in _chunks(source, ids, device):
        target.index_copy_(0, places, words)
    if slots is None:
        slots = slots_for(ids, num_nodes)
    return FeatureCache(rows, slots)


def growing_cache(
    source: Feature, ids: Tensor, *, slots: Tensor, before: FeatureCache | None
) -> GrowingCache:
    """A cache for the rows of ``ids`` on the CPU, which batches fill.

    It begins with the rows that are in ``before``, another cache of the same values.
    """
    rows = _empty_rows((len(ids), *source.row_shape), source.dtype, torch.device("cpu"))
    cache = GrowingCache(rows, slots)
    # Touch all pages now. Else the first rows would do it while the disk waits: 1 s for 147 MB in a
    # control group whose memory is full.
    byte_view(cache.rows)[:: mmap.PAGESIZE] = 0
    if before is not None:
        old = before.slots[ids]
        kept = ((old >= 0) & (old < len(before))).nonzero().squeeze(1)
        step = rows_per_chunk(source.row_bytes, _CHUNK_BYTES)
        for begin in range(0, len(kept), step):
            part = kept[begin : begin + step]
            cache.absorb(ids[part].numpy(), before.rows[old[part].long()])
    return cache


def holds(cache: FeatureCache, source: Feature, ids: Tensor) -> bool:
    """Whether a cache of ``ids`` still has the source's bits; reads all these rows again."""
    # A growing cache may not have all of them yet.
    there = (cache.slots[ids[: len(cache)]] >= 0).nonzero().squeeze(1)
    rows = word_view(cache.rows)
    device = cache.rows.device
    chunks = _chunks(source, ids[there], device)
    return all(torch.equal(rows[there[places.cpu()].to(device)], words) for places, words in chunks)


def _chunks(source: Feature, ids: Tensor, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows of ``ids`` as words on ``device``, in chunks, with their places in ``ids``."""
    # The cache is ordered by value, but a disk is read in the order of its file. NumPy sorts, since
    # torch would wake its thread pool first: 0.15 s for 100,000 ids on a busy machine.
    places = torch.from_numpy(np.argsort(ids.numpy()))
    step = rows_per_chunk(source.row_bytes, _CHUNK_BYTES)
    for start in range(0, len(ids), step):
        chunk = places[start : start + step]
        yield chunk.to(device), word_view(source.read(ids[chunk])).to(device)


def _empty_rows(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory for rows; on the CPU aligned to a cache line and from NumPy, which uses huge pages.

    Reading 100,000 rows of 1 KiB took 8.2 ms, and 10.9 from torch's memory.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or nbytes == 0:
        return torch.empty(shape, dtype=dtype, device=device)
    memory = np.empty(nbytes + _LINE, dtype=np.uint8)
    begin = -memory.ctypes.data % _LINE
    return torch.from_numpy(memory[begin : begin + nbytes]).view(dtype).view(shape)
