"""Pages of mapped files: many are asked for at once, so that the disk works on all of them at the same time."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from torch import Tensor

from .memory import address_on_disk

__all__ = ["Pages"]

Array = Any  # a NumPy array; its element type is a matter of the kernels

# Measured on a virtual disk (88 000 random 4 KiB reads/s, 1.2 GB/s in order) with random rows of 1 KiB from a
# cold 1 GiB file. 100 000 rows, gap of 0, 1, 2, 4, 8 pages: 0.84, 0.75, 0.70, 0.70, 0.72 s and 408, 473, 566,
# 729, 886 MB; 30 000 rows: 0.32, 0.31, 0.30, 0.31, 0.33 s. Several threads asking at once were no faster. The
# system cuts requests at its readahead limit, usually 32 pages.
GAP = 2
# Rows asked for in order are a bulk read, as when a cache is filled: the pages between cost no time, and are those
# that the cache will miss (epoch of 20 batches from a cold file: 2.3 s, with the small gap 3.5 s).
GAP_IN_ORDER = 8
_MOST = 32
_SAMPLES = 128


class Pages:
    """The pages behind the rows of an array in a mapped file.

    Args:
        address: Where row 0 begins.
        stride: Bytes from one row to the next.
        row_bytes: Bytes of a row.
        num_rows: Number of rows; others are skipped where rows are named.
    """

    def __init__(self, address: int, stride: int, row_bytes: int, num_rows: int) -> None:
        self._place = address, stride, row_bytes, num_rows

    @classmethod
    def of(cls, tensor: Tensor) -> Pages | None:
        """The pages of a 1-D or contiguous CPU tensor in a mapped file; None for one in memory."""
        if tensor.numel() == 0 or tensor.device.type != "cpu" or not address_on_disk(tensor.data_ptr()):
            return None
        stride = tensor.stride(0) * tensor.element_size()
        return cls(tensor.data_ptr(), stride, tensor[0].nbytes, len(tensor))

    def are_cold(self, rows: Array) -> bool:
        """Whether any of a sample of the rows is not in memory."""
        from . import _paging

        address, stride, _, num_rows = self._place
        state = np.zeros(1, dtype=np.uint8)
        return bool(_paging.count_cold_rows(address, stride, num_rows, mmap.PAGESIZE, rows, _SAMPLES, state))

    def ask(self, rows: Array, *, gap: int = GAP) -> None:
        """Begin to read the pages of ascending rows, with gaps of at most ``gap`` pages; returns at once."""
        from . import _paging

        _paging.ask(*self._place, mmap.PAGESIZE, gap, _MOST, rows)
