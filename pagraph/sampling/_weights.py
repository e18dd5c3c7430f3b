"""CPU kernels that prepare the weights of a CSC for picks in proportion to them.

A row is cut where the position is a multiple of ``CHUNK`` (a cache line of float32). Each full chunk is a group; the
ends of the row belong to its first and its last group. ``sums`` holds a row's running sums by group, ``guide`` where to
begin looking in them for each of as many equal parts of the total (indexed search: Chen and Asau, AIIE Transactions
1974). Both are indexed by chunk, so that rows never meet; a row without a full chunk has no groups.
"""

import numpy as np

from .._jit import kernel

SHIFT = 4
CHUNK = 1 << SHIFT


@kernel
def keep_positive(indptr, weights, out_indptr, positions):  # type: ignore[no-untyped-def]
    """Move the positive weights to the front, row by row; ``positions`` says where they were."""
    kept = np.int64(0)
    for v in range(len(indptr) - 1):
        for e in range(np.int64(indptr[v]), np.int64(indptr[v + 1])):
            if weights[e] > 0:
                weights[kept] = weights[e]
                positions[kept] = e
                kept += 1
        out_indptr[v + 1] = kept


@kernel
def groups(start, end):  # type: ignore[no-untyped-def]
    """The full chunks of a row: the first, and one past the last."""
    return (start + CHUNK - 1) >> SHIFT, end >> SHIFT


@kernel
def group_ends(start, end, g):  # type: ignore[no-untyped-def]
    """The edges of group ``g`` of a row."""
    first, last = groups(start, end)
    return start if g == first else g << SHIFT, end if g == last - 1 else (g + 1) << SHIFT


@kernel
def fill_tables(indptr, weights, sums, guide):  # type: ignore[no-untyped-def]
    """Running sums and guide of every row that has groups."""
    for v in range(len(indptr) - 1):
        start, end = np.int64(indptr[v]), np.int64(indptr[v + 1])
        first, last = groups(start, end)
        total = 0.0
        for g in range(first, last):
            lo, hi = group_ends(start, end, g)
            for e in range(lo, hi):
                total += np.float64(weights[e])
            sums[g] = total
        g = first
        for i in range(last - first):
            bound = total * (np.float64(i) / np.float64(last - first))
            while g < last - 1 and sums[g] <= bound:
                g += 1
            guide[first + i] = g - first
