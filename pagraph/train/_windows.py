"""Kernels that say which rows the in-edges of a run of vertices need, and number them."""

import numpy as np

from .._jit import kernel
from ..graph._csc import check_id, check_row


@kernel
def most_in_edges(indptr):
    """The largest in-degree."""
    most = np.int64(0)
    for v in range(len(indptr) - 1):
        most = max(most, np.int64(indptr[v + 1] - indptr[v]))
    return most


@kernel
def take_sources(indptr, indices, begin, end, place, found):
    """Collect the vertices from ``begin`` to ``end`` and their sources, each once, while ``found``
    has room.

    ``place`` is -1 everywhere, and 0 afterwards for what was collected. Returns the vertex that did
    not fit, or ``end``, and how many were collected.
    """
    count = np.int64(0)
    for v in range(begin, end):
        before = count
        first, last = np.int64(indptr[v]), np.int64(indptr[v + 1])
        check_row(first, last, len(indices))
        for e in range(first - 1, last):
            u = v if e < first else np.int64(indices[e])
            check_id(u, len(place))
            if place[u] < 0:
                if count == len(found):
                    for i in range(before, count):
                        place[found[i]] = -1
                    return v, before
                place[u] = 0
                found[count] = u
                count += 1
    return end, count


@kernel
def set_places(ids, place):
    """``place[ids[i]] = i``."""
    for i in range(len(ids)):
        place[ids[i]] = i


@kernel
def clear_places(ids, place):
    """``place[ids[i]] = -1``."""
    for i in range(len(ids)):
        place[ids[i]] = -1


@kernel
def number_sources(indptr, indices, begin, end, place, sources, out):
    """Number the vertices ``begin`` to ``end``, then their other sources in the order of the edges.

    Writes each edge's source by its number to ``out``, and to ``sources`` the vertices by number,
    of which it returns how many. ``place`` is -1 everywhere, before and after.
    """
    count = np.int64(0)
    for v in range(begin, end):
        place[v] = count
        sources[count] = v
        count += 1
    first, last = indptr[begin], indptr[end]
    check_row(first, last, min(len(indices), first + len(out)))
    for e in range(first, last):
        u = indices[e]
        check_id(u, len(place))
        if place[u] < 0:
            place[u] = count
            sources[count] = u
            count += 1
        out[e - first] = place[u]
    for i in range(count):
        place[sources[i]] = -1
    return count
