"""Kernels of induced subgraphs: which in-edges of some vertices come from known ones, in two passes."""

import numpy as np

from .._jit import kernel, prefetch
from ._cpu import _slot_of, place_of

_AHEAD = 32  # edges between asking for a cache line and using it
_ROWS_AHEAD = 6


@kernel
def count_known(indices, starts, degrees, num_src, nodes, table, shift, out_indptr):  # type: ignore[no-untyped-def]
    """The ``indptr`` of the in-edges whose source is in ``nodes``.

    Returns:
        -1, or the first position whose source is outside the graph.
    """
    mask = len(table) - 1
    n = len(starts)
    total = np.int64(0)
    out_indptr[0] = 0
    for i in range(n):
        if i + _ROWS_AHEAD < n:
            prefetch(indices, starts[i + _ROWS_AHEAD])
        end = starts[i] + degrees[i]
        for p in range(starts[i], end):
            if p + _AHEAD < end:
                prefetch(table, _slot_of(indices[p + _AHEAD], shift))
            v = np.int64(indices[p])
            if v < 0 or v >= num_src:
                return p
            total += place_of(v, nodes, table, mask, shift) >= 0
        out_indptr[i + 1] = total
    return np.int64(-1)


@kernel
def put_known(indices, starts, degrees, edge_ids, nodes, table, shift, indptr, src, dst, out_ids):  # type: ignore[no-untyped-def]
    """Write the edges that ``count_known`` counted: both ends' local ids, and the graph's edge ids (empty: positions).

    Rows without any are not read again.
    """
    mask = len(table) - 1
    n = len(starts)
    at = np.int64(0)
    for i in range(n):
        if i + _ROWS_AHEAD < n:
            prefetch(indices, starts[i + _ROWS_AHEAD])
        if indptr[i + 1] == indptr[i]:
            continue
        end = starts[i] + degrees[i]
        for p in range(starts[i], end):
            if p + _AHEAD < end:
                prefetch(table, _slot_of(indices[p + _AHEAD], shift))
            place = place_of(np.int64(indices[p]), nodes, table, mask, shift)
            if place >= 0:
                src[at] = place
                dst[at] = i
                out_ids[at] = p if len(edge_ids) == 0 else edge_ids[p]
                at += 1
