"""Fan-outs, state and sizes of a batch that a device samples, as its host sends and reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ...accelerator import Event

ROW = 4
"""Words of the state for each hop, see kernels.py."""
_DAMAGED = 3
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
        head[hop * ROW + 2] = key - (key >> 63 << 64)  # the same bits, signed
    return torch.cat([torch.tensor(head, device="cpu"), seeds.long()])


class Sizes:
    """Sizes of a batch (state without seeds) on their way to the host, there after ``event``;
    :meth:`wait` first."""

    def __init__(self, words: Tensor, event: Event) -> None:
        self._words = words
        self._event = event
        self._values: list[int] = []

    def wait(self) -> None:
        """Block the calling thread until they are there."""
        self._event.wait()
        self._values = self._words.tolist()

    @property
    def damaged(self) -> bool:
        """Whether the graph's arrays were found to lead out of the graph."""
        return bool(self._values[_DAMAGED])

    def known(self, hop: int) -> int:
        """Vertices known when a hop begins."""
        return self._values[hop * ROW]

    def edges(self, hop: int) -> int:
        """Edges that a hop drew."""
        return self._values[hop * ROW + 1]
