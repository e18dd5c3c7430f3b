"""Kernels of disjoint trees: all edges within each, and rows drawn whole or with replacement.

Vertex ``v`` in tree ``t`` has the id ``t * num_nodes + v``. A tree is small and its vertices' rows may be long, so one
tree is done after the other, with a hash table of its vertices alone that stays in the innermost cache.
"""

import numpy as np

from ..._jit import kernel, prefetch
from .hop import _A, EMPTY, draw_below, insert_one, place_of

_AHEAD = 8  # rows between asking for the first cache line and using it


@kernel
def group_by_tree(tree_ids, num_nodes, begins, order):  # type: ignore[no-untyped-def]
    """Places of the vertices of each tree: those of tree ``t`` are ``order[begins[t]:begins[t + 1]]``.

    ``begins`` has two elements more than there are trees, and comes filled with zeros.
    """
    for i in range(len(tree_ids)):
        begins[tree_ids[i] // num_nodes + 2] += 1
    for t in range(2, len(begins)):
        begins[t] += begins[t - 1]
    for i in range(len(tree_ids)):
        t = tree_ids[i] // num_nodes
        order[begins[t + 1]] = i
        begins[t + 1] += 1


@kernel
def find_in_trees(begin, src, dst, starts, degrees, edges, indices, table, found, ends):  # type: ignore[no-untyped-def]
    """Find the in-edges whose source is in the same tree; goes on from number ``begin`` of the destinations by tree.

    Args:
        begin: Where to go on.
        src: The ids of the sources, ``num_nodes`` of their type, and what :func:`group_by_tree` makes of them.
        dst: What it makes of the destinations.
        starts, degrees: Each destination's row.
        edges: The position of each edge of a row; empty: they are positions.
        indices: The graph's.
        table: Scratch of a power-of-two length, at least four times the sources of a tree.
        found: Gets two numbers for each edge: its position, and the place of its source.
        ends: Gets the number of edges up to each destination.

    Returns:
        Where to go on, as ``found`` is full (all destinations' number when done), or ``-1 - p`` where the edge at ``p``
        leads out of the graph.
    """
    src_ids, num_src, src_begins, src_order = src
    dst_begins, dst_order = dst
    at = np.int64(0) if begin == 0 else ends[begin - 1]
    for t in range(len(dst_begins) - 2):
        last = dst_begins[t + 1]
        if last <= begin or last == dst_begins[t]:
            continue
        first_id = np.int64(t) * num_src
        first, size = src_begins[t], src_begins[t + 1] - src_begins[t]
        shift = np.uint64(62)
        while np.int64(1) << (np.int64(64) - np.int64(shift)) < 4 * size:
            shift -= np.uint64(1)
        slots = np.int64(1) << (np.int64(64) - np.int64(shift))
        mine = table[:slots]
        mine[:] = EMPTY
        for j in range(first, first + size):
            insert_one(src_order[j], src_ids, mine, shift)
        for k in range(max(begin, dst_begins[t]), last):
            if k + _AHEAD < last:
                prefetch(indices, starts[dst_order[k + _AHEAD]])
            i = dst_order[k]
            for e in range(starts[i], starts[i] + degrees[i]):
                p = e if len(edges) == 0 else np.int64(edges[e])
                v = np.int64(indices[p])
                if v < 0 or v >= num_src:
                    return np.int64(-1) - p
                place = place_of(first_id + v, src_ids, mine, slots - 1, shift)
                if place >= 0:
                    if 2 * at == len(found):
                        return k
                    found[2 * at] = p
                    found[2 * at + 1] = place
                    at += 1
            ends[k] = at
    return np.int64(len(dst_order))


@kernel
def put_found(found, ends, order, offsets, edge_ids, src, dst, out_ids):  # type: ignore[no-untyped-def]
    """Write the edges of ``find_in_trees`` in the order of their destinations' places; ``offsets`` is scratch.

    ``edge_ids`` are the graph's (empty: the positions); ``offsets`` has an element for each vertex.
    """
    for k in range(len(order)):
        offsets[order[k]] = ends[k] - (ends[k - 1] if k else 0)
    total = np.int64(0)
    for i in range(len(order)):
        count = offsets[i]
        offsets[i] = total
        total += count
    for k in range(len(order)):
        at = offsets[order[k]]
        for e in range(ends[k - 1] if k else 0, ends[k]):
            src[at] = found[2 * e + 1]
            dst[at] = order[k]
            out_ids[at] = found[2 * e] if len(edge_ids) == 0 else edge_ids[found[2 * e]]
            at += 1


@kernel
def pick_all_or_repeated(counters, starts, degrees, out_indptr, key, positions):  # type: ignore[no-untyped-def]
    """Rows that fit whole, and uniform picks with replacement from the others."""
    for i in range(len(counters)):
        base = key + np.uint64(counters[i]) * _A
        begin = np.int64(out_indptr[i])
        count = np.int64(out_indptr[i + 1]) - begin
        for j in range(count):
            positions[begin + j] = starts[i] + (j if count == degrees[i] else draw_below(base, j, degrees[i]))
