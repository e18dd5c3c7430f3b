"""Draws a batch by kernels: all hops along all edge types, as blocks or as one subgraph.

One call draws all hops, and one writes the result. In between, the kernel returns where Python must
act: to ask for pages of edges on disk, or to let a picker pick.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..graph.minibatch import (
    Block,
    HeteroBlock,
    HeteroMiniBatch,
    MiniBatch,
    Relation,
    SampledEdges,
    Subgraph,
)
from ..system.buffers import BufferPool
from .drawing import Drawing
from .hop import (
    ASK_OFFSETS,
    ASK_ROWS,
    BYTES,
    EDGE,
    EDGE_TYPE,
    FLAGS,
    FRESH,
    FULL,
    HOP,
    KNOWN_EDGES,
    KNOWN_IDS,
    NARROW,
    PHASE,
    PICK,
    READING,
    REPORT,
    ROW,
    STATUS,
    WHAT,
    Scratch,
    raise_reported,
)
from .pickers import NO_WEIGHTS
from .plan import NUMPY_IDS
from .sampler import seeds_by_type

if TYPE_CHECKING:
    from ..graph.graph import EdgeType, Graph
    from ..system.buffers import BufferPools
    from .drawing import ExcludedEdges
    from .edge_values import EdgeField
    from .hop import HopEdges
    from .plan import SamplePlan
    from .sampler import HopSampler
    from .times import TimedEdges, TreeTimes

_MOST_EDGES = 2**23
"""Room for all edges that a batch may draw, up to this many. The system allocates its pages when
they are first written. Batches that may draw more get room for those that they do draw, see
``Scratch.room``."""

_MOST_PLACES = 2**22  # entries of all direct tables of a batch, 4 bytes each: 16 MiB per thread
_VERTICES_PER_NODE = 64
"""A vertex type is numbered by a direct table, not by a hash table, if it has at most this many
vertices per node of a batch.

