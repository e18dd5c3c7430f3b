"""Kernels of random walks: walks advance step by step together, so that their cache misses overlap.

A step has two passes over a group of walks: the first reads the rows and asks for the edge that is drawn, the second
reads that edge's end and asks for its row. A group's part of the traces stays in the innermost caches.

Randomness is as in ``hop.py``: step ``t`` of the walk at place ``i`` draws ``mix(key + i * A + t * B)``.
"""

import numpy as np

from ..._jit import kernel, prefetch
from .hop import _A, draw_below
from .weighted import draw_unit

GROUP = 256  # walks that advance together
SOUND, BAD_ROW, BAD_SOURCE = 0, 1, 2
"""Outcomes of a kernel: done, a row that does not end in the edges, an edge that leads out of the graph."""


@kernel
def uniform_walks(indptr, indices, num_src, traces, edges, first, stop, key, place, ends, end_key, stay):  # type: ignore[no-untyped-def]
    """Take the steps ``first`` to ``stop - 1`` of all walks along one edge type, each edge of a row as likely.

    Args:
        indptr: Rows to leave a vertex by.
        indices: The vertices that they lead to, below ``num_src``.
        num_src: Number of these.
        traces: Shape ``(n, num_steps + 1)``, filled up to column ``first``; -1 from where a walk ended on.
        edges: Shape ``(n, num_steps)``: positions of the edges taken, -1 where there is none; ``(0, 0)``: not wanted.
        first: The first step.
        stop: The step after the last.
        key: Random key of the steps.
        place: Place of the first walk among all.
        ends: Probability to end before each step, shape ``(num_steps,)``, or ``(0,)`` for never.
        end_key: Random key of the ends.
        stay: Whether a walk stays at a vertex without edges, and does not end.

    Returns:
        An outcome, and the vertex that it is about.
    """
    positions = np.empty(GROUP, dtype=np.int64)
    for low in range(0, len(traces), GROUP):
        count = min(GROUP, len(traces) - low)
        for i in range(count):
            prefetch(indptr, np.int64(traces[low + i, first]))
        for t in range(first, stop):
            for i in range(count):
                v = np.int64(traces[low + i, t])
                base = np.uint64(place + low + i) * _A
                positions[i] = -1
                if v < 0 or (len(ends) > 0 and draw_unit(end_key + base, t) < ends[t]):
                    traces[low + i, t + 1] = -1
                    continue
                start, degree, sound = row_of(indptr, len(indices), v)
                if not sound:
                    return BAD_ROW, v
                if degree > 0:
                    positions[i] = start + draw_below(key + base, t, degree)
                    prefetch(indices, positions[i])
                else:
                    traces[low + i, t + 1] = v if stay else -1
            bad = follow(indptr, indices, num_src, traces, edges, positions, low, count, t)
            if bad >= 0:
                return BAD_SOURCE, np.int64(indices[bad])
    return SOUND, np.int64(0)


@kernel
def row_of(indptr, num_edges, v):  # type: ignore[no-untyped-def]
    """The first edge of a row, its number of edges, and whether it lies within the edges."""
    start = np.int64(indptr[v])
    degree = np.int64(indptr[v + 1]) - start
    return start, degree, start >= 0 and degree >= 0 and start + degree <= num_edges


@kernel
def follow(indptr, indices, num_src, traces, edges, positions, low, count, t):  # type: ignore[no-untyped-def]
    """Go along the edges drawn for a group in step ``t``; returns the position of one that leads out, or -1."""
    for i in range(count):
        e = positions[i]
        if e >= 0:
            w = np.int64(indices[e])
            if w < 0 or w >= num_src:
                return e
            prefetch(indptr, w)
            traces[low + i, t + 1] = w
        if len(edges) > 0:
            edges[low + i, t] = e
    return np.int64(-1)
