"""Kernels that order vertices by how often they are read, and by what is read together, and move
edges to that order."""

import math

import numpy as np

from .._jit import kernel, prefetch
from ..graph._csc import check_id, check_row

# Elements between asking for a cache line and using it. With too few it has not arrived; with too
# many it has left the cache again.
_AHEAD = 24


@kernel
def _share(fanout, degree):
    """The chance that a hop draws one given edge of a row of ``degree``."""
    return 1.0 if fanout < 0 or fanout >= degree else fanout / degree


@kernel
def push_misses(indptr, indices, begin, end, known, fanout, out):
    """Add to ``out[v]`` the logarithm of the chance that no edge from ``v`` to vertices ``begin``
    to ``end`` is drawn.

    ``known``, shape ``(num_dst,)``, are the chances that the vertices draw at all, all below 1.
    """
    # No reader u of v draws it with chance prod(1 - known[u] * share(u)), if they draw
    # independently. Logarithms are added, as a product of many factors would underflow.
    # `min`: a mapped file may have changed since it was checked; look-ahead must stay inside.
    edges = min(np.int64(indptr[end]), len(indices))
    for u in range(begin, end):
        first = np.int64(indptr[u])
        last = np.int64(indptr[u + 1])
        check_row(first, last, len(indices))
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
    """Find for each vertex the one that is most likely to draw it, among vertices ``begin`` to
    ``end``.

    Args:
        indptr, indices: Edges by destination.
        known: Shape ``(hops, num_vertices)``, the chance of each vertex to be known before each
            hop.
        fanouts: Shape ``(hops,)``.
        first_dst, first_src: Numbers of the first destination and the first source among all
            vertices.
        best, reader: Shape ``(num_vertices,)``: the draws expected of the best edge so far, and
            whose edge it is.
    """
    edges = min(np.int64(indptr[end]), len(indices))
    for u in range(begin, end):
        first = np.int64(indptr[u])
        last = np.int64(indptr[u + 1])
        check_row(first, last, len(indices))
        if first == last:
            continue
        draws = 0.0
        for hop in range(len(fanouts)):
            draws += known[hop, first_dst + u] * _share(fanouts[hop], last - first)
        rounded = np.float32(draws)  # as it is kept: of equals the first stays
        for e in range(first, last):
            if e + _AHEAD < edges:
                prefetch(best, first_src + indices[e + _AHEAD])
            v = first_src + indices[e]
            check_id(v, len(best))
            if rounded > best[v] and v != first_dst + u:
                best[v], reader[v] = rounded, first_dst + u


@kernel
def sort_by_key(order, keys, ends, out):
    """Stable counting sort of the vertices ``order`` by ``keys[v]``, which are below ``len(ends)``,
    into ``out``."""
    ends[:] = 0
    for v in order:
        ends[keys[v]] += 1
    total = 0
    for key in range(len(ends)):
        total += ends[key]
        ends[key] = total
    # From the back, as each end is counted down: so equal keys keep their order.
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
    """Offsets of the rows of a CSC at their new places, from those at the old ones."""
    # First the length of each row, one place further on; then their running sum.
    out[:] = 0
    for v in range(len(place)):
        out[place[v] + 1] = indptr[v + 1] - indptr[v]
    for v in range(len(place)):
        out[v + 1] += out[v]


@kernel
def edge_places(indptr, place, offsets, vertex, begin, out):
    """New places of the edges from ``begin`` on, the first of which is in the row of ``vertex`` or
    a later one."""
    v = vertex
    for i in range(len(out)):
        edge = begin + i
        # Rows may be empty: several of them can end before this edge.
        while edge >= indptr[v + 1]:
            v += 1
            check_id(v, len(place))
        out[i] = np.int64(offsets[place[v]]) + edge - indptr[v]


@kernel
def split(places, size, cursors, order):
    """Stable sort of rows by the bucket of ``size`` places that they go to.

    Args:
        places: Shape ``(n,)``.
        size: Places of a bucket.
        cursors: Scratch, shape ``(buckets + 1,)``; returns the end of each bucket's rows in
            ``order``.
        order: Shape ``(n,)``, int64, returned.
    """
    # Counted one bucket further on, so that the running sum gives the begin of each. Filling moves
    # every begin to the bucket's end, which is what the caller wants.
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
