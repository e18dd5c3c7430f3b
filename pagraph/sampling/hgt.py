"""HGTSampler: draws a number of vertices of each type, by their edges to the batch (HGSampling)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..graph.minibatch import SampledEdges, Subgraph
from ..seeds.keys import derive_key
from ..system.arrays import Float64Array, Int64Array
from ..system.buffers import BufferPools
from ..system.checks import as_integer
from .edge_values import EdgeField
from .hop import HopMemory, Scratch, raise_reported, set_slots
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
from .uniform_batch import (
    FRESH,
    MOST_EDGES,
    KernelEdges,
    can_hold,
    edges_for_kernels,
    rounded_up,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ..graph.graph import EdgeType, Graph
    from .hop import Picker, VertexTable

MOST_NEIGHBORS = 50
"""Maximum in-neighbours to which a vertex gives shares; a hub's many would fill the budget with
tiny shares."""


@dataclass(frozen=True)
class HGTSampler(HopSampler):
    """Draws a number of vertices of each type in each hop, and returns all edges among them.

    HGSampling (Hu et al., "Heterogeneous Graph Transformer", WWW 2020, Algorithm 2), like
    torch-sparse's ``hgt_sample``. Along each edge type, a vertex divides 1 among its in-neighbours,
    or among 50 drawn uniformly if it has more. The sum that a vertex receives is its share of its
    type's budget. A hop draws from each type's budget without replacement, in proportion to squared
    shares. In the next hop, the drawn vertices divide 1 each. As in the paper, the subgraph has all
    edges among its vertices.

    Args:
        sizes: Number of vertices to draw in each hop, the first hop first: one number for each
            type, or a mapping from vertex type.
        most_edges: Consider this number of in-edges per vertex and edge type, drawn uniformly; the
            subgraph has those of them that come from a vertex of the batch. torch-sparse considers
            50. Default: all edges.

    Raises:
        TypeError: A number is not an integer.
        ValueError: A size is negative, or ``most_edges`` is below 1.

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
        """Number of vertices of a type drawn in hop ``hop``.

        Raises:
            KeyError: The hop's sizes do not name the type.
        """
        size = self.sizes[hop]
        if not isinstance(size, Mapping):
            return size
        if node_type not in size:
            raise KeyError(
                f"sizes must name every vertex type, got {list(size)} without {node_type!r}"
            )
        return size[node_type]

    def picker(self, graph: Graph, hop: int, edge_type: EdgeType, field: EdgeField) -> Picker:
        """Picks the edges along which a vertex gives shares."""
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
        """Sample one mini-batch; see :meth:`SubgraphSampler.sample`.

        Raises:
            KeyError: A hop's sizes do not name a vertex type, or the graph does not have a type of
                the seeds.
        """
        batch = _sampled_at_once(self, graph, seeds, key, dtype, pools)
        if batch is not None:
            return batch
        return _HopByHop(self, graph, seeds, key, dtype, pools, None).subgraph()

    def shape(self, graph: Graph) -> _Shape:
        """The sizes as kernels take them; cached by a graph's types, as each batch needs them."""
        node_types = graph.types.nodes
        shape = self._shapes.get(graph.types)
        if shape is None:
            hops = range(self.num_hops)
            sizes = [[self.size(hop, t) for t in node_types] for hop in hops]
            shape = self._shapes[graph.types] = _Shape(
                np.array(sizes, dtype=np.int64).reshape(len(hops), len(node_types)),
                edge_ends(graph),
                (MOST_NEIGHBORS, self.most_edges or 0),
                set_slots(max(MOST_NEIGHBORS, self.most_edges or 0)),
            )
        return shape

    @cached_property
    def _shapes(self) -> dict[Hashable, _Shape]:
        return {}


@dataclass(frozen=True, eq=False)
class _Shape:
    """What the size of a batch depends on, besides its seeds.

    Attributes:
        sizes: Number of vertices to draw, shape ``(num_hops, num_node_types)``, int64.
        ends: See ``edge_ends``.
        fanouts: Maximum in-neighbours to which a vertex gives shares; in-edges per vertex that are
            considered in the end, 0 for all.
        set_size: Slots of the hash set of one vertex's picks.
    """

    sizes: Int64Array
    ends: Int64Array
    fanouts: tuple[int, int]
    set_size: int


