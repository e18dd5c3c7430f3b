"""All edges within each of a batch's disjoint trees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..graph.minibatch import SampledEdges, Subgraph
from ..system.arrays import Array
from ..system.buffers import BufferPools
from .hop import Hop, Scratch, raise_bad_source
from .induced import edge_ids_of
from .pickers import measure_rows
from .sampler import own_fields

if TYPE_CHECKING:
    from ..graph.graph import Graph
    from .edge_values import EdgeField
    from .hop import VertexTable
    from .times import TreeTimes


_ALL: Array = np.empty(0, np.int64)
_NO_KEY = np.uint64(0)
_EDGES_PER_VERTEX = 8  # initial room, before the number of edges is known


@dataclass(frozen=True, eq=False)
class TreeVertices:
    """The vertices of one type in a batch of trees, by vertex and by tree.

    A vertex has a local id for each tree that it is in.

    Attributes:
        count: Number of local ids.
        num_nodes: Number of the graph's vertices of the type.
        num_trees: Number of trees in the batch.
        distinct: The distinct vertices, ascending.
        begins: Shape ``(len(distinct) + 2,)``, int64: where the trees of each begin.
        trees: Shape ``(count,)``, int64: these trees, ascending for each vertex.
        places: Shape ``(count,)``, int64: the vertex's local id in each.
        marks: Shape ``(len(distinct),)``, uint64: vertices without a common bit have no common
            tree.
        tree_begins: Shape ``(num_trees + 2,)``, int64: where the vertices of each tree begin.
        vertices: Shape ``(count,)``, int64: these vertices.
    """

    count: int
    num_nodes: int
    num_trees: int
    distinct: VertexTable
    begins: Array
    trees: Array
    places: Array
    marks: Array
    tree_begins: Array
    vertices: Array

    @classmethod
    def of(
        cls, ntype: str, vertices: Array, trees_of: Array, sizes: tuple[int, int], scratch: Scratch
    ) -> TreeVertices:
        """Sort a type's vertices by vertex and by tree.

        Args:
            ntype: The vertex type.
            vertices: Shape ``(count,)``, int64: the graph's ids, by local id.
            trees_of: Shape ``(count,)``, int64: the tree of each.
            sizes: ``num_nodes`` and ``num_trees``.
            scratch: This thread's scratch; both arrays may be in it.
        """
        from .kernels import trees

        num_nodes, num_trees = sizes
        count = len(vertices)
        distinct = scratch.table(f"distinct {ntype}")
        distinct.reset(None, num_nodes, np.int64)
        numbers = np.empty(count, np.int64)
        distinct.relabel(vertices, numbers)
        # Not np.unique, which took 1.1 ms for 12,000 vertices; this took 0.3.
        ascending = np.sort(distinct.nodes)
        distinct.reset(None, num_nodes, np.int64)
        distinct.relabel(ascending, numbers[: len(ascending)])
        distinct.relabel(vertices, numbers)
        tree_begins, by_tree = _grouped(trees_of, num_trees)
        begins, places = _grouped(numbers, distinct.count, by_tree)
        marks = np.empty(distinct.count, np.uint64)
        trees_of = trees_of[places]
        trees.mark_trees(begins, trees_of, marks)
        return cls(
            count,
            num_nodes,
            num_trees,
            distinct,
            begins,
            trees_of,
            places,
            marks,
            tree_begins,
            vertices[by_tree],
        )


def _grouped(keys: Array, num_keys: int, items: Array = _ALL) -> tuple[Array, Array]:
    """The ``begins`` and ``out`` of the kernel ``group``."""
    from .kernels import trees

    begins = np.zeros(num_keys + 2, np.int64)
    out = np.empty(len(keys), np.int64)
    trees.group(keys, items, begins, out)
    return begins, out


def edges_in_trees(
    hop: Hop,
    src: TreeVertices,
    dst: TreeVertices,
    rows: tuple[Array, Array],
    longest: int,
    *,
    by_source: bool = False,
) -> SampledEdges:
    """All edges between two vertices of the same tree, ordered by destination, then as in its row.

    Args:
        hop: Has the graph's edges, and the memory of the result.
        src, dst: The sources and the destinations.
        rows: Start and length of the row of each local id of ``dst``, cut to the edges that may be
            in its tree.
        longest: Length of the longest row before that.
        by_source: Order edges by source, then by the destinations' ids in the graph.

    Raises:
        FormatError: An edge points outside the graph (a damaged file).
    """
    from .kernels import trees

    csc = hop.csc
    scratch = hop.scratch
    found = scratch.array("edges found", 3 * _EDGES_PER_VERTEX * dst.count, np.int64)
    room = (
        np.full(dst.num_trees, -1, np.int64),
        np.zeros(trees.MARKS, np.uint8),
        scratch.array("edges of a row", longest, np.int64),
    )
    sources = *src.distinct.lookup, src.num_nodes, src.begins, src.trees, src.places, src.marks
    of_trees = src.tree_begins, src.vertices
    targets = dst.begins, dst.trees, dst.places, dst.marks
    at = 0
    total = 0
    while at < dst.distinct.count:
        settings = (*sources, *of_trees), targets, rows, csc.indices.numpy(), room
        at, total = trees.find_in_trees(at, total, *settings, found)
        if at < 0:
            raise_bad_source(int(csc.indices[-1 - at]), csc.num_src)
        if at < dst.distinct.count:  # grow; copying costs less than counting all edges first
            known = found.copy()
            found = scratch.array("edges found", 2 * len(known), np.int64)
            found[: len(known)] = known
    # Edges were found by ascending destination, then row; a stable sort by local id of either end
    # keeps that order.
    first, count = (1, src.count) if by_source else (2, dst.count)
    _, sequence = _grouped(found[first : 3 * total : 3], count)
    edge_index, ids = hop.pool.take_many(((2, total), hop.dtype), ((total,), torch.int64))
    trees.put_found(found, sequence, edge_ids_of(csc), *edge_index.numpy(), ids.numpy())
    return SampledEdges(edge_index, ids, [0])


def induced_in_trees(
    sampler: Any,  # a SubgraphSampler, whose file imports this one
    graph: Graph,
    batch: Subgraph,
    times: TreeTimes | None,
    field: EdgeField | None,
    pools: BufferPools | None,
    *,
    by_source: bool = False,
) -> Subgraph:
    """A batch with all edges within each tree and its time limits, in place of its own.

    Args:
        sampler: Gives the times of edges.
        graph: The graph.
        batch: The vertices, and their trees.
        times: The times of the trees, if any.
        field: Returns edge fields; None: the graph's.
        pools: Recycled memory for the edges; None: fresh memory.
        by_source: See :func:`edges_in_trees`.
    """
    pools = pools if pools is not None else BufferPools(batches=0)
    field = field or own_fields(graph)
    scratch = Scratch.of_this_thread()
    num_trees = len(times.until) if times else sum(map(len, batch.output_nodes.values()))
    assert batch.trees is not None
    known = {}
    vertices = {}
    for ntype, ids in batch.input_nodes.items():
        known[ntype] = ids.long().numpy(), batch.trees[ntype].numpy()
        sizes = graph.num_nodes_of(ntype), num_trees
        vertices[ntype] = TreeVertices.of(ntype, *known[ntype], sizes, scratch)
    edges = {}
    for etype, csc in zip(graph.edge_types, graph.scattered(sampler.edge_dir), strict=True):
        frontier, trees = known[etype[2]]
        # No edge is drawn, so keys do not matter.
        hop = Hop(
            csc=csc,
            frontier=frontier,
            key=_NO_KEY,
            layer_key=_NO_KEY,
            batch_key=_NO_KEY,
            scratch=scratch,
            dtype=batch.input_nodes[etype[2]].dtype,
            pool=pools(("edges", etype)),
            **({} if times is None else times.limits(trees, sampler.window(etype))),
        )
        starts, degrees, _ = measure_rows(hop, -1, False)
        if csc.pages is not None:
            csc.pages.need_edges(starts, degrees)
        # Of whole rows, as an upper bound for rows cut by time.
        longest = int(degrees.max(initial=0))
        of_edges = sampler.times(graph, etype, field)
        if of_edges is not None:
            hop = replace(hop, csc=of_edges.in_order(csc))
            starts, degrees, _ = sampler.timed_picker(-1, of_edges).rows(hop)
        src = vertices[etype[0]]
        dst = vertices[etype[2]]
        edges[etype] = edges_in_trees(
            hop, src, dst, (starts, degrees), longest, by_source=by_source
        )
    return replace(batch, edges=edges)
