"""Whole batches of uniform or weighted picks in two kernel calls: one draws all hops along all edge
types, one writes the result.

Results are bit-identical to sampling hop by hop. The functions return None for everything else
(times, trees, excluded or induced edges, all neighbours, batches that may be huge, edges on disk).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
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
from ..seeds.keys import Renewal
from ..system.buffers import BufferPool
from .hop import SHARES_NONE, Scratch, raise_reported
from .pickers import NO_WEIGHTS, weighted_scratch
from .sampler import seeds_by_type

if TYPE_CHECKING:
    from ..graph.csc import CSC
    from ..graph.graph import Graph
    from ..system.buffers import BufferPools
    from .edge_values import EdgeField
    from .sampler import FanoutHops, HopSampler

MOST_EDGES = 2**23
"""Batches that may draw more edges are sampled hop by hop.

Scratch memory has room for every edge that a batch may draw. The system allocates its pages when
they are first written.
"""

_MOST_PLACES = 2**22  # entries of all direct tables of a batch, 4 bytes each: 16 MiB per thread
_VERTICES_PER_NODE = 64
"""A vertex type is numbered by a direct table, not by a hash table, if it has at most this many
vertices per node of a batch.

For 120,000 edges to 94,000 of 1 M vertices, the direct table took 2.6 ns per edge and its clearing
1.1, a hash table 9.6; of 4 M vertices 4.1, 1.9 and 9.8; of 16 M 5.6, 3.6 and 9.3. For few nodes a
hash table stays in the L1 cache.
"""

_MOST_INT32 = 2**31 - 1
_INT32 = np.dtype(np.int32)
_INT64 = np.dtype(np.int64)
NUMPY_IDS = {torch.int32: _INT32, torch.int64: _INT64}
_LIKE = {dtype: np.empty(0, dtype=kind) for dtype, kind in NUMPY_IDS.items()}
_REPORT = 4  # as in the kernels
# Empty arrays that tell the kernels the dtypes of running sums and guides.
_NO_SUMS = np.empty(0, dtype=np.float64)
_NO_GUIDE = np.empty(0, dtype=np.int32)
_UNKNOWN: Any = object()
# Bytes below which results are rounded up to a power of two. The sizes of small batches vary by
# more than the head-room of recycled memory; so one buffer fits the next batch, too.
_VARIES = 2**20
FRESH = BufferPool(most=0)


def _as_blocks(
    graph: Graph,
    seeds: Tensor | Mapping[str, Tensor],
    ids: Tensor,
    places: Tensor,
    counts: list[int],
    edges: list[int],
    parts: list[int],
) -> MiniBatch | HeteroMiniBatch:
    """The blocks that the kernels wrote.

    Args:
        graph, seeds: See ``BlockSampler.sample``.
        ids: The memory that has them, as ids.
        places: The same memory, as positions.
        counts: Number of nodes of each type before the first hop and after each.
        edges: Number of edges of each hop and edge type.
        parts: The first element of each part.
    """
    node_types, edge_types, _ = graph.types
    num_types = len(node_types)
    num_edge_types = len(edge_types)
    nodes = [
        ids[begin : begin + count] for begin, count in zip(parts, counts[-num_types:], strict=False)
    ]

    def relation(place: int, num_dst: int) -> tuple[Tensor, Tensor, Tensor]:
        part = num_types + 3 * place
        total = edges[place]
        row = parts[part]
        index = parts[part + 1]
        position = parts[part + 2]
        return (
            ids[row : row + num_dst + 1],
            ids[index : index + total],
            places[position : position + total],
        )

    made: list[Any] = []
    for hop in range(len(edges) // num_edge_types - 1, -1, -1):
        if isinstance(seeds, Tensor):
            indptr, indices, positions = relation(hop, counts[hop])
            made.append(Block(indptr, indices, nodes[0][: counts[hop + 1]], positions, counts[hop]))
            continue
        num_dst = dict(zip(node_types, counts[hop * num_types :], strict=False))
        after = dict(zip(node_types, counts[(hop + 1) * num_types :], strict=False))
        relations = {
            etype: Relation(*relation(hop * num_edge_types + t, num_dst[etype[2]]))
            for t, etype in enumerate(edge_types)
        }
        src_nodes = {
            ntype: known[: after[ntype]] for ntype, known in zip(node_types, nodes, strict=True)
        }
        made.append(HeteroBlock(relations, src_nodes, num_dst))
    if isinstance(seeds, Tensor):
        return MiniBatch(seeds, made)
    return HeteroMiniBatch(dict(seeds), made, dict(zip(node_types, nodes, strict=True)))


def _as_subgraph(
    graph: Graph,
    seeds: Tensor | Mapping[str, Tensor],
    ids: Tensor,
    longs: Tensor,
    counts: list[int],
    drawn: list[int],
    parts: list[int],
) -> Subgraph:
    """The subgraph that the kernels wrote.

    Args are those of :func:`_as_blocks`, but ``longs`` is the memory as edge ids.
    """
    node_types, edge_types, _ = graph.types
    nodes = {}
    ends = {}
    edges = {}
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
        edge_index = ids[both : both + 2 * total].view(2, total)
        edges[etype] = SampledEdges(edge_index, longs[edge_id : edge_id + total], hop_ends)
        part += 2
    by_type = {node_types[0]: seeds} if isinstance(seeds, Tensor) else dict(seeds)
    return Subgraph(by_type, nodes, edges, ends)


@dataclass(frozen=True, eq=False)
class WeightedEdges:
    """Weights of all edges that a sampler draws from, as the kernels take them.

    Attributes:
        table: The table in the kernels' ``weights``, shape ``(num_edge_types, 6)``, int64.
        like: An empty array of the weights' dtype; None if no type has weights.
        held: Keeps the memory at the table's addresses alive.
    """

    table: Any
    like: Any
    held: list[Any]

    @classmethod
    def of(
        cls, sampler: HopSampler, graph: Graph, hops: FanoutHops, field: EdgeField
    ) -> WeightedEdges | None:
        """The weights of the edge types that any hop draws from.

        None if some are invalid, or if their dtypes differ: such batches are sampled hop by hop.
        """
        edge_types = graph.types.edges
        drawn = hops.fanouts.any(0).tolist()
        table = np.zeros((len(edge_types), 6), dtype=np.int64)
        likes: dict[Any, Any] = {}
        held: list[Any] = []
        for place, etype in enumerate(edge_types):
            try:
                weights = sampler.weights(graph, etype, field) if drawn[place] else None
            except (TypeError, ValueError):
                # Not raised here: hop by hop it is an error only if a batch reaches this type.
                return None
            if weights is None:
                continue
            held.append(weights)
            if weights.values is not None:
                values = weights.values.numpy()
                likes[values.dtype] = values[:0]
                table[place, :3] = [array.ctypes.data for array in (values, *weights.tables())]
            if weights.kept is not None:
                table[place, 3] = weights.kept.indptr.data_ptr()
                table[place, 4] = weights.kept.indices.data_ptr()
            table[place, 5] = weights.num_positive
        if len(likes) > 1:
            return None
        if not held:
            return cls(table, None, held)
        return cls(table, next(iter(likes.values()), NO_WEIGHTS), held)

    def for_kernels(self, rows: int, picks: int, hops: FanoutHops) -> Any:
        """The kernels' ``weights``, for hops with at most these rows and picks."""
        if self.like is None:
            return None
        # The set has at least four slots per pick, so a quarter bounds the picks of one row.
        scratch = weighted_scratch(Scratch.of_this_thread(), rows, picks, hops.set_size >> 2)
        return self.table, self.like, _NO_SUMS, _NO_GUIDE, scratch