@dataclass(frozen=True, eq=False)
class _ScratchSizes:
    """Sizes of the scratch memory for the largest possible batch; see ``kernels/hgt.py``.

    Attributes:
        spans: See there.
        seen: Maximum seen vertices of one type.
        rows: Maximum vertices of a frontier.
        edges: Maximum edges of a hop, and of the result.
        kept: Length of ``kept``.
        table: Slots of each type's hash table.
    """

    spans: Int64Array
    seen: int
    rows: int
    edges: int
    kept: int
    table: int

    @staticmethod
    @lru_cache(maxsize=256)
    def of(shape: _Shape, num_seeds: tuple[int, ...], limits: tuple[int, ...]) -> _ScratchSizes:
        """The sizes for these numbers of seeds, and of the graph's vertices (``limits``), by
        type."""
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
            # Repeated seeds have their own local ids, so a type may have more than its limit.
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
        return _ScratchSizes(
            spans,
            max(seen),
            rows,
            edges,
            sum(known[dst] + 1 for _, dst in ends),
            # At most half full, even for the largest batch.
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
    """Sample a batch in one kernel call; None if it may be huge, or if edges are on disk or have
    several id dtypes."""
    given = seeds_by_type(graph, seeds)
    dtype = dtype or next((ids.dtype for ids in given.values()), torch.int64)
    edges = edges_for_kernels(sampler, graph)
    node_types, edge_types, limits = graph.types
    if edges is None or not can_hold(dtype, limits):
        return None
    shape = sampler.shape(graph)
    counts = [len(given[t]) if t in given else 0 for t in node_types]
    room = _ScratchSizes.of(shape, rounded_up(tuple(counts)), limits)
    if room.edges > MOST_EDGES or max(shape.fanouts) > MOST_SMALL_FANOUT:
        return None

    from .kernels import batch, hgt

    scratch = Scratch.of_this_thread()
    num_types = len(node_types)
    nodes = scratch.array("hgt nodes", int(room.spans[-1, 0]), edges.like.dtype)
    for place, ntype in enumerate(node_types):
        if ntype in given:
            begin = room.spans[place, 0]
            nodes[begin : begin + counts[place]] = given[ntype].numpy()
    edges_at = batch.REPORT + (len(shape.sizes) + 1) * num_types
    parts_at = edges_at + len(edge_types)
    report = scratch.array("hgt report", parts_at + num_types + 2 * len(edge_types), np.int64)
    report[batch.REPORT : batch.REPORT + num_types] = counts
    drawn = _draw(scratch, shape, room, edges, dtype, key, nodes, report)
    found: list[int] = report.tolist()
    if found[0]:
        raise_reported(found, shape.ends, limits)

    nbytes = -(-found[3] // 8) * 8  # whole int64 words
    pool = FRESH if pools is None else pools("batch")
    whole = pool.take((nbytes,), torch.uint8)
    ids = whole.view(dtype)
    longs = whole.view(torch.int64)
    out = ids.numpy(), longs.numpy()
    hops = len(shape.sizes)
    hgt.put(edges.csc, edges.like_ids, shape.ends, room.spans, hops, nodes, *drawn, report, *out)

    input_nodes = {}
    hop_ends = {}
    for place, ntype in enumerate(node_types):
        hop_ends[ntype] = found[batch.REPORT + place : edges_at : num_types]
        begin = found[parts_at + place]
        input_nodes[ntype] = ids[begin : begin + hop_ends[ntype][-1]]
    made: dict[EdgeType, SampledEdges] = {}
    if sampler.most_edges is None:
        made = _all_edges(graph, room, nodes, hop_ends, dtype, pools)
    else:
        for place, etype in enumerate(edge_types):
            total = found[edges_at + place]
            both, edge_ids = found[parts_at + num_types + 2 * place :][:2]
            edge_index = ids[both : both + 2 * total].view(2, total)
            made[etype] = SampledEdges(edge_index, longs[edge_ids : edge_ids + total], [0])
    return Subgraph(dict(given), input_nodes, made, hop_ends)


def _all_edges(
    graph: Graph,
    room: _ScratchSizes,
    nodes: Any,
    hop_ends: Mapping[str, Sequence[int]],
    dtype: torch.dtype,
    pools: BufferPools | None,
) -> dict[EdgeType, SampledEdges]:
    """All edges among a batch's vertices, which are in scratch memory."""
    known = {}
    for place, ntype in enumerate(graph.types.nodes):
        begin = room.spans[place, 0]
        known[ntype] = nodes[begin : begin + hop_ends[ntype][-1]]
    pools = pools if pools is not None else BufferPools(batches=0)
    return {etype: induced_edges(graph, etype, known, dtype, pools) for etype in graph.types.edges}


def _draw(
    scratch: Scratch,
    shape: _Shape,
    room: _ScratchSizes,
    edges: KernelEdges,
    dtype: torch.dtype,
    key: int,
    nodes: Any,
    report: Any,
) -> tuple[Any, Any, Any]:
    """Run the kernel ``draw`` in this thread's scratch; returns its positions, places and kept."""
    from .kernels import hgt

    num_types = len(room.spans) - 1
    like = edges.like
    num_seen = int(room.spans[-1, 1])
    positions = scratch.array("hgt positions", room.edges, like.dtype)
    places = scratch.array("hgt places", room.edges, np.int32)
    kept = scratch.array("hgt kept", room.kept, np.int64)
    # Several arrays from one: each look-up is a call, and calls take most of a batch's host time.
    shares = scratch.array("hgt shares", num_seen + 2 * room.seen, np.float64)
    counts = scratch.array("hgt counts", room.seen + 2 * num_types, np.int64)
    budget = (
        scratch.array("hgt seen", num_seen, like.dtype),
        shares[:num_seen],
        scratch.array("hgt tables", num_types * room.table, np.int64).reshape(num_types, -1),
        counts[room.seen : room.seen + num_types],
    )
    # Of one type's draws: the keys, their places, and the keys in order.
    of_draws = (
        shares[num_seen : num_seen + room.seen],
        counts[: room.seen],
        shares[num_seen + room.seen :],
    )
    of_hop = (
        scratch.array("hgt rows", 3 * (room.rows + 1), np.int64).reshape(3, -1),
        scratch.hash_set(shape.set_size),
        scratch.array("hgt sources", room.edges, like.dtype),
        positions,
        places,
    )
    hgt.draw(
        (edges.csc, like),
        (shape.ends, room.spans, shape.sizes, shape.fanouts),
        dtype.itemsize,
        np.uint64(key % 2**64),
        scratch.table_bits(num_types),
        nodes,
        budget,
        of_draws,
        of_hop,
        kept,
        counts[room.seen + num_types :],
        report,
    )
    return positions, places, kept


class _Budget:
    """The shares of one type's vertices; -1 (``TAKEN``) for those in the batch."""

    def __init__(self, seen: VertexTable) -> None:
        self.seen = seen
        self._shares: Float64Array = np.full(seen.count, -1.0)

    @property
    def shares(self) -> Float64Array:
        """The share of each seen vertex."""
        if len(self._shares) < self.seen.count:
            known = self._shares
            self._shares = np.zeros(2 * self.seen.count)
            self._shares[: len(known)] = known
        return self._shares[: self.seen.count]


class _HopByHop(BatchRun):
    """A batch while it is sampled hop by hop."""

    sampler: HGTSampler

    def subgraph(self) -> Subgraph:
        """Sample all hops, and the edges among their vertices."""
        # Two tables per type: the batch's vertices, and the seen ones, which got a share. Both
        # begin with the seeds, which are taken.
        budgets: dict[str, _Budget] = {}
        for ntype, table in self.tables.items():
            seen = self.scratch.table(f"budget {ntype}")
            for each in (table, seen):
                each.reset(
                    self.seeds.get(ntype), self.graph.num_nodes_of(ntype), id_dtype_of(self.graph)
                )
            budgets[ntype] = _Budget(seen)

        # A vertex gives shares once, in the hop after the one that drew it.
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
        # Keyed as the hop after the last one, whose key no other draw has.
        hop = self.hop(self.sampler.num_hops, index, frontier, torch.int32, memory)
        drawn = UniformPicker(self.sampler.most_edges).pick(hop)
        positions = drawn.positions.numpy()
        places = self.read_sources(hop, drawn)
        indptr = self.scratch.array("kept", len(frontier) + 1, np.int64)
        offsets = drawn.indptr.numpy()
        kept = hgt.keep_known(offsets, places, nodes, table, shift, positions, places, indptr)
        found = indptr, positions[:kept], places[:kept]
        return known_edges(hop.csc, etype, found, self.dtype, self.pools)

    def _give(self, number: int, begins: Mapping[str, int], budgets: Mapping[str, _Budget]) -> None:
        """Add the shares that the previous hop's vertices give."""
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
        drawn = self.scratch.array("drawn", min(size, count), budget.seen.nodes.dtype)
        # Numbered after the edge types, whose numbers key the picks of this hop.
        key = np.uint64(derive_key(self.key, number, len(self.graph.edge_types) + index))
        seen = budget.seen.nodes
        taken = hgt.take_shares(
            seen, budget.shares, size, key, keys, places, np.empty_like(keys), drawn, 0
        )
        self.tables[ntype].relabel(
            drawn[:taken], self.scratch.array("drawn places", taken, np.int64)
        )
