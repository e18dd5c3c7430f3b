"""SourceWindows: reads, in file order, the rows of runs of vertices and of their in-neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..features.disk import on_disk
from ..features.feature import Feature, HostFeature
from ..features.field import host_feature, row_reader
from ..graph.csc import CSC, id_dtype
from ..graph.fields import FieldValue
from ..system.units import in_mebibytes

_PIECE_BYTES = 16 * 2**20
"""Bytes of rows that are prefetched together and then copied. If far more were prefetched than fits
into memory, the system would drop pages before they are read."""


@dataclass(frozen=True, eq=False)
class Window:
    """Vertices ``begin`` to ``end`` with their rows and their in-neighbours' rows.

    Valid until the next window is made.

    Attributes:
        rows: The rows, or those of all vertices if all are in memory.
        ids: The vertex of each row, ascending, int64. None if row ``v`` is that of vertex ``v``.
        places: The row of each vertex that has one, shape ``(num_nodes,)``; None if ``ids`` is.
    """

    begin: int
    end: int
    rows: Tensor
    ids: Tensor | None = None
    places: Tensor | None = None

    def places_of(self, vertices: Tensor) -> Tensor:
        """The places of vertices' rows in the window."""
        return vertices if self.places is None else self.places.index_select(0, vertices)


class SourceWindows:
    """Divides vertices into windows whose rows, with those of in-neighbours, fit into ``room``.

    Rows are read in file order, with the pages between them if these are few. There is one window
    if rows are in memory, or all fit. In addition to ``room``, it takes 4 bytes a vertex (8 from
    2**31 vertices on) and 8 for each row of a window.

    Args:
        csc: In-edges between vertices of one type, whose ids have been checked.
        rows: A row for each vertex, in memory or in a mapped file.
        room: Bytes of rows.

    Raises:
        ValueError: ``room`` does not hold the rows of the vertex with the most in-edges. The
            message says how much would.
    """

    def __init__(self, csc: CSC, rows: FieldValue, room: int) -> None:
        self._csc = csc
        self._rows = row_reader(rows)
        self._stored = host_feature(rows, torch.device("cpu"))
        self._now: Window | None = None
        self._kept: Tensor | None = None
        self._place: Tensor | None = None
        self._found: Tensor | None = None
        count = csc.num_dst
        width = self._rows.row_bytes
        if isinstance(rows, Tensor) and not on_disk(rows):
            self._now = Window(0, count, rows.detach())
        elif count * width > room:
            least = least_room(csc, width)
            if room < least:
                rows_of = "the rows of one vertex and its in-neighbours"
                raise ValueError(
                    f"memory must leave {in_mebibytes(least)} for {rows_of}, got {room:,} bytes"
                )
            self._found = torch.empty(room // (width + 8), dtype=torch.int64, device="cpu")

    def at(self, vertex: int) -> Window:
        """The window of ``vertex``: the current one, or a new one that begins there."""
        now = self._now
        if now is not None and now.begin <= vertex < now.end:
            return now
        if self._kept is None:
            fit = self._csc.num_dst if self._found is None else len(self._found)
            shape = (fit, *self._rows.row_shape)
            self._kept = torch.empty(shape, dtype=self._rows.dtype, device="cpu")
        self._now = self._next(vertex, self._kept)
        return self._now

    def _next(self, vertex: int, kept: Tensor) -> Window:
        from ..graph import _csc
        from . import _neighbor_rows

        csc = self._csc
        count = csc.num_dst
        now = self._now
        if self._found is None:
            everything = torch.arange(count, device="cpu")
            return Window(0, count, self._read(everything, kept))
        if self._place is None:
            self._place = torch.full((count,), -1, dtype=id_dtype(count, 0), device="cpu")
        place = self._place.numpy()
        found = self._found.numpy()
        if now is not None and now.ids is not None:
            _neighbor_rows.clear_places(now.ids.numpy(), place)
        edges = csc.arrays
        end, count = _neighbor_rows.take_sources(*edges, vertex, csc.num_dst, place, found)
        found[:count].sort()
        _csc.number(found[:count], place)
        ids = self._found[:count]
        return Window(vertex, end, self._read(ids, kept), ids, self._place)

    def __iter__(self) -> Iterator[Window]:
        """Yield all windows in order."""
        vertex = 0
        while vertex < self._csc.num_dst:
            window = self.at(vertex)
            yield window
            vertex = window.end

    def _read(self, ids: Tensor, kept: Tensor) -> Tensor:
        """Copy the rows of ``ids`` to the beginning of ``kept``."""
        out = kept[: len(ids)]
        for piece in pieces(ids, [self._stored], self._rows.row_bytes):
            self._rows.read(ids[piece], out[piece])
        return out


def pieces(ids: Tensor, stored: Sequence[Feature], row_bytes: int) -> Iterator[slice]:
    """Yield places of ids whose rows to read together, and prefetch the rows of the next piece."""
    step = piece_rows(row_bytes)
    for begin in range(0, len(ids), step):
        following = ids[begin + step : begin + 2 * step]
        for feature in stored:
            if len(following) and isinstance(feature, HostFeature):
                feature.announce(following.numpy())
        yield slice(begin, begin + len(ids[begin : begin + step]))


def piece_rows(row_bytes: int) -> int:
    """Number of rows in a piece."""
    return max(1, _PIECE_BYTES // max(1, row_bytes))


def least_room(csc: CSC, width: int) -> int:
    """The least room for rows of ``width`` bytes in a file: all rows, or those that one vertex
    needs."""
    most = min(most_in_edges(csc) + 1, csc.num_dst)
    return min(csc.num_dst * width, most * (width + 8))


def most_in_edges(csc: CSC) -> int:
    """The largest in-degree; 0 without vertices."""
    from . import _neighbor_rows

    return int(_neighbor_rows.most_in_edges(csc.indptr.numpy()))
