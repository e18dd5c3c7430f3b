"""RowWindow: rows on disk that a group of batches needs and no cache holds, each read once, in the
file's order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..graph.indexed_rows import IndexedRows
from ..sampling.hop import VertexTable
from ..system.buffers import BufferPool
from .disk import DiskFeature
from .feature import Array, Feature, HostFeature, byte_view, id_array
from .store import FeatureCache, GrowingCache

__all__ = ["RowWindow"]

_NO_SLOTS: Array = np.empty(0, dtype=np.int32)


class RowWindow:
    """The rows of one field that the batches of a group miss.

    Rows are added by id while batches are sampled ahead, and loaded together. Where the file fits
    into memory the system is asked for all their pages instead, and every row is read from the
    mapping (``holds_rows=False``).

    Args:
        source: The field's rows; :meth:`load` reads them.
        holds_rows: Copy rows into memory of its own.
    """

    def __init__(self, source: DiskFeature, *, holds_rows: bool) -> None:
        self._source = source
        self._holds_rows = holds_rows
        self._table = VertexTable()
        self._table.reset(None, source.num_rows, np.int64)
        self._rows: Tensor | None = None

    def __len__(self) -> int:
        return self._table.count

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return len(self) * self._source.row_bytes

    def add(self, ids: Tensor, cache: FeatureCache | None) -> None:
        """Add rows that a batch needs, but for those that are cached, are there already or do not
        exist."""
        from . import _gather

        index = id_array(ids)
        slots, count = (_NO_SLOTS, 0) if cache is None else (cache.slots.numpy(), len(cache))
        misses = np.empty(len(index), dtype=np.int64)
        misses = misses[: _gather.find_misses(slots, count, index, misses)]
        misses = misses[(misses >= 0) & (misses < self._source.num_rows)]
        self._table.relabel(misses, np.empty(len(misses), dtype=np.int64))

    def load(self, earlier: RowWindow | None, pool: BufferPool) -> int:
        """Get the rows: from an earlier window of the same values where it has them, else from the
        disk.

        Returns:
            Number of rows that were read.
        """
        from . import _gather

        source, nodes = self._source, self._table.nodes
        if not self._holds_rows:
            if len(nodes):
                source.announce(nodes)
            return len(nodes)
        out = pool.take((max(1, len(nodes)), *source.row_shape), source.dtype)
        rows, missing = byte_view(out), np.arange(len(nodes))
        if earlier is not None and earlier._rows is not None:
            old = byte_view(earlier._rows)
            missing = missing[
                : _gather.keep(nodes, *earlier._table.lookup, old, source.row_bytes, rows, missing)
            ]
        source.read_into(nodes[missing], missing, rows)
        self._rows = out
        return len(missing)

    def feed(self, cache: GrowingCache, stored: Callable[[HostFeature], Feature]) -> None:
        """Give a cache the rows that it wants and that are here; ``stored`` are a feature's rows as
        it keeps them."""
        nodes = self._table.nodes
        wanted = cache.wanted(nodes)
        if len(wanted):
            rows = self._source if self._rows is None else HostFeature(self._rows)
            places = nodes[wanted] if self._rows is None else wanted
            cache.absorb(nodes[wanted], stored(rows).read(torch.from_numpy(places)))

    def read(
        self, ids: Tensor, cache: FeatureCache | None
    ) -> tuple[HostFeature, FeatureCache | None] | None:
        """The rows of ``ids`` as a feature of ``len(ids)`` rows, and the cache of some of them;
        None: one is absent.

        Row ``i`` of the feature is that of ``ids[i]``; it is valid while the window is.
        """
        from . import _gather

        if self._rows is None:
            return None
        index = id_array(ids)
        slots, count = (_NO_SLOTS, 0) if cache is None else (cache.slots.numpy(), len(cache))
        local_slots, places = (
            np.empty(len(index), dtype=np.int32),
            np.empty(len(index), dtype=np.int64),
        )
        if _gather.locate(index, slots, count, *self._table.lookup, local_slots, places):
            return None
        feature = HostFeature(IndexedRows(self._rows, torch.from_numpy(places)))
        return feature, None if cache is None else FeatureCache(
            cache.rows, torch.from_numpy(local_slots)
        )