For 120,000 edges to 94,000 of 1 M vertices, the direct table took 2.6 ns per edge and its clearing
1.1, a hash table 9.6; of 4 M vertices 4.1, 1.9 and 9.8; of 16 M 5.6, 3.6 and 9.3. For few nodes a
hash table stays in the L1 cache.
"""

POSITIONS = 5  # as in the kernels
_INT32 = np.dtype(np.int32)
_INT64 = np.dtype(np.int64)
_FLOAT32 = np.dtype(np.float32)
_TORCH_IDS = {kind: dtype for dtype, kind in NUMPY_IDS.items()}
# Bytes below which results are rounded up to a power of two. The sizes of small batches vary by
# more than the head-room of recycled memory; so one buffer fits the next batch, too.
_VARIES = 2**20
_UNBOUNDED = 2**60
_UNTIMED = np.empty(0, dtype=np.int32)
NEW_MEMORY = BufferPool(most=0)


def _as_blocks(
    batch: Drawing,
    ids: Tensor,
    places: Tensor,
    floats: Tensor | None,
    counts: list[int],
    edges: list[int],
    parts: list[int],
) -> MiniBatch | HeteroMiniBatch:
    """The blocks that the kernels wrote.

    Args:
        batch: The batch.
        ids: The memory that has them, as ids.
        places: The same memory, as positions.
        floats: The same memory, as weights; None if edges have none.
        counts: Number of nodes of each type before the first hop and after each.
        edges: Number of edges of each hop and edge type.
        parts: The first element of each part.
    """
    node_types, edge_types, _ = batch.graph.types
    num_types = len(node_types)
    num_edge_types = len(edge_types)
    seeds = batch.seeds
    nodes = [
        ids[begin : begin + count] for begin, count in zip(parts, counts[-num_types:], strict=False)
    ]
    width = 3 if floats is None else 4
    narrow = batch.edges.narrow

    def relation(place: int, num_dst: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        part = num_types + width * place
        total = edges[place]
        row = parts[part]
        index = parts[part + 1]
        position = parts[part + 2]
        positions = places[position : position + total]
        if narrow is not None and batch.edges.csc[place % num_edge_types, FLAGS] & NARROW:
            positions = positions.int()
        weights = None
        if floats is not None and batch.weighed.get(place, batch.sampler.weighs_edges):
            weights = floats[parts[part + 3] : parts[part + 3] + total]
        return (
            ids[row : row + num_dst + 1],
            ids[index : index + total],
            positions,
            weights,
        )

    made: list[Any] = []
    for hop in range(len(batch.plan.fanouts) - 1, -1, -1):
        if isinstance(seeds, Tensor):
            indptr, indices, positions, weights = relation(hop, counts[hop])
            src_nodes = nodes[0][: counts[hop + 1]]
            made.append(Block(indptr, indices, src_nodes, positions, counts[hop], weights))
            continue
        num_dst = dict(zip(node_types, counts[hop * num_types :], strict=False))
        after = dict(zip(node_types, counts[(hop + 1) * num_types :], strict=False))
        relations = {
            etype: Relation(*relation(hop * num_edge_types + t, num_dst[etype[2]]))
            for t, etype in enumerate(edge_types)
        }
        of_types = {
            ntype: known[: after[ntype]] for ntype, known in zip(node_types, nodes, strict=True)
        }
        made.append(HeteroBlock(relations, of_types, num_dst))
    if isinstance(seeds, Tensor):
        return MiniBatch(seeds, made)
    return HeteroMiniBatch(dict(seeds), made, dict(zip(node_types, nodes, strict=True)))


def as_subgraph(
    graph: Graph,
    seeds: Tensor | Mapping[str, Tensor],
    memory: tuple[Tensor, Tensor],
    result: tuple[list[int], list[int], list[int]],
    *,
    by_hop: bool = True,
) -> Subgraph:
    """The subgraph that kernels wrote.

    Args:
        graph: The graph.
        seeds: The seeds, by type if there are several.
        memory: The memory that has the subgraph, as ids and as int64.
        result: ``counts``, ``edges`` and ``parts`` of :func:`_as_blocks`.
        by_hop: Whether edges are known by hop.
    """
    node_types, edge_types, _ = graph.types
    ids, longs = memory
    counts, drawn, parts = result
    nodes = {}
    ends = {}
    edges = {}
    trees = {}
    part = len(node_types)
    for t, ntype in enumerate(node_types):
        known = counts[t :: len(node_types)]
        begin = parts[t]
        nodes[ntype] = ids[begin : begin + known[-1]]
        ends[ntype] = known
    for t, etype in enumerate(edge_types):
        hop_ends = [0, *accumulate(drawn[t :: len(edge_types)])]
        total = hop_ends[-1]
        both = parts[part]
        edge_id = parts[part + 1]
        # One torch operation in place of a slice and a view.
        edge_index = ids.as_strided((2, total), (total, 1), both)
        edge_ids = longs[edge_id : edge_id + total]
        edges[etype] = SampledEdges(edge_index, edge_ids, hop_ends if by_hop else [0])
        part += 2
    for ntype, begin in zip(node_types, parts[part:], strict=False):
        trees[ntype] = longs[begin : begin + len(nodes[ntype])]
    by_type = {node_types[0]: seeds} if isinstance(seeds, Tensor) else dict(seeds)
    return Subgraph(by_type, nodes, edges, ends, trees or None)


class _Arena(NamedTuple):
    """This thread's scratch arrays for a batch.

    Attributes:
        room: Their layout.
        work, bits, nodes, ids, sources, local_ids, places: See ``advance`` of the kernels.
        weights: Weights of all drawn edges; empty if they have none.
        trees: For disjoint trees, the vertices and their trees; see ``kernels/batch.py``.
    """

    room: _Layout
    work: Any
    bits: Any
    nodes: Any
    ids: Any
    sources: Any
    local_ids: Any
    places: Any
    weights: Any
    trees: Any


def sample_batch(
    sampler: HopSampler,
    graph: Graph,
    seeds: Tensor | Mapping[str, Tensor],
    key: int,
    dtype: torch.dtype | None,
    pools: BufferPools | None,
    field: EdgeField | None = None,
    exclude: Mapping[EdgeType, ExcludedEdges] | None = None,
    timed: tuple[TimedEdges, TreeTimes] | None = None,
    *,
    reads_ids: bool = True,
) -> Any:
    """Sample a batch; see ``BlockSampler.sample`` for arguments and errors.

    Calls few functions: for a small batch, each call costs as much as one pass of a kernel.
    Without ``reads_ids``, edges have positions for ids.

    Returns:
        A subgraph if each hop expands what the previous one found, as ``SubgraphSampler.sample``
        does; else blocks, as ``BlockSampler.sample`` does.
    """
    batch = Drawing.of(
        sampler, graph, seeds, key, dtype, field, exclude, timed, reads_ids=reads_ids
    )
    plan = batch.plan
    edges = batch.edges
    arena, report = _drawn(batch)
    room = arena.room
    nbytes = report[BYTES]
    if nbytes < _VARIES:
        nbytes = 1 << (nbytes - 1).bit_length()
    pool = NEW_MEMORY if pools is None else pools("batch")
    whole = pool.take((nbytes,), torch.uint8)
    of_nodes = whole.view(batch.dtype)
    others = whole.view(torch.int64 if plan.once else _TORCH_IDS[edges.like.dtype])
    edges_at, parts_at = room.reported_at
    result = report[REPORT:edges_at], report[edges_at:parts_at], report[parts_at:]
    shape = plan.fanouts, plan.ends, room.of_types, room.division
    memory = arena.nodes, arena.ids, arena.local_ids
    out = of_nodes.numpy(), others.numpy()
    if plan.once:
        _kernels().put_subgraph(
            edges.csc,
            edges.like_ids,
            edges.narrow,
            *shape,
            plan.disjoint,
            *memory,
            arena.work,
            *out,
        )
        return as_subgraph(graph, batch.seeds, (of_nodes, others), result)
    weights = whole.view(torch.float32) if plan.weighed else None
    floats = NO_WEIGHTS if weights is None else weights.numpy()
    _kernels().put_blocks(*shape, *memory, arena.weights, arena.work, *out, floats)
    return _as_blocks(batch, of_nodes, others, weights, *result)


def sampled_vertices(
    sampler: HopSampler,
    graph: Graph,
    seeds: Tensor | Mapping[str, Tensor],
    key: int,
    dtype: torch.dtype | None,
    field: EdgeField | None,
) -> tuple[Mapping[str, Tensor], dict[str, Any], dict[str, list[int]], torch.dtype]:
    """The vertices that a batch draws, without its edges.

    Returns:
        The seeds by type; the vertices of each type, in this thread's scratch memory; their numbers
        before the first hop and after each; and the batch's id dtype.
    """
    batch = Drawing.of(sampler, graph, seeds, key, dtype, field, reads_ids=False)
    arena, report = _drawn(batch)
    node_types = graph.types.nodes
    counts = report[REPORT : arena.room.reported_at[0]]
    nodes = {}
    ends = {}
    for place, ntype in enumerate(node_types):
        ends[ntype] = counts[place :: len(node_types)]
        begin = arena.room.begins[place]
        nodes[ntype] = arena.nodes[begin : begin + ends[ntype][-1]]
    given = batch.seeds
    by_type = {node_types[0]: given} if isinstance(given, Tensor) else given
    return by_type, nodes, ends, batch.dtype


def _drawn(batch: Drawing) -> tuple[_Arena, list[int]]:
    """Draw a batch; returns the memory that has it, and the report."""
    plan = batch.plan
    edges = batch.edges
    excluded = batch.excluded_for_kernels() if batch.exclude else None
    numbers = rounded_up(tuple(batch.counts))
    random = np.uint64(batch.key % 2**64)
    advance = _kernels().advance
    most = 0
    while True:
        scratch = Scratch.for_batch()
        # Another one than before if the batch's picker has sampled.
        scratch.room = max(scratch.room, most)
        room = _Layout.of(plan, numbers, batch.graph.types.sizes, scratch.room)
        # Batches of one shape reuse the arrays, which saves a look-up by name for each.
        kind = room, batch.dtype, edges.like.dtype
        of_batch = scratch.of_batch
        if of_batch is None or of_batch[0] != kind:
            of_batch = scratch.of_batch = kind, _new_arena(batch, room, scratch)
        arena: _Arena = of_batch[1]
        arena.work[PHASE] = FRESH
        arena.work[REPORT : REPORT + len(batch.counts)] = batch.counts
        for begin, count, ids in zip(room.begins, batch.counts, batch.given, strict=True):
            if ids is not None:
                arena.nodes[begin : begin + count] = ids.numpy()
        trees = None if arena.trees is None else _planted(batch, arena)
        scratch.in_use = batch.stops
        weights = None
        if batch.weights is not None:
            weights = batch.weights.for_kernels(room.most_rows, room.most_picks, plan)
        given = (
            edges.csc,
            edges.like,
            edges.narrow,
            edges.page_bits,
            plan.fanouts,
            plan.ends,
            room.of_types,
            room.division,
            plan.replace,
            plan.once,
            random,
            batch.renewal,
            weights,
            plan.shared,
            excluded,
            trees,
            *arena[2:8],
            arena.work,
        )
        advance(*given)
        report: list[int] = arena.work[: room.reported].tolist()
        while report[STATUS] > FULL and _act(batch, arena, scratch, report):
            advance(*given)
            report = arena.work[: room.reported].tolist()
        # After FULL the kernel has cleared its tables. After picks that did not fit it has not, so
        # this scratch is given up.
        scratch.in_use = report[STATUS] == PICK
        if report[STATUS] >= FULL:
            need = report[EDGE] + report[WHAT]
            most = 1 << max(need, scratch.room).bit_length()
            continue
        if report[STATUS]:
            # For a wrong seed, this raises an error with its type and value.
            seeds_by_type(batch.graph, batch.seeds)
            raise_reported(report, plan.ends, batch.graph.types.sizes)
        return arena, report


def _new_arena(batch: Drawing, room: _Layout, scratch: Scratch) -> _Arena:
    """This thread's scratch arrays for batches of a layout."""
    kind = NUMPY_IDS[batch.dtype]
    ids = scratch.array("batch ids", room.ids, batch.edges.like.dtype)
    sources = ids
    trees = None
    if batch.plan.disjoint:
        vertices = scratch.array("batch vertices", room.nodes, _INT64)
        trees_of = scratch.array("batch trees", room.nodes, _INT64)
        trees = vertices, trees_of
        sources = scratch.array("batch sources", room.most_picks, _INT64)
        kind = _INT64
    return _Arena(
        room,
        scratch.array("batch", room.words, _INT64),
        scratch.table_bits(len(room.begins)),
        scratch.array("batch nodes", room.nodes, kind),
        ids,
        sources,
        scratch.array("local ids", room.edges, _INT32),
        scratch.places(room.places),
        scratch.array("batch weights", room.edges * room.division[-1], _FLOAT32),
        trees,
    )


