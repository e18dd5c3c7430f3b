"""Kernels of subgraph sampling: ordering edges, induced edges."""

import numpy as np

from ..._jit import kernel, prefetch
from .hop import _A, EMPTY

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
_ROWS_AHEAD = 6
SEGMENT = 1024  # edges that are looked at in one go
_S6, _S32 = np.uint64(6), np.uint64(32)
_LOW6, _LOW32 = np.uint64(63), np.uint64(2**32 - 1)
_ONE = np.uint64(1)


@kernel
def mark_nodes(nodes, marks, shift):  # type: ignore[no-untyped-def]
    """Set a bit for each vertex, in 64 a word; ``marks`` has ``2 ** (64 - shift)`` of them."""
    for i in range(len(nodes)):
        bit = (np.uint64(np.int64(nodes[i])) * _A) >> shift
        marks[bit >> _S6] |= _ONE << (bit & _LOW6)


@kernel
def find_known(indices, starts, degrees, num_src, known, some, state, out_indptr, out, places):  # type: ignore[no-untyped-def]
    """Find the in-edges whose source is in a vertex table; returns -1, or the first position out of the graph.

    Of a segment of edges, those whose source's bit is set are collected without a branch, for which there is no
    guessing: of the edges of hubs half may be found. Only these ask the table (twice as fast as asking for all).

    Args:
        known: The look-up arguments of the vertex table, and what :func:`mark_nodes` made.
        some: Room for the positions of a segment.
        state: Row and position to go on from, and how many edges were found; ends before the last row where ``out``
            has no room for another segment, to be called again.
        out_indptr: The ``indptr`` of the edges found.
        out, places: Positions of the edges found, and places of their sources.
    """
    nodes, table, shift, marks, marks_shift = known
    mask, limit = np.uint64(len(table) - 1), np.uint64(num_src)
    tag_is_id = num_src <= 2**32
    row, p, at = state[0], state[1], state[2]
    n = len(starts)
    while row < n:
        end = starts[row] + degrees[row]
        if row + _ROWS_AHEAD < n:
            prefetch(indices, starts[row + _ROWS_AHEAD])
        while p < end:
            if at + SEGMENT > len(out):
                state[0], state[1], state[2] = row, p, at
                return np.int64(-1)
            stop = min(end, p + SEGMENT)
            count, outside = np.uint64(0), False
            for q in range(p, stop):
                v = np.uint64(np.int64(indices[q]))
                outside |= v >= limit
                bit = (v * _A) >> marks_shift
                some[count] = q
                count += (marks[bit >> _S6] >> (bit & _LOW6)) & _ONE
            if outside:
                while 0 <= indices[p] < num_src:
                    p += 1
                return p
            for i in range(count):
                q = some[i]
                v = np.uint64(np.int64(indices[q]))
                tag, slot = v & _LOW32, (v * _A) >> shift
                entry = table[slot]  # as in place_of, which looks at the vertex itself for every edge
                while entry != EMPTY and not (
                    (np.uint64(entry) >> _S32) == tag
                    and (tag_is_id or np.uint64(np.int64(nodes[np.uint64(entry) & _LOW32])) == v)
                ):
                    slot = (slot + _ONE) & mask
                    entry = table[slot]
                out[at] = q
                places[at] = np.int64(np.uint64(entry) & _LOW32)
                at += entry != EMPTY
            p = stop
        row += 1
        out_indptr[row] = at
        if row < n:
            p = starts[row]
    state[0], state[1], state[2] = row, p, at
    return np.int64(-1)


@kernel
def put_known(indptr, positions, places, edge_ids, src, dst, out_ids):  # type: ignore[no-untyped-def]
    """Write the edges that ``find_known`` found: both ends' local ids, and the graph's edge ids (empty: positions)."""
    n = indptr[len(indptr) - 1]
    for i in range(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            dst[e] = i
    for e in range(n):
        src[e] = places[e]
    if len(edge_ids) == 0:
        for e in range(n):
            out_ids[e] = positions[e]
    else:
        for e in range(n):
            if e + _SUBGRAPH_AHEAD < n:
                prefetch(edge_ids, positions[e + _SUBGRAPH_AHEAD])
            out_ids[e] = edge_ids[positions[e]]
