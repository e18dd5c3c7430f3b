"""Kernels over in-edges: find the rows that a run of vertices needs, and add them up."""

import numpy as np

from .._jit import kernel, prefetch
from ..graph._csc import check_id, check_row, checked_row

_LINE = 16  # float32 values per cache line
# Edges between a prefetch and its use. Not measured. Fewer would not hide a read from memory, and
# with more, lines would be evicted before they are used.
_AHEAD = 8


@kernel
def most_in_edges(indptr):
    """The largest in-degree."""
    most = np.int64(0)
    for v in range(len(indptr) - 1):
        most = max(most, np.int64(indptr[v + 1] - indptr[v]))
    return most


# Kernels that find the vertices of a window or of a block, and number them.


@kernel
def take_sources(indptr, indices, begin, end, place, found):
    """Collect the vertices from ``begin`` to ``end`` and their sources, each once, while ``found``
    has room.

    ``place`` is -1 everywhere, and afterwards 0 for collected vertices. Returns the first vertex
    that did not fit, or ``end``, and the number of collected vertices.
    """
    count = np.int64(0)
    for v in range(begin, end):
        before = count
        first, last = checked_row(indptr, v, len(indices))
        for e in range(first - 1, last):  # edge `first - 1` means the vertex itself
            u = v if e < first else np.int64(indices[e])
            check_id(u, len(place))
            if place[u] >= 0:
                continue
            if count == len(found):
                # The window does not hold all sources of this vertex, so it leaves the window.
                for i in range(before, count):
                    place[found[i]] = -1
                return v, before
            place[u] = 0
            found[count] = u
            count += 1
    return end, count


@kernel
def clear_places(ids, place):
    """``place[ids[i]] = -1``."""
    for i in range(len(ids)):
        place[ids[i]] = -1


@kernel
def number_sources(indptr, indices, begin, end, place, sources, out):
    """Number the vertices ``begin`` to ``end``, then their other sources in the order of the edges.

    Writes the number of each edge's source to ``out``, and the vertices by number to ``sources``.
    Returns the number of vertices. ``place`` is -1 everywhere, before and after.
    """
    count = np.int64(0)
    for v in range(begin, end):
        place[v] = count
        sources[count] = v
        count += 1
    first = indptr[begin]
    last = indptr[end]
    check_row(first, last, min(len(indices), first + len(out)))
    for e in range(first, last):
        u = indices[e]
        check_id(u, len(place))
        if place[u] < 0:
            place[u] = count
            sources[count] = u
            count += 1
        out[e - first] = place[u]
    # Only the places that were set, as clearing the whole table for each block would be a pass over
    # all vertices.
    for i in range(count):
        place[sources[i]] = -1
    return count


@kernel
def mark_sources(indptr, indices, targets, mask):
    """Set ``mask`` for ``targets`` and all their sources."""
    for v in targets:
        mask[v] = True
        first, last = checked_row(indptr, v, len(indices))
        for e in range(first, last):
            u = indices[e]
            check_id(u, len(mask))
            mask[u] = True


@kernel
def take_marked(mask, begin, place, found):
    """Collect and number the marked vertices from ``begin`` on while ``place`` and ``found`` have
    room.

    Vertex ``found[i]`` gets ``place[found[i] - begin] = i``. Returns the first vertex that was not
    looked at, and the number of collected vertices.
    """
    count = 0
    v = begin
    while v < min(len(mask), begin + len(place)):
        if mask[v]:
            if count == len(found):
                break
            place[v - begin] = count
            found[count] = v
            count += 1
        v += 1
    return v, count


# Kernels that add rows up. A call adds a vertex's edges in the graph's order, and no other call
# writes to its sum at that time. So bits do not depend on how vertices are divided among calls and
# threads. They do depend on how sources are divided into blocks.


@kernel
def _row_of(place, i):
    """The row of the ``i``-th vertex of a block: ``place[i]``, or ``i`` if ``place`` is empty."""
    if len(place):
        return np.int64(place[i])
    return np.int64(i)


