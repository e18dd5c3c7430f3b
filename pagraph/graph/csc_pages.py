"""Arrays of a CSC in mapped files: mapped once more for scattered reads, and requested before
they are touched."""

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
"""Smaller arrays are read as they are: the system's read-ahead brings them in within a few
batches."""

# How long an answer of CSCPages.are_in_memory holds. A look takes some 100 us.
_LOOK_SECONDS = 0.05
_CALM = 16  # hops without a read, after which the pages of batches count as in memory
_LOOKS = 128  # pages of an array in a sample

_ONE: Array = np.array([1], dtype=np.int64)


class FilePages:
    """The pages of one array in a mapped file.

    Args:
        array: 1-D, contiguous.
        file: The mapping that it lies in; None if the user mapped it: its file is not watched.
    """

    def __init__(self, array: Tensor, file: MappedFile | None) -> None:
        self.array = array
        self.file = file
        told = file is None or file.tells_pages
        size = array.element_size()
        self.pages: Pages = Pages(array.data_ptr(), size, size, len(array), told=told)

    @property
    def is_in_memory(self) -> bool:
        """Whether all pages of a sample are in memory."""
        sample = np.linspace(0, len(self.array) - 1, _LOOKS).astype(np.int64)
        return self.pages.told and not self.pages.are_cold(sample)

    def need(self, starts: Array, lengths: Array = _ONE) -> int:
        """Begin to read runs of elements, in any order; returns the pages that were not in memory.

        FormatError where the file was changed.
        """
        if self.file is not None:
            self.file.check()
        return self.pages.need(starts, lengths) if len(starts) else 0


class CSCPages:
    """Announcements of reads of a CSC whose arrays are on disk; None stands for an array in memory.

    Attributes:
        indptr: Pages of the offsets.
        indices: Pages of the source ids.
        edge_ids: Pages of the edge ids.
    """

    def __init__(
        self, indptr: FilePages | None, indices: FilePages | None, edge_ids: FilePages | None
    ) -> None:
        self.indptr = indptr
        self.indices = indices
        self.edge_ids = edge_ids
        # Written by all threads without a lock: a lost count or look only comes a little later.
        self._looked = -_LOOK_SECONDS
        self._in_memory = False
        self._calm = 0  # hops since pages were last read from disk

    def are_in_memory(self) -> bool:
        """Whether all pages that batches read now are in memory, so that none need be asked for.

        That is so if all pages of a sample are, or if none had to be read for some hops. The answer
        is kept for a while: batches of 200 seeds with fan-out 10,5 took 2 ms where each hop looked
        again.
        """
        now = time.monotonic()
        if now - self._looked > _LOOK_SECONDS:
            self._in_memory = self._calm >= _CALM or all(pages.is_in_memory for pages in self.files)
            self._looked = now
            self._calm = 0
        return self._in_memory

    def _need(self, pages: FilePages | None, starts: Array, lengths: Array = _ONE) -> None:
        if pages is not None:
            self._calm = 0 if pages.need(starts, lengths) else self._calm + 1

    @property
    def files(self) -> list[FilePages]:
        """Those of the arrays on disk."""
        return [pages for pages in (self.indptr, self.indices, self.edge_ids) if pages is not None]

    def need_offsets(self, vertices: Array, length: int = 1) -> None:
        """The offsets of ``length`` rows from each of ``vertices`` on will be read, with the end of
        the last."""
        self._need(self.indptr, vertices, np.array([length + 1]))

    def need_edges(self, starts: Array, lengths: Array = _ONE) -> None:
        """The sources of runs of edges, of one each by default, will be read."""
        self._need(self.indices, starts, lengths)

    def need_ids(self, positions: Array) -> None:
        """The ids of the edges at ``positions`` will be read."""
        self._need(self.edge_ids, positions)


def scattered(
    indptr: Tensor, indices: Tensor, edge_ids: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, CSCPages] | None:
    """The same arrays for scattered reads, with their pages; None if no large array is on disk.

    Each page fault of a mapping brings the system's read-ahead, some megabytes where a batch wants
    a page. That suits passes in order, which keep the mapping that they have. Batches get another
    one, without read-ahead.
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
        # The user mapped it and may write to it; another mapping would not show that.
        return array, FilePages(array, None)
    file = known.again()
    file.madvise(mmap.MADV_RANDOM)
    offset = array.data_ptr() - known.address
    values = np.frombuffer(file, array.numpy().dtype, len(array), offset)
    other = torch.from_numpy(values)
    return other, FilePages(other, file)
