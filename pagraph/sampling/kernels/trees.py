"""Kernels of disjoint trees: all edges within each tree, rows drawn whole or with replacement, and
ids of vertices of trees. Also :func:`put_edges`, which writes any subgraph's edges.

Vertex ``v`` in tree ``t`` has the id ``t * num_nodes + v``. An edge is in the trees that both its
ends are in. A vertex with a long row is in many trees, so its row is read once for all of them: for
500 trees of 33 vertices in an RMAT graph with 4 M edges, 2.4 M edges instead of 17 M.
"""

import numpy as np

from ..._jit import kernel, prefetch
from .hop import _A, draw_below, first_from, place_of, slot_of

_AHEAD = 32  # edges between the prefetch of a cache line and its use
_MARK_BITS = 14
# One byte per mark: 16 KiB, half of an L1 cache of 32 KiB; the other half is left for the row.
MARKS = 1 << _MARK_BITS
_MARK_SHIFT = np.uint64(64 - _MARK_BITS)
_S3 = np.uint64(3)
_SCANNED = 8  # trees that a scan checks in the time of one binary search


@kernel
def group(keys, items, begins, out):
    """Stable counting sort: items with key ``k`` are ``out[begins[k]:begins[k + 1]]``.

    ``items`` are the numbers to sort, ``keys`` the key of each number (``items`` empty: all, in
    order). ``begins`` has two more elements than there are keys, all 0.
    """
    # Counts are shifted by two, so that after the sums begins[k + 1] is where key k begins. Writing
    # advances it to where key k ends, which is where the next one begins.
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
def mark_trees(begins, trees, out):
    """Write a 64-bit set of each vertex's trees, modulo 64: two vertices without a common bit have
    no common tree."""
    for g in range(len(out)):
        bits = np.uint64(0)
        for j in range(begins[g], begins[g + 1]):
            bits |= np.uint64(1) << np.uint64(trees[j] & 63)
        out[g] = bits


@kernel
def find_in_trees(begin, at, src, dst, rows, indices, room, found):
    """Find the edges with both ends in the same tree, for distinct destinations from number
    ``begin`` on.

    Few edges of a hub come from a vertex of its trees. These vertices are marked in a table that
    stays in the L1 cache, and only edges from marked vertices are looked up.

    Args:
        begin: The distinct destination to continue with.
        at: Number of edges found so far.
        src: The sources, as a tuple: ids of distinct ones, their hash table, its shift, the graph's
            number of vertices of their type; where the trees of each distinct source begin, these
            trees (ascending), its local id in each, its :func:`mark_trees`; where the vertices of
            each tree begin, and these vertices.
        dst: The destinations, the same four elements from where the trees of each begin on.
        rows: By local id of a destination, start and length of the part of its row that may be in
            its tree.
        indices: The graph's ``indices``.
        room: Scratch: an element per tree, all -1; ``MARKS`` zeros; elements for the longest row.
        found: Gets three numbers per edge: its position, and the local ids of source and
            destination.

    Returns:
        The distinct destination to continue with, because ``found`` is full (their number if done;
        ``-1 - p`` if the edge at position ``p`` points outside the graph), and the number of edges
        found.
    """
    begins, trees, places, marks = dst
    starts, degrees = rows
    place_in, marked, some = room
    sources = src[:8]
    tree_begins = src[8]
    vertices = src[9]
    for g in range(begin, len(begins) - 2):
        first = begins[g]
        last = begins[g + 1]
        # Loads the next destination's row while this one's is joined.
        if last < len(places):
            prefetch(indices, starts[places[last]])
        # Each tree has its own limits, so trees may use different parts of a row: read the span of
        # all parts once, and let `_join` find the trees of each edge.
        low = starts[places[first]]
        high = np.int64(0)
        size = 0
        for k in range(first, last):
            i = places[k]
            t = trees[k]
            place_in[t] = i
            low = min(low, starts[i])
            high = max(high, starts[i] + degrees[i])
            size += tree_begins[t + 1] - tree_begins[t]
        row = indices[low:high]
        bad = _first_outside(row, src[3])
        if bad >= 0:
            return np.int64(-1) - (low + bad), at
        # If the trees have more vertices than the row has edges, marking costs more than it saves.
        if size <= high - low:
            _mark(vertices, tree_begins, trees[first:last], marked, 1)
            count = _collect_marked(row, marked, some)
            _mark(vertices, tree_begins, trees[first:last], marked, 0)
        else:
            count = len(row)
            for e in range(count):
                some[e] = e
        of_row = row, low, trees[first:last], places[first:last], marks[g]
        now = _join(some[:count], at, sources, of_row, rows, place_in, found)
        # Before returning, too: the next call expects -1 everywhere.
        for k in range(first, last):
            place_in[trees[k]] = -1
        if now < 0:
            return np.int64(g), at
        at = now
    return np.int64(len(begins) - 2), at


@kernel
def _first_outside(row, num_src):
    """The first source that is outside the graph, or -1; a separate pass, which vectorises."""
    outside = False
    limit = np.uint64(num_src)
    for i in range(len(row)):
        # As unsigned, a negative number is above any limit: one comparison checks both bounds.
        outside |= np.uint64(np.int64(row[i])) >= limit
    if outside:
        for i in range(len(row)):
            if not 0 <= row[i] < num_src:
                return i
    return -1


