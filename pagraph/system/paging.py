"""Pages of mapped files, requested many at once so that the disk's queue is full."""

from __future__ import annotations

import mmap
from functools import cached_property
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
# Pages looked at to tell whether all are in memory. 128 give the share to about a tenth.
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
        all_known: Whether all pages count as in memory.
        kept: Shape ``(num_pages,)``, uint8: which pages are kept as private memory, and so always
            known; empty if none are. Replaced as a whole.
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
        self.all_known = False
        self.kept: Array = np.empty(0, dtype=np.uint8)

    @cached_property
    def known(self) -> Array:
        """Shape ``(num_pages,)``, int32: 1 for pages that are in memory as far as is known; see
        :meth:`forget`.

        Threads write it without a lock: a lost update only makes a page asked for once more.
        """
        return np.zeros(self.num_pages, dtype=np.int32)

    @property
    def known_at(self) -> int:
        """Address of :attr:`known`; 0 while all pages count as in memory."""
        return 0 if self.all_known else self._known_at

    @cached_property
    def _known_at(self) -> int:
        return int(self.known.ctypes.data)

    @property
    def num_kept(self) -> int:
        """Number of pages that are kept as private memory."""
        return int(self.kept.sum())

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

    def forget(self) -> None:
        """Have pages looked for again, as the system may have dropped them; unless a sample of all
        is in memory."""
        sample = np.linspace(0, self.num_pages - 1, _SAMPLES).astype(np.int64)
        kept = self.kept
        self.known[:] = kept if len(kept) else 0
        self.all_known = self.told and not self._any_cold(sample[self.known[sample] == 0])

    def _any_cold(self, pages: Array) -> bool:
        from . import _paging

        state = np.zeros(1, dtype=np.uint8)
        return bool(_paging.any_cold(self._address, mmap.PAGESIZE, pages, _SAMPLES, state))

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

    def need(self, starts: Array, lengths: Array) -> int:
        """Request the pages of runs of contiguous rows that are not known to be in memory, unless a
        sample of these is.

        Pages in memory are not requested, so that those kept as private memory are not read again.

        Args:
            starts: First row of each run, in any order, shape ``(n,)``.
            lengths: Rows of each run, shape ``(n,)``, or ``(1,)`` if all are equally long.

        Returns:
            Number of pages requested.
        """
        from . import _paging

        if self.all_known:
            return 0
        pages = np.empty(_paging.count_pages(*self._place, starts, lengths), dtype=np.int64)
        count = _paging.list_unknown(*self._place, starts, lengths, self.known, pages)
        pages = pages[:count]
        if self.told and not self._any_cold(pages):
            return 0
        pages.sort()
        if self.told:
            state = np.zeros(1, dtype=np.uint8)
            count = _paging.keep_cold(self._address, mmap.PAGESIZE, pages, state)
        self.ask_pages(pages[:count])
        return int(count)

    def ask_pages(self, pages: Array) -> None:
        """Request ascending pages, numbered from the page of row 0 on; asynchronous."""
        from . import _paging

        first = self._address // mmap.PAGESIZE * mmap.PAGESIZE
        _paging.ask(
            first, mmap.PAGESIZE, mmap.PAGESIZE, self.num_pages, mmap.PAGESIZE, 0, _MOST, pages
        )
