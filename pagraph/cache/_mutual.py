"""Kernels that find edges whose reverse is an edge, too."""

import numpy as np

from .._jit import kernel


@kernel
def turn_rows(indices, starts, indptr, out):  # type: ignore[no-untyped-def]
    """The destinations of each source's edges; ``starts`` says where they begin, and is consumed."""
    for u in range(len(indptr) - 1):
        for e in range(np.int64(indptr[u]), np.int64(indptr[u + 1])):
            v = indices[e]
            out[starts[v]] = u
            starts[v] += 1


@kernel
def mark_mutual(indptr, indices, turned_indptr, turned, largest, step, stamps, out):  # type: ignore[no-untyped-def]
    """Set ``out[e]`` where edge ``e``, ``v -> u``, has ``v`` among ``turned[u]``; returns how many there are.

    Args:
        indptr: Shape ``(num_dst + 1,)``.
        indices: Shape ``(num_edges,)``.
        turned_indptr: Shape ``(num_dst + 1,)``.
        turned: The ends ``v`` of edges ``u -> v`` by their source.
        largest: Rows longer than this are left out.
        step: Look at every so many rows only.
        stamps: Shape ``(num_src,)``, filled with -1.
        out: Shape ``(num_edges,)``, or empty: only count.
    """
    count = 0
    for u in range(0, len(indptr) - 1, step):
        begin, end = np.int64(indptr[u]), np.int64(indptr[u + 1])
        if begin == end or end - begin > largest:
            continue
        for t in range(np.int64(turned_indptr[u]), np.int64(turned_indptr[u + 1])):
            stamps[turned[t]] = u
        for e in range(begin, end):
            if stamps[indices[e]] == u:
                count += 1
                if len(out):
                    out[e] = True
    return count
