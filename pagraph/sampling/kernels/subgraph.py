"""Kernels of subgraph sampling: ordering edges."""

import numpy as np

from ..._jit import kernel, prefetch

_SUBGRAPH_AHEAD = 64  # edges between asking for an edge id and copying it


@kernel
def split_trees(ids, num_nodes, vertices, trees):
    """The graph's id and the tree of vertices in trees, whose ids are
    ``tree * num_nodes + vertex``."""
    for i in range(len(ids)):
        tree = ids[i] // num_nodes
        trees[i] = tree
        vertices[i] = ids[i] - tree * num_nodes


@kernel
def limits_of(trees, limits, out):
    """``out[i] = limits[trees[i]]``."""
    for i in range(len(trees)):
        out[i] = limits[trees[i]]


@kernel
def in_trees(neighbors, indptr, trees, num_src, out):
    """Source vertices in the trees of the frontier that drew them; returns -1, or the first edge
    out of the graph.

    A pass of its own: reading the neighbours in it took twice as long as both, as rows are short.
    """
    for i in range(len(trees)):
        first = trees[i] * num_src
        for e in range(indptr[i], indptr[i + 1]):
            v = np.int64(neighbors[e])
            if v < 0 or v >= num_src:
                return e
            out[e] = first + v
    return -1


@kernel
def put_edges(indptr, indices, positions, edge_ids, first_dst, at, src, dst, out_ids):
    """Write a hop's edges from ``at`` on: both ends' local ids, and the graph's edge ids (empty:
    the positions)."""
    n = len(positions)
    # A pass for each column: only the last one jumps through memory, and waits for nothing else.
    for i in range(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            dst[at + e] = first_dst + i
    for e in range(n):
        src[at + e] = indices[e]
    if len(edge_ids) == 0:
        for e in range(n):
            out_ids[at + e] = positions[e]
    else:
        for e in range(n):
            if e + _SUBGRAPH_AHEAD < n:
                prefetch(edge_ids, positions[e + _SUBGRAPH_AHEAD])
            out_ids[at + e] = edge_ids[positions[e]]
