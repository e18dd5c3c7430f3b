"""Pages of mapped files: many are asked for at once, so that the disk works on all of them at the
same time."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from torch import Tensor

from .memory import address_on_disk

Array = Any  # a NumPy array; its element type is a matter of the kernels

# Measured on a virtual disk (88 000 random 4 KiB reads/s, 1.2 GB/s in order) with random rows of 1
# KiB from a cold 1 GiB file. 100 000 rows, gap of 0, 1, 2, 4, 8 pages: 0.84, 0.75, 0.70, 0.70, 0.72
# s and 408, 473, 566, 729, 886 MB; 30 000 rows: 0.32, 0.31, 0.30, 0.31, 0.33 s. Several threads
# asking at once were no faster. The system cuts requests at its readahead limit, usually 32 pages.
GAP = 2
# Rows asked for in order are a bulk read, as when a cache is filled: the pages between cost no
# time, and are those that the cache will miss (epoch of 20 batches from a cold file: 2.3 s, with
# the small gap 3.5 s).
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
        told: The system tells which pages are in memory; of files that this user may not write it
            does not, and calls all of them so.

    Attributes:
        held: Shape ``(num_pages,)``, uint8: pages that are kept in memory of our own, which are
            never asked for; empty where there are none.
    """

    def __init__(
        self, address: int, stride: int, row_bytes: int, num_rows: int, *, told: bool = True
    ) -> None:
        self._place = address, stride, row_bytes, num_rows
        self.told = told
        self.held: Array = np.empty(0, dtype=np.uint8)

    @property
    def num_pages(self) -> int:
        """Pages from the first row to the last."""
        address, stride, row_bytes, num_rows = self._place
        last = address + (num_rows - 1) * stride + row_bytes - 1
        return int(last // mmap.PAGESIZE - address // mmap.PAGESIZE + 1)

    @classmethod
    def of(cls, tensor: Tensor) -> Pages | None:
        """The pages of a 1-D or contiguous CPU tensor in a mapped file; None for one in memory."""
        if (
            tensor.numel() == 0
            or tensor.device.type != "cpu"
            or not address_on_disk(tensor.data_ptr())
        ):
            return None
        stride = tensor.stride(0) * tensor.element_size()
        return cls(tensor.data_ptr(), stride, tensor[0].nbytes, len(tensor))

    def are_cold(self, rows: Array) -> bool:
        """Whether any of a sample of the rows is not in memory, or may not be."""
        from . import _paging

        address, stride, _, num_rows = self._place
        place = (address, stride, num_rows, mmap.PAGESIZE)
        state = np.zeros(1, dtype=np.uint8)
        return bool(_paging.count_cold_runs(*place, rows, self.told, self.held, _SAMPLES, state))

    def ask(self, rows: Array, *, gap: int = GAP) -> None:
        """Begin to read the pages of ascending rows, with gaps of at most ``gap`` pages; returns at
        once."""
        from . import _paging

        _paging.ask(*self._place, mmap.PAGESIZE, gap, _MOST, rows)

    def need(self, starts: Array, lengths: Array, *, gap: int = 0) -> int:
        """Begin to read the pages of runs of rows, in any order, unless a sample of the runs is in
        memory.

        Pages in memory are not asked for, so that those that are kept by us are not read again.

        Args:
            starts: First row of each run, shape ``(n,)``.
            lengths: Rows of each run, shape ``(n,)``, or ``(1,)`` where all are as long. Rows lie
                behind each other.
            gap: Pages that are read along between two that are asked for.

        Returns:
            Number of pages asked for.
        """
        from . import _paging

        address, stride, _, num_rows = self._place
        place = (address, stride, num_rows, mmap.PAGESIZE)
        state = np.zeros(1, dtype=np.uint8)
        if not self.are_cold(starts):
            return 0
        pages = np.empty(_paging.count_pages(*place, starts, lengths), dtype=np.int64)
        _paging.list_pages(*place, starts, lengths, pages)
        pages.sort()
        cold = pages[
            : _paging.keep_cold(address, mmap.PAGESIZE, pages, self.told, self.held, state)
        ]
        self.ask_pages(cold, gap=gap)
        return len(cold)

    def ask_pages(self, pages: Array, *, gap: int = 0) -> None:
        """Begin to read ascending pages, by their number from the page of row 0 on; returns at
        once."""
        from . import _paging

        first = self._place[0] // mmap.PAGESIZE * mmap.PAGESIZE
        _paging.ask(
            first, mmap.PAGESIZE, mmap.PAGESIZE, self.num_pages, mmap.PAGESIZE, gap, _MOST, pages
        )
