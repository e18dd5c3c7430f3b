"""Kernels of subgraph sampling: ordering edges, induced edges, edge times."""

import numpy as np

from ..._jit import kernel, prefetch
from .hop import _slot_of, first_above, place_of

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
def read_in_trees(indices, positions, indptr, trees, num_src, out):  # type: ignore[no-untyped-def]
    """Source vertices in the trees of the frontier that drew them; returns -1, or the first edge out of the graph."""
    n = len(positions)
    for i in range(len(trees)):
        first = np.int64(trees[i]) * num_src
        for e in range(indptr[i], indptr[i + 1]):
            if e + _SUBGRAPH_AHEAD < n:
                prefetch(indices, positions[e + _SUBGRAPH_AHEAD])
            v = np.int64(indices[positions[e]])
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
_ROWS_AHEAD = 6


@kernel
def count_known(indices, starts, degrees, num_src, nodes, table, shift, out_indptr):  # type: ignore[no-untyped-def]
    """The ``indptr`` of in-edges whose source is in ``nodes``; returns -1, or the first position out of the graph."""
    mask = len(table) - 1
    n = len(starts)
    total = np.int64(0)
    out_indptr[0] = 0
    for i in range(n):
        if i + _ROWS_AHEAD < n:
            prefetch(indices, starts[i + _ROWS_AHEAD])
        end = starts[i] + degrees[i]
        for p in range(starts[i], end):
            if p + _AHEAD < end:
                prefetch(table, _slot_of(indices[p + _AHEAD], shift))
            v = np.int64(indices[p])
            if v < 0 or v >= num_src:
                return p
            total += place_of(v, nodes, table, mask, shift) >= 0
        out_indptr[i + 1] = total
    return np.int64(-1)


@kernel
def put_known(indices, starts, degrees, edge_ids, nodes, table, shift, indptr, src, dst, out_ids):  # type: ignore[no-untyped-def]
    """Write the edges that ``count_known`` counted: both ends' local ids, and the graph's edge ids (empty: positions).

    Rows without any are not read again.
    """
    mask = len(table) - 1
    n = len(starts)
    at = np.int64(0)
    for i in range(n):
        if i + _ROWS_AHEAD < n:
            prefetch(indices, starts[i + _ROWS_AHEAD])
        if indptr[i + 1] == indptr[i]:
            continue
        end = starts[i] + degrees[i]
        for p in range(starts[i], end):
            if p + _AHEAD < end:
                prefetch(table, _slot_of(indices[p + _AHEAD], shift))
            place = place_of(np.int64(indices[p]), nodes, table, mask, shift)
            if place >= 0:
                src[at] = place
                dst[at] = i
                out_ids[at] = p if len(edge_ids) == 0 else edge_ids[p]
                at += 1


_SHORT = 32  # rows up to here are sorted by insertion


@kernel
def rows_are_sorted(indptr, times):  # type: ignore[no-untyped-def]
    """Whether the times never decrease within a row."""
    for v in range(len(indptr) - 1):
        for e in range(np.int64(indptr[v]) + 1, np.int64(indptr[v + 1])):
            if times[e] < times[e - 1]:
                return False
    return True


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
