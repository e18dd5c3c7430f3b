"""Kernels that follow in-edges from a set of vertices."""

import numpy as np

from .._jit import kernel


@kernel
def mark_sources(indptr, indices, frontier, hop, hop_of):  # type: ignore[no-untyped-def]
    """Write ``hop`` for every source of the frontier's in-edges whose entry is still 255; returns how many."""
    count = np.int64(0)
    for i in range(len(frontier)):
        v = frontier[i]
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            if hop_of[u] == 255:
                hop_of[u] = hop
                count += 1
    return count
