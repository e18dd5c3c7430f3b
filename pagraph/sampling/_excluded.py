"""CPU kernels that leave edges out of a hop."""

import numpy as np

from .._jit import kernel

_A = np.uint64(0x9E3779B97F4A7C15)


@kernel
def insert(positions, table, shift):  # type: ignore[no-untyped-def]
    """Enter positions into an empty table (-1 is free) of at least four times their number."""
    mask = len(table) - 1
    for i in range(len(positions)):
        p = np.int64(positions[i])
        slot = np.int64((np.uint64(p) * _A) >> shift)
        while table[slot] != -1 and table[slot] != p:
            slot = (slot + 1) & mask
        table[slot] = p


@kernel
def drop(indptr, positions, weights, table, shift):  # type: ignore[no-untyped-def]
    """Close up the gaps that the table's positions leave; ``weights`` may be empty. Returns the edges that are left."""
    mask = len(table) - 1
    has_weights = len(weights) > 0
    kept = np.int64(0)
    begin = np.int64(0)
    for i in range(len(indptr) - 1):
        end = np.int64(indptr[i + 1])
        for e in range(begin, end):
            p = np.int64(positions[e])
            slot = np.int64((np.uint64(p) * _A) >> shift)
            while table[slot] != -1 and table[slot] != p:
                slot = (slot + 1) & mask
            if table[slot] == -1:
                positions[kept] = p
                if has_weights:
                    weights[kept] = weights[e]
                kept += 1
        begin = end
        indptr[i + 1] = kept
    return kept