def _planted(batch: Drawing, arena: _Arena) -> Any:
    """Write the trees of the seeds; returns the kernels' ``trees``."""
    numbers: Any = range(sum(batch.counts))
    if batch.timed is None:
        times = np.zeros((len(batch.edges.owners), 4), np.int64)
        timed = times, _UNTIMED, np.empty((1, 0), np.int64), False
    else:
        of_edges, of_trees = batch.timed
        numbers = of_trees.of_seeds.numpy()
        timed = of_edges.table, of_edges.like, of_edges.limits(of_trees), batch.sampler.latest
    first = 0
    for begin, count in zip(arena.room.begins, batch.counts, strict=True):
        arena.trees[1][begin : begin + count] = numbers[first : first + count]
        first += count
    return *arena.trees, batch.dtype.itemsize, timed


def _act(batch: Drawing, arena: _Arena, scratch: Scratch, report: list[int]) -> bool:
    """Do what the kernel has stopped for; False if the caller's picks need more room, for which
    ``report`` then asks."""
    plan = batch.plan
    hop = report[HOP]
    place = report[EDGE_TYPE]
    csc = batch.edges.owners[place]
    num_types = len(arena.room.begins)
    dst = int(plan.ends[place, 1])
    known = report[REPORT + dst :: num_types]
    begin = arena.room.begins[dst]
    found = slice(begin, begin + known[hop])
    if plan.once and hop > 0:
        found = slice(begin + known[hop - 1], found.stop)
    nodes = arena.nodes
    more = {}
    if arena.trees is not None:
        nodes = arena.trees[0]
        more = _in_trees(batch, arena, place, found)
    frontier = nodes[found].astype(csc.indices.numpy().dtype, copy=False)
    if report[STATUS] == PICK:
        picked = batch.picked(scratch, hop, place, frontier, **more)
        return _take(batch, arena, report, picked, len(frontier))
    pages = csc.pages
    assert pages is not None
    if report[STATUS] == ASK_OFFSETS:
        pages.need_offsets(frontier)
    elif report[STATUS] == ASK_ROWS:
        starts_at, width = arena.room.division[:2]
        starts = arena.work[starts_at:][: len(frontier)]
        offsets = arena.work[starts_at + 2 * width :][: len(frontier) + 1]
        pages.need_edges(starts, np.diff(offsets))
    else:
        total = arena.work[report[ROW] + len(frontier)]
        _ask_for(batch, place, _positions(arena, report[EDGE], total))
    return True