@kernel
def _mark(vertices, tree_begins, trees, marked, mark):
    """Set the marks of all vertices of some trees."""
    for t in trees:
        for v in vertices[tree_begins[t] : tree_begins[t + 1]]:
            marked[_mark_of(v)] = mark


@kernel
def _mark_of(v):
    return (np.uint64(np.int64(v)) * _A) >> _MARK_SHIFT


@kernel
def _collect_marked(row, marked, some):
    """Write the indices of sources in a row that may be marked; returns their number.

    Few are, so one branch for eight sources is rarely taken: 0.5 ns per source, instead of 1.2 for
    code without branches.
    """
    count = 0
    whole = len(row) >> 3
    for b in range(whole):
        first = np.uint64(b) << _S3
        mark = np.uint8(0)
        for i in range(8):
            mark |= marked[_mark_of(row[first + np.uint64(i)])]
        if mark:
            # Always written, but overwritten by the next unless marked: no branch.
            for i in range(8 * b, 8 * b + 8):
                some[count] = i
                count += marked[_mark_of(row[i])]
    for i in range(8 * whole, len(row)):
        some[count] = i
        count += marked[_mark_of(row[i])]
    return count


@kernel
def _join(some, at, src, dst, rows, place_in, found):
    """Write those edges among ``some`` of a row whose source is in a tree of the destination.

    Returns the number of edges found so far, or -1 if ``found`` is full.
    """
    nodes, table, shift, _, begins, src_trees, src_places, marks = src
    row, low, trees, places, mark = dst
    starts, degrees = rows
    mask = len(table) - 1
    n = len(trees)
    for k in range(len(some)):
        if k + _AHEAD < len(some):
            prefetch(table, slot_of(row[some[k + _AHEAD]], shift))
        r = some[k]
        e = low + r
        s = place_of(np.int64(row[r]), nodes, table, mask, shift)
        # Without a common bit there is no common tree; this avoids most searches below.
        if s < 0 or marks[s] & mark == 0:
            continue
        j = begins[s]
        end = begins[s + 1]
        # Checked before writing; the caller repeats the row with more room.
        if 3 * (at + min(end - j, n)) > len(found):
            return np.int64(-1)
        # The faster of two: scan the source's trees, or search them for each of the destination's.
        if end - j <= _SCANNED * n:
            for t in range(j, end):
                i = place_in[src_trees[t]]
                if i >= 0 and starts[i] <= e and e < starts[i] + degrees[i]:
                    found[3 * at] = e
                    found[3 * at + 1] = src_places[t]
                    found[3 * at + 2] = i
                    at += 1
        else:
            for t in range(n):
                j = first_from(src_trees, trees[t], j, end)
                i = places[t]
                if (
                    j < end
                    and src_trees[j] == trees[t]
                    and starts[i] <= e
                    and e < starts[i] + degrees[i]
                ):
                    found[3 * at] = e
                    found[3 * at + 1] = src_places[j]
                    found[3 * at + 2] = i
                    at += 1
    return np.int64(at)


@kernel
def put_found(found, order, edge_ids, src, dst, out_ids):
    """Write the edges that :func:`find_in_trees` found, in this order.

    ``edge_ids`` are the graph's (empty: ids are positions).
    """
    for n in range(len(order)):
        e = 3 * order[n]
        src[n] = found[e + 1]
        dst[n] = found[e + 2]
        out_ids[n] = found[e] if len(edge_ids) == 0 else edge_ids[found[e]]


@kernel
def pick_all_or_repeated(counters, starts, degrees, out_indptr, key, positions):
    """Take all edges of rows with as many draws as edges, else pick uniformly with replacement."""
    for i in range(len(counters)):
        base = key + np.uint64(counters[i]) * _A
        begin = np.int64(out_indptr[i])
        count = np.int64(out_indptr[i + 1]) - begin
        for j in range(count):
            positions[begin + j] = starts[i] + (
                j if count == degrees[i] else draw_below(base, j, degrees[i])
            )


@kernel
def split_trees(ids, num_nodes, vertices, trees):
    """Split ids of vertices of trees, ``tree * num_nodes + vertex``, into vertex and tree."""
    tree = np.int64(0)
    first = np.int64(0)
    for i in range(len(ids)):
        # Ids of one tree are mostly consecutive, so few need a division.
        if ids[i] < first or ids[i] - first >= num_nodes:
            tree = ids[i] // num_nodes
            first = tree * num_nodes
        trees[i] = tree
        vertices[i] = ids[i] - first


@kernel
def in_trees(neighbors, indptr, trees, num_src, out):
    """Make sources vertices of their frontier vertex's tree; returns 0, or ``-1 - e`` for the first
    edge that points outside the graph.

    A separate pass: combined with reading the neighbours it took twice as long as the two, as rows
    are short.
    """
    for i in range(len(trees)):
        first = trees[i] * num_src
        for e in range(indptr[i], indptr[i + 1]):
            v = np.int64(neighbors[e])
            if v < 0 or v >= num_src:
                return np.int64(-1) - e
            out[e] = first + v
    return np.int64(0)


@kernel
def put_edges(indptr, indices, first_dst, src, dst):
    """Write a hop's edges: the local ids of both ends. Destinations begin at ``first_dst``."""
    for i in range(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            dst[e] = first_dst + i
    for e in range(len(indices)):
        src[e] = indices[e]