class KernelEdges(NamedTuple):
    """The edges of all types as kernels take them.

    Attributes:
        owners: Keep the arrays alive, which kernels read by their addresses.
        csc: See the kernels.
        like: An empty array of the ids' dtype.
        like_ids: An empty array of the edge ids' dtype.
    """

    owners: list[CSC]
    csc: Any
    like: Any
    like_ids: Any


@dataclass(eq=False, slots=True)
class _Batch:
    """A batch before it is drawn.

    Attributes:
        hops: The hops to draw.
        seeds: Seeds of each vertex type, if any.
        counts: Number of seeds of each vertex type.
        dtype: Id dtype of the result.
        edges: See :func:`edges_for_kernels`.
        weights: Weights of these edges; None: uniform.
        room: Layout of its scratch memory.
    """

    hops: FanoutHops
    seeds: list[Tensor | None]
    counts: list[int]
    dtype: torch.dtype
    edges: KernelEdges
    weights: WeightedEdges | None
    room: _Layout

    @classmethod
    def of(
        cls,
        sampler: HopSampler,
        graph: Graph,
        seeds: Tensor | Mapping[str, Tensor],
        dtype: torch.dtype | None,
        field: EdgeField | None,
    ) -> _Batch | None:
        """A batch that the kernels can draw; None if they cannot.

        Raises:
            IndexError: A seed is outside ``[0, num_nodes)``. Only checked here for seeds whose
                dtype is converted; the kernels check the others.
        """
        hops = sampler.known_hops.get(graph.types, _UNKNOWN)
        if hops is _UNKNOWN:
            hops = sampler.known_hops[graph.types] = sampler.fanout_hops(graph)
        given = None if hops is None else _given(graph, seeds)
        edges = None if given is None else edges_for_kernels(sampler, graph)
        if hops is None or given is None or edges is None:
            return None
        counts = [0 if ids is None else ids.shape[0] for ids in given]
        dtype = dtype or (seeds if isinstance(seeds, Tensor) else next(iter(seeds.values()))).dtype
        limits = graph.types.sizes
        room = _Layout.of(hops, rounded_up(tuple(counts)), limits, sampler.expands_once)
        if not can_hold(dtype, limits) or room.edges > MOST_EDGES:
            return None
        if any([ids is not None and ids.dtype != dtype for ids in given]):
            seeds_by_type(graph, seeds)
        weights = None
        if sampler.prob is not None:
            make = partial(WeightedEdges.of, sampler, graph, hops)
            weights = sampler.known_weights.get(graph, sampler.prob, field, make)
            if weights is None:
                return None
        return cls(hops, given, counts, dtype, edges, weights, room)


