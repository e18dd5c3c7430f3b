"""Edges whose rows are in files, as the stream that is sorted; ids numbered anew, and fields in
both directions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..system.arrays import Int64Array
from ..system.units import bytes_text
from .edge_rows import Column, EdgeRows
from .numbers import NumberColumn

# For an id while others are merged into the sorted ids: 8 bytes in these, in the concatenation, in
# its sorted copy, and in the result.
_ID_BYTES = 32


def distinct_ids(rows: EdgeRows, room: int) -> Int64Array:
    """All ids of the edges, sorted; ValueError where they do not fit into ``room``."""
    found: Int64Array = np.empty(0, dtype=np.int64)
    waiting: list[Column] = []
    for block in rows.blocks():
        waiting.append(np.unique(np.concatenate(rows.ends(*block))))
        # Merged only when as many wait as were found, so that each id is copied a logarithmic
        # number of times and not once for each block.
        if sum(map(len, waiting)) > len(found):
            found = np.unique(np.concatenate([found, *waiting])).astype(np.int64)
            waiting = []
            _check_room(room, len(found))
    return np.unique(np.concatenate([found, *waiting])).astype(np.int64)


def _check_room(room: int, count: int) -> None:
    if count * _ID_BYTES > room:
        raise ValueError(
            f"memory must be at least {bytes_text(2 * count * _ID_BYTES)} for ids that are "
            f"numbered anew, {count:,} so far"
        )


def take_numbers(rows: EdgeRows, numbers: NumberColumn, *, mirrored: bool) -> Tensor:
    """The numbers of a field; ``mirrored``: also those of the other direction, without self-loops."""
    values = numbers.finish()
    values.flush()
    # In the order in which `sort_edges` numbers reverse edges.
    for begin, end in rows.blocks() if mirrored else ():
        src, dst = rows.ends(begin, end)
        values.append(values.read(begin, end)[src != dst])
    return values.mapped()


@dataclass(frozen=True, eq=False)
class SpooledEdges:
    """The edges of rows as a stream; ids become their places in ``ids``.

    Attributes:
        rows: The edges.
        num_nodes: Number of vertices.
        ids: Sorted ids, whose places replace them. Default: ids are numbers of vertices.
    """

    rows: EdgeRows
    num_nodes: int
    ids: Column | None = None

    def __post_init__(self) -> None:
        self.rows.blocks()  # for its flush: threads read the files by their path

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.rows)

    def read(self, begin: int, end: int) -> tuple[Column, Column]:
        """Sources and destinations of some edges."""
        src, dst = self.rows.ends(begin, end)
        if self.ids is None:
            return src, dst
        return np.searchsorted(self.ids, src), np.searchsorted(self.ids, dst)
