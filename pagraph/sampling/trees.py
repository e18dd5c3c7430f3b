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

    from .hop import Hop

    Array = npt.NDArray[Any]

__all__ = ["TreeVertices", "edges_in_trees"]

_EDGES_PER_VERTEX = 8  # room at first, before it is known how many edges there are


@dataclass(frozen=True, eq=False)
class TreeVertices:
    """The vertices of one type in a batch of trees.

    Attributes:
        ids: Shape ``(n,)``, int64: vertex ``v`` in tree ``t`` is ``t * num_nodes + v``.
        num_nodes: Vertices of the type in the graph.
        begins: Shape ``(num_trees + 2,)``, int64: where the vertices of each tree begin in ``order``.
        order: Shape ``(n,)``, int64: their places in ``ids``, tree by tree.
    """

    ids: Array
    num_nodes: int
    begins: Array
    order: Array

    @classmethod
    def of(cls, ids: Array, num_nodes: int, num_trees: int) -> TreeVertices:
        """The vertices by tree."""
        from .kernels import trees

        begins, order = np.zeros(num_trees + 2, np.int64), np.empty(len(ids), np.int64)
        trees.group_by_tree(ids, max(num_nodes, 1), begins, order)
        return cls(ids, num_nodes, begins, order)

    @property
    def largest(self) -> int:
        """Vertices of the tree that has most."""
        return int(np.diff(self.begins).max(initial=0))


def edges_in_trees(
    hop: Hop, src: TreeVertices, dst: TreeVertices, rows: tuple[Array, Array], order: Array
) -> SampledEdges:
    """Every edge between two vertices of the same tree, in the order of its destination and its row.

    Args:
        hop: Says which edges there are, and where the result lies; its frontier are the vertices of ``dst``.
        src, dst: The sources that edges may have, and the destinations.
        rows: First edge and number of edges of each of ``dst``.
        order: The position in the CSC of each edge of a row; empty: they are positions.

    Raises:
        FormatError: An edge leads out of the graph (a damaged file).
    """
    from .kernels import trees

    csc, scratch, count = hop.csc, hop.scratch, len(dst.ids)
    ends, offsets = scratch.array("edge ends", count, np.int64), scratch.array("edge offsets", count, np.int64)
    table = scratch.array("tree table", 1 << max(2, (8 * src.largest).bit_length()), np.int64)
    # Two numbers for each edge. What is copied when there are more costs less than counting them first would.
    found = scratch.array("edges found", 2 * _EDGES_PER_VERTEX * count, np.int64)
    sources, targets = (src.ids, src.num_nodes, src.begins, src.order), (dst.begins, dst.order)
    at = 0
    while at < count:
        at = trees.find_in_trees(at, sources, targets, *rows, order, csc.indices.numpy(), table, found, ends)
        if at < 0:
            raise_bad_source(int(csc.indices[-1 - at]), csc.num_src)
        if at < count:
            known = found.copy()
            found = scratch.array("edges found", 2 * len(known), np.int64)
            found[: len(known)] = known
    total = int(ends[-1]) if count else 0
    edge_index, ids = hop.pool.take_many(((2, total), hop.dtype), ((total,), torch.int64))
    ends_out = edge_index.numpy()
    trees.put_found(found, ends, dst.order, offsets, edge_ids_of(csc), ends_out[0], ends_out[1], ids.numpy())
    return SampledEdges(edge_index, ids, [0])