@kernel
def add_weighted(offsets, ids, weights, rows, out):
    """Add ``weights[e] * rows[ids[e]]`` to ``out[i]`` for every ``e`` in
    ``offsets[i]:offsets[i + 1]``.

    All in float32. RMAT scale 17 (1.9 M edges) with rows of 128 / 512 values takes 0.05 / 0.20 s on
    one thread. Torch's sparse matrices took 0.13 / 0.8 s on rows gathered 8192 at a time, and 0.16
    / 0.5 s as a whole on two threads.
    """
    width = rows.shape[1]
    for i in range(len(out)):
        begin = offsets[i]
        end = offsets[i + 1]
        check_row(begin, end, len(ids))
        for e in range(begin, end):
            if e + _AHEAD < len(ids):
                start = np.int64(ids[e + _AHEAD]) * width
                for j in range(0, width, _LINE):
                    prefetch(rows, start + j)
            u = ids[e]
            weight = weights[e]
            check_id(u, len(rows))
            for j in range(width):
                out[i, j] += weight * rows[u, j]


@kernel
def add_block(indptr, indices, targets, begin, end, place, rows, looped, counts, out):
    """Add the rows of the sources in ``[begin, end)`` to ``out[i]``, the sum of vertex
    ``targets[i]``.

    Source ``u`` has row ``place[u - begin]``, or row ``u - begin`` if ``place`` is empty. With
    ``looped`` every vertex has one self-loop instead of its own. ``counts[i]`` grows by the edges
    added. All in float32.
    """
    width = rows.shape[1]
    for i in range(len(targets)):
        v = targets[i]
        if looped and begin <= v < end:
            p = _row_of(place, v - begin)
            check_id(p, len(rows))
            counts[i] += 1
            for j in range(width):
                out[i, j] += rows[p, j]
        first, last = checked_row(indptr, v, len(indices))
        for e in range(first, last):
            # Also beyond the vertex's own edges, as the next target is mostly the next vertex.
            if e + _AHEAD < len(indices):
                u = np.int64(indices[e + _AHEAD])
                if begin <= u < end:
                    start = _row_of(place, u - begin) * width
                    for j in range(0, width, _LINE):
                        prefetch(rows, start + j)
            u = np.int64(indices[e])
            if u < begin or u >= end or (looped and u == v):
                continue
            p = _row_of(place, u - begin)
            # For unmarked vertices `place` holds values of an earlier block, which edges that have
            # changed since sources were marked would read.
            check_id(p, len(rows))
            counts[i] += 1
            for j in range(width):
                out[i, j] += rows[p, j]


@kernel
def _leaky_relu(x):
    # The paper's slope (Velickovic et al., 2018, section 2.1), also that of DGL's and PyG's layers.
    return max(x, np.float32(0.2) * x)


@kernel
def add_attended(
    indptr, indices, targets, begin, end, place, sources, own, rows, most, totals, out
):
    """:func:`add_block` for GAT: every vertex attends to its sources other than itself, and once to
    itself.

    Head ``h`` weighs source ``u`` for ``v`` by
    ``exp(leaky_relu(sources[u, h] + own[v, h]) - most[v, h])``, where ``most`` is the largest such
    score so far. This is an online softmax over consecutive blocks (Milakov and Gimelshein, 2018,
    algorithm 3). ``totals`` are sums of the weights. All in float32.

    Args:
        indptr, indices, targets, begin, end, place, rows, out: As for :func:`add_block`.
        sources: Scores of the block's rows, ``(len(rows), heads)``.
        own: Scores of the targets, ``(len(targets), heads)``.
        most: Shape of ``own``; -inf before the first block.
        totals: Shape of ``own``; 0 before the first block.
    """
    heads = sources.shape[1]
    width = rows.shape[1] // heads
    for i in range(len(targets)):
        v = np.int64(targets[i])
        before, after = checked_row(indptr, v, len(indices))
        row = indices[before:after]
        for h in range(heads):
            first = h * width
            highest = most[i, h]
            for e in range(-1, len(row)):  # -1: the vertex itself
                u = v if e < 0 else np.int64(row[e])
                if begin <= u < end:
                    p = _row_of(place, u - begin)
                    check_id(p, len(rows))
                    highest = max(highest, _leaky_relu(sources[p, h] + own[i, h]))
            if highest > most[i, h]:
                # Earlier blocks were weighed relative to a smaller score.
                scale = np.exp(most[i, h] - highest)
                totals[i, h] *= scale
                for j in range(width):
                    out[i, first + j] *= scale
                most[i, h] = highest
            for e in range(-1, len(row)):
                u = v if e < 0 else np.int64(row[e])
                if u < begin or u >= end or (e >= 0 and u == v):
                    continue
                p = _row_of(place, u - begin)
                check_id(p, len(rows))
                weight = np.exp(_leaky_relu(sources[p, h] + own[i, h]) - highest)
                totals[i, h] += weight
                for j in range(width):
                    out[i, first + j] += weight * rows[p, first + j]
