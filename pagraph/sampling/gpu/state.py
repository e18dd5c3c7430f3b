"""Plan, state words and sizes of a batch sampled on a device, and the arrays it consists of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ...graph.graph import EDGE_TYPE, NODE_TYPE
from ...graph.minibatch import (
    Block,
    HeteroBlock,
    HeteroMiniBatch,
    MiniBatch,
    Relation,
    SampledEdges,
    Subgraph,
)
from ...seeds.keys import derive_key

if TYPE_CHECKING:
    from ...accelerator import Event
    from ...graph.graph import Graph

ROW = 4
"""Words per row of the state; see kernels.py."""
KEY = 2
"""The word of a row that holds a key."""
DAMAGED = 3
"""The word that is set if the graph's arrays point outside the graph."""
# Edges: 80 to 130 MB; above, waiting some 20 us for the real size is cheaper.
_SIZE_FIRST = 1 << 22


class Step(NamedTuple):
    """The edges of one type in one hop.

    Attributes:
        relation: Number of the edge type; ``src`` and ``dst`` of the vertex types.
        picks: Edges per vertex; -1 takes all, 0 none.
        is_drawn: Whether a kernel is launched; not if no vertex can draw.
        begin_at, end_at: Words that bound the vertices that draw; ``begin_at`` -1: from the first.
        known_at, out_at: Words with the number of known ``src`` vertices before and after it.
        edges_at, key_at: Words of its edges and of its random key.
    """

    relation: int
    src: int
    dst: int
    picks: int
    is_drawn: bool
    begin_at: int
    end_at: int
    known_at: int
    out_at: int
    edges_at: int
    key_at: int


class Plan:
    """The steps of a batch, hop by hop from the seeds, and its state words; see kernels.py.

    Args:
        picks: Picks per vertex in each hop along each edge type; -1 takes all, 0 none.
        replace: Whether with replacement.
        once: Whether a hop draws only for vertices found by the previous hop; else for all known.
        ends: (source, destination) vertex type numbers of each edge type.
        seeded: Whether there may be seeds of each vertex type.
        trees: Whether sampled as trees, one per seed or shared by seeds; only with ``once``.
        latest: Whether only the latest edges of a row may be drawn, where they have times.
        limits: Rows of numbers by tree that follow the seeds.
        since: For each edge type, the row of the lower limit of its edges' times; 0: no limit.

    Attributes:
        hops: The steps of each hop.
        known_at: Words with the number of known vertices of each type, before each hop and at the
            end.
        words: Words of a batch's state before its seeds.
        seeds_in, edges_in: Where among them the seeds of each type, and the edges of each step are.
        sizes_at: Words that hold a size.
    """

    def __init__(
        self,
        picks: Sequence[Sequence[int]],
        replace: bool,
        once: bool = False,
        ends: Sequence[tuple[int, int]] = ((0, 0),),
        seeded: Sequence[bool] = (True,),
        *,
        trees: bool = False,
        latest: bool = False,
        limits: int = 0,
        since: Sequence[int] = (),
    ) -> None:
        self.replace = replace
        self.once = once
        self.trees = trees
        self.latest = latest
        self.limits = limits
        self.since = since or [0] * len(ends)
        self.is_typed = len(seeded) > 1 or len(ends) > 1
        self.num_relations = len(ends)
        types = len(seeded)
        self.seeds_in = slice(0, types * ROW, ROW)
        self.hops = list[list[Step]]()
        self.known_at = [[number * ROW for number in range(types)]]
        begins = [-1] * types
        drawing = list(seeded)  # types of which vertices may draw
        row = (types - 1) * ROW
        first = row + 1
        for of_hop in picks:
            ends_at = self.known_at[-1]
            found = self._add_hop(of_hop, ends, begins, drawing, row)
            row += ROW * len(ends)
            begins = ends_at if once else begins
            drawing = [new or (old and not once) for old, new in zip(drawing, found, strict=True)]
        self.words = row + ROW
        self.edges_in = slice(first, row, ROW)
        sizes = {*chain(*self.known_at), *range(first, row, ROW)}
        self.sizes_at = sorted(sizes)

    def _add_hop(
        self,
        picks: Sequence[int],
        ends: Sequence[tuple[int, int]],
        begins: Sequence[int],
        drawing: Sequence[bool],
        row: int,
    ) -> list[bool]:
        """Add the steps of a hop, each with a row of words of its own after ``row``.

        ``begins`` are the words with the first vertex that draws, ``drawing`` says whether there
        may be one; both by type. Returns of which types the hop may find vertices.
        """
        ends_at = self.known_at[-1]
        known_at = list(ends_at)
        found = [False] * len(known_at)
        steps = []
        for relation, (src, dst) in enumerate(ends):
            # Untyped: every hop is drawn, as its words are the sizes of its block.
            is_drawn = not self.is_typed or (picks[relation] != 0 and drawing[dst])
            step = Step(
                relation,
                src,
                dst,
                picks=picks[relation],
                is_drawn=is_drawn,
                begin_at=begins[dst],
                end_at=ends_at[dst],
                known_at=known_at[src],
                out_at=row + ROW,
                edges_at=row + 1,
                key_at=row + KEY,
            )
            steps.append(step)
            row += ROW
            if is_drawn:
                known_at[src] = row
                found[src] = True
        self.hops.append(steps)
        self.known_at.append(known_at)
        return found

    @property
    def steps(self) -> list[Step]:
        """The steps of all hops, in order."""
        return [step for hop in self.hops for step in hop]

    def most_edges(self, step: Step, drawing: int) -> int | None:
        """Upper bound of drawn edges, to size buffers; None: none, or too large; read the size."""
        most = drawing * step.picks
        return most if step.picks >= 0 and most <= _SIZE_FIRST else None

    def size(self, counts: Sequence[int]) -> int:
        """Words of the state of a batch with these seed counts."""
        return self.words + (1 + self.limits) * sum(counts)

    def reads_no_size(self, counts: Sequence[int], limits: Sequence[int]) -> bool:
        """Whether no step of a batch with these seed counts waits for a size on the host."""
        room = Room(self, counts, limits)
        room.go_on()
        return room.is_through


