"""Method ``halo``: assigns each training vertex where it adds fewest vertices, preferring small
parts, then moves vertices while that helps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...graph.csc import CSC
from ...graph.graph import Graph
from ...system.arrays import Int32Array, Int64Array
from ...system.progress import Progress, Ticks
from .balancing import largest_size, smallest_size

LEVELS = 3
"""Maximum hops that are counted; with more, parts mostly hold everything anyway."""
PASSES = 10
"""Maximum passes over the training vertices that move them."""
SQUARINGS = 3
"""How strongly large parts are avoided: ``_halo.load`` is a part's size to the power 2**3."""
_WORTH = 1e-3  # the first pass that makes parts smaller by less than this share is the last
# A pass reports progress up to 64 times, at least 4096 vertices at once.
_PIECES = 64
_PIECE = 4096

Tick = Callable[[int], object]
"""Called with the number of training vertices just processed."""
Move = Callable[[Int64Array, Int64Array], object]
"""Moves some items between parts, and updates the parts' numbers of training vertices."""


def _ignore(_count: int) -> None:
    pass


class HaloSearch:
    """A search for parts of training vertices whose largest part holds few vertices.

    Parts have training vertices within 1 % (or one) of the mean. Takes ``num_parts * hops`` bytes
    per vertex (hops above 3 count as 3), and a few ids per vertex.

    Attributes:
        parts: The part of each training vertex, shape ``(n,)``, int32.
        held: Number of vertices of each part, shape ``(num_parts,)``, int64.
    """

    def __init__(self, csc: CSC, train: Tensor, num_parts: int, hops: int) -> None:
        from . import _halo

        vertices = csc.num_dst
        self._kernels = _halo
        self._csc = csc
        self._edges = csc.arrays
        # One signature, whatever the strides.
        self._train = train.contiguous().numpy()
        shape = (min(hops, LEVELS), vertices, num_parts)
        self._counts: npt.NDArray[np.uint8] = np.zeros(shape, np.uint8)
        self._least = smallest_size(len(train), num_parts)
        self._most = largest_size(len(train), num_parts)
        # The kernels' last arguments, in order: frontier, fresh, stamps, clock.
        self._scratch = [
            np.empty(max(vertices, len(train)), np.int64),
            np.empty(max(vertices, len(train)), np.int64),
            np.zeros(vertices, np.int64),
            np.zeros(1, np.int64),
        ]
        self.parts: Int32Array = np.zeros(len(train), np.int32)
        self.held: Int64Array = np.zeros(num_parts, np.int64)
        self._unit = 2.0 ** -vertices.bit_length()

    @property
    def score(self) -> tuple[int, int]:
        """The objective: vertices of the largest part, then those of all parts together."""
        return int(self.held.max()), int(self.held.sum())

    def place(self, order: Int64Array, *, squarings: int = SQUARINGS, tick: Tick = _ignore) -> None:
        """Start again: assign each vertex, in ``order``, to the part whose load grows least; parts
        get equal numbers."""
        self._counts[:] = 0
        self.held[:] = 0
        self._place(self._train, order, self.parts, squarings, tick)

    def place_others(self, vertices: Tensor) -> Int32Array:
        """Assign further vertices to the parts whose load grows least; parts get equal numbers."""
        parts = np.zeros(len(vertices), np.int32)
        order = by_in_degree(self._csc, vertices)
        self._place(vertices.contiguous().numpy(), order, parts, SQUARINGS, _ignore)
        return parts

    def _place(
        self,
        members: Int64Array,
        order: Int64Array,
        parts: Int32Array,
        squarings: int,
        tick: Tick,
    ) -> None:
        room = equal_sizes(len(members), self._counts.shape[2])
        best = 0
        for some in _pieces(order):
            items = (members, some, best, room, parts, self.held, self._unit, squarings)
            best = self._kernels.place(*self._edges, self._counts, *items, *self._scratch)
            tick(len(some))

    def adopt(self, parts: Int32Array) -> None:
        """Continue from these parts of the training vertices."""
        self.parts = parts.copy()
        self._kernels.recount(*self._edges, self._counts, self._train, self.parts, self.held)

    def improve(
        self, rng: np.random.Generator, *, passes: int = PASSES, tick: Tick = _ignore
    ) -> None:
        """Move single vertices in random order, pass by pass, until that saves little."""
        # For several hops, each vertex is a group of one. One hop has its own kernel, which finds
        # the costs in all parts in one pass over a vertex's row.
        if len(self._counts) > 1:
            self.improve_groups(np.arange(len(self._train)), rng, passes=passes, tick=tick)
            return

        def move(some: Int64Array, sizes: Int64Array) -> None:
            limits = (self._least, self._most)
            items = (self._train, some, *limits, self.parts, sizes)
            loads = (self.held, self._unit, SQUARINGS)
            self._kernels.improve_singles(*self._edges, self._counts[0], *items, *loads)

        self._go_through(len(self._train), rng, passes, move, tick)

    def improve_groups(
        self,
        groups: Int64Array,
        rng: np.random.Generator,
        *,
        passes: int = PASSES,
        tick: Tick = _ignore,
    ) -> None:
        """Move whole groups of vertices; ``groups`` has the group of each training vertex. All of a
        group must be in one part."""
        _, first, item_of = np.unique(groups, return_index=True, return_inverse=True)
        members = self._train[np.argsort(item_of, kind="stable")]
        sizes_of_groups = np.bincount(item_of, minlength=len(first))
        begin = np.concatenate([[0], np.cumsum(sizes_of_groups)])
        item_parts = self.parts[first]

        def move(some: Int64Array, sizes: Int64Array) -> None:
            limits = (self._least, self._most)
            items = (members, begin, some, *limits, item_parts, sizes)
            loads = (self.held, self._unit, SQUARINGS)
            self._kernels.improve(*self._edges, self._counts, *items, *loads, *self._scratch)

        def tell(count: int) -> None:
            tick(count * len(members) // len(first))

        self._go_through(len(first), rng, passes, move, tell)
        self.parts = item_parts[item_of]

    def _go_through(
        self, items: int, rng: np.random.Generator, passes: int, move: Move, tick: Tick
    ) -> None:
        """Move items in random order, pass by pass, until that saves little and no part is too
        large."""
        sizes = np.bincount(self.parts, minlength=self._counts.shape[2])
        size = self._mean_held()
        for _ in range(passes):
            for some in _pieces(rng.permutation(items)):
                move(some, sizes)
                tick(len(some))
            before = size
            size = self._mean_held()
            if before - size <= _WORTH * size and sizes.max() <= self._most:
                break

    def _mean_held(self) -> float:
        """The power mean of the parts' vertices that the load implies; close to the largest part's,
        relative to the graph."""
        power = 2**SQUARINGS
        loads = (self.held * self._unit) ** power
        return float(loads.mean() ** (1 / power))


def _pieces(order: Int64Array) -> Iterator[Int64Array]:
    size = max(_PIECE, -(-len(order) // _PIECES))
    for begin in range(0, len(order), size):
        yield order[begin : begin + size]


def equal_sizes(count: int, num_parts: int) -> Int64Array:
    """Sizes of ``num_parts`` parts that sum to ``count`` and differ by at most one."""
    sizes: Int64Array = np.diff(count * np.arange(num_parts + 1) // num_parts)
    return sizes


def by_in_degree(csc: CSC, train: Tensor) -> Int64Array:
    """Indices of ``train`` by descending in-degree; stable."""
    indptr = csc.indptr.numpy()
    ids = train.numpy()
    return np.argsort(indptr[ids] - indptr[ids + 1], kind="stable")


def halo_parts(
    graph: Graph,
    train: Tensor,
    num_parts: int,
    hops: int,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> Tensor:
    """Parts whose largest holds few vertices, by one stream and a few passes over the edges.

    The stream is FENNEL's (Tsourakakis et al., WSDM 2014) in the order of descending in-degree, so
    that parts grow around hubs. The larger a part, the more a vertex costs there. The moves are
    Kernighan and Lin's, simplified as in label propagation (Meyerhenke, Sanders and Schulz, 2014).
    """
    whole = len(train) * (1 + PASSES)
    search = HaloSearch(graph.csc, train, num_parts, hops)
    ticks = Ticks(progress, whole)
    ticks.step(whole)
    search.place(by_in_degree(graph.csc, train), tick=ticks.add)
    search.improve(np.random.default_rng(seed), tick=ticks.add)
    ticks.finish()
    return torch.from_numpy(search.parts)
