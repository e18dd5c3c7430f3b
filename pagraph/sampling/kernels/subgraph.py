"""Kernels of subgraph sampling: ordering edges, edge times."""

import numpy as np

from ..._jit import kernel, prefetch
from .hop import first_above

_SUBGRAPH_AHEAD = 64


@kernel
def split_trees(ids, num_nodes, vertices, trees):  # type: ignore[no-untyped-def]
    """The graph's id and the tree of vertices in trees, whose ids are ``tree * num_nodes + vertex``."""
    for i in range(len(ids)):
        tree = ids[i] // num_nodes
        trees[i] = tree
        vertices[i] = ids[i] - tree * num_nodes


@kernel
def limits_of(trees, limits, out):  # type: ignore[no-untyped-def]
    """``out[i] = limits[trees[i]]``."""
    for i in range(len(trees)):
        out[i] = limits[trees[i]]


@kernel
def in_trees(neighbors, indptr, trees, num_src, out):  # type: ignore[no-untyped-def]
    """Source vertices in the trees of the frontier that drew them; returns -1, or the first edge out of the graph.

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
            if e + _SUBGRAPH_AHEAD < n:
                prefetch(edge_ids, positions[e + _SUBGRAPH_AHEAD])
            out_ids[at + e] = edge_ids[positions[e]]


_AHEAD = 32  # edges between asking for a cache line and using it
_SHORT = 32  # rows up to here are sorted by insertion


@kernel
def sort_rows(indptr, times, order):  # type: ignore[no-untyped-def]
    """Sort each row by time and write where its edges were to ``order``; equal times stay in order."""
    for v in range(len(indptr) - 1):
        start, end = np.int64(indptr[v]), np.int64(indptr[v + 1])
        if end - start <= _SHORT:
            _insert(start, end, times, order)
        else:
            row = times[start:end].copy()
            places = np.argsort(row, kind="mergesort")
            for j in range(end - start):
                times[start + j] = row[places[j]]
                order[start + j] = start + places[j]


@kernel
def _insert(start, end, times, order):  # type: ignore[no-untyped-def]
    for e in range(start, end):
        time = times[e]
        at = e
        while at > start and times[at - 1] > time:
            times[at] = times[at - 1]
            order[at] = order[at - 1]
            at -= 1
        times[at] = time
        order[at] = e


@kernel
def cut_rows(times, until, since, fanout, replace, latest, starts, degrees, out_indptr):  # type: ignore[no-untyped-def]
    """Cut sorted rows down to the times up to ``until``, or to the last ``fanout`` of these; count the draws.

    ``since``: times are above these, too; empty for no such limit. Both limits are searched for by halving.
    ``starts`` and ``degrees`` of the whole rows are overwritten; ``out_indptr`` is as ``hop.measure`` makes it.
    """
    n = len(until)
    total = np.int64(0)
    out_indptr[0] = 0
    for i in range(n):
        if i + _AHEAD < n:
            prefetch(times, starts[i + _AHEAD] + (degrees[i + _AHEAD] >> 1))
        low = starts[i]
        high = first_above(times, until[i], low, low + degrees[i])
        if latest and fanout >= 0 and high - low > fanout:
            low = high - fanout
        if len(since) > 0 and low < high and times[low] <= since[i]:
            low = first_above(times, since[i], low + 1, high)
        degree = high - low
        starts[i] = low
        degrees[i] = degree
        if fanout >= 0 and degree > 0 and (replace or degree > fanout):
            total += fanout
        else:
            total += degree
        out_indptr[i + 1] = total
