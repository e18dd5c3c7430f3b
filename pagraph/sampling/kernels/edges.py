"""Look-ups of edges: exclusion and negative pairs."""

import numpy as np

from ..._jit import kernel
from ...graph._csc import check_row
from .hop import draw_below

_A = np.uint64(0x9E3779B97F4A7C15)
_S3, _LOW3 = np.uint64(3), np.uint64(7)


@kernel
def insert(positions, table, shift, marks, marks_shift):
    """Enter positions into an empty table (-1 is free) of at least twice their number, and mark a
    bit for each."""
    mask = len(table) - 1
    for i in range(len(positions)):
        p = np.int64(positions[i])
        hashed = np.uint64(p) * _A
        bit = hashed >> marks_shift
        marks[np.int64(bit >> _S3)] |= np.uint8(1 << np.int64(bit & _LOW3))
        slot = np.int64(hashed >> shift)
        while table[slot] != -1 and table[slot] != p:
            slot = (slot + 1) & mask
        table[slot] = p


@kernel
def _holds(p, table, mask, shift, marks, marks_shift):
    """Whether a position is in the table: one bit, in the innermost cache, answers for nearly every
    edge."""
    hashed = np.uint64(p) * _A
    bit = hashed >> marks_shift
    if not (marks[np.int64(bit >> _S3)] >> np.int64(bit & _LOW3)) & 1:
        return False
    slot = np.int64(hashed >> shift)
    while table[slot] != -1 and table[slot] != p:
        slot = (slot + 1) & mask
    return table[slot] == p


@kernel
def drop(indptr, positions, weights, table, shift, marks, marks_shift):
    """Close up the gaps that the table's positions leave; ``weights`` may be empty. Returns the
    edges that are left."""
    mask = len(table) - 1
    has_weights = len(weights) > 0
    kept = np.int64(0)
    begin = np.int64(0)
    for i in range(len(indptr) - 1):
        end = np.int64(indptr[i + 1])
        for e in range(begin, end):
            p = np.int64(positions[e])
            if _holds(p, table, mask, shift, marks, marks_shift):
                continue
            positions[kept] = p
            if has_weights:
                weights[kept] = weights[e]
            kept += 1
        begin = end
        indptr[i + 1] = kept
    return kept


@kernel
def left(positions, table, shift, marks, marks_shift, places):
    """Write the places of the positions that are not in the table to ``places``; returns how many
    there are."""
    mask = len(table) - 1
    kept = np.int64(0)
    for e in range(len(positions)):
        if not _holds(np.int64(positions[e]), table, mask, shift, marks, marks_shift):
            places[kept] = e
            kept += 1
    return kept


@kernel
def uniform_ends(key, k, bound, out):
    """``out[i * k + j]``: draw ``j`` for edge ``i``, uniform in ``[0, bound)``."""
    for i in range(len(out) // k):
        base = key + np.uint64(i) * _A
        for j in range(k):
            out[i * k + j] = draw_below(base, j, bound)


@kernel
def first_ends(key, num_dst, out):
    """The destination of the first draw of each pair of ``global_pairs``."""
    for i in range(len(out)):
        out[i] = draw_below(key + np.uint64(i) * _A, 1, num_dst)


@kernel
def global_pairs(key, indptr, indices, num_src, no_loops, seen, tries, src, dst):
    """Fill ``src`` and ``dst`` with uniform pairs that are not edges; returns how many were found.

    ``seen``: an empty set (-1 is free) of at least twice the pairs, for pairs that are all
    different; empty for pairs that may repeat. A pair is given up after ``tries`` draws.
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
            begin, end = indptr[v], indptr[v + 1]
            check_row(begin, end, len(indices))
            is_edge = False
            for e in range(begin, end):
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
