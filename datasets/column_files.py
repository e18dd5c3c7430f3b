"""Appendable columns of numbers, in memory or in temporary files, read by position or mapped."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..graph.mapped import MappedFile, map_npy
from ..system.arrays import Array
from .native import WORK_SUFFIX, npy_header

Column = Array

# Room for the header of an ``.npy`` file of any 1-D array. It has the length, so it is written
# last.
_HEADER_BYTES = 128
# Numbers per block when a column changes its dtype: 8 MiB.
_COPY_ITEMS = 2**20
# Numbers that are scattered at once: 80 MiB.
_PLACED_ROWS = 2**22


class MemoryColumn:
    """A column in memory, with the interface of :class:`ColumnFile`."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._values: Column = np.empty(0, dtype=dtype)

    def __len__(self) -> int:
        return len(self._values)

    @classmethod
    def of(cls, values: Column) -> MemoryColumn:
        """A read-only column of existing numbers."""
        column = cls(values.dtype)
        column._values = values
        return column

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the numbers."""
        return self._values.dtype

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self._values.nbytes

    def append(self, values: Column) -> None:
        """Append numbers."""
        self._values = extended(self._values, values)

    def place(self, count: int, found: Iterable[Sequence[Column]]) -> None:
        """Replace the column by ``count`` numbers, from unordered blocks of places and numbers."""
        self._values = np.empty(count, dtype=self.dtype)
        for places, numbers in found:
            self._values[places] = numbers

    def flush(self) -> None:
        """Do nothing: numbers in memory can be read."""

    def read(self, begin: int, end: int) -> Column:
        """The numbers from ``begin`` to ``end``, which the next :meth:`append` may move."""
        return self._values[begin:end]

    def cast(self, dtype: npt.DTypeLike) -> None:
        """Store the numbers in another dtype."""
        self._values = self._values.astype(dtype, copy=False)

    def mapped(self) -> Tensor:
        """Take the numbers as a tensor."""
        return torch.from_numpy(self._values)

    def remove(self) -> None:
        """Do nothing: there is no file."""


def extended(values: Column, more: Column) -> Column:
    """Append in place: large memory is remapped rather than copied, so the peak stays low."""
    if (
        values.dtype == np.int32
        and len(more)
        and not (more.min() >= -(2**31) and more.max() < 2**31)
    ):
        # Happens once: the column stays wide.
        values = values.astype(np.int64)
    begin = len(values)
    # No check of references, which would count the caller's; there are no views.
    values.resize(begin + len(more), refcheck=False)
    values[begin:] = more
    return values


class Scratch:
    """Column files in a folder, closed and deleted when the ``with`` block ends.

    Args:
        folder: For the files. Its creator removes it if the process is killed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._columns: list[ColumnFile] = []

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *error: object) -> None:
        for column in self._columns:
            column._delete()

    def column(self, dtype: npt.DTypeLike) -> ColumnFile:
        """An empty column."""
        column = ColumnFile(self.folder / f"{len(self._columns)}{WORK_SUFFIX}", dtype, self)
        self._columns.append(column)
        return column