def _in_trees(batch: Drawing, arena: _Arena, place: int, found: slice) -> dict[str, Any]:
    """What a picker needs to know of the frontier's trees, as arguments of ``Hop``."""
    limits = {}
    if batch.timed is not None:
        window = batch.sampler.window(batch.graph.types.edges[place])
        limits = batch.timed[1].limits(arena.trees[1][found], window)
    return {"drawn_as": arena.nodes[found], **limits}


def _positions(arena: _Arena, edge: int, total: int) -> Any:
    """The positions of ``total`` edges from number ``edge`` of a batch on."""
    begin = arena.room.division[POSITIONS] + edge
    return arena.ids[begin : begin + total]


def _take(
    batch: Drawing, arena: _Arena, report: list[int], picked: HopEdges, num_rows: int
) -> bool:
    """Take the edges that a picker has picked for so many rows; see :func:`_act`.

    Raises:
        ValueError: The picker's edges are not those of these rows.
    """
    place = report[EDGE_TYPE]
    edge = report[EDGE]
    row = report[ROW]
    indptr = picked.indptr.numpy()
    positions = picked.positions.numpy()
    total = len(positions)
    # The kernel writes by these numbers.
    if len(indptr) != num_rows + 1 or indptr[0] != 0 or indptr[-1] != total:
        raise ValueError(
            f"a picker's indptr must have {num_rows + 1} entries from 0 to its {total} positions, "
            f"got {len(indptr)} entries from {indptr[:1].tolist()} to {indptr[-1:].tolist()}"
        )
    if (np.diff(indptr) < 0).any():
        raise ValueError("a picker's indptr must be non-decreasing, it is not")
    most = batch.edges.owners[place].num_edges
    if total and not 0 <= positions.min() <= positions.max() < most:
        wrong = positions[(positions < 0) | (positions >= most)][0]
        raise ValueError(f"a picker's positions must be in [0, {most}), got {wrong}")
    if edge + total > arena.room.edges:
        report[WHAT] = total
        return False
    arena.work[row : row + num_rows + 1] = indptr
    _positions(arena, edge, total)[:] = positions
    number = report[HOP] * len(batch.edges.owners) + place
    batch.weighed[number] = picked.weights is not None
    if picked.weights is not None and len(arena.weights):
        arena.weights[edge : edge + total] = picked.weights.numpy()
    _ask_for(batch, place, positions)
    arena.work[PHASE] = READING
    return True


