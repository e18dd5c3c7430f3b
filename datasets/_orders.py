"""Kernels that order vertices by expected reads and by co-access, and that move their edges."""

import math

import numpy as np

from .._jit import kernel, prefetch
from ..graph._csc import check_id, checked_row

# Prefetch distance in elements. If too small, the line has not arrived; if too large, it has been
# evicted again.
_AHEAD = 24


@kernel
def _share(fanout, degree):
    """The probability that a hop draws a given edge of a row of ``degree``."""
    return 1.0 if fanout < 0 or fanout >= degree else fanout / degree


@kernel
def push_misses(indptr, indices, begin, end, known, fanout, out):
    """Add to ``out[v]`` the log probability that no vertex of ``begin`` to ``end`` draws ``v``.

    ``known`` has the probabilities that vertices draw at all, shape ``(num_dst,)``, all below 1.
    """
    # If the readers u of v draw independently, none draws it with probability
    # prod(1 - known[u] * share(u)). Logarithms are added, since the product would underflow.
    # `min`: a mapped file may have changed since it was checked; prefetches must stay inside.
    edges = min(np.int64(indptr[end]), len(indices))
    for u in range(begin, end):
        first, last = checked_row(indptr, u, len(indices))
        if first == last or known[u] <= 0.0:
            continue
        log = np.float32(math.log1p(-known[u] * _share(fanout, last - first)))
        for e in range(first, last):
            if e + _AHEAD < edges:
                prefetch(out, indices[e + _AHEAD])
            v = indices[e]
            check_id(v, len(out))
            out[v] += log


@kernel
def find_readers(indptr, indices, begin, end, known, fanouts, first_dst, first_src, best, reader):
    """Find the most likely reader of each vertex, among vertices ``begin`` to ``end``.

    Args:
        indptr, indices: Edges by destination.
        known: Probability of each vertex to be known before each hop, shape
            ``(hops, num_vertices)``.
        fanouts: Shape ``(hops,)``.
        first_dst, first_src: Numbers of the first destination and the first source among all
            vertices.
        best, reader: Expected draws of the best edge so far, and its destination, shape
            ``(num_vertices,)``.
    """
    edges = min(np.int64(indptr[end]), len(indices))
    for u in range(begin, end):
        first, last = checked_row(indptr, u, len(indices))
        if first == last:
            continue
        draws = 0.0
        for hop in range(len(fanouts)):
            draws += known[hop, first_dst + u] * _share(fanouts[hop], last - first)
        rounded = np.float32(draws)  # as stored, so that the first of equals stays
        for e in range(first, last):
            if e + _AHEAD < edges:
                prefetch(best, first_src + indices[e + _AHEAD])
            v = first_src + indices[e]
            check_id(v, len(best))
            if rounded > best[v] and v != first_dst + u:
                best[v] = rounded
                reader[v] = first_dst + u


@kernel
def sort_by_key(order, keys, ends, out):
    """Stable counting sort of ``order`` by ``keys[v] < len(ends)`` into ``out``."""
    ends[:] = 0
    for v in order:
        ends[keys[v]] += 1
    total = 0
    for key in range(len(ends)):
        total += ends[key]
        ends[key] = total
    # Backwards, since each end is counted down: equal keys keep their order.
    for i in range(len(order) - 1, -1, -1):
        key = keys[order[i]]
        ends[key] -= 1
        out[ends[key]] = order[i]


@kernel
def read_together(place, reader, keys):
    """``keys[v] = place[reader[v]]``."""
    for v in range(len(keys)):
        keys[v] = place[reader[v]]


@kernel
def new_offsets(indptr, place, out):
    """Row offsets of a CSC after moving each row ``v`` to ``place[v]``."""
    # First the row lengths, shifted by one; then their cumulative sum.
    out[:] = 0
    for v in range(len(place)):
        out[place[v] + 1] = indptr[v + 1] - indptr[v]
    for v in range(len(place)):
        out[v + 1] += out[v]


@kernel
def edge_places(indptr, place, offsets, vertex, begin, out):
    """New places of the edges from ``begin`` on; the first is in row ``vertex`` or a later one."""
    v = vertex
    for i in range(len(out)):
        edge = begin + i
        # Several (empty) rows may end before this edge.
        while edge >= indptr[v + 1]:
            v += 1
            check_id(v, len(place))
        out[i] = np.int64(offsets[place[v]]) + edge - indptr[v]


@kernel
def split(places, size, cursors, order):
    """Stable sort of rows by the bucket of their places.

    Args:
        places: Shape ``(n,)``.
        size: Places per bucket.
        cursors: Scratch, shape ``(buckets + 1,)``; receives the end of each bucket in ``order``.
        order: Receives the rows, shape ``(n,)``, int64.
    """
    # Counts are shifted by one bucket, so the cumulative sum gives each start. Filling moves the
    # starts to the ends, which the caller needs.
    cursors[:] = 0
    for i in range(len(places)):
        bucket = places[i] // size
        check_id(bucket, len(cursors) - 1)
        cursors[bucket + 1] += 1
    for bucket in range(1, len(cursors)):
        cursors[bucket] += cursors[bucket - 1]
    for i in range(len(places)):
        bucket = places[i] // size
        order[cursors[bucket]] = i
        cursors[bucket] += 1
