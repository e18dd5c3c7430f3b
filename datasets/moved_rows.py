"""Rows of any number in another order, in bounded memory: scattered into buckets on the disk, then read back."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..graph.indexed_rows import IndexedRows
from ..graph.row_form import Decoding
from ..system.paging import GAP_IN_ORDER, Pages

__all__ = ["MovedRows", "Places", "Scratch", "source_rows"]

Source = Callable[[int, int], Tensor]
"""Rows ``begin`` to ``end`` in their old order."""
Places = Callable[[int, int], npt.NDArray[Any]]
"""New places of the rows ``begin`` to ``end``, integers; together a permutation."""

_LEAST_ROW = 16  # bytes of scratch that a row takes at least: its place, and the one in its chunk


class Scratch:
    """Folder of the buckets, and how large they may be.

    Args:
        folder: For files, which are removed when their rows are closed.
        bucket_bytes: Bytes of the rows of a bucket, which is in memory once; fields that are no larger need no files.
        tick: Called with a number of bytes that were scattered.
        chunk_bytes: Bytes of rows that are read at once.
    """

    def __init__(
        self,
        folder: Path,
        bucket_bytes: int,
        tick: Callable[[int], None] = lambda count: None,
        *,
        chunk_bytes: int = 32 * 2**20,
    ) -> None:
        self.folder, self.bucket_bytes, self.tick, self.chunk_bytes = folder, bucket_bytes, tick, chunk_bytes
        self._files = 0

    def new_path(self) -> Path:
        """The path of a file that is not there yet."""
        self._files += 1
        return self.folder / f"bucket-{self._files}"


class MovedRows:
    """Lazy rows in their new order, which are read block by block from the first to the last.

    The old order is gone through once, when the first row is read: each chunk of rows is appended to the buckets that
    its rows go to, a bucket being a range of new places. A block is then put together in memory, a bucket at a time. So
    every byte is read and written in large pieces twice, however many there are; with 4 bytes a row for its place.

    Args:
        source: The rows.
        places: Where they go.
        shape, dtype: Of all rows.
        scratch: The room there is.
        name: What the rows are, for errors.

    Attributes:
        decoding: For writers: how stored rows become values; None: they are.

    Raises:
        ValueError: Two rows go to one place (when they are read).
    """

    def __init__(
        self, source: Source, places: Places, shape: tuple[int, ...], dtype: torch.dtype, scratch: Scratch, *, name: str
    ) -> None:
        self.dtype, self.shape = dtype, shape
        self.decoding: Decoding | None = None
        self._source, self._places, self._scratch, self._name = source, places, scratch, name
        self._width = math.prod(shape[1:]) * dtype.itemsize
        per_row = self._width + 1  # a flag each
        self._size = min(max(1, scratch.bucket_bytes // per_row), 2**31, max(1, shape[0]))
        self._step = max(1, scratch.chunk_bytes // max(_LEAST_ROW, self._width))
        self._paths: list[Path] = []
        self._bucket: tuple[int, Tensor] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.shape[0] * self._width

    def __getitem__(self, rows: slice) -> Tensor:
        """Some rows in their new order; cheap where they follow those that were read before."""
        begin, end, _ = rows.indices(self.shape[0])
        if begin >= end or self._width == 0:
            return torch.empty((max(0, end - begin), *self.shape[1:]), dtype=self.dtype, device="cpu")
        parts = []
        while begin < end:
            number = begin // self._size
            if self._bucket is None or self._bucket[0] != number:
                self._bucket = None  # the memory of the one before
                self._bucket = number, self._read(number)
            base, values = number * self._size, self._bucket[1]
            parts.append(values[begin - base : end - base])
            begin = base + len(values)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def close(self) -> None:
        """Give back memory and files."""
        self._bucket = None
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._paths = []

    def _read(self, number: int) -> Tensor:
        """The rows of a bucket."""
        count = min(self._size, self.shape[0] - number * self._size)
        values = torch.empty((count, *self.shape[1:]), dtype=self.dtype, device="cpu")
        out, filled = _as_items(values, self._width), np.zeros(count, np.bool_)
        if count == self.shape[0]:
            for begin in range(0, count, self._step):
                end = min(begin + self._step, count)
                places = self._places(begin, end)
                out[places] = _as_items(self._source(begin, end), self._width)
                filled[places] = True
                self._scratch.tick((end - begin) * self._width)
        else:
            if not self._paths:
                self._scatter()
            first = number * self._size
            with open(self._paths[0], "rb") as rows, open(self._paths[1], "rb") as offsets:
                rows.seek(first * self._width)
                offsets.seek(first * 4)
                for begin in range(0, count, self._step):
                    some = min(self._step, count - begin)
                    places = np.fromfile(offsets, np.uint32, some)
                    out[places] = np.fromfile(rows, out.dtype, some)
                    filled[places] = True
        if not filled.all():
            raise ValueError(self._twice())
        return values

    def _scatter(self) -> None:
        """Write the rows and their places in their buckets, which lie one behind the other in two files."""
        from . import _moved_rows

        count, size = self.shape[0], self._size
        self._paths = [self._scratch.new_path(), self._scratch.new_path()]
        starts = np.arange(0, count, size)
        room = np.minimum(starts + size, count)
        ends, order = np.empty(len(starts) + 1, np.int64), np.empty(min(self._step, count), np.int64)
        with open(self._paths[0], "wb", buffering=0) as rows, open(self._paths[1], "wb", buffering=0) as offsets:
            os.truncate(rows.fileno(), count * self._width)
            os.truncate(offsets.fileno(), count * 4)
            for begin in range(0, count, self._step):
                end = min(begin + self._step, count)
                places, sorted_ = self._places(begin, end), order[: end - begin]
                _moved_rows.split(places, size, ends, sorted_)
                data = _as_items(self._source(begin, end), self._width)[sorted_]
                within = (places[sorted_] % size).astype(np.uint32)
                low = 0
                for bucket in np.flatnonzero(np.diff(ends[:-1], prepend=0)):
                    high = int(ends[bucket])
                    at = int(starts[bucket])
                    if at + high - low > room[bucket]:
                        raise ValueError(self._twice())
                    _write_at(rows, data[low:high], at * self._width)
                    _write_at(offsets, within[low:high], at * 4)
                    starts[bucket] += high - low
                    low = high
                self._scratch.tick((end - begin) * self._width)

    def _twice(self) -> str:
        return f"{self._name} must go to a place of its own each, got two for one place"


def source_rows(values: Tensor | IndexedRows) -> Source:
    """A field's rows in their own order; where they lie in a mapped file, the system is asked for those to come."""
    pages = Pages.of(values) if isinstance(values, Tensor) else None

    def read(begin: int, end: int) -> Tensor:
        if pages is not None:  # a chunk further, so that the disk works while this one is used
            pages.ask(np.arange(begin, min(2 * end - begin, len(values))), gap=GAP_IN_ORDER)
        return values[begin:end]

    return read


def _as_items(rows: Tensor, width: int) -> npt.NDArray[Any]:
    """Rows as one item each, of as many bytes; shape ``(n,)``, the same memory where they are contiguous."""
    flat = rows.detach().resolve_conj().resolve_neg().contiguous().reshape(len(rows), -1).view(torch.uint8).numpy()
    return flat.view(f"u{width}" if width in (1, 2, 4, 8) else f"V{width}").reshape(-1)


def _write_at(file: Any, values: npt.NDArray[Any], offset: int) -> None:
    data = values.view(np.uint8).data
    while len(data):
        done = os.pwrite(file.fileno(), data, offset)
        data, offset = data[done:], offset + done
