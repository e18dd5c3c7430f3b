"""DeviceRun: samples one batch by a device's kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ...accelerator.triton_kernels import launch
from .state import (
    ROW,
    ComingSizes,
    Part,
    Plan,
    Room,
    Step,
    blocks_of,
    lengths,
    parts_of,
    subgraph_of,
    typed_blocks_of,
    typed_parts_of,
    typed_subgraph_of,
)

if TYPE_CHECKING:
    from ...accelerator import Accelerator
    from ...graph.graph import Graph
    from ...graph.minibatch import HeteroMiniBatch, MiniBatch, Subgraph
    from .topology import Topology

MOST_PICKS = 128  # per vertex, as a vertex's picks are a row of registers
_MOST_PLACES = 2**31 - 1  # the vertex table holds int32
_BLOCK = 512  # vertices or edges per program; with 1024 registers spill on sm_80
_TILE = 512  # picks per program: 4 for each of its 128 threads
_WARP = 32  # threads that pick by weight for one vertex, each one pick or more
_KEYED = 128  # edges for which they compute keys at once
_WASTE = 1 << 20  # bytes; a buffer less than half used is copied if it wastes more than this


class _Table(NamedTuple):
    """Table of the known vertices of one type; see kernels.py.

    Attributes:
        first: Entry of each vertex or, for trees, of each slot of a hash table.
        keys: Vertex of each slot, for trees. Else ``first`` as an unused argument.
        slots: Number of slots; 0 without trees, where each vertex has an entry.
        num_nodes: Vertices of the type in the graph; for trees at least 1.
        size: Number of different vertices; for trees, of vertices in all trees.
    """

    first: Tensor
    keys: Tensor
    slots: int
    num_nodes: int
    size: int


@dataclass(frozen=True, eq=False)
class _StepEdges:
    """The edges of one step, in buffers that may be longer.

    Attributes:
        indptr, indices, positions: See ``Block``.
        neighbors: Ids of the sources in the graph; for trees, their numbers there.
        drawing: Maximum number of vertices that draw.
    """

    indptr: Tensor
    indices: Tensor
    positions: Tensor
    neighbors: Tensor
    drawing: int


class DeviceRun:
    """Enqueues the work of one batch on the current stream, with room for its largest sizes.

    The launches of steps whose size is not read depend on the number of seeds alone, so that they
    can be recorded.

    Args:
        accelerator: The device.
        topology: The graph on the device.
        plan: The steps of the batch.
        dtype: Dtype of the batch's ids.
        keeps: Whether to keep its buffers for further batches with as many seeds. Batches are then
            copies of the buffers.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        topology: Topology,
        plan: Plan,
        dtype: torch.dtype,
        *,
        keeps: bool = False,
    ) -> None:
        from . import kernels, weighted

        self._accelerator = accelerator
        self.topology = topology
        self.plan = plan
        self._dtype = dtype
        self._kernels = kernels
        self._weighted = weighted
        self._kept: list[Tensor] | None = [] if keeps else None

    def begin(self, state: Tensor, counts: Sequence[int], seeds_at: int | None = None) -> None:
        """Enter the seeds into the tables of known vertices.

        Args:
            state: The batch's state, int64, on the device; see ``state_words``.
            counts: Number of seeds of each type.
            seeds_at: State word where the seeds begin. Default: right after sizes and keys.
        """
        self._state = state
        self._drawn = list[_StepEdges]()
        self._made = 0
        begin = self.plan.words if seeds_at is None else seeds_at
        # There are at most as many trees as seeds. Their limits follow the seeds.
        self._most_trees = sum(counts)
        self._limits_at = begin + self._most_trees
        self._room = Room(self.plan, counts, most_known(self.plan, counts, self.topology))
        self._tables = list[_Table]()
        self._nodes = list[Tensor]()
        # For a subgraph, both ends and the ids of each edge type's edges.
        self._put = list[Tensor]()
        for number, most in enumerate(self._room.needs()):
            num_nodes = len(self.topology.tables[number])
            is_narrow = num_nodes <= _MOST_PLACES and not self.plan.trees
            node_dtype = self._dtype if is_narrow else torch.int64
            nodes = self._whole(most, node_dtype)
            self._nodes.append(nodes)
            table = self._table(number, len(nodes))
            self._tables.append(table)
            if counts[number]:
                launch(
                    self._kernels.enter_seeds,
                    _programs(counts[number]),
                    *(self._state, number * ROW, begin, nodes),
                    *table[:3],
                    BLOCK=_BLOCK,
                    TREES=self.plan.trees,
                )
            begin += counts[number]
        if not self.plan.hops:
            self._finish()

    def _table(self, number: int, room: int) -> _Table:
        """An empty table of a vertex type; for trees, with room for ``room`` vertices."""
        first = self.topology.tables[number]
        num_nodes = len(first)
        if not self.plan.trees:
            return _Table(first, first, 0, num_nodes, num_nodes)
        # At most half full, to keep probing short.
        slots = 1 << (2 * room - 1).bit_length()
        keys = self._empty(slots, torch.int64).fill_(self._kernels.EMPTY.value)
        places = self._empty(slots, torch.int32).zero_()
        # At least 1: kernels divide by it, even if there is no vertex.
        return _Table(places, keys, slots, max(1, num_nodes), num_nodes * self._most_trees)

    def hop(self, number: int) -> bool:
        """Draw the edges of a hop and relabel them.

        Returns:
            False if the graph turned out to be damaged. The tables are then not empty.

        Raises:
            ValueError: The hop has 2**31 vertices and edges, or more.
        """
        is_last = number + 1 == len(self.plan.hops)
        for step in self.plan.hops[number]:
            # With one type, the hop's last kernel clears the table; else `_finish` does.
            clears = is_last and not self.plan.is_typed and not self.plan.trees
            if not self._draw(step, clears=clears):
                return False
        if is_last:
            self._finish()
        return True

    def _draw(self, step: Step, *, clears: bool) -> bool:
        drawing = self._room.drawing[step.dst]
        ids = self.topology.relations[step.relation].indices.dtype
        if not step.is_drawn:
            # An empty row for each vertex that could draw.
            indptr = self._whole(drawing + 1, self._dtype).zero_()
            indices = self._whole(0, self._dtype)
            empty = self._whole(0, ids)
            self._drawn.append(_StepEdges(indptr, indices, empty, empty, drawing))
            self._room.grow(0)
            return True
        counts, indptr, starts, degrees = self._measure(step, drawing)
        most = self.plan.most_edges(step, drawing)
        if most is None:
            torch.sum(counts, 0, out=self._state[step.edges_at])
            sizes = self.ask()
            sizes.wait()
            if sizes.damaged:
                return False
            self._room.read(sizes.words)
            drawing = self._room.drawing[step.dst]
            most = sizes.words[step.edges_at]
            known = self._room.known[step.src]
            if known + most > _MOST_PLACES:
                raise ValueError(
                    f"a hop's vertices and edges must be below 2**31 on the device, got {known} "
                    f"and {most}: use "
                    "smaller batches or sampling_device='cpu'"
                )
            self._make_room(most)
        drawn = _StepEdges(
            indptr,
            self._whole(most, self._dtype),
            self._whole(most, ids),
            self._whole(most, torch.int64 if self.plan.trees else ids),
            drawing,
        )
        self._pick(step, drawn, starts, degrees)
        self._room.grow(most)
        self._relabel(step, drawn, clears=clears)
        self._drawn.append(drawn)
        return True

    def _finish(self) -> None:
        """After the last hop, write a subgraph's edges, and clear the tables of known vertices."""
        if self.plan.once:
            for relation in range(self.plan.num_relations):
                self._put_edges(relation)
        # The hash tables of trees belong to this batch alone; see `hop` for a graph of one type.
        if self.plan.trees or (not self.plan.is_typed and self.plan.hops):
            return
        for number, known_at in enumerate(self.plan.known_at[-1]):
            most = self._room.known[number]
            if most:
                launch(
                    self._kernels.forget,
                    _programs(most),
                    *(self._nodes[number], self._state, known_at, self.topology.tables[number]),
                    BLOCK=_BLOCK,
                )

    def ask(self) -> ComingSizes:
        """Start copying the state's sizes to the host, after the work enqueued so far."""
        count = self.plan.words
        words = self._accelerator.host_memory(count * 8).view(torch.int64)
        words.copy_(self._state[:count], non_blocking=True)
        return ComingSizes(words, self._accelerator.current_stream.record())

    def batch(self, sizes: ComingSizes) -> MiniBatch | Subgraph:
        """The batch of a graph of one type, once ``sizes`` are on the host."""
        words = sizes.words
        parts = self.parts()
        counts = lengths(parts, words)
        dtypes = [part.dtype for part in parts]
        arrays = self._arrays_of(list(zip(self.buffers(), counts, dtypes, strict=True)))
        assemble = subgraph_of if self.plan.once else blocks_of
        return assemble(arrays, words, len(self.plan.hops))

    def typed_batch(
        self, sizes: ComingSizes, graph: Graph, seeds: Mapping[str, int]
    ) -> HeteroMiniBatch | Subgraph:
        """The batch of a graph of several types, or in trees, once ``sizes`` are on the host.

        ``seeds`` has the number of seeds of each type.
        """
        words = sizes.words
        plan = self.plan
        ends = zip(self._nodes, plan.known_at[-1], strict=True)
        used = [(nodes, words[at], self._dtype) for nodes, at in ends]
        trees = list[tuple[Tensor, int, torch.dtype]]()
        if plan.trees:
            for number, (ids, count, _) in enumerate(used):
                in_trees = ids[:count]
                num_nodes = self._tables[number].num_nodes
                of_type = self._accelerator.empty((count,), torch.int64)
                torch.div(in_trees, num_nodes, rounding_mode="floor", out=of_type)
                used[number] = in_trees - of_type * num_nodes, count, self._dtype
                trees.append((of_type, count, torch.int64))
        if plan.once:
            for relation in range(plan.num_relations):
                count = sum(words[steps[relation].edges_at] for steps in plan.hops)
                edge_index, numbers = self._put[2 * relation : 2 * relation + 2]
                used += [(edge_index, 2 * count, self._dtype), (numbers, count, torch.int64)]
            return typed_subgraph_of(plan, graph, seeds, self._arrays_of(used + trees), words)
        for step, drawn in zip(plan.steps, self._drawn, strict=True):
            count = words[step.edges_at]
            used += [
                (drawn.indptr, words[step.end_at] + 1, self._dtype),
                (drawn.indices, count, self._dtype),
                (drawn.positions, count, drawn.positions.dtype),
            ]
        return typed_blocks_of(plan, graph, seeds, self._arrays_of(used), words)

    def parts(self) -> list[Part]:
        """The arrays of a batch; see ``parts_of`` and ``typed_parts_of``."""
        positions = [edges.indices.dtype for edges in self.topology.relations]
        if self.plan.is_typed or self.plan.trees:
            return typed_parts_of(self.plan, self._dtype, positions)
        hops = len(self.plan.hops)
        dtypes = [self._dtype]
        if self.plan.once:
            dtypes += [self._dtype, torch.int64]
        else:
            dtypes += [self._dtype, self._dtype, *positions] * hops
        return parts_of(dtypes, hops, once=self.plan.once)

    def buffers(self) -> list[Tensor]:
        """The buffers of :meth:`parts` once all hops are drawn; some have a wider dtype.

        For trees, enqueues the division of vertex numbers into trees and ids.
        """
        nodes = list(self._nodes)
        trees = []
        if self.plan.trees:
            for number, in_trees in enumerate(self._nodes):
                num_nodes = self._tables[number].num_nodes
                of_type = self._empty(len(in_trees), torch.int64)
                trees.append(torch.div(in_trees, num_nodes, rounding_mode="floor", out=of_type))
                ids = self._empty(len(in_trees), torch.int64)
                nodes[number] = torch.remainder(in_trees, num_nodes, out=ids)
        buffers = [*nodes, *self._put]
        if not self.plan.once:
            for drawn in self._drawn:
                buffers += [drawn.indptr, drawn.indices, drawn.positions]
        return buffers + trees

    def bounds(self, counts: Sequence[int]) -> list[int]:
        """Upper bounds of a batch's sizes as state words (see ``Plan``), for ``counts`` seeds of
        each type.

        Only for plans without a step whose size is read.
        """
        plan = self.plan
        words = [0] * plan.words
        words[plan.seeds_in] = counts
        room = Room(plan, counts, most_known(plan, counts, self.topology))
        for step in plan.steps:
            most = plan.most_edges(step, room.drawing[step.dst]) if step.is_drawn else 0
            assert most is not None
            room.grow(most)
            words[step.edges_at] = most
            if step.is_drawn:
                words[step.out_at] = room.known[step.src]
        return words

    def _measure(self, step: Step, most: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The number of edges that each vertex draws, their ``indptr``, and the start and length of
        its row.

        There are at most ``most`` vertices.
        """
        edges = self.topology.relations[step.relation]
        plan = self.plan
        counts = self._whole(most, self._dtype)
        indptr = self._empty(len(counts) + 1, self._dtype)
        starts, degrees = (self._whole(most, edges.indptr.dtype) for _ in range(2))
        since = plan.since[step.relation]
        # An argument must be some array.
        times = edges.indices if edges.times is None else edges.times
        launch(
            self._kernels.measure,
            len(counts) // _BLOCK,  # at least one program, which writes indptr[0]
            *(edges.indptr, len(edges.indices), self._nodes[step.dst]),
            self._tables[step.dst].num_nodes,
            times,
            *(self._state, step.begin_at, step.end_at),
            *(self._limits_at, self._limits_at + since * self._most_trees),
            *(starts, degrees, counts, indptr),
            FANOUT=step.picks,
            REPLACE=plan.replace,
            BLOCK=_BLOCK,
            ONCE=plan.once,
            TREES=plan.trees,
            TIMED=edges.times is not None,
            SINCE=since > 0,
            LATEST=plan.latest,
        )
        torch.cumsum(counts, 0, dtype=self._dtype, out=indptr[1:])
        return counts, indptr, starts, degrees

    def _pick(self, step: Step, drawn: _StepEdges, starts: Tensor, degrees: Tensor) -> None:
        """Pick edges, read their sources, and enter these into the table of known vertices."""
        picks = step.picks
        plan = self.plan
        edges = self.topology.relations[step.relation]
        table = self._tables[step.src]
        given = [
            edges.indices,
            edges.indices if edges.origin is None else edges.origin,
            table.num_nodes,
            self._nodes[step.dst],
            self._tables[step.dst].num_nodes,
            *(starts, degrees, drawn.indptr),
            *(self._state, step.begin_at, step.end_at, step.known_at),
            *(drawn.positions, drawn.neighbors),
            *table[:3],
        ]
        kind = {"ONCE": plan.once, "TREES": plan.trees, "HAS_ORIGIN": edges.origin is not None}
        if picks == -1:
            steps = _steps(drawn.drawing)
            programs = _programs(len(drawn.indices))
            launch(self._kernels.pick_all, programs, *given, STEPS=steps, BLOCK=_BLOCK, **kind)
            return
        if not picks:
            return
        width = 1 << (picks - 1).bit_length()
        if edges.weights is not None:
            launch(
                self._weighted.pick_weighted,
                drawn.drawing,
                *(*given, step.key_at, edges.weights, edges.sums, edges.guide),
                FANOUT=picks,
                K=max(_WARP, width),
                REPLACE=plan.replace,
                BLOCK=_KEYED,
                **kind,
                num_warps=1,
                # The CPU rounds each product before adding it, so no fused multiply-add here.
                enable_fp_fusion=False,
            )
            return
        block = _TILE // width
        kernel = self._kernels.pick_repeated if plan.replace else self._kernels.pick_distinct
        launch(
            kernel,
            _programs(drawn.drawing, block),
            *(*given, step.key_at),
            FANOUT=picks,
            K=width,
            BLOCK=block,
            **kind,
        )

    def _relabel(self, step: Step, drawn: _StepEdges, *, clears: bool) -> None:
        """Write local ids of the sources, numbered by first occurrence, and the new vertices."""
        most = len(drawn.indices)
        table = self._tables[step.src]
        nodes = self._nodes[step.src]
        flags = self._empty(most, torch.int32)
        ranks = self._empty(most, torch.int32)
        at = [self._state, step.begin_at, step.end_at, step.known_at]
        launch(
            self._kernels.find_places,
            _programs(most),
            *(drawn.neighbors, table.size, drawn.indptr, *at, *table[:3], drawn.indices, flags),
            BLOCK=_BLOCK,
            ONCE=self.plan.once,
            TREES=self.plan.trees,
        )
        torch.cumsum(flags, 0, dtype=torch.int32, out=ranks)
        launch(
            self._kernels.relabel,
            _programs(most),
            *(drawn.neighbors, drawn.indptr, *at, ranks, drawn.indices, nodes),
            BLOCK=_BLOCK,
            ONCE=self.plan.once,
        )
        # `_room` has advanced: its bounds are those after this step.
        count = self._room.known[step.src] if clears else min(most, table.size)
        launch(
            self._kernels.settle,
            max(1, _programs(count)),  # at least one program, which writes the sizes
            *(nodes, drawn.indptr, ranks, most, *at, step.edges_at, step.out_at, *table[:3]),
            CLEAR=clears,
            BLOCK=_BLOCK,
            ONCE=self.plan.once,
            TREES=self.plan.trees,
        )

    def _put_edges(self, relation: int) -> None:
        """Write both ends and the ids of a subgraph's edges of one type, over all hops."""
        plan = self.plan
        edge_ids = self.topology.relations[relation].edge_ids
        steps = [of_hop[relation] for of_hop in plan.hops]
        of_hops = self._drawn[relation :: plan.num_relations]
        rooms = [len(drawn.indices) for drawn in of_hops]
        edge_index = self._whole(2 * sum(rooms), self._dtype)
        numbers = self._whole(sum(rooms), torch.int64)
        self._put += [edge_index, numbers]
        for hop, (step, drawn) in enumerate(zip(steps, of_hops, strict=True)):
            if not step.is_drawn:
                continue
            launch(
                self._kernels.put_edges,
                _programs(len(drawn.indices)),
                drawn.indices,
                drawn.positions,
                drawn.positions if edge_ids is None else edge_ids,
                drawn.indptr,
                *(self._state, step.begin_at, step.end_at),
                *(hop, steps[0].edges_at, plan.num_relations * ROW),
                edge_index,
                numbers,
                HOPS=len(steps),
                HAS_IDS=edge_ids is not None,
                STEPS=_steps(drawn.drawing),
                BLOCK=_BLOCK,
            )

    def _make_room(self, edges: int) -> None:
        """Grow buffers for the vertices that may be found until a size is read again.

        ``edges`` is the size of this step.
        """
        for number, most in enumerate(self._room.needs(edges)):
            nodes = self._nodes[number]
            if most > len(nodes):
                grown = self._whole(most, nodes.dtype)
                known = self._room.known[number]
                grown[:known].copy_(nodes[:known])
                self._nodes[number] = grown
                if self.plan.trees:
                    table = self._tables[number] = self._table(number, len(grown))
                    launch(
                        self._kernels.enter_known,
                        _programs(known),
                        *(grown, known, *table[:3]),
                        BLOCK=_BLOCK,
                    )

    def _arrays_of(self, used: list[tuple[Tensor, int, torch.dtype]]) -> list[Tensor]:
        """The used parts of buffers, each given as buffer, length and wanted dtype."""
        if self._kept is None:
            return [self._cut(*buffer) for buffer in used]
        return self._copies(used)

    def _copies(self, used: list[tuple[Tensor, int, torch.dtype]]) -> list[Tensor]:
        """Copies of the used parts, with one allocation and one kernel per dtype."""
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
        """The used part of a buffer. Copied for another dtype, or if much is unused, as several
        batches may be waiting for the reader."""
        used = length * buffer.element_size()
        if buffer.dtype == dtype and (2 * used >= buffer.nbytes or buffer.nbytes - used <= _WASTE):
            return buffer[:length]
        return self._empty(length, dtype).copy_(buffer[:length])

    def _whole(self, length: int, dtype: torch.dtype) -> Tensor:
        """A buffer with room for ``length`` numbers, rounded up to whole programs (at least one),
        so that kernels need no masks."""
        return self._empty(max(1, _programs(length)) * _BLOCK, dtype)

    def _empty(self, length: int, dtype: torch.dtype) -> Tensor:
        # A kept run asks for the same buffers in the same order each time.
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
    """Copy the arrays of a batch to a slab.

    Args:
        parts: The arrays; their lengths follow from the state.
        buffers: Where they are.
        state: The batch's state, int64, on the device.
        places: For each, its offset in the slab in bytes and its maximum length; what is beyond
            that is not copied.
        slab_at: State word with the slab's address.
    """
    from . import kernels

    for part, buffer, (offset, capacity) in zip(parts, buffers, places, strict=True):
        launch(
            kernels.copy_out,
            _programs(capacity),
            *(buffer, state, offset, capacity),
            SLAB=slab_at,
            COUNT=part.count_at,
            HOPS=part.hops,
            STEP=part.step,
            TIMES=part.times,
            MORE=part.more,
            WIDE=part.dtype.itemsize == 8,
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
    """:func:`copy_out` for blocks, with padding after each hop's vertices and edges.

    Args:
        parts, buffers, state, places, slab_at: See :func:`copy_out`.
        ends: Ends of each hop's vertices with padding, int64, on the device.
        edges: Number of edges of each hop with padding.
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


def most_known(plan: Plan, counts: Sequence[int], topology: Topology) -> list[int]:
    """Maximum number of known vertices of each type, for ``counts`` seeds of each.

    Repeated seeds each have a place; any other vertex has one, or one per tree.
    """
    trees = sum(counts) if plan.trees else 1
    return [
        count + trees * len(table) for count, table in zip(counts, topology.tables, strict=True)
    ]


def _steps(count: int) -> int:
    """Steps of a binary search over ``count`` rows, rounded up to few different numbers, as each is
    compiled separately."""
    return count.bit_length() // 8 * 8 + 8


def _programs(count: int, block: int = _BLOCK) -> int:
    return -(-count // block)