class Room:
    """Upper bounds of known and of drawing vertices of each type, step by step.

    Args:
        plan: The steps.
        counts: Seeds of each type.
        limits: Maximum vertices of each type.

    Attributes:
        known: Maximum known vertices of each type.
        drawing: Maximum vertices that draw in this hop.
    """

    def __init__(self, plan: Plan, counts: Sequence[int], limits: Sequence[int]) -> None:
        self._plan = plan
        self._steps = plan.steps
        self._limits = limits
        self._number = 0
        self.known = list(counts)
        self.drawing = list(counts)
        self._found = [0] * len(limits)

    @property
    def is_through(self) -> bool:
        """Whether all steps are done."""
        return self._number == len(self._steps)

    def copy(self) -> Room:
        """A copy, to look ahead."""
        room = Room(self._plan, self.known, self._limits)
        room._number = self._number
        room.drawing = list(self.drawing)
        room._found = list(self._found)
        return room

    def grow(self, edges: int) -> None:
        """Advance one step, with at most this number of edges."""
        step = self._steps[self._number]
        src = step.src
        limit = self._limits[src]
        self.known[src] = min(self.known[src] + edges, limit)
        self._found[src] = min(self._found[src] + edges, limit)
        self._number += 1
        if self._number % self._plan.num_relations == 0:
            draws = self._found if self._plan.once else self.known
            self.drawing = list(draws)
            self._found = [0] * len(self._found)

    def go_on(self) -> None:
        """Advance to the next step whose size is read."""
        while not self.is_through:
            step = self._steps[self._number]
            most = 0
            if step.is_drawn:
                found = self._plan.most_edges(step, self.drawing[step.dst])
                if found is None:
                    return
                most = found
            self.grow(most)

    def needs(self, edges: int | None = None) -> list[int]:
        """Maximum known vertices of each type at the next size read; ``edges``: of this step."""
        ahead = self.copy()
        if edges is not None:
            ahead.grow(edges)
        ahead.go_on()
        return ahead.known

    def read(self, words: Sequence[int]) -> None:
        """Replace bounds by the real sizes from the state, in the middle of a step."""
        step = self._steps[self._number]
        hop = self._number // self._plan.num_relations
        before = self._plan.known_at[hop]
        now = list(before)
        for done in self._plan.hops[hop][: step.relation]:
            if done.is_drawn:
                now[done.src] = done.out_at
        for number, at in enumerate(now):
            self.known[number] = words[at]
            self._found[number] = words[at] - words[before[number]]
            self.drawing[number] = words[before[number]]
            if self._plan.once and hop:
                self.drawing[number] -= words[self._plan.known_at[hop - 1][number]]