def sample_at_once(
    sampler: HopSampler,
    graph: Graph,
    seeds: Tensor | Mapping[str, Tensor],
    key: int,
    dtype: torch.dtype | None,
    pools: BufferPools | None,
    field: EdgeField | None = None,
) -> Any:
    """Sample a batch; None if the kernels cannot draw it.

    Calls few functions: for a small batch, each call costs as much as one pass of a kernel.

    Args:
        sampler: Draws the hops.
        graph, seeds, key, dtype, pools, field: See ``BlockSampler.sample``.

    Returns:
        A subgraph if each hop expands what the previous one found, as ``SubgraphSampler.sample``
        does; else blocks, as ``BlockSampler.sample`` does.
    """
    drawn = _Batch.of(sampler, graph, seeds, dtype, field)
    if drawn is None:
        return None
    hops = drawn.hops
    room = drawn.room
    edges = drawn.edges
    once = sampler.expands_once
    batch = _kernels()
    work, memory, bits, places = _memory(drawn)
    renewal = SHARES_NONE
    if sampler.batch_dependency != 1:
        shared = Renewal.of(key, sampler.batch_dependency)
        key = shared.key
        renewal = shared.numbers
    weights = None
    if drawn.weights is not None:
        weights = drawn.weights.for_kernels(room.most_rows, room.most_picks, hops)
    shape = hops.fanouts, hops.ends, room.of_types, room.division
    random = np.uint64(key % 2**64)
    batch.draw(
        edges.csc,
        edges.like,
        *shape,
        hops.replace,
        once,
        random,
        renewal,
        weights,
        bits,
        *memory,
        places,
        work,
    )
    report: list[int] = work[: room.reported].tolist()
    if report[0]:
        # For a wrong seed, this raises an error with its type and value.
        seeds_by_type(graph, seeds)
        raise_reported(report, hops.ends, graph.types.sizes)
    nbytes = 1 << (report[3] - 1).bit_length() if report[3] < _VARIES else report[3]
    pool = FRESH if pools is None else pools("batch")
    whole = pool.take((nbytes,), torch.uint8)
    of_nodes = whole.view(drawn.dtype)
    place_dtype = torch.int64 if once else edges.owners[0].indices.dtype
    others = whole.view(place_dtype)
    out = of_nodes.numpy(), others.numpy()
    if once:
        batch.put_subgraph(edges.csc, edges.like_ids, *shape, *memory, work, *out)
    else:
        batch.put_blocks(*shape, *memory, work, *out)
    edges_at, parts_at = room.reported_at
    as_batch = _as_subgraph if once else _as_blocks
    return as_batch(
        graph,
        seeds,
        of_nodes,
        others,
        report[_REPORT:edges_at],
        report[edges_at:parts_at],
        report[parts_at:],
    )


