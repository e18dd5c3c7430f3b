"""Kernels that rank edges."""

import numpy as np

from .._jit import kernel


@kernel
def expand_rows(order, indptr, edge_ids, draws, ids, scores):  # type: ignore[no-untyped-def]
    """The edges of the rows in ``order``, with their row's ``draws``; ``edge_ids`` is empty where ids are positions."""
    at = 0
    for v in order:
        for e in range(np.int64(indptr[v]), np.int64(indptr[v + 1])):
            ids[at] = edge_ids[e] if len(edge_ids) else e
            scores[at] = draws[v]
            at += 1
