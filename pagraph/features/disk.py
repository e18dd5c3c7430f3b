"""Rows of mapped files, read for one batch, or ahead for a group of batches."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..graph.fields import stored_tensor
from ..graph.stored_rows import StoredRows
from ..graph.watched import file_behind
from ..sampling.hop import VertexTable
from ..system.buffers import BufferPool
from ..system.disk_reads import FileReader
from ..system.paging import GAP, GAP_IN_ORDER, Pages
from .feature import Array, Feature, HostFeature, byte_view, id_array
from .store import FeatureCache, GrowingCache


def on_disk(values: Tensor | StoredRows) -> bool:
    """Whether a CPU tensor, or the tensor of stored rows, is a mapped file (``numpy.memmap``).

    Files in memory (``/dev/shm``, any tmpfs, memfd) do not count. False if unknown.
    """
    tensor = stored_tensor(values)
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.numel() == 0:
        return False
    file = file_behind(tensor)
    return file is not None and file.on_disk


_SAMPLES = 128  # rows looked at, of a read or of a file
# A file counts as in memory if at most a tenth of it is missing.
_WARM = 10
_NO_SLOTS: Array = np.empty(0, dtype=np.int32)


class DiskFeature(HostFeature):
    """Rows of a mapped file; all pages of a read are requested at once.

    Otherwise a gather would wait for one page at a time, or for megabytes of read-ahead. Nothing is
    requested if a sample of the rows is in memory.
    """

    tier = "disk"
    announces = True

    def __init__(self, tensor: Tensor | StoredRows) -> None:
        super().__init__(tensor)
        self._file = file_behind(self._tensor)

    def announce(self, ids: Array, slots: Array | None = None, num_cached: int = 0) -> None:
        """Request the pages of ``ids`` that a cache does not hold."""
        from ..graph import _csc
        from . import _gather

        if self.rows is None or len(ids) == 0 or self.num_rows == 0:
            return
        if self._file is not None:
            self._file.check_size()
        asked = (_NO_SLOTS if slots is None else slots, num_cached, ids)
        if not self._count_cold(*asked):
            return
        # Sorted ids mean a bulk read, as when a cache is filled.
        gap = GAP_IN_ORDER if _csc.is_sorted(ids) else GAP
        misses = np.empty(len(ids), dtype=ids.dtype)
        misses = misses[: _gather.find_misses(*asked, misses)]
        if self.table is not None:
            # A bad id is refused when its row is copied.
            misses = self.table[misses[(misses >= 0) & (misses < self.num_rows)]]
        self._pages.ask(np.sort(misses), gap=gap)

    @property
    def is_cold(self) -> bool:
        """Whether much of the file, judged by a sample of its rows, is not in memory."""
        if self.rows is None or self.num_rows == 0 or self.row_bytes == 0:
            return False
        ids = np.linspace(0, self.num_rows - 1, _SAMPLES).astype(np.int64)
        return self._count_cold(_NO_SLOTS, 0, ids) > _SAMPLES // _WARM

    def _count_cold(self, slots: Array, num_cached: int, ids: Array) -> int:
        """Of a sample of ``ids``, count those neither cached nor in memory."""
        from . import _gather

        return int(
            _gather.count_cold(
                self.address,
                self.stride_bytes,
                self.source_rows,
                self.table,
                mmap.PAGESIZE,
                slots,
                num_cached,
                ids,
                _SAMPLES,
                np.zeros(1, dtype=np.uint8),
            )
        )

    def read_into(self, ids: Array, places: Array, out: Array) -> None:
        """Read rows in the file's order to ``places`` of ``out``.

        Reads bypass the system's page cache. They use the mapping if the file cannot be opened or
        the mapping was written.

        Args:
            ids: Distinct rows, in range, shape ``(n,)``, int64.
            places: Shape ``(n,)``, int64.
            out: Flat bytes, ``row_bytes`` per place.

        Raises:
            FormatError: The file was shortened.
            OSError: The file cannot be read.
        """
        from . import _gather

        assert self.rows is not None
        rows = ids if self.table is None else self.table[ids].astype(np.int64)
        order = np.argsort(rows)
        rows = rows[order]
        places = places[order]
        # The ids of rows by reference may have been overwritten since they were checked.
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
        # Several rows by reference may be one row of the file, which is read once.
        distinct = rows[is_new]
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
        """Drop the reader of the file if the mapping was written, for example by a NumPy view.

        Such writes are not in the file, and torch does not count them.
        """
        reader = self.__dict__.get("_reader")
        if reader is not None and not reader.is_current():
            self.__dict__.pop("_reader", None)


class RowsAhead:
    """The uncached rows of one field on disk that a group of batches needs.

    Rows are added by id while batches are sampled ahead. Then they are loaded together, each once,
    in the file's order. If the file fits into memory (``holds_rows=False``), their pages are
    requested instead, and rows are read from the mapping.

    Args:
        source: The field's rows, which :meth:`load` reads.
        holds_rows: Whether rows are copied into recycled memory.
    """

    def __init__(self, source: DiskFeature, *, holds_rows: bool) -> None:
        self._source = source
        self._holds_rows = holds_rows
        # From ids to places in `_rows`, in the order in which they were added.
        self._table = VertexTable()
        self._table.reset(None, source.num_rows, np.int64)
        self._rows: Tensor | None = None

    def __len__(self) -> int:
        return self._table.count

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return len(self) * self._source.row_bytes

    def add(self, ids: Tensor, cache: FeatureCache | None) -> None:
        """Add the rows that a batch needs, unless they are cached, added already or out of
        range."""
        from . import _gather

        index = id_array(ids)
        slots, count = _slots_of(cache)
        misses = np.empty(len(index), dtype=np.int64)
        misses = misses[: _gather.find_misses(slots, count, index, misses)]
        # A bad id is refused when its batch reads it, so that the error comes at that batch.
        misses = misses[(misses >= 0) & (misses < self._source.num_rows)]
        self._table.relabel(misses, np.empty(len(misses), dtype=np.int64))

    def load(self, earlier: RowsAhead | None, pool: BufferPool) -> int:
        """Get the rows from an earlier group of the same values if it has them, else from disk.

        Returns:
            Number of rows read from disk.
        """
        from . import _gather

        source = self._source
        nodes = self._table.nodes
        if not self._holds_rows:
            if len(nodes):
                source.announce(nodes)
            return len(nodes)
        out = pool.take((max(1, len(nodes)), *source.row_shape), source.dtype)
        rows = byte_view(out)
        missing = np.arange(len(nodes))
        if earlier is not None and earlier._rows is not None:
            old = byte_view(earlier._rows)
            lookup = earlier._table.lookup
            count = _gather.keep(nodes, *lookup, old, source.row_bytes, rows, missing)
            missing = missing[:count]
        source.read_into(nodes[missing], missing, rows)
        self._rows = out
        return len(missing)

    def feed(self, cache: GrowingCache, stored: Callable[[HostFeature], Feature]) -> None:
        """Give a cache the rows that it still wants.

        ``stored`` turns a feature's rows into the form in which the cache keeps them.
        """
        nodes = self._table.nodes
        wanted = cache.wanted(nodes)
        if not len(wanted):
            return
        if self._rows is None:
            rows: HostFeature = self._source
            places = nodes[wanted]
        else:
            rows = HostFeature(StoredRows(self._rows, decoding=self._source.decoding))
            places = wanted
        cache.absorb(nodes[wanted], stored(rows).read(torch.from_numpy(places)))

    def read(
        self, ids: Tensor, cache: FeatureCache | None
    ) -> tuple[HostFeature, FeatureCache | None] | None:
        """The rows of ``ids`` as a feature, and a cache of some of them; None if a row is absent.

        Row ``i`` of the feature is that of ``ids[i]``. It is valid as long as this object lives.
        """
        from . import _gather

        if self._rows is None:
            return None
        index = id_array(ids)
        slots, count = _slots_of(cache)
        local_slots = np.empty(len(index), dtype=np.int32)
        places = np.empty(len(index), dtype=np.int64)
        if _gather.locate(index, slots, count, *self._table.lookup, local_slots, places):
            return None
        # StoredRows checks no ids. These are in range.
        rows = StoredRows(self._rows, torch.from_numpy(places), self._source.decoding)
        feature = HostFeature(rows)
        if cache is None:
            return feature, None
        return feature, FeatureCache(cache.rows, torch.from_numpy(local_slots))


def _slots_of(cache: FeatureCache | None) -> tuple[Array, int]:
    """A cache's table and its number of rows, for kernels; an empty table if there is no cache."""
    if cache is None:
        return _NO_SLOTS, 0
    return cache.slots.numpy(), len(cache)
