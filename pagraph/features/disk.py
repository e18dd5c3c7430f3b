"""Rows of memory-mapped files."""

from __future__ import annotations

import mmap
import threading
import weakref
from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch

from ..graph.field_value import FieldValue, stored_tensor
from ..graph.mapped import MappedFile
from ..system.disk_reads import FileReader
from ..system.memory import address_on_disk
from ..system.paging import GAP, GAP_IN_ORDER, Pages
from .feature import Array, HostFeature

__all__ = ["DiskFeature", "on_disk"]

# A storage is never moved from memory to disk, so one look is enough; the entry dies with the
# storage.
_known: weakref.WeakKeyDictionary[torch.UntypedStorage, bool] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def on_disk(values: FieldValue) -> bool:
    """Whether the memory of a CPU tensor, or of the one that rows are read from, is a mapped file
    (``numpy.memmap``).

    Files in memory (``/dev/shm``, any tmpfs, memfd) do not count. False where the system does not
    tell.
    """
    tensor = stored_tensor(values)
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.numel() == 0:
        return False
    storage = tensor.untyped_storage()
    with _lock:
        known = _known.get(storage)
    if known is None:
        known = address_on_disk(tensor.data_ptr())
        with _lock:
            _known[storage] = known
    return known


_SAMPLES = 128
_WARM = 10  # a file of which at most a tenth is missing is read as it is
_NO_SLOTS: Array = np.empty(0, dtype=np.int32)


class DiskFeature(HostFeature):
    """Rows of a mapped file: all pages of a read are requested at once, so that the disk works in
    parallel.

    Otherwise a gather waits for one page at a time, or for the megabytes around it that the system
    guesses at. When a sample of the rows is in memory already, nothing is requested.
    """

    tier = "disk"
    announces = True

    def __init__(self, tensor: FieldValue) -> None:
        super().__init__(tensor)
        file = MappedFile.of(self._tensor)
        # Not owned: values that were replaced are freed.
        self._file: Callable[[], MappedFile | None] = (
            (lambda: None) if file is None else weakref.ref(file)
        )

    def announce(self, ids: Array, slots: Array | None = None, num_cached: int = 0) -> None:
        """Ask the system to read the pages of ``ids`` that a cache does not hold."""
        from ..graph import _csc
        from . import _gather

        if self.rows is None or len(ids) == 0 or self.num_rows == 0:
            return
        file = self._file()
        if file is not None:
            file.check_size()  # to touch what is gone would end the process
        state = np.zeros(1, dtype=np.uint8)
        asked = (_NO_SLOTS if slots is None else slots, num_cached, ids)
        base, stride, limit = self.rows.ctypes.data, self.stride_bytes, self.source_rows
        if not _gather.count_cold(
            base, stride, limit, self.table, mmap.PAGESIZE, *asked, _SAMPLES, state
        ):
            return
        gap = GAP_IN_ORDER if _csc.is_sorted(ids) else GAP
        misses = np.empty(len(ids), dtype=ids.dtype)
        misses = misses[: _gather.find_misses(*asked, misses)]
        if self.table is not None:
            misses = self.table[misses[(misses >= 0) & (misses < self.num_rows)]]
        self._pages.ask(np.sort(misses), gap=gap)

    @property
    def is_cold(self) -> bool:
        """Whether much of the file, by a sample of its rows, is not in memory."""
        from . import _gather

        if self.rows is None or self.num_rows == 0 or self.row_bytes == 0:
            return False
        ids, state = (
            np.linspace(0, self.num_rows - 1, _SAMPLES).astype(np.int64),
            np.zeros(1, dtype=np.uint8),
        )
        asked = self.source_rows, self.table, mmap.PAGESIZE, _NO_SLOTS, 0, ids, _SAMPLES, state
        return (
            int(_gather.count_cold(self.rows.ctypes.data, self.stride_bytes, *asked))
            > _SAMPLES // _WARM
        )

    def read_into(self, ids: Array, places: Array, out: Array) -> None:
        """Read the rows of distinct ``ids``, which are in range, in the file's order to ``places``
        of ``out``.

        They come from the disk past the system's page cache; through the mapping where the file is
        not to be opened, or the mapping was written.

        Args:
            ids: Shape ``(n,)``, int64.
            places: Shape ``(n,)``, int64.
            out: Flat bytes, ``row_bytes`` a place.

        Raises:
            FormatError: The file was shortened.
            OSError: It cannot be read.
        """
        from . import _gather

        assert self.rows is not None
        rows = ids if self.table is None else self.table[ids].astype(np.int64)
        order = np.argsort(rows)
        rows, places = rows[order], places[order]
        if len(rows) and not (rows[0] >= 0 and rows[-1] < self.source_rows):
            bad = order[0 if rows[0] < 0 else -1]
            self.raise_bad(ids, int(bad))
        reader = self._reader
        if reader is None:
            self._pages.ask(rows)
            _gather.scatter(self.rows, self.stride_bytes, self.row_bytes, rows, places, out)
            return
        is_new = np.diff(rows, prepend=-1) != 0
        if is_new.all():
            reader.read(rows, out, places)
            return
        distinct = rows[is_new]  # rows by reference may be the same row
        once = np.empty((len(distinct), self.row_bytes), dtype=np.uint8)
        reader.read(distinct, once)
        out.reshape(-1, self.row_bytes)[places] = once[np.cumsum(is_new) - 1]

    @cached_property
    def _pages(self) -> Pages:
        assert self.rows is not None
        return Pages(self.rows.ctypes.data, self.stride_bytes, self.row_bytes, self.source_rows)

    @cached_property
    def _reader(self) -> FileReader | None:
        return FileReader.of(self._tensor, direct=True)

    def renew(self) -> None:
        """Look whether the mapping was written where torch does not see it, through a NumPy view,
        say."""
        reader = self.__dict__.get("_reader")
        if reader is not None and not reader.is_current():
            self.__dict__.pop("_reader", None)