def _memory(drawn: _Batch) -> tuple[Any, tuple[Any, Any, Any], Any, Any]:
    """This thread's scratch arrays for a batch, with its seeds.

    Returns:
        ``work``; nodes, ids and local ids; sizes of the hash tables in bits; and direct tables.
    """
    room = drawn.room
    like = drawn.edges.like
    scratch = Scratch.of_this_thread()
    # Batches of one shape reuse the tuple, which saves a look-up by name for each array.
    kind = room, drawn.dtype, like.dtype
    of_batch = scratch.of_batch
    if of_batch is None or of_batch[0] != kind:
        arrays = (
            scratch.array("batch nodes", room.nodes, NUMPY_IDS[drawn.dtype]),
            scratch.array("batch ids", room.ids, like.dtype),
            scratch.array("local ids", room.edges, _INT32),
        )
        work = scratch.array("batch", room.words, _INT64)
        bits = scratch.table_bits(len(room.begins))
        of_batch = scratch.of_batch = kind, (work, arrays, bits, scratch.places(room.places))
    memory: tuple[Any, tuple[Any, Any, Any], Any, Any] = of_batch[1]
    work, (nodes, _, _), _, _ = memory
    work[_REPORT : _REPORT + len(drawn.counts)] = drawn.counts
    for begin, count, ids in zip(room.begins, drawn.counts, drawn.seeds, strict=True):
        if ids is not None:
            nodes[begin : begin + count] = ids.numpy()
    return memory


def _given(graph: Graph, seeds: Tensor | Mapping[str, Tensor]) -> list[Tensor | None] | None:
    """The seeds of each vertex type; None if there are none, or if the kernels do not take them."""
    given: list[Tensor | None]
    if isinstance(seeds, Tensor):
        if not graph.is_homogeneous:
            return None
        given = [seeds]
        count = 1
    elif not isinstance(seeds, Mapping):  # sampling hop by hop raises the error
        return None
    else:
        given = [seeds.get(ntype) for ntype in graph.types.nodes]
        count = len(seeds) or -1
    for ids in given:
        if ids is None:
            continue
        if not isinstance(ids, Tensor) or ids.ndim != 1:
            return None
        if not ids.is_cpu or ids.dtype not in NUMPY_IDS:
            return None
        count -= 1
    return None if count else given


