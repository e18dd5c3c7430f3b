"""HGTSampler: as many vertices of each type, by how much they are connected with those that are
there."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..graph.subgraph import SampledEdges, Subgraph
from ..seeds.keys import derive_key
from ..system.arrays import Float64Array, Int64Array
from ..system.buffers import BufferPools
from ..system.checks import as_integer
from .edge_values import EdgeField
from .hop import HopMemory, Scratch, raise_bad_row, raise_bad_source
from .induced import induced_edges, known_edges
from .pickers import UniformPicker
from .sampler import (
    MOST_SMALL_FANOUT,
    BatchRun,
    HopSampler,
    check_per_hop,
    edge_ends,
    id_dtype_of,
    seeds_by_type,
)
from .uniform_batch import FRESH, MOST_EDGES, can_hold, edges_for_kernels, rounded_up

if TYPE_CHECKING:
    from torch import Tensor

    from ..graph.graph import EdgeType, Graph
    from .hop import Picker, VertexTable

MOST_NEIGHBORS = 50
"""In-neighbours that a vertex gives shares to: a hub's many would fill the budget with shares of
next to nothing."""


@dataclass(frozen=True)
class HGTSampler(HopSampler):
    """Draws a number of vertices of each type in each hop, and takes all edges that the graph has
    among them.

    HGSampling (Hu et al., "Heterogeneous Graph Transformer", WWW 2020, Algorithm 2), as
    torch-sparse's ``hgt_sample`` does it. Every vertex divides 1 among its in-neighbours along each
    edge type, of more than 50 among 50 drawn uniformly; what a vertex gets in sum is its share of
    its type's budget. A hop draws from the budget of each type, without replacement, in proportion
    to the squares of the shares; then those drawn divide theirs. The edges are all among the
    vertices, as in the paper.

    Args:
        sizes: Vertices drawn in each hop, the first hop first: of each type, or by a mapping from
            vertex type.
        most_edges: Look at so many in-edges of a vertex along an edge type, drawn uniformly,
            instead of all of them: those among them that come from a vertex of the batch are its
            edges. torch-sparse looks at 50.

    Raises:
        TypeError: A number is not an integer.
        ValueError: A size is negative, or ``most_edges`` below 1.

    Example:
        >>> from pagraph.graph import Graph
        >>> graph = Graph.from_coo([0, 1, 2, 3, 0], [1, 2, 3, 0, 2])
        >>> batch = HGTSampler([5, 1]).sample(graph, torch.tensor([2]))
        >>> batch.input_nodes["_N"].tolist(), batch.hop_ends["_N"]
        ([2, 1, 0, 3], [1, 3, 4])
    """

    sizes: Sequence[int | Mapping[str, int]]
    most_edges: int | None = None
    edge_dir = "in"
    prob = None

    def __post_init__(self) -> None:
        sizes: Any = self.sizes
        checked = check_per_hop(
            "sizes", sizes, lambda size, least: as_integer("sizes", size, least=least), least=0
        )
        object.__setattr__(self, "sizes", checked)
        if self.most_edges is not None:
            object.__setattr__(
                self, "most_edges", as_integer("most_edges", self.most_edges, least=1)
            )

    @property
    def num_hops(self) -> int:
        """Hops from the seeds."""
        return len(self.sizes)

    def size(self, hop: int, node_type: str) -> int:
        """Vertices of a type drawn in hop number ``hop``; KeyError where the hop's sizes do not
        name the type."""
        size = self.sizes[hop]
        if not isinstance(size, Mapping):
            return size
        if node_type not in size:
            raise KeyError(
                f"sizes must name every vertex type, got {list(size)} without {node_type!r}"
            )
        return size[node_type]

    def picker(self, graph: Graph, hop: int, edge_type: EdgeType, field: EdgeField) -> Picker:
        """The edges along which a vertex gives shares."""
        return UniformPicker(MOST_NEIGHBORS)

    def sample(
        self,
        graph: Graph,
        seeds: Tensor | Mapping[str, Tensor],
        key: int = 0,
        *,
        dtype: torch.dtype | None = None,
        pools: BufferPools | None = None,
    ) -> Subgraph:
        """Sample one mini-batch; see :meth:`SubgraphSampler.sample`. KeyError for a type without a
        size."""
        batch = _sampled_at_once(self, graph, seeds, key, dtype, pools)
        if batch is not None:
            return batch
        return _HopByHop(self, graph, seeds, key, dtype, pools, None).subgraph()

    def shape(self, graph: Graph) -> _Shape:
        """The sizes as kernels take them; memoized by the types of a graph, as every batch asks."""
        node_types = graph.types[0]
        shape = self._shapes.get(graph.types)
        if shape is None:
            hops = range(self.num_hops)
            sizes = [[self.size(hop, t) for t in node_types] for hop in hops]
            shape = self._shapes[graph.types] = _Shape(
                np.array(sizes, dtype=np.int64).reshape(len(hops), len(node_types)),
                edge_ends(graph),
                (MOST_NEIGHBORS, self.most_edges or 0),
            )
        return shape

    @cached_property
    def _shapes(self) -> dict[Hashable, _Shape]:
        return {}


@dataclass(frozen=True, eq=False)
class _Shape:
    """What a batch's size depends on, besides the seeds.

    Attributes:
        sizes: Vertices to draw, shape ``(num_hops, num_node_types)``, int64.
        ends: The places of both ends' types among the vertex types, shape ``(num_edge_types, 2)``,
            int64.
        fanouts: In-neighbours that a vertex gives shares to; in-edges that are looked at, 0 for all.
    """

    sizes: Int64Array
    ends: Int64Array
    fanouts: tuple[int, int]


@dataclass(frozen=True, eq=False)
class _Room:
    """Scratch for the largest batch there can be; see ``kernels/hgt.py`` for its parts.

    Attributes:
        spans: Where the vertices of each type begin, shape ``(num_node_types + 1, 2)``, int64.
        seen: Vertices of one type that may be seen.
        rows: Vertices of the largest frontier.
        edges: Edges of a hop, or of the result.
        kept: Bounds of the result's edges.
        table: Slots of the hash table of one type.
    """

    spans: Int64Array
    seen: int
    rows: int
    edges: int
    kept: int
    table: int

    @staticmethod
    @lru_cache(maxsize=256)
    def of(shape: _Shape, num_seeds: tuple[int, ...], limits: tuple[int, ...]) -> _Room:
        """The room for so many seeds of each type in a graph of so many vertices."""
        known = list(num_seeds)
        seen = list(num_seeds)
        frontier = known
        ends = shape.ends.tolist()
        edges = 0
        rows = max(known)
        for sizes in shape.sizes.tolist():
            for src, dst in ends:
                drawn = frontier[dst] * shape.fanouts[0]
                edges = max(edges, drawn)
                seen[src] += drawn
            # Repeated seeds have places of their own, so that a type may have more than its limit.
            seen = [min(n, k + m) for n, k, m in zip(seen, num_seeds, limits, strict=True)]
            frontier = [min(n, m) for n, m in zip(sizes, limits, strict=True)]
            known = [min(n + m, s) for n, m, s in zip(known, frontier, seen, strict=True)]
            rows = max(rows, *frontier)
        if shape.fanouts[1]:
            edges = max(edges, sum(known[dst] * shape.fanouts[1] for _, dst in ends))
            rows = max(rows, *known)
        spans = np.zeros((len(limits) + 1, 2), dtype=np.int64)
        spans[1:, 0] = np.cumsum(known)
        spans[1:, 1] = np.cumsum(seen)
        return _Room(
            spans,
            max(seen),
            rows,
            edges,
            sum(known[dst] + 1 for _, dst in ends),
            # At most half full, so that it need not grow beyond this.
            1 << (2 * max(seen) + 15).bit_length(),
        )


def _sampled_at_once(
    sampler: HGTSampler,
    graph: Graph,
    seeds: Tensor | Mapping[str, Tensor],
    key: int,
    dtype: torch.dtype | None,
    pools: BufferPools | None,
) -> Subgraph | None:
    """A batch sampled in one call of a kernel; None for one that may be huge, and for edges on disk
    or of several id dtypes, which are sampled hop by hop."""
    given = seeds_by_type(graph, seeds)
    dtype = dtype or next((ids.dtype for ids in given.values()), torch.int64)
    edges = edges_for_kernels(sampler, graph)
    node_types, edge_types, limits = graph.types
    if edges is None or not can_hold(dtype, limits):
        return None
    held, csc, like, like_ids = edges
    shape = sampler.shape(graph)
    counts = [len(given[t]) if t in given else 0 for t in node_types]
    room = _Room.of(shape, rounded_up(tuple(counts)), limits)
    if room.edges > MOST_EDGES or max(shape.fanouts) > MOST_SMALL_FANOUT:
        return None

    from .kernels import batch, hgt

    scratch = Scratch.of_this_thread()
    num_types = len(node_types)
    nodes = scratch.array("hgt nodes", int(room.spans[-1, 0]), like.dtype)
    for place, ntype in enumerate(node_types):
        if ntype in given:
            begin = room.spans[place, 0]
            nodes[begin : begin + counts[place]] = given[ntype].numpy()
    edges_at = batch.REPORT + (len(shape.sizes) + 1) * num_types
    parts_at = edges_at + len(edge_types)
    report = scratch.array("hgt report", parts_at + num_types + 2 * len(edge_types), np.int64)
    report[batch.REPORT : batch.REPORT + num_types] = counts
    drawn = _draw(scratch, shape, room, csc, like, dtype, key, nodes, report)
    found: list[int] = report.tolist()
    if found[0] == batch.BAD_ROW:
        raise_bad_row(found[1])
    if found[0] == batch.BAD_SOURCE:
        raise_bad_source(found[1], limits[shape.ends[found[2], 0]])

    whole = (FRESH if pools is None else pools("batch")).take((-(-found[3] // 8) * 8,), torch.uint8)
    ids = whole.view(dtype)
    longs = whole.view(torch.int64)
    out = ids.numpy(), longs.numpy()
    hops = len(shape.sizes)
    hgt.put(csc, like_ids, shape.ends, room.spans, hops, nodes, *drawn, report, *out)
    del held  # the kernels read its memory by address

    input_nodes = {}
    hop_ends = {}
    for place, ntype in enumerate(node_types):
        hop_ends[ntype] = found[batch.REPORT + place : edges_at : num_types]
        begin = found[parts_at + place]
        input_nodes[ntype] = ids[begin : begin + hop_ends[ntype][-1]]
    made = {}
    if sampler.most_edges is None:
        known = {}
        for place, ntype in enumerate(node_types):
            begin = room.spans[place, 0]
            known[ntype] = nodes[begin : begin + hop_ends[ntype][-1]]
        pools = pools if pools is not None else BufferPools(max_free=0)
        made = {etype: induced_edges(graph, etype, known, dtype, pools) for etype in edge_types}
    else:
        for place, etype in enumerate(edge_types):
            total = found[edges_at + place]
            both, edge_ids = found[parts_at + num_types + 2 * place :][:2]
            edge_index = ids[both : both + 2 * total].view(2, total)
            made[etype] = SampledEdges(edge_index, longs[edge_ids : edge_ids + total], [0])
    return Subgraph(dict(given), input_nodes, made, hop_ends)


def _draw(
    scratch: Scratch,
    shape: _Shape,
    room: _Room,
    csc: Any,
    like: Any,
    dtype: torch.dtype,
    key: int,
    nodes: Any,
    report: Any,
) -> tuple[Any, Any, Any]:
    """Run the kernel that draws, in this thread's scratch; positions, places and bounds of the
    edges."""
    from .kernels import hgt

    num_types = len(room.spans) - 1
    num_seen = int(room.spans[-1, 1])
    positions = scratch.array("hgt positions", room.edges, like.dtype)
    places = scratch.array("hgt places", room.edges, np.int32)
    kept = scratch.array("hgt kept", room.kept, np.int64)
    # One look-up for several arrays: each is a call, and these few are most of what a batch makes.
    shares = scratch.array("hgt shares", num_seen + 2 * room.seen, np.float64)
    counts = scratch.array("hgt counts", room.seen + num_types, np.int64)
    hgt.draw(
        csc,
        like,
        shape.ends,
        room.spans,
        shape.sizes,
        shape.fanouts,
        dtype.itemsize,
        np.uint64(key % 2**64),
        scratch.table_bits(num_types),
        nodes,
        scratch.array("hgt seen", num_seen, like.dtype),
        scratch.array("hgt local", num_seen, np.int32),
        shares[:num_seen],
        shares[num_seen : num_seen + room.seen],  # the keys of one type's draws
        counts[: room.seen],  # the places of these draws
        shares[num_seen + room.seen :],  # their keys in order
        scratch.array("hgt tables", num_types * room.table, np.int64).reshape(num_types, -1),
        scratch.array("hgt rows", 3 * (room.rows + 1), np.int64).reshape(3, -1),
        scratch.hash_set(max(shape.fanouts)),
        scratch.array("hgt sources", room.edges, like.dtype),
        positions,
        places,
        kept,
        counts[room.seen :],
        report,
    )
    return positions, places, kept


class _Budget:
    """The shares of the vertices of one type: of those that are in the batch -1."""

    def __init__(self, seen: VertexTable) -> None:
        self.seen = seen
        self._shares: Float64Array = np.full(seen.count, -1.0)

    @property
    def shares(self) -> Float64Array:
        """A share for each vertex that was seen."""
        if len(self._shares) < self.seen.count:
            known = self._shares
            self._shares = np.zeros(2 * self.seen.count)
            self._shares[: len(known)] = known
        return self._shares[: self.seen.count]


class _HopByHop(BatchRun):
    """One batch, sampled hop by hop."""

    sampler: HGTSampler

    def subgraph(self) -> Subgraph:
        """Sample all hops, and all edges among their vertices."""
        # Two tables for each type: the batch's vertices, and those that ever got a share. Both
        # begin with the seeds, so that the budget knows that they are taken.
        budgets: dict[str, _Budget] = {}
        for ntype, table in self.tables.items():
            seen = self.scratch.table(f"budget {ntype}")
            for each in (table, seen):
                each.reset(
                    self.seeds.get(ntype), self.graph.num_nodes_of(ntype), id_dtype_of(self.graph)
                )
            budgets[ntype] = _Budget(seen)

        # A vertex gives its shares once, in the hop after the one that found it.
        def expand(number: int, begins: Mapping[str, int], known: object) -> None:
            self._give(number, begins, budgets)
            for index, ntype in enumerate(self.tables):
                self._take(number, index, ntype, budgets[ntype])

        ends = self.each_hop(expand)
        nodes = self.kept_nodes()
        edges = {
            etype: self._edges(index, etype) for index, etype in enumerate(self.graph.edge_types)
        }
        return Subgraph(dict(self.seeds), nodes, edges, ends)

    def _edges(self, index: int, etype: EdgeType) -> SampledEdges:
        """The edges of type number ``index`` among the batch's vertices."""
        from .kernels import hgt

        if self.sampler.most_edges is None:
            return induced_edges(self.graph, etype, self.nodes, self.dtype, self.pools)
        frontier = self.tables[etype[2]].nodes
        nodes, table, shift = self.tables[etype[0]].lookup
        memory = HopMemory(self.scratch, ("edges", index))
        # The key of the hop after the last: no hop has drawn shares with it.
        hop = self.hop(self.sampler.num_hops, index, frontier, torch.int32, memory)
        drawn = UniformPicker(self.sampler.most_edges).pick(hop)
        positions = drawn.positions.numpy()
        places = self.read_sources(hop, drawn)
        indptr = self.scratch.array("kept", len(frontier) + 1, np.int64)
        # All that the table knows is in the batch, in the same place.
        local = self.scratch.array("local", len(nodes), np.int64)
        local[:] = np.arange(len(nodes))
        offsets = drawn.indptr.numpy()
        kept = hgt.keep_known(
            offsets, places, nodes, table, shift, local, positions, places, indptr
        )
        found = indptr, positions[:kept], places[:kept]
        return known_edges(hop.csc, etype, found, self.dtype, self.pools)

    def _give(self, number: int, begins: Mapping[str, int], budgets: Mapping[str, _Budget]) -> None:
        """Add the shares that the vertices found by the hop before give."""
        from .kernels import hgt

        for index, etype in enumerate(self.graph.edge_types):
            frontier = self.tables[etype[2]].nodes[begins[etype[2]] :]
            budget = budgets[etype[0]]
            memory = HopMemory(self.scratch, ("hop", index))
            hop = self.hop(number, index, frontier, torch.int32, memory)
            edges = self.sampler.pick(self.graph, hop, number, etype, self.field)
            places = edges.indices.numpy()
            budget.seen.relabel(self.read_sources(hop, edges), places)
            hgt.add_shares(edges.indptr.numpy(), places, budget.shares)

    def _take(self, number: int, index: int, ntype: str, budget: _Budget) -> None:
        """Draw vertices of type number ``index``."""
        from .kernels import hgt

        count = budget.seen.count
        size = self.sampler.size(number, ntype)
        keys = self.scratch.array("share keys", count, np.float64)
        places = self.scratch.array("share places", count, np.int64)
        local = self.scratch.array("local", count, np.int64)
        drawn = self.scratch.array("drawn", min(size, count), budget.seen.nodes.dtype)
        # The picks of this hop use the numbers of the edge types for their keys.
        key = np.uint64(derive_key(self.key, number, len(self.graph.edge_types) + index))
        seen = budget.seen.nodes
        taken = hgt.take_shares(
            seen, budget.shares, size, key, keys, places, np.empty_like(keys), local, drawn, 0
        )
        self.tables[ntype].relabel(
            drawn[:taken], self.scratch.array("drawn places", taken, np.int64)
        )
