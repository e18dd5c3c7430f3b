"""CachedFeature: a feature some of whose rows are kept where they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ..cache.store import FeatureCache
from .device import staging, word_view
from .feature import Array, Feature, byte_view, id_array, output_for, raise_bad_id
from .host import HostFeature
from .narrow import NarrowFeature

__all__ = ["CachedFeature", "part_ends"]


class CachedFeature:
    """Reads rows from a cache where it has them, and from the feature behind it where it has not.

    Rows are delivered on the cache's device. On the CPU one kernel copies from both sides. Elsewhere ids
    are split on the CPU, the missing rows are gathered into pinned memory and copied without waiting, and
    the device puts both together on its current stream; this way is tested on the CPU and not yet measured
    on a GPU. Narrow rows become as wide as the field's when they are delivered, the missing ones too.

    Args:
        fallback: Delivers on the CPU; has all the rows, as the cache keeps them.
        cache: Filled from ``fallback``.

    Raises:
        ValueError: The rows of the two differ in shape or dtype.
    """

    def __init__(self, fallback: Feature, cache: FeatureCache) -> None:
        if tuple(cache.rows.shape[1:]) != fallback.row_shape or cache.rows.dtype != fallback.dtype:
            raise ValueError(
                f"cache must hold rows of shape {fallback.row_shape} and dtype {fallback.dtype}, "
                f"got {tuple(cache.rows.shape[1:])} and {cache.rows.dtype}"
            )
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
        self._near = byte_view(cache.rows) if self.device.type == "cpu" else None

    def read(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """The rows of ``ids``; see :class:`~pagraph.features.feature.Feature`."""
        return self.read_counted(ids, out)[0]

    def read_counted(
        self, ids: Tensor, out: Tensor | None = None, bounds: Sequence[int] | None = None
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
        if self._near is not None and isinstance(source, NarrowFeature) and source.is_direct:
            hits = source.gather(index, ends, out, self._near.view(np.uint16), self._slots, len(self._cache))
        elif self._near is not None and isinstance(source, HostFeature) and source.rows is not None:
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
        # One row each for hit slots, hit places, miss places: one copy to the device instead of three.
        where = staging((3, count), torch.int64, self.device)
        miss_ids = torch.empty(count, dtype=torch.int64)
        parts = where.numpy()
        hits = _gather.split(
            self._slots,
            len(self._cache),
            self.num_rows,
            index,
            parts[0],
            parts[1],
            miss_ids.numpy(),
            parts[2],
        )
        if hits < 0:
            raise_bad_id(index, -1 - hits, self.num_rows)
        by_part: Array = np.diff(np.searchsorted(parts[1, :hits], ends), prepend=0)
        if out.numel() == 0:
            return by_part
        misses = count - hits
        staged = staging((misses, *self.row_shape), self._fallback.dtype, self.device)
        there = where.to(self.device, non_blocking=True)
        words = word_view if self._fallback.dtype == self.dtype else _same
        target = words(out)
        # The hits are put together while the CPU gathers the misses.
        found = words(self._cache.rows).index_select(0, there[0, :hits])
        target.index_copy_(0, there[1, :hits], found.to(target.dtype))
        self._fallback.read(miss_ids[:misses], staged)
        missed = words(staged).to(self.device, non_blocking=True)
        target.index_copy_(0, there[2, :misses], missed.to(target.dtype))
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
