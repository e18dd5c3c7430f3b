"""Kernels that move the edges of a graph whose vertices are renumbered."""

import numpy as np

from .._jit import kernel


@kernel
def new_offsets(indptr, place, out):  # type: ignore[no-untyped-def]
    """Offsets of the rows of a CSC at their new places, from those at the old ones."""
    out[:] = 0
    for v in range(len(place)):
        out[place[v] + 1] = indptr[v + 1] - indptr[v]
    for v in range(len(place)):
        out[v + 1] += out[v]


@kernel
def edge_places(indptr, place, offsets, vertex, begin, out):  # type: ignore[no-untyped-def]
    """New places of the edges from ``begin`` on, the first of which is in the row of ``vertex`` or a later one."""
    v = vertex
    for i in range(len(out)):
        edge = begin + i
        while edge >= indptr[v + 1]:
            v += 1
        out[i] = np.int64(offsets[place[v]]) + edge - indptr[v]


@kernel
def split(places, size, cursors, order):  # type: ignore[no-untyped-def]
    """Stable sort of rows by the bucket of ``size`` places that they go to.

    Args:
        places: Shape ``(n,)``.
        size: Places of a bucket.
        cursors: Scratch, shape ``(buckets + 1,)``; returns the end of each bucket's rows in ``order``.
        order: Shape ``(n,)``, int64, returned.
    """
    cursors[:] = 0
    for i in range(len(places)):
        cursors[places[i] // size + 1] += 1
    for bucket in range(1, len(cursors)):
        cursors[bucket] += cursors[bucket - 1]
    for i in range(len(places)):
        bucket = places[i] // size
        order[cursors[bucket]] = i
        cursors[bucket] += 1