def edges_for_kernels(sampler: HopSampler, graph: Graph) -> KernelEdges | None:
    """The edges of all types as the kernels take them.

    Not cached between batches: arrays move when a graph is shared with another process.

    None if there are no edge types, if dtypes differ, or if arrays are on disk or not contiguous.
    """
    owners = []
    arrays = []
    dtypes = set()
    id_dtypes = set()
    for csc in graph.scattered(sampler.edge_dir):
        indptr = csc.indptr
        indices = csc.indices
        ids = csc.edge_ids
        address = 0
        if csc.pages is not None or not (indptr.is_contiguous() and indices.is_contiguous()):
            return None
        if ids is not None:
            if not ids.is_contiguous():
                return None
            address = ids.data_ptr()
            id_dtypes.add(ids.dtype)
        dtypes.add(indices.dtype)
        owners.append(csc)
        arrays.append(
            (
                indptr.data_ptr(),
                indices.data_ptr(),
                address,
                indices.shape[0],
                indptr.shape[0] - 1,
                csc.num_src,
            )
        )
    if len(dtypes) != 1 or len(id_dtypes) > 1:
        return None
    like = _LIKE[dtypes.pop()]
    like_ids = _LIKE[id_dtypes.pop()] if id_dtypes else like
    return KernelEdges(owners, np.array(arrays, dtype=_INT64), like, like_ids)


# Cached, as this and the next function are called for each batch, mostly with the same arguments.
@lru_cache(maxsize=256)
def rounded_up(counts: tuple[int, ...]) -> tuple[int, ...]:
    """Numbers of seeds, rounded up to powers of two.

    With several types the numbers vary from batch to batch; this keeps the number of different
    layouts small.
    """
    return tuple([count and 1 << (count - 1).bit_length() for count in counts])


@lru_cache(maxsize=256)
def can_hold(dtype: torch.dtype, limits: tuple[int, ...]) -> bool:
    """Whether ``dtype`` is an id dtype that can hold ids below ``limits``."""
    return dtype in NUMPY_IDS and (dtype != torch.int32 or max(limits) <= _MOST_INT32)


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
        hops: FanoutHops, num_seeds: tuple[int, ...], limits: tuple[int, ...], once: bool
    ) -> _Layout:
        """The layout for these numbers of seeds and of the graph's vertices (``limits``) by type.

        ``once``: See ``draw`` of the kernels.
        """
        known = list(num_seeds)
        frontier = list(num_seeds)
        edges = 0
        rows = 0
        most_rows = 0
        most_picks = 0
        for fanouts in hops.fanouts.tolist():
            found = [0] * len(limits)
            for (src, dst), fanout in zip(hops.ends.tolist(), fanouts, strict=True):
                drawn = frontier[dst] * fanout
                found[src] += drawn
                edges += drawn
                rows += frontier[dst] + 1
                most_rows = max(most_rows, frontier[dst])
                most_picks = max(most_picks, drawn)
            known = [
                min(n + more, first + limit)
                for n, more, first, limit in zip(known, found, num_seeds, limits, strict=True)
            ]
            frontier = known
            if once:
                frontier = [min(more, limit) for more, limit in zip(found, limits, strict=True)]
        of_types, places = _of_types(known, limits)
        _, nodes, tables, _ = of_types[-1]
        num_hops, num_edge_types = hops.fanouts.shape
        parts = len(limits) + (2 * num_edge_types if once else 3 * num_edge_types * num_hops)
        edges_at = _REPORT + (num_hops + 1) * len(limits)
        parts_at = edges_at + num_hops * num_edge_types
        reported = parts_at + parts
        offsets_at = reported + 3 * most_rows
        tables_at = offsets_at + rows + hops.set_size
        return _Layout(
            edges,
            np.array(of_types, dtype=np.int64),
            [begin for _, begin, _, _ in of_types[:-1]],
            (reported, most_rows, offsets_at, offsets_at + rows, tables_at, most_picks),
            reported,
            (edges_at, parts_at),
            most_rows,
            most_picks,
            nodes,
            most_picks + edges,
            places,
            tables_at + tables,
        )


def _of_types(
    known: Sequence[int], limits: Sequence[int]
) -> tuple[list[tuple[int, int, int, int]], int]:
    """The rows of the kernels' ``of_types``, and the length of all direct tables.

    Args:
        known: Maximum number of nodes of each type.
        limits: Number of the graph's vertices of each type.
    """
    rows = []
    nodes = 0
    tables = 0
    places = 0
    for count, limit in zip(known, limits, strict=True):
        if limit <= _VERTICES_PER_NODE * count and places + limit <= _MOST_PLACES:
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
