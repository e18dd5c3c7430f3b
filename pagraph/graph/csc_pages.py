"""Arrays of a CSC in mapped files, mapped again for random access and requested ahead of reads."""

from __future__ import annotations

import mmap
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..system.memory import address_on_disk
from ..system.paging import Pages
from .mapped import MappedFile

Array = Any  # a NumPy array; its element type is a matter of the kernels

LEAST_BYTES = 64 * 2**20
"""Smaller arrays keep their mapping: the system's read-ahead loads them within a few batches."""

# Pages count as in memory for so long after they were asked for. A look takes about 200 us.
_TRUST_SECONDS = 1.0
# The same for files of which the system does not tell, whose pages are then all asked for again.
_TRUST_UNTOLD_SECONDS = 10.0
_CALM = 16  # after so many calls that asked for nothing, all pages count as in memory

_ONE: Array = np.array([1], dtype=np.int64)


class FilePages:
    """The pages of one array in a mapped file.

    Args:
        array: 1-D, contiguous.
        file: The mapping that it lies in. None if the user mapped it: then changes of the file are
            not noticed.
    """

    def __init__(self, array: Tensor, file: MappedFile | None) -> None:
        self.array = array
        self.file = file
        told = file is None or file.tells_pages
        size = array.element_size()
        self.pages: Pages = Pages(array.data_ptr(), size, size, len(array), told=told)

    def need(self, starts: Array, lengths: Array = _ONE) -> int:
        """Begin to read runs of elements, in any order; returns the pages that were not in memory.

        FormatError where the file was changed.
        """
        if self.file is not None:
            self.file.check()
        return self.pages.need(starts, lengths) if len(starts) else 0


class CSCPages:
    """Requests the pages of a CSC on disk before batches read them.

    Attributes:
        indptr: Pages of the offsets; None if they are in memory.
        indices: Pages of the source ids, or None.
        edge_ids: Pages of the edge ids, or None.
    """

    def __init__(
        self, indptr: FilePages | None, indices: FilePages | None, edge_ids: FilePages | None
    ) -> None:
        self.indptr = indptr
        self.indices = indices
        self.edge_ids = edge_ids
        # All threads write these without a lock. A lost update only delays the next look.
        told = all(file.pages.told for file in self.files)
        self._trust = _TRUST_SECONDS if told else _TRUST_UNTOLD_SECONDS
        self._looked = -self._trust
        self._calm = 0  # calls since pages were last asked for

    @property
    def known_at(self) -> tuple[int, int, int]:
        """``Pages.known_at`` of each array, 0 for those in memory."""
        offsets, edges, ids = (
            0 if file is None else file.pages.known_at
            for file in (self.indptr, self.indices, self.edge_ids)
        )
        return offsets, edges, ids

    def look(self) -> None:
        """Look again at times which pages are in memory; called before each batch."""
        now = time.monotonic()
        if now - self._looked > self._trust:
            self._looked = now
            self._calm = 0
            for pages in self.files:
                pages.pages.forget()

    def _need(self, pages: FilePages | None, starts: Array, lengths: Array = _ONE) -> None:
        if pages is None:
            return
        self._calm = 0 if pages.need(starts, lengths) else self._calm + 1
        if self._calm >= _CALM:
            for file in self.files:
                file.pages.all_known = True

    @property
    def files(self) -> list[FilePages]:
        """The pages of each array on disk."""
        return [pages for pages in (self.indptr, self.indices, self.edge_ids) if pages is not None]

    def need_offsets(self, vertices: Array, length: int = 1) -> None:
        """Request the offsets of ``length`` rows from each of ``vertices`` on."""
        # One more offset ends the last row.
        self._need(self.indptr, vertices, np.array([length + 1]))

    def need_edges(self, starts: Array, lengths: Array = _ONE) -> None:
        """Request the sources of runs of edges; each run is one edge by default."""
        self._need(self.indices, starts, lengths)

    def need_ids(self, positions: Array) -> None:
        """Request the ids of the edges at ``positions``."""
        self._need(self.edge_ids, positions)


def scattered(
    indptr: Tensor, indices: Tensor, edge_ids: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, CSCPages] | None:
    """The arrays mapped again for random access, with their pages; None if none is large and on
    disk.

    A page fault triggers the system's read-ahead: megabytes where a batch wants one page. That
    suits sequential passes, which keep the first mapping. Batches get one without read-ahead.
    """
    arrays = [_mapped_again(array) for array in (indptr, indices, edge_ids)]
    files = [pages for _, pages in arrays]
    if not any(files):
        return None
    (own_indptr, _), (own_indices, _), (own_ids, _) = arrays
    assert own_indptr is not None and own_indices is not None
    return own_indptr, own_indices, own_ids, CSCPages(*files)


def _mapped_again(array: Tensor | None) -> tuple[Tensor | None, FilePages | None]:
    if (
        array is None
        or array.nbytes < LEAST_BYTES
        or not array.is_contiguous()
        or not address_on_disk(array.data_ptr())
    ):
        return array, None
    known = MappedFile.of(array)
    if known is None:
        # The user mapped it and may write to it: a second mapping would not show the writes.
        return array, FilePages(array, None)
    file = known.again()
    file.madvise(mmap.MADV_RANDOM)
    offset = array.data_ptr() - known.address
    values = np.frombuffer(file, array.numpy().dtype, len(array), offset)
    other = torch.from_numpy(values)
    return other, FilePages(other, file)
