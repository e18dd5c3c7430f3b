"""Rows of memory-mapped files."""

from __future__ import annotations

import mmap
import threading
import weakref

import numpy as np
import torch

from ..graph.field_value import FieldValue, stored_tensor
from ..system.memory import address_on_disk
from ..system.paging import GAP, GAP_IN_ORDER, Pages
from .feature import Array, HostFeature

__all__ = ["DiskFeature", "on_disk"]

# A storage is never moved from memory to disk, so one look is enough; the entry dies with the storage.
_known: weakref.WeakKeyDictionary[torch.UntypedStorage, bool] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def on_disk(values: FieldValue) -> bool:
    """Whether the memory of a CPU tensor, or of the one that rows are read from, is a mapped file (``numpy.memmap``).

    Files in memory (``/dev/shm``, any tmpfs, memfd) do not count. False where the system does not tell.
    """
    tensor = stored_tensor(values)
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
        gap = GAP_IN_ORDER if _csc.is_sorted(ids) else GAP
        misses = np.empty(len(ids), dtype=ids.dtype)
        misses = misses[: _gather.find_misses(*asked, misses)]
        if self.table is not None:
            misses = self.table[misses[(misses >= 0) & (misses < self.num_rows)]]
        Pages(base, stride, self.row_bytes, limit).ask(np.sort(misses), gap=gap)
