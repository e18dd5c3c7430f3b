"""Topology, the graph as a device draws from it; DeviceRun, one batch on its way through a device's
kernels."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...accelerator import OutOfMemory, StagingRing
from ...accelerator.triton_kernels import launch
from .state import ROW, Fanouts, Part, Sizes, blocks_of, lengths, parts_of, subgraph_of

if TYPE_CHECKING:
    from ...accelerator import Accelerator, Pin
    from ...graph.csc import CSC
    from ...graph.minibatch import MiniBatch
    from ...graph.subgraph import Subgraph
    from ...system.budget import Budget

MOST_PICKS = 128  # of one vertex: they are a row of registers
_MOST_PLACES = 2**31 - 1  # the table of vertices holds int32
_BLOCK = 512  # vertices or edges of one program; twice as many spill registers on sm_80
_TILE = 512  # picks of one program: 4 for each of its 128 threads
_WASTE = 1 << 20  # bytes; what is less than half used, and wastes more than this, is copied


_PLACEMENTS = {
    "device": ("indptr", "indices"),
    "indptr on the device, indices pinned": ("indptr",),
    "pinned": (),
}


_placing = threading.Lock()  # guards what follows, and the users of each
_placed: weakref.WeakKeyDictionary[CSC, list[weakref.ref[Topology]]] = weakref.WeakKeyDictionary()


@dataclass(eq=False)
class Topology:
    """A graph's edges for the kernels of one device, and its table of vertices; made by
    :meth:`place`, or for several samplers of one graph by :meth:`shared`.

    Attributes:
        indptr: Shape ``(num_nodes + 1,)``, on the device or pinned.
        indices: Shape ``(num_edges,)``, on the device or pinned, the same dtype.
        first: Shape ``(num_nodes,)``, int32, on the device, zero but while a batch is sampled.
        placement: "device", "indptr on the device, indices pinned" or "pinned".
        nbytes: Bytes on the device.
        pins: The pins of host memory, released by :meth:`close`.
        device: That of the arrays.
        budget: By which they were placed.
        edge_ids: Shape ``(num_edges,)``: the user's id of each edge, on the device or pinned; None:
            its position, or they were not asked for.
        lock: Held while a batch's work is enqueued: batches share the table of vertices.
        users: Samplers that have not called :meth:`close`.
    """

    indptr: Tensor
    indices: Tensor
    first: Tensor
    placement: str
    nbytes: int
    pins: tuple[Pin, ...]
    device: Accelerator
    budget: Budget | None
    edge_ids: Tensor | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 1

    @classmethod
    def shared(cls, csc: CSC, accelerator: Accelerator, budget: Budget | None) -> Topology:
        """:meth:`place`, or what another sampler has placed: all of it, or by an equal budget.

        A training and a validation loader would take the memory twice otherwise, and "auto" of the
        second half of what the first left.
        """
        with _placing:
            known = _placed.setdefault(csc, [])
            for topology in [reference() for reference in known]:
                if topology is None or not topology.users or topology.device is not accelerator:
                    continue
                if topology.budget == budget or topology.placement == "device":
                    topology.users += 1
                    return topology
            topology = cls.place(csc, accelerator, budget)
            known[:] = [reference for reference in known if reference() is not None]
            known.append(weakref.ref(topology))
            return topology

    @classmethod
    def place(cls, csc: CSC, accelerator: Accelerator, budget: Budget | None) -> Topology:
        """Place as much on the device as the budget allows, and pin the rest; call where a stream
        is in use.

        The table of vertices is on the device in any case, since kernels write it without order;
        then comes what an edge drawn reads first, ``indptr``, then ``indices``. Where memory runs
        out, more is pinned.

        Args:
            csc: The edges, with as many sources as destinations.
            accelerator: The device.
            budget: Bytes that the arrays and the table may take; a share means one of the arrays,
                the table on top; "auto" half of what is free; None pins both arrays.

        Raises:
            ValueError: The budget is above what is free, or host memory that does not fit cannot be
                pinned.
            OutOfMemory: Not even the table fits.
        """
        arrays = {"indptr": csc.indptr.contiguous(), "indices": csc.indices.contiguous()}
        limit = _limit(arrays, csc.num_src, accelerator, budget)
        first = accelerator.empty((csc.num_src,), torch.int32).zero_()
        ring = StagingRing(accelerator)
        for placement, names in _PLACEMENTS.items():
            wanted = [arrays[name] for name in names]
            nbytes = first.nbytes + sum(array.nbytes for array in wanted)
            if names and nbytes > limit:
                continue
            try:
                placed = dict(zip(names, ring.upload(wanted), strict=True)) if names else {}
            except OutOfMemory:
                accelerator.release_memory()
                continue
            pins = _pinned(arrays, placed, first, accelerator, budget)
            return cls(
                indptr=placed.get("indptr", arrays["indptr"]),
                indices=placed.get("indices", arrays["indices"]),
                first=first,
                placement=placement,
                nbytes=nbytes,
                pins=pins,
                device=accelerator,
                budget=budget,
            )
        raise AssertionError("the last placement needs no memory")

    def place_edge_ids(self, csc: CSC) -> None:
        """Have the ids of edges in reach, for samplers that return them; call where a stream is in
        use.

        They come last: on the device where it has all else and the budget has room for them, pinned
        in other cases.

        Raises:
            ValueError: The host's memory cannot be pinned.
        """
        if csc.edge_ids is None or self.edge_ids is not None:
            return
        ids = csc.edge_ids.contiguous()
        if self.placement == "device" and ids.nbytes <= self._room(ids.nbytes):
            (self.edge_ids,) = StagingRing(self.device).upload([ids])
            self.nbytes += ids.nbytes
            return
        pin = self.device.pin(ids)
        if pin is None:
            raise ValueError(
                f"the memory of the edges' ids cannot be pinned on {self.device.device}: "
                "sampling_device='cpu' needs none"
            )
        self.edge_ids = ids
        self.pins = (*self.pins, pin)

    def _room(self, more: int) -> int:
        """Bytes that the budget leaves, of which arrays of ``more`` bytes are a part; "auto": half
        of what is free now."""
        if self.budget is None:
            return 0
        free, _ = self.device.free_bytes()
        arrays = self.indptr.nbytes + self.indices.nbytes
        limit = self.budget.nbytes([(1, arrays + more)], free=lambda: free // 2 + self.nbytes)
        if not self.budget.pays_tables:
            limit += self.first.nbytes
        return min(free, limit - self.nbytes)

    def close(self) -> None:
        """Unpin the host's memory once its last sampler is closed, which must launch no kernel any
        more."""
        with _placing:
            self.users -= 1
            if self.users:
                return
        for pin in self.pins:
            pin.release()


def _limit(
    arrays: dict[str, Tensor], num_nodes: int, accelerator: Accelerator, budget: Budget | None
) -> int:
    """Bytes that the arrays and the table may take."""
    if budget is None:
        return 0
    free, total = accelerator.free_bytes()
    table = num_nodes * torch.int32.itemsize
    limit = budget.nbytes(
        [(1, sum(array.nbytes for array in arrays.values()))], free=lambda: free // 2
    )
    if not budget.pays_tables:
        limit += table
    if budget.limit is not None and limit > free:
        raise ValueError(
            f"sampling_budget must be at most the {free} bytes that are free on "
            f"{accelerator.device} "
            f"(of {total}), got {limit}"
        )
    return limit


def _pinned(
    arrays: dict[str, Tensor],
    placed: dict[str, Tensor],
    first: Tensor,
    accelerator: Accelerator,
    budget: Budget | None,
) -> tuple[Pin, ...]:
    """Pins of the arrays that are not placed on the device."""
    pins = {name: accelerator.pin(array) for name, array in arrays.items() if name not in placed}
    refused = [name for name, pin in pins.items() if pin is None]
    if refused:
        for pin in pins.values():
            if pin is not None:
                pin.release()
        # What lies before a refused array is placed on the device with it.
        needed = (
            first.nbytes
            + arrays["indptr"].nbytes
            + ("indices" in refused) * arrays["indices"].nbytes
        )
        raise ValueError(
            f"sampling_budget must be at least {needed} bytes, because the host memory of the "
            "graph's "
            f"{' and '.join(refused)} cannot be pinned on {accelerator.device}, got {budget}; "
            "sampling_device='cpu' "
            "needs none"
        )
    return tuple(pin for pin in pins.values() if pin is not None)


@dataclass(frozen=True, eq=False)
class _DeviceHop:
    """The edges of one hop, in buffers that may be longer; ``neighbors`` are the graph's ids of the
    sources, and at most so many vertices draw."""

    indptr: Tensor
    indices: Tensor
    positions: Tensor
    neighbors: Tensor
    drawing: int


class DeviceRun:
    """Enqueues the work of one batch, with room for the largest sizes it can have, in the stream
    that is in use.

    What is launched for hops whose size is not read depends on the number of seeds alone.

    Args:
        accelerator: The device.
        topology: What is drawn from.
        fanouts: How many are drawn.
        dtype: Dtype of the batch's ids.
        keeps: Whether it is begun again, with as many seeds, in the same buffers: batches are
            copies of them.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        topology: Topology,
        fanouts: Fanouts,
        dtype: torch.dtype,
        *,
        keeps: bool = False,
    ) -> None:
        from . import kernels

        self._accelerator = accelerator
        self._topology = topology
        self._fanouts = fanouts
        self._dtype = dtype
        self._kernels = kernels
        self._head = fanouts.words
        self._kept: list[Tensor] | None = [] if keeps else None

    def begin(self, state: Tensor, count: int, seeds_at: int | None = None) -> None:
        """Enter ``count`` seeds, which follow the sizes and keys in ``state``, on the device; see
        ``state_words``. ``seeds_at``: the word where they begin, if others are in between."""
        self._state = state
        self._drawn = list[_DeviceHop]()
        self._made = 0
        first = self._topology.first
        self._known = count  # at most so many
        self._drawing = count
        self._limit = count + len(first)  # each seed has a place, and each other vertex
        id_dtype = self._dtype if len(first) <= _MOST_PLACES else torch.int64
        room = self._fanouts.most_nodes(0, count, count, self._limit)
        self._nodes = self._whole(room, id_dtype)
        if self._fanouts.once and not self._fanouts.picks:
            # No last hop makes them.
            self._edge_index = self._whole(0, self._dtype)
            self._numbers = self._whole(0, torch.int64)
        begin = self._head if seeds_at is None else seeds_at
        seeds_to = (self._state, begin, self._nodes, first)
        launch(self._kernels.enter_seeds, _programs(count), *seeds_to, BLOCK=_BLOCK)

    def hop(self, number: int) -> bool:
        """Draw the edges of a hop and relabel them.

        Returns:
            Whether to go on: False where the graph has turned out to be damaged; the table is not
                empty then.

        Raises:
            ValueError: Vertices and edges are more than places can tell apart.
        """
        known = self._known
        drawing = self._drawing
        fanouts = self._fanouts
        counts, indptr, starts, degrees = self._measure(number)
        most = fanouts.most_edges(number, drawing)
        if most is None:
            torch.sum(counts, 0, out=self._state[number * ROW + 1])
            sizes = self.ask()
            sizes.wait()
            if sizes.damaged:
                return False
            known = sizes.known(number)
            drawing = known - (sizes.known(number - 1) if fanouts.once and number else 0)
            most = sizes.edges(number)
            if known + most > _MOST_PLACES:
                raise ValueError(
                    f"a hop's vertices and edges must be below 2**31 on the device, got {known} "
                    f"and {most}: use "
                    "smaller batches or sampling_device='cpu'"
                )
            self._make_room(number + 1, known, *fanouts.grown(known, most, self._limit))
        ids = self._topology.indices.dtype
        drawn = _DeviceHop(
            indptr,
            self._whole(most, self._dtype),
            self._whole(most, ids),
            self._whole(most, ids),
            drawing,
        )
        self._pick(number, drawn, starts, degrees)
        self._known, self._drawing = fanouts.grown(known, most, self._limit)
        self._relabel(number, drawn)
        self._drawn.append(drawn)
        if fanouts.once and number + 1 == len(fanouts.picks):
            self._put_edges()
        return True

    def ask(self) -> Sizes:
        """Ask for what is known of the sizes after the work so far."""
        words = self._accelerator.host_memory(self._head * 8).view(torch.int64)
        words.copy_(self._state[: self._head], non_blocking=True)
        return Sizes(words, self._accelerator.current_stream.record())

    def batch(self, sizes: Sizes) -> MiniBatch | Subgraph:
        """The batch, when its sizes are there."""
        words = sizes.words
        parts = self.parts()
        counts = lengths(parts, words)
        dtypes = [part.dtype for part in parts]
        arrays = self._arrays_of(list(zip(self.buffers(), counts, dtypes, strict=True)))
        end = len(self._drawn) * ROW
        assemble = subgraph_of if self._fanouts.once else blocks_of
        return assemble(arrays, words[: end + 1 : ROW], words[1:end:ROW])

    def parts(self) -> list[Part]:
        """The arrays of a batch; see ``parts_of``."""
        hops = len(self._fanouts.picks)
        dtypes = [self._dtype]
        if self._fanouts.once:
            dtypes += [self._dtype, torch.int64]
        else:
            dtypes += [self._dtype, self._dtype, self._topology.indices.dtype] * hops
        return parts_of(dtypes, hops, once=self._fanouts.once)

    def buffers(self) -> list[Tensor]:
        """Where :meth:`parts` are when all hops are drawn; some in wider numbers."""
        if self._fanouts.once:
            return [self._nodes, self._edge_index, self._numbers]
        buffers = [self._nodes]
        for drawn in self._drawn:
            buffers += [drawn.indptr, drawn.indices, drawn.positions]
        return buffers

    def bounds(self, count: int) -> list[int]:
        """Most vertices known before each hop and at the end, then most edges of each hop, for
        batches whose sizes nothing reads before their end."""
        known = [count]
        edges = []
        limit = count + len(self._topology.first)
        drawing = count
        for hop in range(len(self._fanouts.picks)):
            most = self._fanouts.most_edges(hop, drawing)
            assert most is not None
            edges.append(most)
            after, drawing = self._fanouts.grown(known[-1], most, limit)
            known.append(after)
        return [*known, *edges]

    def _measure(self, number: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Draws of each vertex, their ``indptr``, and begin and length of its row."""
        most = self._drawing
        topology = self._topology
        counts = self._whole(most, self._dtype)
        indptr = self._empty(len(counts) + 1, self._dtype)
        starts, degrees = (self._whole(most, topology.indptr.dtype) for _ in range(2))
        launch(
            self._kernels.measure,
            len(counts) // _BLOCK,  # one at least, which begins indptr
            *(topology.indptr, len(topology.indices), self._nodes, self._state, number),
            *(starts, degrees, counts, indptr),
            FANOUT=self._fanouts.picks[number],
            REPLACE=self._fanouts.replace,
            BLOCK=_BLOCK,
            ONCE=self._fanouts.once,
        )
        torch.cumsum(counts, 0, dtype=self._dtype, out=indptr[1:])
        return counts, indptr, starts, degrees

    def _pick(self, number: int, drawn: _DeviceHop, starts: Tensor, degrees: Tensor) -> None:
        """Choose edges, read their sources, and offer them places."""
        topology = self._topology
        picks = self._fanouts.picks[number]
        graph = (topology.indices, len(topology.first))
        out = (drawn.positions, drawn.neighbors, topology.first)
        if picks == -1:
            launch(
                self._kernels.pick_all,
                _programs(len(drawn.indices)),
                *(*graph, starts, drawn.indptr, self._state, number, *out),
                STEPS=_steps(drawn.drawing),
                BLOCK=_BLOCK,
                ONCE=self._fanouts.once,
            )
        elif picks > 0:
            width = 1 << (picks - 1).bit_length()
            block = _TILE // width
            launch(
                self._kernels.pick_repeated
                if self._fanouts.replace
                else self._kernels.pick_distinct,
                _programs(drawn.drawing, block),
                *(*graph, self._nodes, starts, degrees, drawn.indptr, self._state, number, *out),
                FANOUT=picks,
                K=width,
                BLOCK=block,
                ONCE=self._fanouts.once,
            )

    def _relabel(self, number: int, drawn: _DeviceHop) -> None:
        """Local ids of the sources, in the order of first occurrence, and the new vertices."""
        most = len(drawn.indices)
        first = self._topology.first
        flags = self._empty(most, torch.int32)
        ranks = self._empty(most, torch.int32)
        hop = (drawn.indptr, self._state, number)
        launch(
            self._kernels.find_places,
            _programs(most),
            *(drawn.neighbors, len(first), *hop, first, drawn.indices, flags),
            BLOCK=_BLOCK,
            ONCE=self._fanouts.once,
        )
        torch.cumsum(flags, 0, dtype=torch.int32, out=ranks)
        launch(
            self._kernels.relabel,
            _programs(most),
            *(drawn.neighbors, *hop, ranks, drawn.indices, self._nodes),
            BLOCK=_BLOCK,
            ONCE=self._fanouts.once,
        )
        last = number + 1 == len(self._fanouts.picks)
        launch(
            self._kernels.settle,
            # One writes the sizes.
            max(1, _programs(self._known if last else min(most, len(first)))),
            *(self._nodes, drawn.indptr, ranks, most, self._state, number, first),
            CLEAR=last,
            BLOCK=_BLOCK,
            ONCE=self._fanouts.once,
        )

    def _put_edges(self) -> None:
        """The edges of all hops of a subgraph, by both ends, and their ids."""
        edge_ids = self._topology.edge_ids
        rooms = [len(drawn.indices) for drawn in self._drawn]
        self._edge_index = self._whole(2 * sum(rooms), self._dtype)
        self._numbers = self._whole(sum(rooms), torch.int64)
        for hop, drawn in enumerate(self._drawn):
            launch(
                self._kernels.put_edges,
                _programs(len(drawn.indices)),
                drawn.indices,
                drawn.positions,
                drawn.positions if edge_ids is None else edge_ids,
                drawn.indptr,
                self._state,
                hop,
                self._edge_index,
                self._numbers,
                HOPS=len(self._drawn),
                HAS_IDS=edge_ids is not None,
                STEPS=_steps(drawn.drawing),
                BLOCK=_BLOCK,
            )

    def _make_room(self, hop: int, known: int, most: int, drawing: int) -> None:
        """Room for the vertices that may be found until a size is read again, at most ``most`` of
        them by ``hop``, of which ``drawing`` draw in it."""
        most = self._fanouts.most_nodes(hop, most, drawing, self._limit)
        if most > len(self._nodes):
            grown = self._whole(most, self._nodes.dtype)
            grown[:known].copy_(self._nodes[:known])
            self._nodes = grown

    def _arrays_of(self, used: list[tuple[Tensor, int, torch.dtype]]) -> list[Tensor]:
        """The used parts of buffers, in the dtypes asked for."""
        if self._kept is None:
            return [self._cut(*buffer) for buffer in used]
        return self._copies(used)

    def _copies(self, used: list[tuple[Tensor, int, torch.dtype]]) -> list[Tensor]:
        """Copies of the beginnings of buffers, in the dtypes asked for: one allocation and one
        kernel a dtype."""
        copies: dict[int, Tensor] = {}
        for wanted in {dtype for _, _, dtype in used}:
            places = [i for i, (_, _, dtype) in enumerate(used) if dtype == wanted]
            parts = [used[i][0][: used[i][1]] for i in places]
            parts = [part if part.dtype == wanted else part.to(wanted) for part in parts]
            lengths = [used[i][1] for i in places]
            whole = torch.cat(parts, out=self._accelerator.empty((sum(lengths),), wanted))
            copies |= zip(places, torch.split(whole, lengths), strict=True)
        return [copies[i] for i in range(len(used))]

    def _cut(self, buffer: Tensor, length: int, dtype: torch.dtype) -> Tensor:
        """The beginning of a buffer, a copy where another dtype is asked for, or where most is
        unused: batches wait."""
        used = length * buffer.element_size()
        if buffer.dtype == dtype and (2 * used >= buffer.nbytes or buffer.nbytes - used <= _WASTE):
            return buffer[:length]
        return self._empty(length, dtype).copy_(buffer[:length])

    def _whole(self, length: int, dtype: torch.dtype) -> Tensor:
        """Room for so many numbers, in whole programs, so that kernels need no masks; one at
        least."""
        return self._empty(max(1, _programs(length)) * _BLOCK, dtype)

    def _empty(self, length: int, dtype: torch.dtype) -> Tensor:
        if self._kept is None:
            return self._accelerator.empty((length,), dtype)
        if self._made == len(self._kept):
            self._kept.append(self._accelerator.empty((length,), dtype))
        self._made += 1
        return self._kept[self._made - 1]


def copy_out(
    parts: Sequence[Part],
    buffers: Sequence[Tensor],
    state: Tensor,
    places: Sequence[tuple[int, int]],
    slab_at: int,
) -> None:
    """Copy arrays of a batch to memory whose address is in word ``slab_at`` of its state: each to
    its offset in bytes, cut where it has more numbers than have room."""
    from . import kernels

    for part, buffer, (offset, capacity) in zip(parts, buffers, places, strict=True):
        launch(
            kernels.copy_out,
            _programs(capacity),
            *(buffer, state, offset, capacity),
            SLAB=slab_at,
            COUNT=part.count_at,
            HOPS=part.hops,
            TIMES=part.times,
            MORE=part.more,
            WIDE=part.dtype == torch.int64,
            BLOCK=_BLOCK,
        )


def pad_out(
    parts: Sequence[Part],
    buffers: Sequence[Tensor],
    state: Tensor,
    places: Sequence[tuple[int, int]],
    slab_at: int,
    ends: Tensor,
    edges: Sequence[int],
) -> None:
    """:func:`copy_out` of blocks with padding behind what each hop has found.

    Args:
        parts, buffers, state, places, slab_at: See there.
        ends: Where the vertices of each hop end with padding, int64, on the device.
        edges: Edges of each hop with padding.
    """
    from . import kernels

    hops = len(edges)
    kinds = [(kernels.NODES, hops + 1, 0, 0)]
    for hop in range(hops):
        counted = hop * ROW + 1, edges[hop]
        kinds += [
            (kernels.BEGINS, hop + 1, *counted),
            (kernels.LOCAL, hop + 2, *counted),
            (kernels.POSITIONS, 0, *counted),
        ]
    for part, buffer, (offset, capacity), (kind, count, edges_at, room) in zip(
        parts, buffers, places, kinds, strict=True
    ):
        launch(
            kernels.pad_out,
            _programs(capacity),
            *(buffer, state, ends, offset, capacity, room),
            SLAB=slab_at,
            EDGES=edges_at,
            PARTS=count,
            KIND=kind,
            WIDE=part.dtype == torch.int64,
            BLOCK=_BLOCK,
        )


def _steps(count: int) -> int:
    """Halvings of so many rows to one; few different ones, each of which is compiled."""
    return count.bit_length() // 8 * 8 + 8


def _programs(count: int, block: int = _BLOCK) -> int:
    return -(-count // block)
