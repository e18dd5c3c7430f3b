"""Fan-outs, state and sizes of a batch that a device makes, as its host sends and reads them, and
the arrays that it consists of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ...graph.graph import EDGE_TYPE, NODE_TYPE
from ...graph.minibatch import Block, MiniBatch
from ...graph.subgraph import SampledEdges, Subgraph

if TYPE_CHECKING:
    from ...accelerator import Event

ROW = 4
"""Words of the state for each hop, see kernels.py."""
KEY = 2
"""The word of a hop that holds its key."""
DAMAGED = 3
"""The word that is set where the graph's arrays lead out of the graph."""
# Edges: 80 to 130 MB; above, waiting some 20 us for the real size is the better deal.
_SIZE_FIRST = 1 << 22


@dataclass(frozen=True)
class Fanouts:
    """Picks per vertex in each hop, that of the seeds first; -1 takes all, 0 none.

    Attributes:
        picks, replace: How many, and whether with replacement.
        once: Whether a hop draws for what the hop before found; else for all known vertices.
    """

    picks: Sequence[int]
    replace: bool
    once: bool = False

    def most_edges(self, hop: int, drawing: int) -> int | None:
        """Edges that so many vertices may draw, if buffers are to be made for so many; None: the
        size is read."""
        most = drawing * self.picks[hop]
        return most if self.picks[hop] >= 0 and most <= _SIZE_FIRST else None

    @property
    def words(self) -> int:
        """Words of a batch's state before its seeds."""
        return (len(self.picks) + 1) * ROW

    def grown(self, known: int, edges: int, limit: int) -> tuple[int, int]:
        """Most vertices known after a hop with so many edges, of ``limit`` in all, and most that
        draw in the next."""
        after = min(known + edges, limit)
        return after, min(edges, limit) if self.once else after

    def most_nodes(self, hop: int, known: int, drawing: int, limit: int) -> int:
        """Vertices that may be known when a size is read next, with ``known`` before ``hop`` of
        which so many draw, and ``limit`` in all."""
        return self._until_read(hop, known, drawing, limit)[1]

    def reads_no_size(self, count: int, limit: int) -> bool:
        """Whether no hop of a batch of so many seeds has a size that the host must read first."""
        return self._until_read(0, count, count, limit)[0] == len(self.picks)

    def _until_read(self, hop: int, known: int, drawing: int, limit: int) -> tuple[int, int]:
        """The next hop whose size is read, and the vertices that may be known before it."""
        for number in range(hop, len(self.picks)):
            edges = self.most_edges(number, drawing)
            if edges is None:
                return number, known
            known, drawing = self.grown(known, edges, limit)
        return len(self.picks), known


def state_words(fanouts: Fanouts, seeds: Tensor, keys: Sequence[int]) -> Tensor:
    """A batch's state on the CPU, int64: what its kernels begin with, by seeds and the key of each
    hop."""
    head = [0] * fanouts.words
    head[0] = len(seeds)
    for hop, key in enumerate(keys):
        head[hop * ROW + KEY] = key - (key >> 63 << 64)  # the same bits, signed
    return torch.cat([torch.tensor(head, device="cpu"), seeds.long()])


class Sizes:
    """Sizes of a batch on their way to the host, there after ``event``; :meth:`wait` first.

    Attributes:
        words: The state without seeds.
    """

    def __init__(self, sent: Tensor, event: Event) -> None:
        self._sent = sent
        self._event = event
        self.words: list[int] = []

    def wait(self) -> None:
        """Block the calling thread until they are there."""
        self._event.wait()
        self.words = self._sent.tolist()

    @property
    def damaged(self) -> bool:
        """Whether the graph's arrays were found to lead out of the graph."""
        return bool(self.words[DAMAGED])

    def known(self, hop: int) -> int:
        """Vertices known when a hop begins."""
        return self.words[hop * ROW]

    def edges(self, hop: int) -> int:
        """Edges that a hop drew."""
        return self.words[hop * ROW + 1]


class Part(NamedTuple):
    """An array of a batch.

    Attributes:
        dtype: Of its numbers.
        count_at, hops, times, more: How many it has: the sum of this word of the state and of the
            same of the hops after it, times ``times``, and ``more``.
    """

    dtype: torch.dtype
    count_at: int
    hops: int = 1
    times: int = 1
    more: int = 0


def parts_of(dtypes: Sequence[torch.dtype], hops: int, *, once: bool) -> list[Part]:
    """The arrays of a batch of one vertex type: its vertices, then of each hop's block ``indptr``,
    ``indices`` and ``positions``, that of the seeds first; with ``once`` the ends of all edges of a
    subgraph and their ids."""
    parts = [Part(dtypes[0], hops * ROW)]
    if once:
        ends, numbers = dtypes[1:]
        return [*parts, Part(ends, 1, hops, times=2), Part(numbers, 1, hops)]
    for hop in range(hops):
        indptr, indices, positions = dtypes[1 + 3 * hop : 4 + 3 * hop]
        known = hop * ROW
        edges = known + 1
        parts += [Part(indptr, known, more=1), Part(indices, edges), Part(positions, edges)]
    return parts


def lengths(parts: Sequence[Part], words: Sequence[int]) -> list[int]:
    """How many numbers each array has, by the state of a batch."""
    return [
        sum(words[part.count_at : part.count_at + part.hops * ROW : ROW]) * part.times + part.more
        for part in parts
    ]


def words_of(known: Sequence[int], edges: Sequence[int]) -> list[int]:
    """Words of a batch's state that say its sizes: vertices known before each hop and at the end,
    edges of each hop."""
    words = [0] * (len(known) * ROW)
    words[::ROW] = known
    words[1 : len(edges) * ROW : ROW] = edges
    return words


def blocks_of(arrays: Sequence[Tensor], known: Sequence[int], edges: Sequence[int]) -> MiniBatch:
    """The batch of the arrays of :func:`parts_of`, with the vertices known before each hop and at
    the end, and the edges of each hop."""
    nodes = arrays[0]
    blocks = []
    for hop in range(len(edges) - 1, -1, -1):
        indptr, indices, positions = arrays[1 + 3 * hop : 4 + 3 * hop]
        blocks.append(Block(indptr, indices, nodes[: known[hop + 1]], positions, known[hop]))
    return MiniBatch(nodes[: known[0]], blocks)


def subgraph_of(arrays: Sequence[Tensor], known: Sequence[int], edges: Sequence[int]) -> Subgraph:
    """The same of a subgraph."""
    nodes, edge_index, numbers = arrays[:3]
    ends = [0, *accumulate(edges)]
    sampled = SampledEdges(edge_index.view(2, ends[-1]), numbers, ends)
    return Subgraph(
        {NODE_TYPE: nodes[: known[0]]},
        {NODE_TYPE: nodes},
        {EDGE_TYPE: sampled},
        {NODE_TYPE: list(known)},
    )
