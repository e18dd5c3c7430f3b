"""Kernels that renumber the in-edges of a part's vertices."""

import numpy as np

from ..._jit import kernel, prefetch

_AHEAD = 32


@kernel
def number(ids, local):  # type: ignore[no-untyped-def]
    """``local[ids[i]] = i``."""
    for i in range(len(ids)):
        local[ids[i]] = i


@kernel
def count_inside(indptr, indices, ids, inner, local, counts):  # type: ignore[no-untyped-def]
    """Count in-edges of ``ids[:inner]`` whose source has a number (``local >= 0``).

    Returns how many have none, and how many sources those have; their entries of ``local`` turn from -1 to -2.
    """
    missing = np.int64(0)
    sources = np.int64(0)
    for i in range(inner):
        v = ids[i]
        found = 0
        for e in range(indptr[v], indptr[v + 1]):
            prefetch(local, indices[min(e + _AHEAD, len(indices) - 1)])
            u = indices[e]
            if local[u] >= 0:
                found += 1
            elif local[u] == -1:
                local[u] = -2
                sources += 1
        counts[i] = found
        missing += indptr[v + 1] - indptr[v] - found
    return missing, sources


@kernel
def copy_inside(indptr, indices, edge_ids, ids, inner, local, out_indices, out_ids):  # type: ignore[no-untyped-def]
    """Write those edges in their order: the source's number, and the edge's id (its position if there are no ids)."""
    at = 0
    for i in range(inner):
        v = ids[i]
        for e in range(indptr[v], indptr[v + 1]):
            prefetch(local, indices[min(e + _AHEAD, len(indices) - 1)])
            u = local[indices[e]]
            if u >= 0:
                out_indices[at] = u
                out_ids[at] = edge_ids[e] if len(edge_ids) else e
                at += 1
