"""Kernels of subgraph sampling: trees as parts of vertex ids, and hops put together."""

import numpy as np

from .._jit import kernel, prefetch

_AHEAD = 64


@kernel
def vertices_of(tree_ids, num_nodes, out):  # type: ignore[no-untyped-def]
    """``out[i] = tree_ids[i] % num_nodes``: the graph's id of a vertex in a tree."""
    for i in range(len(tree_ids)):
        out[i] = tree_ids[i] % num_nodes


@kernel
def trees_of(tree_ids, num_nodes, out):  # type: ignore[no-untyped-def]
    """``out[i] = tree_ids[i] // num_nodes``: the tree of a vertex in a tree."""
    for i in range(len(tree_ids)):
        out[i] = tree_ids[i] // num_nodes


@kernel
def limits_of(tree_ids, num_nodes, limits, out):  # type: ignore[no-untyped-def]
    """``out[i] = limits[tree_ids[i] // num_nodes]``: the limit of the tree of a vertex in a tree."""
    for i in range(len(tree_ids)):
        out[i] = limits[tree_ids[i] // num_nodes]


@kernel
def in_trees(neighbors, indptr, frontier, num_dst, num_src, out):  # type: ignore[no-untyped-def]
    """Source vertices as vertices in the trees of the frontier that drew them.

    Returns:
        -1, or the first edge whose source is outside the graph.
    """
    for i in range(len(frontier)):
        first = np.int64(frontier[i]) // num_dst * num_src
        for e in range(indptr[i], indptr[i + 1]):
            v = np.int64(neighbors[e])
            if v < 0 or v >= num_src:
                return e
            out[e] = first + v
    return -1


@kernel
def put_edges(indptr, indices, positions, edge_ids, first_dst, at, src, dst, out_ids):  # type: ignore[no-untyped-def]
    """Write a hop's edges from ``at`` on: both ends' local ids, and the graph's edge ids (empty: the positions)."""
    n = len(positions)
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
            if e + _AHEAD < n:
                prefetch(edge_ids, positions[e + _AHEAD])
            out_ids[at + e] = edge_ids[positions[e]]
