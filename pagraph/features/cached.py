"""CachedFeature: a feature some of whose rows are kept where they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ..buffers import BufferPool
from ..cache.store import FeatureCache
from .feature import Array, Feature, byte_view, id_array, output_for, raise_bad_id
from .host import HostFeature
from .narrow import NarrowFeature
from .words import word_view

__all__ = ["CachedFeature", "part_ends"]


class CachedFeature:
    """Reads rows on the CPU: from a cache where it has them, and from the feature behind it where it has not.

    One kernel copies from both sides; rows that it cannot reach are read apart. Narrow rows become as wide as the
    field's when they are delivered, the missing ones too. (On an accelerator: ``AcceleratedFeature``.)

    Args:
        fallback: Delivers on the CPU; has all the rows, as the cache keeps them.
        cache: Filled from ``fallback``, on the CPU.

    Raises:
        ValueError: The rows of the two differ in shape or dtype, or the cache is not on the CPU.
    """

    def __init__(self, fallback: Feature, cache: FeatureCache) -> None:
        if tuple(cache.rows.shape[1:]) != fallback.row_shape or cache.rows.dtype != fallback.dtype:
            raise ValueError(
                f"cache must hold rows of shape {fallback.row_shape} and dtype {fallback.dtype}, "
                f"got {tuple(cache.rows.shape[1:])} and {cache.rows.dtype}"
            )
        if cache.rows.device.type != "cpu":
            raise ValueError(f"cache must be on the CPU, got {cache.rows.device}")
        self._fallback = fallback
        self._cache = cache
        self._slots: Array = cache.slots.numpy()
        self.device = cache.rows.device
        self.num_rows = fallback.num_rows
        self.row_shape = fallback.row_shape
        whole = fallback.source if isinstance(fallback, NarrowFeature) else fallback
        self.dtype = whole.dtype
        self.row_bytes = whole.row_bytes
        self.tier = fallback.tier
        self._near = byte_view(cache.rows)

    def read(self, ids: Tensor, out: Tensor | BufferPool | None = None) -> Tensor:
        """The rows of ``ids``; see :class:`~pagraph.features.feature.Feature`."""
        return self.read_counted(ids, out)[0]

    def read_counted(
        self, ids: Tensor, out: Tensor | BufferPool | None = None, bounds: Sequence[int] | None = None
    ) -> tuple[Tensor, tuple[int, ...]]:
        """As :meth:`read`, with the number of rows that the cache served, of each part of the ids.

        Args:
            ids: As for :meth:`read`.
            out: As for :meth:`read`.
            bounds: Where the parts end, such as ``MiniBatch.hop_ends``: ascending, the last is ``len(ids)``. None: all
                ids are one part.

        Raises:
            ValueError: ``bounds`` are not such.
        """
        index = id_array(ids)
        ends = part_ends(bounds, len(index))
        out = output_for(self, len(index), out)
        source = self._fallback
        if isinstance(source, NarrowFeature) and source.is_direct:
            hits = source.gather(index, ends, out, self._near.view(np.uint16), self._slots, len(self._cache))
        elif isinstance(source, HostFeature) and source.rows is not None:
            hits = self._read_near(source, source.rows, index, ends, out)
        else:
            hits = self._read_split(index, ends, out)
        return out, tuple(hits.tolist())

    def _read_near(self, source: HostFeature, rows: Array, index: Array, ends: Array, out: Tensor) -> Array:
        from . import _gather

        source.announce(index, self._slots, len(self._cache))
        hits = np.zeros(len(ends), dtype=np.int64)
        bad = _gather.gather_cached(
            self._near,
            len(self._cache),
            self._slots,
            rows,
            source.stride_bytes,
            self.row_bytes,
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
        from . import _gather

        count = len(index)
        slots, places, missed, missed_places = np.empty((4, count), dtype=np.int64)
        hits = _gather.split(self._slots, len(self._cache), self.num_rows, index, slots, places, missed, missed_places)
        if hits < 0:
            raise_bad_id(index, -1 - hits, self.num_rows)
        by_part: Array = np.diff(np.searchsorted(places[:hits], ends), prepend=0)
        if out.numel():
            words = word_view if self._fallback.dtype == self.dtype else _same
            target, misses = words(out), count - hits
            found = words(self._cache.rows).index_select(0, torch.from_numpy(slots[:hits]))
            target.index_copy_(0, torch.from_numpy(places[:hits]), found.to(target.dtype))
            read = words(self._fallback.read(torch.from_numpy(missed[:misses])))
            target.index_copy_(0, torch.from_numpy(missed_places[:misses]), read.to(target.dtype))
        return by_part


def _same(tensor: Tensor) -> Tensor:
    return tensor


def part_ends(bounds: Sequence[int] | None, count: int) -> Array:
    """Where the parts of ``count`` ids end, shape ``(parts,)``, int64; one part where ``bounds`` is None.

    Raises:
        ValueError: ``bounds`` do not ascend from 0 or more to ``count``.
    """
    # One call a read, for a few numbers: NumPy's diff takes 8 us.
    known = (0, *([count] if bounds is None else bounds))
    if known[-1] != count or any(end < begin for begin, end in pairwise(known)):
        raise ValueError(f"bounds must ascend to the number of ids, {count}, got {list(known[1:])}")
    return np.array(known[1:], dtype=np.int64)
