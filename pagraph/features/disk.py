"""Rows of memory-mapped files."""

from __future__ import annotations

import mmap
import threading
import weakref

import numpy as np
import torch

from ..graph.indexed_rows import FieldValue, IndexedRows
from ..system.memory import address_on_disk
from .feature import Array, HostFeature

__all__ = ["DiskFeature", "on_disk"]

# A storage is never moved from memory to disk, so one look is enough; the entry dies with the storage.
_known: weakref.WeakKeyDictionary[torch.UntypedStorage, bool] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def on_disk(values: FieldValue) -> bool:
    """Whether the memory of a CPU tensor, or of the source of ``IndexedRows``, is a mapped file (``numpy.memmap``).

    Files in memory (``/dev/shm``, any tmpfs, memfd) do not count. False where the system does not tell.
    """
    tensor = values.source if isinstance(values, IndexedRows) else values
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.numel() == 0:
        return False
    storage = tensor.untyped_storage()
    with _lock:
        known = _known.get(storage)
    if known is None:
        known = address_on_disk(tensor.data_ptr())
        with _lock:
            _known[storage] = known
    return known


# Measured on a virtual disk (88 000 random 4 KiB reads/s, 1.2 GB/s in order) with random rows of 1 KiB from a
# cold 1 GiB file. 100 000 rows, gap of 0, 1, 2, 4, 8 pages: 0.84, 0.75, 0.70, 0.70, 0.72 s and 408, 473, 566,
# 729, 886 MB; 30 000 rows: 0.32, 0.31, 0.30, 0.31, 0.33 s. Several threads asking at once were no faster. The
# system cuts requests at its readahead limit, usually 32 pages.
_GAP = 2
# Rows asked for in order are a bulk read, as when a cache is filled: the pages between cost no time, and are those
# that the cache will miss (epoch of 20 batches from a cold file: 2.3 s, with the small gap 3.5 s).
_GAP_IN_ORDER = 8
_MOST = 32
_SAMPLES = 128
_NO_SLOTS: Array = np.empty(0, dtype=np.int32)


class DiskFeature(HostFeature):
    """Rows of a mapped file: all pages of a read are requested at once, so that the disk works in parallel.

    Otherwise a gather waits for one page at a time, or for the megabytes around it that the system guesses at. When a
    sample of the rows is in memory already, nothing is requested.
    """

    tier = "disk"
    announces = True

    def announce(self, ids: Array, slots: Array | None = None, num_cached: int = 0) -> None:
        """Ask the system to read the pages of ``ids`` that a cache does not hold."""
        from ..graph import _csc
        from . import _gather

        if self.rows is None or len(ids) == 0 or self.num_rows == 0:
            return
        state = np.zeros(1, dtype=np.uint8)
        asked = (_NO_SLOTS if slots is None else slots, num_cached, ids)
        base, stride, limit = self.rows.ctypes.data, self.stride_bytes, self.source_rows
        if not _gather.count_cold(base, stride, limit, self.table, mmap.PAGESIZE, *asked, _SAMPLES, state):
            return
        gap = _GAP_IN_ORDER if _csc.is_sorted(ids) else _GAP
        misses = np.empty(len(ids), dtype=ids.dtype)
        misses = misses[: _gather.find_misses(*asked, misses)]
        if self.table is not None:
            misses = self.table[misses[(misses >= 0) & (misses < self.num_rows)]]
        _gather.announce(base, stride, self.row_bytes, limit, mmap.PAGESIZE, gap, _MOST, np.sort(misses))
