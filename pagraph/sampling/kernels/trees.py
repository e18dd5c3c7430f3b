"""Kernels of disjoint trees: all edges within each, rows drawn whole or with replacement, and ids
of vertices in trees; with them :func:`put_edges`, which writes any subgraph's edges.

Vertex ``v`` in tree ``t`` has the id ``t * num_nodes + v``. A vertex with a long row is in many
trees: its row is read once for all of them (in an RMAT graph with 4 M edges, 500 trees of 33
vertices: 2.4 M edges in place of 17 M), and an edge is in the trees that both ends are in.
"""

import numpy as np

from ..._jit import kernel, prefetch
from .hop import _A, draw_below, first_from, place_of, slot_of

_IDS_AHEAD = 64  # edges between asking for an edge id and copying it
_AHEAD = 32  # edges between asking for a cache line and using it
_MARK_BITS = 14
# One byte a mark: 16 KiB, which leaves half of a first-level cache of 32 KiB to the row.
MARKS = 1 << _MARK_BITS
_MARK_SHIFT = np.uint64(64 - _MARK_BITS)
_S3 = np.uint64(3)
_SCANNED = 8  # trees that a scan passes in the time of one binary search


@kernel
def group(keys, items, begins, out):
    """Stable counting sort: the items ``i`` with key ``keys[i]`` are
    ``out[begins[key]:begins[key + 1]]``.

    ``items`` are the numbers to sort (empty: all, in order). ``begins`` has two elements more than
    there are keys, and comes filled with zeros.
    """
    # Counts lie two places on, so that after the sums begins[key + 1] is where a key begins.
    # Writing moves it to where the key ends, which is where the next one begins.
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
    """A set of 64 bits of the trees of each vertex: two vertices without a common bit have no
    common tree."""
    for g in range(len(out)):
        bits = np.uint64(0)
        for j in range(begins[g], begins[g + 1]):
            bits |= np.uint64(1) << np.uint64(trees[j] & 63)
        out[g] = bits


@kernel
def find_in_trees(begin, at, src, dst, rows, indices, room, found):
    """Find the edges whose ends are in the same tree, for the distinct destinations from number
    ``begin`` on.

    Few edges of a hub come from a vertex of its trees. Those vertices are marked in a table that
    stays in the innermost cache, and only edges from marked ones are looked at closely.

    Args:
        begin: Where to go on.
        at: Edges found so far.
        src: Of the sources: the distinct ones' ids, hash table and its shift, ``num_nodes`` of
            their type; where the trees of each begin, these trees, ascending, the places there;
            what :func:`mark_trees` makes of them; where the vertices of each tree begin, and these
            vertices.
        dst: Of the destinations, the four from where the trees of each begin on.
        rows: Start and length of the row of each of these places: edges that it may have in its
            tree.
        indices: The graph's.
        room: Scratch: an element for each tree, filled with -1; ``MARKS`` zeros; numbers for the
            longest row.
        found: Gets three numbers for each edge: its position, and the places of source and
            destination.

    Returns:
        Where to go on, as ``found`` is full (the number of distinct destinations when done;
        ``-1 - p`` where the edge at ``p`` leads out of the graph), and the number of edges found.
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
        # The row of the next destination is on its way while this one's is joined.
        if last < len(places):
            prefetch(indices, starts[places[last]])
        # Trees may hold different parts of one row, since each has limits of its own: the span from
        # the first to the last is read once, and _join tells which trees an edge is for.
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
        # Where the trees hold more vertices than the row has edges, marking costs more than it
        # saves.
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
        # Before the return as well: the next call finds the scratch as it was.
        for k in range(first, last):
            place_in[trees[k]] = -1
        if now < 0:
            return np.int64(g), at
        at = now
    return np.int64(len(begins) - 2), at


@kernel
def _first_outside(row, num_src):
    """The first source that is not in the graph, or -1; a pass of its own looks at many at once."""
    outside = False
    limit = np.uint64(num_src)
    for i in range(len(row)):
        # As an unsigned number a negative source is above every limit: one comparison for both.
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
    """Write the places in a row of sources that may be marked; their number.

    They are few, so that one jump for eight sources is seldom taken: 0.5 ns a source, for 1.2
    without jumps.
    """
    count = 0
    whole = len(row) >> 3
    for b in range(whole):
        first = np.uint64(b) << _S3
        mark = np.uint8(0)
        for i in range(8):
            mark |= marked[_mark_of(row[first + np.uint64(i)])]
        if mark:
            # Written always, kept if marked: the next one overwrites it without a jump.
            for i in range(8 * b, 8 * b + 8):
                some[count] = i
                count += marked[_mark_of(row[i])]
    for i in range(8 * whole, len(row)):
        some[count] = i
        count += marked[_mark_of(row[i])]
    return count


@kernel
def _join(some, at, src, dst, rows, place_in, found):
    """Write ``some`` edges of a row whose source is in a tree of the destination; edges in all, or
    -1: no room."""
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
        # Without a common bit there is no common tree: spares most of the searches below.
        if s < 0 or marks[s] & mark == 0:
            continue
        j = begins[s]
        end = begins[s + 1]
        # Before it is written: the row is done again with more room.
        if 3 * (at + min(end - j, n)) > len(found):
            return np.int64(-1)
        # Scan the source's trees, or search them for each tree of the destination.
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
    """Write the edges that ``find_in_trees`` found in this order; ``edge_ids`` are the graph's
    (empty: positions)."""
    for n in range(len(order)):
        e = 3 * order[n]
        src[n] = found[e + 1]
        dst[n] = found[e + 2]
        out_ids[n] = found[e] if len(edge_ids) == 0 else edge_ids[found[e]]


@kernel
def pick_all_or_repeated(counters, starts, degrees, out_indptr, key, positions):
    """Rows that fit whole, and uniform picks with replacement from the others."""
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
    """The graph's id and the tree of vertices in trees, whose ids are
    ``tree * num_nodes + vertex``."""
    tree = np.int64(0)
    first = np.int64(0)
    for i in range(len(ids)):
        # Ids of one tree mostly lie behind each other: few of them have to be divided.
        if ids[i] < first or ids[i] - first >= num_nodes:
            tree = ids[i] // num_nodes
            first = tree * num_nodes
        trees[i] = tree
        vertices[i] = ids[i] - first


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
            if e + _IDS_AHEAD < n:
                prefetch(edge_ids, positions[e + _IDS_AHEAD])
            out_ids[at + e] = edge_ids[positions[e]]
