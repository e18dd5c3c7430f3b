"""Kernel of the noise of counted reads."""

import numpy as np

from .._jit import kernel, prefetch

_AHEAD = 24


@kernel
def push_sums(indptr, indices, first, second, out_first, out_second):  # type: ignore[no-untyped-def]
    """Add ``first[u]`` and ``second[u]`` to every in-neighbour of ``u``, once for each edge.

    Args:
        indptr: Shape ``(num_dst + 1,)``.
        indices: Shape ``(num_edges,)``.
        first: Shape ``(num_dst,)``.
        second: Shape ``(num_dst,)``.
        out_first: Shape ``(num_src,)``.
        out_second: Shape ``(num_src,)``.
    """
    edges = len(indices)
    for u in range(len(indptr) - 1):
        a, b = first[u], second[u]
        if a == 0.0 and b == 0.0:
            continue
        for e in range(np.int64(indptr[u]), np.int64(indptr[u + 1])):
            if e + _AHEAD < edges:
                prefetch(out_first, indices[e + _AHEAD])
                prefetch(out_second, indices[e + _AHEAD])
            v = indices[e]
            out_first[v] += a
            out_second[v] += b
