"""All edges within each of a batch's disjoint trees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..graph.subgraph import SampledEdges
from .hop import raise_bad_source
from .induced import edge_ids_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from .hop import Hop, Scratch, VertexTable

    Array = npt.NDArray[Any]

_ALL: Array = np.empty(0, np.int64)
_EDGES_PER_VERTEX = 8  # room at first, before it is known how many edges there are


@dataclass(frozen=True, eq=False)
class TreeVertices:
    """The vertices of one type in a batch of trees, by vertex: a vertex is in several trees, at a
    place in each.

    Attributes:
        count: Number of places.
        num_nodes: Vertices of the type in the graph.
        num_trees: Trees in the batch.
        distinct: The vertices, each once, ascending.
        begins: Shape ``(len(distinct) + 2,)``, int64: where the trees of each begin.
        trees: Shape ``(count,)``, int64: these trees, ascending for each vertex.
        places: Shape ``(count,)``, int64: the vertex's place in each.
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
        """Sort the places of a type's vertices.

        Args:
            ntype: The type.
            vertices: Shape ``(count,)``, int64.
            trees_of: Shape ``(count,)``, int64: the tree that each of them is in.
            sizes: ``num_nodes`` and ``num_trees``.
            scratch: Working memory; both may be in it.
        """
        from .kernels import trees

        num_nodes, num_trees = sizes
        count = len(vertices)
        distinct = scratch.table(f"distinct {ntype}")
        distinct.reset(None, num_nodes, np.int64)
        numbers = np.empty(count, np.int64)
        distinct.relabel(vertices, numbers)
        # Np.unique of all took 1.1 ms for 12,000 vertices, this 0.3.
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
    """See the kernel ``group``."""
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
    """Every edge between two vertices of the same tree, in the order of its destination and its
    row.

    Args:
        hop: Says which edges there are, and where the result lies.
        src, dst: The sources that edges may have, and the destinations.
        rows: First edge and number of edges of each place of ``dst``.
        longest: Edges of the longest row before rows were cut to what each place may have of it.
        by_source: In the order of the sources instead, and of each in that of the destinations'
            ids.

    Raises:
        FormatError: An edge leads out of the graph (a damaged file).
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
        if at < dst.distinct.count:  # what is copied costs less than counting all edges first would
            known = found.copy()
            found = scratch.array("edges found", 2 * len(known), np.int64)
            found[: len(known)] = known
    # Edges are found by destination, ascending, and row by row: of either end's places, that order
    # is to stay.
    first, count = (1, src.count) if by_source else (2, dst.count)
    _, sequence = _grouped(found[first : 3 * total : 3], count)
    edge_index, ids = hop.pool.take_many(((2, total), hop.dtype), ((total,), torch.int64))
    trees.put_found(found, sequence, edge_ids_of(csc), *edge_index.numpy(), ids.numpy())
    return SampledEdges(edge_index, ids, [0])
