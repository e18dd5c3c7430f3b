"""HGTSampler: draws a number of vertices of each type, by their edges to the batch (HGSampling)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..graph.minibatch import Subgraph
from ..system.arrays import Int64Array
from ..system.checks import as_integer
from .hop import (
    ASK_OFFSETS,
    BYTES,
    EDGE,
    EDGE_TYPE,
    FRESH,
    FULL,
    HOP,
    KNOWN_IDS,
    NUM_EDGES,
    PHASE,
    REPORT,
    ROW,
    STATUS,
    Scratch,
    raise_reported,
    set_slots,
)
from .induced import induced_batch
from .plan import batch_dtype, edge_ends, edges_for_kernels
from .sampler import HopSampler, check_per_hop, seeds_by_type
from .whole_batch import NEW_MEMORY, as_subgraph, rounded_up

if TYPE_CHECKING:
    from torch import Tensor

    from ..graph.graph import Graph
    from ..system.buffers import BufferPools
    from .plan import KernelEdges

_LONG = 1024  # above, `most_edges` is bounded by the longest row of the graph, which is looked up
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
        return _sampled(self, graph, seeds, key, dtype, pools)

    def shape(self, graph: Graph) -> _Shape:
        """The sizes as kernels take them; cached by a graph's types, as each batch needs them."""
        node_types = graph.types.nodes
        most_edges = self.most_edges or 0
        if most_edges > _LONG:
            longest = [csc.longest_row for csc in graph.scattered(self.edge_dir)]
            most_edges = min(most_edges, max(longest, default=0))
        known = graph.types, most_edges
        shape = self._shapes.get(known)
        if shape is None:
            hops = range(self.num_hops)
            sizes = [[self.size(hop, t) for t in node_types] for hop in hops]
            shape = self._shapes[known] = _Shape(
                np.array(sizes, dtype=np.int64).reshape(len(hops), len(node_types)),
                edge_ends(graph),
                (MOST_NEIGHBORS, most_edges),
                set_slots(max(MOST_NEIGHBORS, most_edges)),
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
    def of(
        shape: _Shape,
        num_seeds: tuple[int, ...],
        limits: tuple[int, ...],
        num_edges: tuple[int, ...],
    ) -> _ScratchSizes:
        """The sizes for these numbers of seeds and of the graph's vertices (``limits``), by type,
        and of its edges, by edge type."""
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
            # Rows are those of different vertices, but for seeds that are repeated.
            considered = [
                min(known[dst] * shape.fanouts[1], total + num_seeds[dst] * shape.fanouts[1])
                for (_, dst), total in zip(ends, num_edges, strict=True)
            ]
            edges = max(edges, sum(considered))
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


def _sampled(
    sampler: HGTSampler,
    graph: Graph,
    seeds: Tensor | Mapping[str, Tensor],
    key: int,
    dtype: torch.dtype | None,
    pools: BufferPools | None,
) -> Subgraph:
    """Sample a batch; see :meth:`HGTSampler.sample`."""
    from .kernels import hgt

    given = seeds_by_type(graph, seeds)
    of_seeds = next(iter(given.values())).dtype if given else torch.int64
    dtype = batch_dtype(dtype, of_seeds, graph.types.sizes)
    edges = edges_for_kernels(sampler.edge_dir, graph)
    if edges.on_disk:
        edges = edges._replace(csc=edges.csc.copy())
        edges.csc[:, KNOWN_IDS] = 0  # few of the edges that are drawn are kept
    node_types, edge_types, limits = graph.types
    shape = sampler.shape(graph)
    counts = [len(given[t]) if t in given else 0 for t in node_types]
    num_edges = tuple(edges.csc[:, NUM_EDGES].tolist())
    room = _ScratchSizes.of(shape, rounded_up(tuple(counts)), limits, num_edges)

    scratch = Scratch.for_batch()
    num_types = len(node_types)
    nodes = scratch.array("hgt nodes", int(room.spans[-1, 0]), edges.like.dtype)
    for place, ntype in enumerate(node_types):
        if ntype in given:
            begin = room.spans[place, 0]
            nodes[begin : begin + counts[place]] = given[ntype].numpy()
    edges_at = REPORT + (len(shape.sizes) + 1) * num_types
    parts_at = edges_at + len(edge_types)
    report = scratch.array("hgt report", parts_at + num_types + 2 * len(edge_types), np.int64)
    report[REPORT : REPORT + num_types] = counts
    report[PHASE] = FRESH
    drawn = _draw(scratch, shape, room, edges, dtype, key, nodes, report)
    found: list[int] = report.tolist()
    if found[STATUS]:
        raise_reported(found, shape.ends, limits)

    hop_ends = {}
    known = {}
    for place, ntype in enumerate(node_types):
        hop_ends[ntype] = found[REPORT + place : edges_at : num_types]
        begin = room.spans[place, 0]
        known[ntype] = nodes[begin : begin + hop_ends[ntype][-1]]
    if sampler.most_edges is None:
        return induced_batch(graph, given, known, hop_ends, dtype, pools)

    pool = NEW_MEMORY if pools is None else pools("batch")
    whole = pool.take((-(-found[BYTES] // 8) * 8,), torch.uint8)  # whole int64 words
    ids = whole.view(dtype)
    longs = whole.view(torch.int64)
    out = ids.numpy(), longs.numpy()
    hops = len(shape.sizes)
    if edges.on_disk:
        _ask_for_ids(edges, found[edges_at:parts_at], drawn[0])
    hgt.put(
        edges.csc,
        edges.like_ids,
        edges.narrow,
        shape.ends,
        room.spans,
        hops,
        nodes,
        *drawn,
        report,
        *out,
    )

    result = found[REPORT:edges_at], found[edges_at:parts_at], found[parts_at:]
    return as_subgraph(graph, given, (ids, longs), result, by_hop=False)


def _ask_for_ids(edges: KernelEdges, counts: list[int], positions: Any) -> None:
    """Ask for the pages of the ids of all edges, of which each type has one of ``counts``."""
    begin = 0
    for csc, count in zip(edges.owners, counts, strict=True):
        if csc.pages is not None:
            csc.pages.need_ids(positions[begin : begin + count])
        begin += count


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
    positions = scratch.array("hgt positions", room.edges + 1, like.dtype)
    places = scratch.array("hgt places", room.edges, np.int32)
    kept = scratch.array("hgt kept", room.kept, np.int64)
    # Several arrays from one: each look-up is a call, and calls take most of a batch's host time.
    shares = scratch.array("hgt shares", num_seen + 2 * room.seen, np.float64)
    counts = scratch.array("hgt counts", room.seen + 2 * num_types, np.int64)
    ids = scratch.array("hgt ids", num_seen + room.edges, like.dtype)
    budget = (
        ids[:num_seen],
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
        ids[num_seen:],
        positions,
        places,
    )
    given = (
        (edges.csc, like, edges.narrow, edges.page_bits),
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
    scratch.in_use = edges.on_disk
    hgt.draw(*given)
    while report[STATUS] > FULL:
        pages = edges.owners[report[EDGE_TYPE]].pages
        assert pages is not None
        begin = report[ROW]
        count = report[EDGE]
        if report[STATUS] == ASK_OFFSETS:
            pages.need_offsets(nodes[begin : begin + count])
        else:
            first = 0
            if report[HOP] == len(shape.sizes):
                # After the kept edges of the types before.
                edges_at = REPORT + (len(shape.sizes) + 1) * num_types
                first = report[edges_at : edges_at + report[EDGE_TYPE]].sum()
            pages.need_edges(positions[first : first + of_hop[0][2][count]])
        hgt.draw(*given)
    scratch.in_use = False
    return positions, places, kept
