"""Pages of mapped files, requested many at once so that the disk's queue is full."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from torch import Tensor

from .memory import address_on_disk

Array = Any  # a NumPy array; its element type is a matter of the kernels

# Pages between two requested ones that one request may read along. Measured on a virtual disk
# (88,000 random reads/s of 4 KiB, 1.2 GB/s sequential) with random rows of 1 KiB from a cold file
# of 1 GiB. 100,000 rows with a gap of 0, 1, 2, 4, 8 pages took 0.84, 0.75, 0.70, 0.70, 0.72 s and
# read 408, 473, 566, 729, 886 MB. 30,000 rows took 0.32, 0.31, 0.30, 0.31, 0.33 s. Requests from
# several threads were no faster.
GAP = 2
# The gap of bulk reads, as when a cache is filled. The pages between cost no time, and hold the
# rows that the cache will miss: an epoch of 20 batches from a cold file took 2.3 s, 3.5 s with GAP.
GAP_IN_ORDER = 8
# Pages that one request may span: 128 KiB, the usual limit of the system's read-ahead.
_MOST = 32
# Rows looked at to tell whether a file is in memory. 128 give the share to about a tenth.
_SAMPLES = 128


class Pages:
    """The pages behind the rows of an array in a mapped file.

    Args:
        address: Where row 0 begins.
        stride: Bytes from one row to the next.
        row_bytes: Bytes of a row.
        num_rows: Number of rows; row numbers outside are skipped.
        told: Whether the system says which pages are in memory. For files that this user may not
            write, it reports every page as in memory.

    Attributes:
        held: Shape ``(num_pages,)``, uint8: which pages are kept as private memory and so never
            requested; empty if none are.
    """

    def __init__(
        self, address: int, stride: int, row_bytes: int, num_rows: int, *, told: bool = True
    ) -> None:
        self._address = address
        self._stride = stride
        self._row_bytes = row_bytes
        self._num_rows = num_rows
        # As kernels of single pages take it.
        self._place = (address, stride, num_rows, mmap.PAGESIZE)
        self.told = told
        self.held: Array = np.empty(0, dtype=np.uint8)

    @property
    def num_pages(self) -> int:
        """Pages from the first row to the last."""
        last = self._address + (self._num_rows - 1) * self._stride + self._row_bytes - 1
        return int(last // mmap.PAGESIZE - self._address // mmap.PAGESIZE + 1)

    @classmethod
    def of(cls, tensor: Tensor) -> Pages | None:
        """The pages of a 1-D or contiguous CPU tensor in a mapped file; None for one in memory."""
        if tensor.numel() == 0 or tensor.device.type != "cpu":
            return None
        if not address_on_disk(tensor.data_ptr()):
            return None
        stride = tensor.stride(0) * tensor.element_size()
        return cls(tensor.data_ptr(), stride, tensor[0].nbytes, len(tensor))

    def are_cold(self, rows: Array) -> bool:
        """Whether any of a sample of the rows is, or may be, not in memory."""
        from . import _paging

        state = np.zeros(1, dtype=np.uint8)
        runs = _paging.count_cold_runs(*self._place, rows, self.told, self.held, _SAMPLES, state)
        return bool(runs)

    def ask(self, rows: Array, *, gap: int = GAP) -> None:
        """Request the pages of ascending rows, with gaps of at most ``gap`` pages; asynchronous."""
        from . import _paging

        _paging.ask(
            self._address,
            self._stride,
            self._row_bytes,
            self._num_rows,
            mmap.PAGESIZE,
            gap,
            _MOST,
            rows,
        )

    def need(self, starts: Array, lengths: Array, *, gap: int = 0) -> int:
        """Request the pages of runs of contiguous rows, unless a sample of the runs is in memory.

        Pages in memory are not requested, so that those kept as private memory are not read again.

        Args:
            starts: First row of each run, in any order, shape ``(n,)``.
            lengths: Rows of each run, shape ``(n,)``, or ``(1,)`` if all are equally long.
            gap: Pages between two requested ones that may be read along.

        Returns:
            Number of pages requested.
        """
        from . import _paging

        if not self.are_cold(starts):
            return 0
        pages = np.empty(_paging.count_pages(*self._place, starts, lengths), dtype=np.int64)
        _paging.list_pages(*self._place, starts, lengths, pages)
        pages.sort()
        state = np.zeros(1, dtype=np.uint8)
        num_cold = _paging.keep_cold(
            self._address, mmap.PAGESIZE, pages, self.told, self.held, state
        )
        self.ask_pages(pages[:num_cold], gap=gap)
        return int(num_cold)

    def ask_pages(self, pages: Array, *, gap: int = 0) -> None:
        """Request ascending pages, numbered from the page of row 0 on; asynchronous."""
        from . import _paging

        first = self._address // mmap.PAGESIZE * mmap.PAGESIZE
        _paging.ask(
            first, mmap.PAGESIZE, mmap.PAGESIZE, self.num_pages, mmap.PAGESIZE, gap, _MOST, pages
        )
