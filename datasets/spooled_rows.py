"""Rows of an edge list in files instead of memory, and the stream of edges that they make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..system.arrays import Int64Array
from ..system.units import bytes_text
from .column_files import Scratch
from .edge_rows import WORD_BYTES, Column, EdgeRows
from .numbers import NumberColumn

# Edges that are read at once: 16 MiB.
_BLOCK_ROWS = 2**20
# For an id while others are merged into the sorted ids: 8 bytes in these, in the concatenation, in
# its sorted copy, and in the result.
_ID_BYTES = 32


class SpooledRows(EdgeRows):
    """Edges as :class:`EdgeRows`, whose columns are files; only words, and ids numbered anew, are
    in memory.

    Args:
        scratch: For the files.
        room: Bytes that words or ids may take.
        values: For the weights, with files of ``scratch``. Default: none are asked for.

    Attributes:
        bounds: The smallest id and the largest.
    """

    def __init__(self, scratch: Scratch, room: int, values: NumberColumn | None = None) -> None:
        self._sources = scratch.column(np.int32)
        self._targets = scratch.column(np.int32)
        self._values = values
        self.words = None
        self._room = room
        self.bounds = 0, -1

    def __len__(self) -> int:
        return len(self._sources)

    @property
    def nbytes(self) -> int:
        """None: the words are counted against their own room."""
        return 0

    def add(self, src: Column, dst: Column, weight: Column | None = None) -> None:
        """Append a block of edges."""
        if len(src):
            low, high = int(min(src.min(), dst.min())), int(max(src.max(), dst.max()))
            self.bounds = (
                (min(low, self.bounds[0]), max(high, self.bounds[1])) if len(self) else (low, high)
            )
        self._sources.append(src)
        self._targets.append(dst)
        if self._values is not None and weight is not None:
            self._values.append(weight)

    def number(self, words: list[str]) -> Int64Array:
        """Number each word; new words get the next numbers."""
        numbers = super().number(words)
        self._check_room("words", len(self.words or ()), WORD_BYTES)
        return numbers

    def first_comes_again(self) -> bool:
        """Whether an id of the first edge is one of another's, too."""
        first = None
        for block in self.blocks():
            src, dst = self.ends(*block)
            if first is None:
                first = np.array([src[0], dst[0]])
                src = src[1:]
                dst = dst[1:]
            if np.isin(src, first).any() or np.isin(dst, first).any():
                return True
        return False

    def ends(self, begin: int, end: int) -> tuple[Column, Column]:
        """Sources and destinations of some edges."""
        return self._sources.read(begin, end), self._targets.read(begin, end)

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Begins and ends that cover all edges."""
        self._sources.flush()
        self._targets.flush()
        count = len(self)
        return ((begin, min(begin + _BLOCK_ROWS, count)) for begin in range(0, count, _BLOCK_ROWS))

    def distinct(self) -> Int64Array:
        """All ids, sorted."""
        found: Int64Array = np.empty(0, dtype=np.int64)
        waiting: list[Column] = []
        for block in self.blocks():
            waiting.append(np.unique(np.concatenate(self.ends(*block))))
            # Merged only when as many wait as were found, so that each id is copied a logarithmic
            # number of times and not once for each block.
            if sum(map(len, waiting)) > len(found):
                found = np.unique(np.concatenate([found, *waiting])).astype(np.int64)
                waiting = []
                self._check_room("ids", len(found), _ID_BYTES)
        return np.unique(np.concatenate([found, *waiting])).astype(np.int64)

    def take_weights(self, *, mirrored: bool) -> Tensor:
        """The weights that were asked for; ``mirrored``: also of the other direction, without
        self-loops."""
        assert self._values is not None
        weights = self._values.finish()
        weights.flush()
        # In the order in which `sort_edges` numbers reverse edges.
        for begin, end in self.blocks() if mirrored else ():
            src, dst = self.ends(begin, end)
            weights.append(weights.read(begin, end)[src != dst])
        return weights.mapped()

    def remove(self) -> None:
        """Delete the files."""
        self._sources.remove()
        self._targets.remove()
        if self._values is not None:
            self._values.remove()

    def _check_room(self, what: str, count: int, each: int) -> None:
        if count * each > self._room:
            raise ValueError(
                f"memory must be at least {bytes_text(2 * count * each)} for {what} that are "
                f"numbered anew, {count:,} so far"
            )


@dataclass(frozen=True, eq=False)
class SpooledEdges:
    """The edges of spooled rows as a stream; ids become their rank in ``ids``, or what ``places``
    has for them.

    Attributes:
        rows: The edges.
        num_nodes: Number of vertices.
        ids: Sorted ids, whose places replace them.
        places: What replaces the ids 0, 1 and so on.
    """

    rows: SpooledRows
    num_nodes: int
    ids: Column | None = None
    places: Column | None = None

    def __post_init__(self) -> None:
        self.rows.blocks()  # for its flush: threads read the files by their path

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.rows)

    def read(self, begin: int, end: int) -> tuple[Column, Column]:
        """Sources and destinations of some edges."""
        src, dst = self.rows.ends(begin, end)
        return self._placed(src), self._placed(dst)

    def _placed(self, ids: Column) -> Column:
        if self.ids is not None:
            return np.searchsorted(self.ids, ids)
        return ids if self.places is None else self.places[ids]
