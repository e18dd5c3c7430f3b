"""Columns of numbers that are appended to, read by position and mapped: in memory, or in unnamed
files."""

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

# Room for the header of an ``.npy`` file, which every 1-D array has in these bytes. It is written
# last, as it says the length.
_HEADER_BYTES = 128
# Numbers at a time when a column changes its dtype: 8 MiB.
_COPY_ITEMS = 2**20
# Numbers that are put to their places at once: 80 MiB.
_PLACED_ROWS = 2**22


class MemoryColumn:
    """A column in memory, with the interface of :class:`ColumnFile`."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._values: Column = np.empty(0, dtype=dtype)

    def __len__(self) -> int:
        return len(self._values)

    @classmethod
    def of(cls, values: Column) -> MemoryColumn:
        """A column of numbers that are there already, and only read."""
        column = cls(values.dtype)
        column._values = values
        return column

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the numbers."""
        return self._values.dtype

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self._values.nbytes

    def append(self, values: Column) -> None:
        """Put numbers behind the others."""
        self._values = extended(self._values, values)

    def place(self, count: int, found: Iterable[Sequence[Column]]) -> None:
        """Hold ``count`` numbers in place of all others: some places and their numbers at a time,
        in any order."""
        self._values = np.empty(count, dtype=self.dtype)
        for places, numbers in found:
            self._values[places] = numbers

    def flush(self) -> None:
        """Do nothing: all can be read."""

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
        """Do nothing: no file is left."""


def extended(values: Column, more: Column) -> Column:
    """Append in place: large memory is remapped and not copied, so that it is never needed
    twice."""
    if (
        values.dtype == np.int32
        and len(more)
        and not (more.min() >= -(2**31) and more.max() < 2**31)
    ):
        # Once: the column stays wide from here on.
        values = values.astype(np.int64)
    begin = len(values)
    # Without the check of references, which counts the caller's too: no view is handed out.
    values.resize(begin + len(more), refcheck=False)
    values[begin:] = more
    return values


class Scratch:
    """Column files in a folder, closed and deleted when the ``with`` block ends.

    Args:
        folder: For the files. Its maker sees to it that nothing is left if the process is killed.
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
    """A column in a file: what does not fit into memory while a graph is made. :class:`Scratch`
    makes them.

    int32 becomes int64 with the first number that needs it, once, by a copy.
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
        """None in memory."""
        return 0

    def append(self, values: Column) -> None:
        """Write numbers behind the others."""
        # Numbers of a wider dtype may all fit; looking at them is cheaper than a wider file.
        wider = len(values) > 0 and self.dtype == np.int32 != values.dtype
        if wider and not (values.min() >= -(2**31) and values.max() < 2**31):
            self.cast(np.int64)
        self._file.write(np.ascontiguousarray(values, dtype=self.dtype).data)
        self._count += len(values)

    def place(self, count: int, found: Iterable[Sequence[Column]]) -> None:
        """Put ``count`` numbers into an empty column: some places and their numbers at a time, in
        any order."""
        # In files of a range of places first: writing here and there in one that is larger than
        # memory takes most of the time.
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
        """Let :meth:`read` see what was appended."""
        self._file.flush()

    def close(self) -> None:
        """End appending: many files may be read in turn that cannot all be open."""
        self._file.close()

    def read(self, begin: int, end: int) -> Column:
        """The numbers from ``begin`` to ``end``, as an array of its own; any thread may read what
        was flushed."""
        # By path and not by the open file, whose position the threads would share.
        offset = _HEADER_BYTES + begin * self.dtype.itemsize
        values = np.fromfile(self.path, self.dtype, end - begin, offset=offset)
        # `fromfile` returns what there is, without a word.
        if len(values) != end - begin:
            raise OSError(
                f"{self.path} must hold {end} numbers, it was shortened to {begin + len(values)}"
            )
        return values

    def cast(self, dtype: npt.DTypeLike) -> None:
        """Store the numbers in another dtype, which holds them all; nothing if it is theirs."""
        if np.dtype(dtype) == self.dtype:
            return
        self.flush()
        other = self._scratch.column(dtype)
        for begin in range(0, self._count, _COPY_ITEMS):
            other.append(self.read(begin, min(begin + _COPY_ITEMS, self._count)))
        self._file.close()
        # The open file moves along with its name.
        os.replace(other.path, self.path)
        self._file = other._file
        self.dtype = other.dtype

    def mapped(self) -> Tensor:
        """Take the numbers as a tensor over the file, which goes with the tensor, unless it is
        moved before."""
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
        # At the end of the process the scratch has deleted it.
        weakref.finalize(mapping, self._delete).atexit = False
        self._is_mapped = True
        return tensor

    def remove(self) -> None:
        """Close and delete the file, which goes with the tensor where it is mapped."""
        if not self._is_mapped:
            self._delete()

    def _delete(self) -> None:
        with contextlib.suppress(OSError):  # a full disk: what is not written yet is not wanted
            self._file.close()
        self.path.unlink(missing_ok=True)


Store = MemoryColumn | ColumnFile


def new_column(scratch: Scratch | None, dtype: npt.DTypeLike) -> Store:
    """An empty column in a file, or in memory where there is no place for files."""
    return MemoryColumn(dtype) if scratch is None else scratch.column(dtype)
