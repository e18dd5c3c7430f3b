"""Kernels of disjoint trees: all edges within each, and rows drawn whole or with replacement.

Vertex ``v`` in tree ``t`` has the id ``t * num_nodes + v``. A vertex with a long row is in many trees: its row is read
once for all of them (in an RMAT graph with 4 M edges, 500 trees of 33 vertices: 2.4 M edges in place of 17 M), and an
edge is in the trees that both ends are in.
"""

import numpy as np

from ..._jit import kernel, prefetch
from .hop import _A, _slot_of, draw_below, first_from, place_of

_AHEAD = 32  # edges between asking for a cache line and using it
_ROWS_AHEAD = 6
_SCANNED = 8  # trees that are looked through in the time that one takes to be searched for


@kernel
def group(keys, items, begins, out):  # type: ignore[no-untyped-def]
    """Stable counting sort: the items ``i`` with key ``keys[i]`` are ``out[begins[key]:begins[key + 1]]``.

    ``items`` are the numbers to sort (empty: all, in order). ``begins`` has two elements more than there are keys, and
    comes filled with zeros.
    """
    for i in range(len(keys)):
        begins[keys[i] + 2] += 1
    for k in range(2, len(begins)):
        begins[k] += begins[k - 1]
    for j in range(len(keys)):
        i = j if len(items) == 0 else items[j]
        k = keys[i] + 1
        out[begins[k]] = i
        begins[k] += 1


@kernel
def mark_trees(begins, trees, out):  # type: ignore[no-untyped-def]
    """A set of 64 bits of the trees of each vertex: two vertices without a common bit have no common tree."""
    for g in range(len(out)):
        bits = np.uint64(0)
        for j in range(begins[g], begins[g + 1]):
            bits |= np.uint64(1) << np.uint64(trees[j] & 63)
        out[g] = bits


@kernel
def find_in_trees(begin, at, src, dst, rows, edges, indices, place_in, found):  # type: ignore[no-untyped-def]
    """Find the edges whose ends are in the same tree, for the distinct destinations from number ``begin`` on.

    Args:
        begin: Where to go on.
        at: Edges found so far.
        src: Of the sources: the distinct ones' ids, hash table and its shift, ``num_nodes`` of their type; where the
            trees of each begin, these trees, ascending, the places there; and what :func:`mark_trees` makes of them.
        dst: The last four of the destinations.
        rows: Start and length of the row of each of these places: edges that it may have in its tree.
        edges: The position of each edge of a row; empty: they are positions.
        indices: The graph's.
        place_in: Scratch with an element for each tree, filled with -1.
        found: Gets three numbers for each edge: its position, and the places of source and destination.

    Returns:
        Where to go on, as ``found`` is full (the number of distinct destinations when done; ``-1 - p`` where the edge
        at ``p`` leads out of the graph), and the number of edges found.
    """
    nodes, table, shift, num_src, src_begins, src_trees, src_places, src_marks = src
    begins, trees, places, marks = dst
    starts, degrees = rows
    mask = len(table) - 1
    for g in range(begin, len(begins) - 2):
        kept = at
        first, last = begins[g], begins[g + 1]
        if last < len(places):
            prefetch(indices, starts[places[last]])
        low, high = starts[places[first]], starts[places[first]] + degrees[places[first]]
        for k in range(first, last):
            i = places[k]
            place_in[trees[k]] = i
            low, high = min(low, starts[i]), max(high, starts[i] + degrees[i])
        full = False
        for e in range(low, high):
            p = e if len(edges) == 0 else np.int64(edges[e])
            if e + _AHEAD < high and len(edges) == 0:
                prefetch(table, _slot_of(indices[e + _AHEAD], shift))
            v = np.int64(indices[p])
            if v < 0 or v >= num_src:
                return np.int64(-1) - p, at
            s = place_of(v, nodes, table, mask, shift)
            if s < 0 or src_marks[s] & marks[g] == 0:
                continue
            size = src_begins[s + 1] - src_begins[s]
            full = 3 * (at + min(size, last - first)) > len(found)
            if full:
                break
            if size <= _SCANNED * (last - first):
                for j in range(src_begins[s], src_begins[s + 1]):
                    i = place_in[src_trees[j]]
                    if i >= 0 and starts[i] <= e and e < starts[i] + degrees[i]:
                        found[3 * at], found[3 * at + 1], found[3 * at + 2] = p, src_places[j], i
                        at += 1
            else:
                j, end = src_begins[s], src_begins[s + 1]
                for k in range(first, last):
                    j = first_from(src_trees, trees[k], j, end)
                    i = places[k]
                    if j < end and src_trees[j] == trees[k] and starts[i] <= e and e < starts[i] + degrees[i]:
                        found[3 * at], found[3 * at + 1], found[3 * at + 2] = p, src_places[j], i
                        at += 1
        for k in range(first, last):
            place_in[trees[k]] = -1
        if full:
            return np.int64(g), kept
    return np.int64(len(begins) - 2), at


@kernel
def put_found(found, order, edge_ids, src, dst, out_ids):  # type: ignore[no-untyped-def]
    """Write the edges that ``find_in_trees`` found in this order; ``edge_ids`` are the graph's (empty: positions)."""
    for n in range(len(order)):
        e = 3 * order[n]
        src[n] = found[e + 1]
        dst[n] = found[e + 2]
        out_ids[n] = found[e] if len(edge_ids) == 0 else edge_ids[found[e]]


@kernel
def pick_all_or_repeated(counters, starts, degrees, out_indptr, key, positions):  # type: ignore[no-untyped-def]
    """Rows that fit whole, and uniform picks with replacement from the others."""
    for i in range(len(counters)):
        base = key + np.uint64(counters[i]) * _A
        begin = np.int64(out_indptr[i])
        count = np.int64(out_indptr[i + 1]) - begin
        for j in range(count):
            positions[begin + j] = starts[i] + (j if count == degrees[i] else draw_below(base, j, degrees[i]))