class ColumnFile:
    """A column in a file, for data larger than memory. Made by :class:`Scratch`.

    int32 becomes int64 with the first number that needs it, by one copy.
    """

    def __init__(self, path: Path, dtype: npt.DTypeLike, scratch: Scratch) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        self._scratch = scratch
        self._count = 0
        self._is_mapped = False
        self._file = open(self.path, "xb")  # noqa: SIM115 (closed by remove)
        self._file.write(bytes(_HEADER_BYTES))

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes in memory: none."""
        return 0

    def append(self, values: Column) -> None:
        """Append numbers."""
        # Numbers of a wider dtype may still fit; checking is cheaper than a wider file.
        wider = len(values) > 0 and self.dtype == np.int32 != values.dtype
        if wider and not (values.min() >= -(2**31) and values.max() < 2**31):
            self.cast(np.int64)
        self._file.write(np.ascontiguousarray(values, dtype=self.dtype).data)
        self._count += len(values)

    def place(self, count: int, found: Iterable[Sequence[Column]]) -> None:
        """Fill an empty column with ``count`` numbers, from blocks of places and numbers.

        Blocks come in any order.
        """
        # First into a file per range of places: random writes to a file larger than memory would
        # take most of the time.
        files = [self._scratch.column(np.int32) for _ in range(0, count, _PLACED_ROWS)]
        for places, numbers in found:
            part = (places // _PLACED_ROWS).astype(np.int16)
            order = np.argsort(part, kind="stable")
            rows = np.stack([places, numbers], axis=1)[order]
            bounds = np.searchsorted(part[order], np.arange(len(files) + 1))
            for file, begin, end in zip(files, bounds, bounds[1:], strict=False):
                file.append(rows[begin:end].reshape(-1))
        for file in files:
            file.flush()
            rows = file.read(0, len(file)).reshape(-1, 2)
            values = np.empty(len(rows), dtype=rows.dtype)
            values[rows[:, 0] % _PLACED_ROWS] = rows[:, 1]
            self.append(values)
            file.remove()

    def flush(self) -> None:
        """Make appended numbers visible to :meth:`read`."""
        self._file.flush()

    def close(self) -> None:
        """End appending: not all files could be open at once."""
        self._file.close()

    def read(self, begin: int, end: int) -> Column:
        """A copy of the flushed numbers from ``begin`` to ``end``. Thread-safe."""
        # By path: threads would share the open file's position.
        offset = _HEADER_BYTES + begin * self.dtype.itemsize
        values = np.fromfile(self.path, self.dtype, end - begin, offset=offset)
        # `fromfile` silently returns fewer numbers.
        if len(values) != end - begin:
            raise OSError(
                f"{self.path} must hold {end} numbers, it was shortened to {begin + len(values)}"
            )
        return values

    def cast(self, dtype: npt.DTypeLike) -> None:
        """Store the numbers in another dtype, which must hold all of them."""
        if np.dtype(dtype) == self.dtype:
            return
        self.flush()
        other = self._scratch.column(dtype)
        for begin in range(0, self._count, _COPY_ITEMS):
            other.append(self.read(begin, min(begin + _COPY_ITEMS, self._count)))
        self._file.close()
        # The open file follows the rename.
        os.replace(other.path, self.path)
        self._file = other._file
        self.dtype = other.dtype

    def mapped(self) -> Tensor:
        """Map the file as a tensor; unless moved, the file is deleted with the tensor."""
        self.flush()
        self._file.seek(0)
        header = npy_header(self.dtype, (self._count,))
        assert len(header) == _HEADER_BYTES
        self._file.write(header)
        self._file.flush()
        if not self._count:  # an empty file cannot be mapped
            self.remove()
            return torch.from_numpy(np.empty(0, dtype=self.dtype))
        self._file.close()
        tensor = map_npy(self.path)
        mapping = MappedFile.of(tensor)
        assert mapping is not None
        mapping.is_read_once = True
        # Not at exit: the scratch has deleted it by then.
        weakref.finalize(mapping, self._delete).atexit = False
        self._is_mapped = True
        return tensor

    def remove(self) -> None:
        """Close and delete the file; a mapped one is deleted with its tensor."""
        if not self._is_mapped:
            self._delete()

    def _delete(self) -> None:
        with contextlib.suppress(OSError):  # disk full: unwritten data is not needed
            self._file.close()
        self.path.unlink(missing_ok=True)


Store = MemoryColumn | ColumnFile


def new_column(scratch: Scratch | None, dtype: npt.DTypeLike) -> Store:
    """An empty column in a file, or in memory without ``scratch``."""
    return MemoryColumn(dtype) if scratch is None else scratch.column(dtype)
