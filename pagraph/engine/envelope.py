"""Envelope: the few sizes that batches are padded to, learned from trial batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import mul
from typing import Any, NamedTuple

import numpy as np

from ..sampling.fixed_shapes import Sizes
from ..seeds.order import SeedOrder, Ticket
from ..stats.stats import REQUESTS, EpochRecorder
from ..system.tables import Table, Tabled
from ..system.threads import fork_lock
from ..system.units import bytes_text, percent

_TRIALS = 64
"""Batches sampled to learn the sizes."""

_MARGIN = 3.5
"""Deviations of a hop's size above its mean that the first size has room for. Of 1,000 batches of
1024 seeds of RMAT 17 and 20, one in a hundred went 2.8 beyond the mean in any hop. The deviation of
64 batches is known to 9 %: with 3.5 of it 2 of 100 sets of trial batches gave a first size that
held less than 99 % of batches, with 3.0 20, and of 32 trial batches with 3.5 7."""

_MORE_MARGIN = 1.5
"""Deviations added if the first size was too small for too many batches of an epoch."""

_FAR = 5.0
"""Further deviations that the second size has room for."""

_LEAST_MORE = 1.1
"""The second size is at least this factor larger, even if trial batches were all alike."""

_OVER = 0.01
"""Share of an epoch's batches beyond the first size from which sizes are learned again, as far as
chance does not explain it."""

_CLOSE = 1.25
"""If the largest size is at most this factor above the first, it is the only size."""

_INDEX_BYTES = 8
"""Bytes of an id, a local id or a position."""


def batch_bytes(nodes: Sequence[int], edges: Sequence[int], row_bytes: Sequence[int]) -> int:
    """Bytes of a batch: id and row per vertex of each type, three numbers per edge."""
    rows: int = sum(map(mul, nodes, row_bytes))
    return rows + _INDEX_BYTES * (sum(nodes) + 3 * sum(edges))


class EnvelopeState(NamedTuple):
    """What is saved of an :class:`Envelope`: its sizes, batches of this epoch in each, margin."""

    sizes: tuple[Sizes, ...]
    batches: list[int]
    margin: float


class Envelope(Tabled):
    """The sizes of a loader with ``shapes="fixed"``, and what their padding costs; prints as a
    table.

    The first size holds nearly all batches: of each hop the mean of 64 trial batches and 3.5
    standard deviations. The second has room for five more. The last one is the most that fan-outs
    and graph allow, so that every batch fits. Trial batches depend on the graph, the seeds and the
    sampler alone, and so do the sizes. If clearly more than 1 % of an epoch's batches did not fit
    into the first size, sizes are learned again before the next epoch, with a larger margin.

    Args:
        trials: Samples a number of trial batches and gives their sizes.
        largest: Room for any batch.
        row_bytes: Bytes per vertex, over all fields.
        free_bytes: Free bytes where batches are delivered.

    Attributes:
        sizes: One to three, each with room for more; empty before the first batch is asked for.
        batches: Batches delivered in each size, in this epoch.
    """

    def __init__(
        self,
        trials: Callable[[int], Iterable[Sizes]],
        largest: Callable[[], Sizes],
        *,
        row_bytes: Callable[[], int],
        free_bytes: Callable[[], int],
    ) -> None:
        self._trials = trials
        self._largest = largest
        self._row_bytes = row_bytes
        self._free_bytes = free_bytes
        # Held while trial batches are sampled; other sampling threads wait for the sizes. No
        # deadlock: only the sampler runs under it, and never asks for sizes.
        self._lock = fork_lock()
        self.sizes: tuple[Sizes, ...] = ()
        self.batches: list[int] = []
        self._margin = _MARGIN
        self._is_resumed = False
        # Vertices and edges delivered: sampled ones, and all.
        self._sampled = np.zeros(2, dtype=np.int64)
        self._padded = np.zeros(2, dtype=np.int64)

    def begin(self) -> None:
        """Begin an epoch: learn the sizes if there are none, or if too many batches of the last
        one did not fit into the first."""
        with self._lock:
            if self._is_resumed:
                # A resumed epoch keeps its sizes.
                self._is_resumed = False
                return
            allowed = _OVER * sum(self.batches)
            if sum(self.batches[1:]) > allowed + 3 * math.sqrt(allowed):
                self._margin += _MORE_MARGIN
                self.sizes = ()
            if not self.sizes:
                self.sizes = self._learned()
            self.batches = [0] * len(self.sizes)

    def known(self) -> tuple[Sizes, ...]:
        """The sizes, learned now if they are not known yet."""
        if not self.sizes:
            with self._lock:
                if not self.sizes:
                    self.sizes = self._learned()
                    self.batches = [0] * len(self.sizes)
        return self.sizes

    def number_of(self, sampled: Sizes) -> int:
        """Which size a batch is padded to: the first that has room for it.

        Raises:
            ValueError: None has: the graph is not the one that the sizes were learned from.
        """
        for number, sizes in enumerate(self.known()):
            if sizes.has_room_for(sampled):
                return number
        raise ValueError(
            f"shapes='fixed' has room for {self.sizes[-1].nodes} vertices and "
            f"{self.sizes[-1].edges} edges by hop, and a batch has {sampled.nodes} and "
            f"{sampled.edges}: the graph or the sampler has changed since the loader was made; "
            "make a new loader"
        )

    def delivered(self, sampled: Sizes, number: int, recorder: EpochRecorder) -> None:
        """Count a batch; called by the reader."""
        # Requests are in no epoch, and any thread makes them.
        if recorder.epoch == REQUESTS:
            return
        self.batches[number] += 1
        for counts, of in ((self._sampled, sampled), (self._padded, self.sizes[number])):
            counts += sum(of.nodes), sum(of.edges)

    @property
    def padding(self) -> tuple[float, float]:
        """Padding vertices, and padding edges, of the batches delivered so far, for each sampled
        one."""
        nodes, edges = (self._padded - self._sampled) / np.maximum(self._sampled, 1)
        return float(nodes), float(edges)

    def nbytes(self, sizes: Sizes) -> int:
        """Bytes of a batch of a size."""
        return batch_bytes([sum(sizes.nodes)], sizes.edges, [self._row_bytes()])

    def state_dict(self) -> dict[str, Any]:
        """What the sizes of this epoch and of the next depend on: numbers in lists."""
        return {
            "sizes": [[list(sizes.nodes), list(sizes.edges)] for sizes in self.sizes],
            "batches": list(self.batches),
            "margin": self._margin,
        }

    def checked(self, state: Any) -> EnvelopeState:
        """A saved :meth:`state_dict`, for :meth:`go_on`.

        Raises:
            ValueError: It is damaged, or of another graph or sampler.
        """
        try:
            sizes = tuple(Sizes(tuple(nodes), tuple(edges)) for nodes, edges in state["sizes"])
            batches = [int(count) for count in state["batches"]]
            margin = float(state["margin"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"state['shapes'] must come from state_dict(), got {state!r}"
            ) from error
        if len(batches) != len(sizes):
            raise ValueError(f"state['shapes'] must count batches of each size, got {state!r}")
        if sizes and sizes[-1] != (largest := self._largest()):
            raise ValueError(
                "state['shapes'] must come from a loader with the same graph, sampler and "
                f"batch_size, whose largest batch is {largest}, got {sizes[-1]}"
            )
        return EnvelopeState(sizes, batches, margin)

    def go_on(self, state: EnvelopeState, *, begun: bool) -> None:
        """Go on from a saved state, in an epoch that has ``begun``."""
        self.sizes, self.batches, self._margin = state
        self._is_resumed = begun and bool(self.sizes)

    def _learned(self) -> tuple[Sizes, ...]:
        largest = self._largest()
        need = self.nbytes(largest)
        free = self._free_bytes()
        if need > free:
            raise ValueError(
                f"shapes='fixed' needs {bytes_text(need)} for the largest possible batch of "
                f"{sum(largest.nodes):,} vertices and {sum(largest.edges):,} edges, and "
                f"{bytes_text(free)} are free: lower batch_size or fan-outs (-1 draws all "
                "neighbours), or use shapes='sampled'"
            )
        most = np.array([*largest.nodes, *largest.edges])
        seen = np.array([[*trial.nodes, *trial.edges] for trial in self._trials(_TRIALS)])
        if not len(seen):
            return (largest,)
        mean = seen.mean(0)
        deviation = seen.std(0)
        first = np.maximum(mean + self._margin * deviation, seen.max(0))
        second = np.maximum(mean + (self._margin + _FAR) * deviation, _LEAST_MORE * first)
        hops = len(largest.nodes)
        learned = []
        for size in (first, second):
            whole = np.ceil(size).astype(np.int64)
            whole[:hops] += 1  # padding edges need a vertex in each hop
            whole[0] = largest.nodes[0]  # of seeds only the last batch has less
            whole = np.minimum(whole, most)
            if most.sum() <= _CLOSE * whole.sum():
                break
            numbers = whole.tolist()
            learned.append(Sizes(tuple(numbers[:hops]), tuple(numbers[hops:])))
        return (*learned, largest)

    def _tables(self) -> Iterator[Table]:
        lines = [["size", "vertices by hop", "edges by hop", "bytes", "batches"]]
        for number, sizes in enumerate(self.known()):
            hops = [", ".join(f"{count:,}" for count in counts) for counts in sizes]
            count = f"{self.batches[number]:,}"
            lines.append([str(number), *hops, bytes_text(self.nbytes(sizes)), count])
        nodes, edges = self.padding
        caption = f"padding so far: {percent(nodes)} of vertices, {percent(edges)} of edges"
        yield Table(lines, left=(1, 2), caption=caption)


def trial_tickets(seeds: Any, batch_size: int, shuffle: bool, count: int) -> Iterator[Ticket]:
    """Whole batches of all seeds, the same ones each time: spread over an epoch in their order, or
    over as many shuffled epochs as it takes."""
    # Any seed will do, as long as it is the same for all processes that share the seeds.
    order = SeedOrder(seeds, batch_size, shuffle=shuffle, seed=0)
    whole = max(1, order.num_seeds // batch_size) if order.num_seeds else 0
    epochs = math.ceil(count / whole) if whole else 0
    for epoch in range(epochs):
        plan = order.plan(epoch)
        picks = min(whole, math.ceil(count / epochs))
        for place in np.linspace(0, whole - 1, picks).astype(int).tolist():
            yield order.ticket(plan, place)


def are_fixed(shapes: Any) -> bool:
    """Whether the argument ``shapes`` asks for an envelope; ValueError for what it cannot be."""
    if shapes not in ("sampled", "fixed"):
        raise ValueError(f"shapes must be 'sampled' or 'fixed', got {shapes!r}")
    return bool(shapes == "fixed")
