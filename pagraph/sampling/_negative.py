"""CPU kernels that draw negative pairs; random numbers as in ``_cpu``."""

import numpy as np

from .._jit import kernel
from ._cpu import draw_below

_A = np.uint64(0x9E3779B97F4A7C15)


@kernel
def uniform_ends(key, k, bound, out):  # type: ignore[no-untyped-def]
    """``out[i * k + j]``: draw ``j`` for edge ``i``, uniform in ``[0, bound)``."""
    for i in range(len(out) // k):
        base = key + np.uint64(i) * _A
        for j in range(k):
            out[i * k + j] = draw_below(base, j, bound)


@kernel
def global_pairs(key, indptr, indices, num_src, no_loops, seen, tries, src, dst):  # type: ignore[no-untyped-def]
    """Fill ``src`` and ``dst`` with uniform pairs that are not edges; returns how many were found.

    ``seen``: an empty set (-1 is free) of at least twice the pairs, for pairs that are all different; empty for pairs
    that may repeat. A pair is given up after ``tries`` draws.
    """
    num_dst = len(indptr) - 1
    mask = len(seen) - 1
    found = 0
    for i in range(len(src)):
        base = key + np.uint64(i) * _A
        for t in range(tries):
            u = draw_below(base, 2 * t, num_src)
            v = draw_below(base, 2 * t + 1, num_dst)
            if no_loops and u == v:
                continue
            is_edge = False
            for e in range(indptr[v], indptr[v + 1]):
                if indices[e] == u:
                    is_edge = True
                    break
            if is_edge:
                continue
            if mask >= 0:
                pair = u * np.int64(num_dst) + v
                slot = np.int64(np.uint64(pair) * _A & np.uint64(mask))
                while seen[slot] != -1 and seen[slot] != pair:
                    slot = (slot + 1) & mask
                if seen[slot] == pair:
                    continue
                seen[slot] = pair
            src[found] = u
            dst[found] = v
            found += 1
            break
    return found
