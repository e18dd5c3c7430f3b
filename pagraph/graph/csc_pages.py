"""Arrays of a CSC in mapped files: mapped once more for reads here and there, and asked for before they are touched."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..system.memory import address_on_disk
from ..system.paging import Pages
from .mapped import MappedFile

__all__ = ["CSCPages", "FilePages", "scattered"]

Array = Any  # a NumPy array; its element type is a matter of the kernels

LEAST_BYTES = 64 * 2**20
"""Smaller arrays stay as they are: the system's read-ahead has brought them in after a few batches."""

_ONE: Array = np.array([1], dtype=np.int64)


class FilePages:
    """The pages of one array in a mapped file.

    Args:
        array: 1-D, contiguous.
        file: The mapping that it lies in; None where it is somebody else's, whose file is not watched.
    """

    def __init__(self, array: Tensor, file: MappedFile | None) -> None:
        self.array, self.file = array, file
        told = file is None or file.tells_pages
        self.pages = Pages(array.data_ptr(), array.element_size(), array.element_size(), len(array), told=told)

    def need(self, starts: Array, lengths: Array = _ONE) -> None:
        """Begin to read runs of elements, in any order; FormatError where the file was changed."""
        if self.file is not None:
            self.file.check()
        if len(starts):
            self.pages.need(starts, lengths)


class CSCPages:
    """What batches say before they read a CSC whose arrays are on disk; None stands for an array in memory.

    Attributes:
        indptr: Pages of the offsets.
        indices: Pages of the source ids.
        edge_ids: Pages of the edge ids.
    """

    def __init__(self, indptr: FilePages | None, indices: FilePages | None, edge_ids: FilePages | None) -> None:
        self.indptr, self.indices, self.edge_ids = indptr, indices, edge_ids

    @property
    def files(self) -> list[FilePages]:
        """Those of the arrays on disk."""
        return [pages for pages in (self.indptr, self.indices, self.edge_ids) if pages is not None]

    def need_offsets(self, vertices: Array, length: int = 1) -> None:
        """The offsets of ``length`` rows from each of ``vertices`` on will be read, with the end of the last."""
        if self.indptr is not None:
            self.indptr.need(vertices, np.array([length + 1]))

    def need_edges(self, positions: Array) -> None:
        """The sources of the edges at ``positions`` will be read."""
        if self.indices is not None:
            self.indices.need(positions)

    def need_rows(self, starts: Array, lengths: Array) -> None:
        """All sources in some rows will be read."""
        if self.indices is not None:
            self.indices.need(starts, lengths)

    def need_ids(self, positions: Array) -> None:
        """The ids of the edges at ``positions`` will be read."""
        if self.edge_ids is not None:
            self.edge_ids.need(positions)


def scattered(
    indptr: Tensor, indices: Tensor, edge_ids: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, CSCPages] | None:
    """The same arrays for reads here and there, with their pages; None where no large one is on disk.

    Each fault of a mapping brings the system's read-ahead, some megabytes where a batch wants a page: good for passes
    in order, which keep the mapping that they have. Batches get one of their own.
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
    if known is None:  # mapped by the user, who may write to it: asked for where it is
        return array, FilePages(array, None)
    file = known.again()
    file.madvise(mmap.MADV_RANDOM)
    offset = array.data_ptr() - known.address
    values = np.frombuffer(file, array.numpy().dtype, len(array), offset)
    other = torch.from_numpy(values)
    return other, FilePages(other, file)