def _ask_for(batch: Drawing, place: int, positions: Any) -> None:
    """Ask for the pages of edges on disk, and of their ids if these are read."""
    csc = batch.edges.csc
    pages = batch.edges.owners[place].pages
    if pages is None:
        return
    if csc[place, KNOWN_EDGES]:
        pages.need_edges(positions)
    if csc[place, KNOWN_IDS]:
        pages.need_ids(positions)


# Cached, as this and the next function are called for each batch, mostly with the same arguments.
@lru_cache(maxsize=256)
def rounded_up(counts: tuple[int, ...]) -> tuple[int, ...]:
    """Numbers of seeds, rounded up to powers of two.

    With several types the numbers vary from batch to batch; this keeps the number of different
    layouts small.
    """
    return tuple([count and 1 << (count - 1).bit_length() for count in counts])


@dataclass(frozen=True, eq=False, slots=True)
class _Layout:
    """Layout of the scratch memory for the largest batch of a shape; see the kernels' docstring.

    Attributes:
        edges: Maximum number of edges.
        of_types: See the kernels.
        begins: Where the nodes of each type begin.
        division: The kernels' ``room``.
        reported: Length of the report at the beginning of ``work``.
        reported_at: Where in the report the edges by hop and type begin, and where the parts do.
        most_rows: Maximum number of rows of a hop along one edge type.
        most_picks: Maximum number of edges of a hop along one edge type.
        nodes: Length of the nodes of all types.
        ids: Length of ``ids``: neighbours of a hop, and positions of all edges.
        places: Length of the direct tables of all types.
        words: Length of ``work``.
    """

    edges: int
    of_types: Any
    begins: list[int]
    division: tuple[int, ...]
    reported: int
    reported_at: tuple[int, int]
    most_rows: int
    most_picks: int
    nodes: int
    ids: int
    places: int
    words: int

    @staticmethod
    @lru_cache(maxsize=256)
    def of(
        plan: SamplePlan, num_seeds: tuple[int, ...], limits: tuple[int, ...], most: int
    ) -> _Layout:
        """The layout for these numbers of seeds and of the graph's vertices (``limits``) by type.

        ``most``: Room for edges, if the batch may draw more than ``_MOST_EDGES``.
        """
        most_known = limits
        if plan.disjoint:
            # A vertex may be in all trees.
            most_known = (_UNBOUNDED,) * len(limits)
        sizes = _sizes(plan, num_seeds, most_known, _UNBOUNDED)
        if sizes.edges > _MOST_EDGES:
            sizes = _sizes(plan, num_seeds, most_known, most)
        of_types, places = _of_types(sizes.known, limits, plan.disjoint)
        _, nodes, tables, _ = of_types[-1]
        num_hops, num_edge_types = plan.fanouts.shape
        of_relation = (3 + plan.weighed) * num_hops
        if plan.once:
            of_relation = 2
        parts = len(limits) + num_edge_types * of_relation
        rows = 3
        if plan.disjoint:
            parts += len(limits)
            rows = 5
        edges_at = REPORT + (num_hops + 1) * len(limits)
        parts_at = edges_at + num_hops * num_edge_types
        reported = parts_at + parts
        width = sizes.most_rows + 1
        offsets_at = reported + rows * width
        picks_at = offsets_at + sizes.rows
        tables_at = picks_at + plan.set_size
        return _Layout(
            sizes.edges,
            np.array(of_types, dtype=np.int64),
            [begin for _, begin, _, _ in of_types[:-1]],
            (reported, width, offsets_at, picks_at, tables_at, sizes.most_picks, int(plan.weighed)),
            reported,
            (edges_at, parts_at),
            sizes.most_rows,
            sizes.most_picks,
            nodes,
            sizes.most_picks + sizes.edges + 1,
            places,
            tables_at + tables,
        )