def first_words(plan: Plan, counts: Sequence[int], key: int) -> list[int]:
    """The state words before the seeds, as kernels expect them at first: the number of seeds of
    each type, and the random key of each step, derived from the batch's key."""
    head = [0] * plan.words
    head[: len(counts) * ROW : ROW] = counts
    for hop, steps in enumerate(plan.hops):
        for step in steps:
            # The first edge type has the key that a graph of one type has.
            own = (step.relation,) if step.relation else ()
            of_step = derive_key(key, hop, *own)
            head[step.key_at] = of_step - (of_step >> 63 << 64)  # the same 64 bits, as signed
    return head


def state_words(
    plan: Plan, seeds: Sequence[Tensor], key: int, limits: Tensor | None = None
) -> Tensor:
    """A batch's state on the CPU, int64, 1-D.

    It has :func:`first_words`, the seeds of each type, and the rows of ``limits``, of shape
    ``(plan.limits, trees)``. Each row has room for one tree per seed.
    """
    head = first_words(plan, [ids.shape[0] for ids in seeds], key)
    words = [torch.tensor(head, device="cpu"), *[ids.long() for ids in seeds]]
    if plan.limits:
        room = torch.zeros((plan.limits, sum(map(len, seeds))), dtype=torch.int64, device="cpu")
        if limits is not None:
            room[:, : limits.shape[1]] = limits
        words.append(room.view(-1))
    return torch.cat(words)


class ComingSizes:
    """Sizes of a batch that are being copied to the host.

    Args:
        sent: Pinned memory that they are copied to, int64.
        event: The copy is complete after it.

    Attributes:
        words: The state without seeds; empty before :meth:`wait`.
    """

    def __init__(self, sent: Tensor, event: Event) -> None:
        self._sent = sent
        self._event = event
        self.words: list[int] = []

    def wait(self) -> None:
        """Block the calling thread until the sizes are on the host."""
        self._event.wait()
        self.words = self._sent.tolist()

    @property
    def damaged(self) -> bool:
        """Whether the graph's arrays point outside the graph."""
        return bool(self.words[DAMAGED])


class Part(NamedTuple):
    """An array of a batch, and how its length follows from the state.

    Attributes:
        dtype: Dtype of the array.
        count_at, hops, step, times, more: Its length is the sum of ``hops`` words of the state,
            ``step`` words apart from ``count_at`` on, times ``times``, plus ``more``.
    """

    dtype: torch.dtype
    count_at: int
    hops: int = 1
    times: int = 1
    more: int = 0
    step: int = ROW


def parts_of(dtypes: Sequence[torch.dtype], hops: int, *, once: bool) -> list[Part]:
    """The arrays of a batch of one vertex type.

    First the vertices. Then ``indptr``, ``indices`` and ``positions`` of each hop's block, the
    seeds' block first; or with ``once`` (subgraphs) both ends of all edges, and their ids.
    """
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


def typed_parts_of(plan: Plan, dtype: torch.dtype, positions: Sequence[torch.dtype]) -> list[Part]:
    """The arrays of a batch over several types, or in trees.

    First the vertices of each type. Then the arrays of :func:`parts_of` for each step, or for each
    edge type of a subgraph. For trees, last the tree of each vertex, by vertex type.

    Args:
        plan: The steps of the batch.
        dtype: Dtype of ids.
        positions: Dtype of positions for each edge type.
    """
    known = plan.known_at[-1]
    parts = [Part(dtype, at) for at in known]
    if plan.once:
        hops = len(plan.hops)
        step = plan.num_relations * ROW
        for first in plan.hops[0]:
            at = first.edges_at
            parts.append(Part(dtype, at, hops, times=2, step=step))
            parts.append(Part(torch.int64, at, hops, step=step))
        return parts + [Part(torch.int64, at) for at in known] if plan.trees else parts
    for one in plan.steps:
        parts.append(Part(dtype, one.end_at, more=1))
        parts.append(Part(dtype, one.edges_at))
        parts.append(Part(positions[one.relation], one.edges_at))
    return parts


