"""Kernels that find an order of the vertices: which are read, and which are read together."""

import math

import numpy as np

from .._jit import kernel, prefetch

_AHEAD = 24


@kernel
def _share(fanout, degree):  # type: ignore[no-untyped-def]
    """The chance that a hop draws one given edge of a row of ``degree``."""
    return 1.0 if fanout < 0 or fanout >= degree else fanout / degree


@kernel
def push_misses(indptr, indices, begin, end, known, fanout, out):  # type: ignore[no-untyped-def]
    """Add to ``out[v]`` the logarithm of the chance that no edge from ``v`` to vertices ``begin`` to ``end`` is drawn.

    ``known``, shape ``(num_dst,)``, are the chances that the vertices draw at all, all below 1.
    """
    edges = np.int64(indptr[end])
    for u in range(begin, end):
        first, last = np.int64(indptr[u]), np.int64(indptr[u + 1])
        if first == last or known[u] <= 0.0:
            continue
        log = np.float32(math.log1p(-known[u] * _share(fanout, last - first)))
        for e in range(first, last):
            if e + _AHEAD < edges:
                prefetch(out, indices[e + _AHEAD])
            out[indices[e]] += log


@kernel
def find_readers(indptr, indices, begin, end, known, fanouts, first_dst, first_src, best, reader):  # type: ignore[no-untyped-def]
    """Find for each vertex the one that is most likely to draw it, among vertices ``begin`` to ``end``.

    Args:
        indptr, indices: Edges by destination.
        known: Shape ``(hops, num_vertices)``, the chance of each vertex to be known before each hop.
        fanouts: Shape ``(hops,)``.
        first_dst, first_src: Numbers of the first destination and the first source among all vertices.
        best, reader: Shape ``(num_vertices,)``: the draws expected of the best edge so far, and whose edge it is.
    """
    edges = np.int64(indptr[end])
    for u in range(begin, end):
        first, last = np.int64(indptr[u]), np.int64(indptr[u + 1])
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
            if rounded > best[v] and v != first_dst + u:
                best[v], reader[v] = rounded, first_dst + u


@kernel
def sort_by_key(order, keys, ends, out):  # type: ignore[no-untyped-def]
    """Stable counting sort of the vertices ``order`` by ``keys[v]``, which are below ``len(ends)``, into ``out``."""
    ends[:] = 0
    for v in order:
        ends[keys[v]] += 1
    total = 0
    for key in range(len(ends)):
        total += ends[key]
        ends[key] = total
    for i in range(len(order) - 1, -1, -1):
        key = keys[order[i]]
        ends[key] -= 1
        out[ends[key]] = order[i]


@kernel
def invert(order, place):  # type: ignore[no-untyped-def]
    """``place[order[i]] = i``."""
    for i in range(len(order)):
        place[order[i]] = i


@kernel
def read_together(place, reader, keys):  # type: ignore[no-untyped-def]
    """``keys[v] = place[reader[v]]``."""
    for v in range(len(keys)):
        keys[v] = place[reader[v]]