class _Sizes(NamedTuple):
    """Upper limits of a batch: edges in all; rows in all, and of a hop along an edge type; edges of
    such a hop; and nodes of each type."""

    edges: int
    rows: int
    most_rows: int
    most_picks: int
    known: list[int]


def _sizes(plan: SamplePlan, num_seeds: Sequence[int], limits: Sequence[int], most: int) -> _Sizes:
    """The limits of a batch with ``most`` edges."""
    known = list(num_seeds)
    frontier = known
    edges = 0
    rows = 0
    most_rows = 0
    most_picks = 0
    for fanouts in plan.fanouts.tolist():
        found = [0] * len(limits)
        for (src, dst), fanout in zip(plan.ends.tolist(), fanouts, strict=True):
            drawn = frontier[dst] * fanout
            # LABOR's fan-out is what it draws on average.
            if fanout < 0 or (fanout > 0 and plan.shared is not None):
                drawn = most if frontier[dst] else 0
            drawn = min(drawn, most)
            found[src] += drawn
            edges += drawn
            rows += frontier[dst] + 1
            most_rows = max(most_rows, frontier[dst])
            most_picks = max(most_picks, drawn)
        known = [
            min(n + min(more, most), first + limit)
            for n, more, first, limit in zip(known, found, num_seeds, limits, strict=True)
        ]
        frontier = known
        if plan.once:
            frontier = [min(more, limit) for more, limit in zip(found, limits, strict=True)]
    return _Sizes(min(edges, most), rows, most_rows, most_picks, known)


def _of_types(
    known: Sequence[int], limits: Sequence[int], disjoint: bool
) -> tuple[list[tuple[int, int, int, int]], int]:
    """The rows of the kernels' ``of_types``, and the length of all direct tables.

    Args:
        known: Maximum number of nodes of each type.
        limits: Number of the graph's vertices of each type.
        disjoint: Whether nodes are vertices of trees, which have no direct tables.
    """
    rows = []
    nodes = 0
    tables = 0
    places = 0
    for count, limit in zip(known, limits, strict=True):
        fits = limit <= _VERTICES_PER_NODE * count and places + limit <= _MOST_PLACES
        if fits and not disjoint:
            rows.append((limit, nodes, tables, places))
            places += limit
        else:
            rows.append((limit, nodes, tables, -1))
            # At most half full, even for the largest batch.
            tables += 1 << (2 * count + 15).bit_length()
        # One more: kernels write a node before they know whether it is new.
        nodes += count + 1
    rows.append((0, nodes, tables, -1))
    return rows, places


@cache
def _kernels() -> Any:
    """The kernels' module, imported late because it imports numba."""
    from .kernels import batch as _batch

    return _batch