def lengths(parts: Sequence[Part], words: Sequence[int]) -> list[int]:
    """The length of each array, from a batch's state words."""
    return [
        sum(words[at : at + hops * step : step]) * times + more
        for _, at, hops, times, more, step in parts
    ]


def words_of(known: Sequence[int], edges: Sequence[int]) -> list[int]:
    """State words of a batch of one type with these sizes; the others are 0.

    Args:
        known: Number of known vertices before each hop and at the end.
        edges: Number of edges of each hop.
    """
    words = [0] * (len(known) * ROW)
    words[::ROW] = known
    words[1 : len(edges) * ROW : ROW] = edges
    return words


def blocks_of(arrays: Sequence[Tensor], words: Sequence[int], hops: int) -> MiniBatch:
    """A batch of blocks from the arrays of :func:`parts_of` and the state words."""
    nodes = arrays[0]
    blocks = []
    for hop in range(hops - 1, -1, -1):
        indptr, indices, positions = arrays[1 + 3 * hop : 4 + 3 * hop]
        known = words[hop * ROW]
        found = words[hop * ROW + ROW]
        blocks.append(Block(indptr, indices, nodes[:found], positions, known))
    return MiniBatch(nodes[: words[0]], blocks)


def subgraph_of(arrays: Sequence[Tensor], words: Sequence[int], hops: int) -> Subgraph:
    """A subgraph from the arrays of :func:`parts_of` and the state words."""
    nodes, edge_index, numbers = arrays[:3]
    ends = [0, *accumulate(words[1 : hops * ROW : ROW])]
    sampled = SampledEdges(edge_index.view(2, ends[-1]), numbers, ends)
    return Subgraph(
        {NODE_TYPE: nodes[: words[0]]},
        {NODE_TYPE: nodes},
        {EDGE_TYPE: sampled},
        {NODE_TYPE: list(words[: hops * ROW + 1 : ROW])},
    )


def typed_blocks_of(
    plan: Plan,
    graph: Graph,
    seeds: Mapping[str, int],
    arrays: Sequence[Tensor],
    words: Sequence[int],
) -> HeteroMiniBatch:
    """A batch of blocks over several types from the arrays of :func:`typed_parts_of`.

    Args:
        plan: The steps of the batch.
        graph: The graph.
        seeds: Number of seeds of each type that has some.
        arrays: The arrays.
        words: The state words.
    """
    types = graph.node_types
    nodes = dict(zip(types, arrays, strict=False))
    of_steps = arrays[len(types) :]
    counts = [
        {name: words[at] for name, at in zip(types, of_hop, strict=True)}
        for of_hop in plan.known_at
    ]
    blocks = []
    for hop, steps in enumerate(plan.hops):
        relations = {}
        for step in steps:
            first = 3 * (hop * plan.num_relations + step.relation)
            relations[graph.edge_types[step.relation]] = Relation(*of_steps[first : first + 3])
        sources = {name: ids[: counts[hop + 1][name]] for name, ids in nodes.items()}
        blocks.append(HeteroBlock(relations, sources, counts[hop]))
    outputs = {name: nodes[name][:count] for name, count in seeds.items()}
    return HeteroMiniBatch(outputs, blocks[::-1], nodes)


def typed_subgraph_of(
    plan: Plan,
    graph: Graph,
    seeds: Mapping[str, int],
    arrays: Sequence[Tensor],
    words: Sequence[int],
) -> Subgraph:
    """A subgraph from the arrays of :func:`typed_parts_of`; see :func:`typed_blocks_of`."""
    types = graph.node_types
    nodes = dict(zip(types, arrays, strict=False))
    edges = {}
    for number, edge_type in enumerate(graph.edge_types):
        of_type = len(types) + 2 * number
        edge_index, ids = arrays[of_type : of_type + 2]
        drawn = [words[steps[number].edges_at] for steps in plan.hops]
        edges[edge_type] = SampledEdges(edge_index.view(2, len(ids)), ids, [0, *accumulate(drawn)])
    ends = {
        name: [words[of_hop[number]] for of_hop in plan.known_at]
        for number, name in enumerate(types)
    }
    outputs = {name: nodes[name][:count] for name, count in seeds.items()}
    trees = None
    if plan.trees:
        of_trees = len(types) + 2 * plan.num_relations
        trees = dict(zip(types, arrays[of_trees:], strict=False))
    return Subgraph(outputs, nodes, edges, ends, trees)
