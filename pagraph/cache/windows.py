"""Windows: rows on disk that a group of sampled batches will read, for all fields of a loader."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from ..features.disk import DiskFeature, RowsAhead
from ..features.store import GrowingCache, read_counted

if TYPE_CHECKING:
    from torch import Tensor

    from ..features.field import Read, Reading, ReadPath
    from ..system.buffers import BufferPool


class Windows:
    """One group's rows, by field. One thread makes them, then any thread reads them.

    Args:
        reading: Returns a field's memory, values and read path; None if it is not read from a file
            on the CPU.
        pool_of: Memory for a field's rows.
        holds_rows: Whether rows of a file of this size are copied, or left to the page cache.
    """

    def __init__(
        self,
        reading: Callable[[Hashable], Reading | None],
        pool_of: Callable[[Hashable], BufferPool],
        holds_rows: Callable[[int], bool],
    ) -> None:
        self._reading = reading
        self._pool_of = pool_of
        self._holds_rows = holds_rows
        # By field: its read path when its first rows were added, and the rows. None: its rows are
        # not on disk, or it cannot be read now.
        self._known: dict[Hashable, tuple[Reading, RowsAhead] | None] = {}

    def add(self, reads: Iterable[Read]) -> None:
        """Add the reads of a batch, by ids on the CPU."""
        for key, ids, *_ in reads:
            if key not in self._known:
                self._known[key] = self._begin(key)
            known = self._known[key]
            if known is not None:
                (_, _, path), window = known
                window.add(ids, path.cache)

    def _begin(self, key: Hashable) -> tuple[Reading, RowsAhead] | None:
        reading = self._reading(key)
        base = None if reading is None else reading[2].base
        if (
            reading is None
            or not isinstance(base, DiskFeature)
            or base.rows is None
            or base.row_bytes == 0
        ):
            return None
        holds = self._holds_rows(base.source_rows * base.stride_bytes)
        return reading, RowsAhead(base, holds_rows=holds)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows so far."""
        return sum(known[1].nbytes for known in self._known.values() if known is not None)

    def load(self, earlier: Windows | None) -> tuple[int, int]:
        """Read the rows that the ``earlier`` windows lack; returns their number and bytes."""
        rows = nbytes = 0
        for key, known in self._known.items():
            if known is None:
                continue
            (_, _, path), window = known
            before = None if earlier is None else earlier._of(key, path)
            read = window.load(before, self._pool_of(("window", key)))
            rows += read
            nbytes += read * path.row_bytes
        return rows, nbytes

    def feed(self) -> None:
        """Copy the rows that growing caches want into them; these then count as hits."""
        for key in self._known:
            reading = self._reading(key)  # the cache may be newer than the rows
            if reading is None or not isinstance(reading[2].cache, GrowingCache):
                continue
            window = self._of(key, reading[2])
            if window is not None:
                window.feed(reading[2].cache, reading[2].stored_elsewhere)

    def read(
        self,
        key: Hashable,
        path: ReadPath,
        ids: Tensor,
        pool: BufferPool | None,
        bounds: Sequence[int] | None,
    ) -> tuple[Tensor, tuple[int, ...] | None] | None:
        """Rows and cache hits, for ``FieldSet.read``; None if a row or these values are missing."""
        window = self._of(key, path)
        found = None if window is None else window.read(ids, path.cache)
        if found is None:
            return None
        rows, cache = found
        return read_counted(
            path.elsewhere(rows, cache), torch.arange(len(ids), device="cpu"), pool, bounds
        )

    def _of(self, key: Hashable, path: ReadPath) -> RowsAhead | None:
        """The window of a field, if it has the values that ``path`` reads."""
        known = self._known.get(key)
        if (
            known is None
            or known[0][2].version != path.version
            or known[0][2].generation != path.generation
        ):
            return None
        return known[1]
