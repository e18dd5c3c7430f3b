"""Kernels that look up edges: to exclude edges, and to draw negative pairs that are no edges.

Hard negatives are destinations for given sources, drawn by weight among non-neighbours.
"""

import numpy as np

from ..._jit import kernel
from ...graph._csc import check_row
from .hop import _A, draw_below, first_above, is_among
from .weighted import draw_unit

_S3 = np.uint64(3)
_LOW3 = np.uint64(7)


@kernel
def insert(positions, table, shift, marks, marks_shift):
    """Enter positions into an empty hash set (-1: free) of at least twice their number, and set a
    bit of ``marks`` for each."""
    mask = len(table) - 1
    for i in range(len(positions)):
        p = np.int64(positions[i])
        hashed = np.uint64(p) * _A
        bit = hashed >> marks_shift
        # One hash serves both: its highest bits choose the mark, and the slot.
        marks[np.int64(bit >> _S3)] |= np.uint8(1 << np.int64(bit & _LOW3))
        slot = np.int64(hashed >> shift)
        while table[slot] != -1 and table[slot] != p:
            slot = (slot + 1) & mask
        table[slot] = p


@kernel
def _holds(p, table, mask, shift, marks, marks_shift):
    """Whether a position is in the set. For nearly all edges one bit decides, from the L1 cache."""
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
    """Remove the set's positions from drawn edges, in place; returns the number of edges left.

    ``weights`` may be empty.
    """
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
            # In place, as `kept` is never ahead of `e`.
            positions[kept] = p
            if has_weights:
                weights[kept] = weights[e]
            kept += 1
        # The next row begins at the old end, which is overwritten.
        begin = end
        indptr[i + 1] = kept
    return kept


@kernel
def left(positions, table, shift, marks, marks_shift, places):
    """Write the indices of positions that are not in the set to ``places``; returns their
    number."""
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
    """Write the destination of each pair's first try in :func:`global_pairs`."""
    for i in range(len(out)):
        out[i] = draw_below(key + np.uint64(i) * _A, 1, num_dst)


@kernel
def global_pairs(key, indptr, indices, num_src, no_loops, seen, tries, src, dst):
    """Fill ``src`` and ``dst`` with uniform pairs that are not edges; returns how many were found.

    Args:
        no_loops: Exclude pairs of a vertex with itself.
        seen: For distinct pairs, an empty hash set (-1: free) of at least twice their number. An
            array of length 0: pairs may repeat.
        tries: Draws after which a pair is left out.
    """
    num_dst = len(indptr) - 1
    mask = len(seen) - 1
    found = 0
    for i in range(len(src)):
        base = key + np.uint64(i) * _A
        for t in range(tries):
            # Draws are numbered by try, so they do not depend on the tries of other pairs.
            u = draw_below(base, 2 * t, num_src)
            v = draw_below(base, 2 * t + 1, num_dst)
            if no_loops and u == v:
                continue
            begin = indptr[v]
            end = indptr[v + 1]
            # In a damaged file a row may point outside the array.
            check_row(begin, end, len(indices))
            is_edge = False
            for e in range(begin, end):
                if indices[e] == u:
                    is_edge = True
                    break
            if is_edge:
                continue
            # Checked last, as the set must hold results alone.
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


@kernel
def _rest(u, ids, sums, count, indices, begin, end, own):
    """The candidate at the share ``u`` of the total weight of allowed ones, by a scan of all; -1 if
    none is allowed."""
    total = 0.0
    last = np.int64(-1)
    # The first round sums the allowed weights (its point is 0, so it never returns), the second
    # finds the point in this sum.
    for _ in range(2):
        point = u * total
        before = 0.0
        total = 0.0
        for place in range(count):
            weight = 1.0
            if len(sums) > 0:
                weight = sums[place] - before
                before = sums[place]
            v = np.int64(ids[place]) if len(ids) > 0 else np.int64(place)
            if v == own or is_among(indices, v, begin, end):
                continue
            total += weight
            last = v
            if total > point > 0.0:
                return v
    # By rounding, the point may be above all sums.
    return last


@kernel
def hard_ends(key, src, own, indptr, indices, ids, sums, count, tries, out):
    """Draw a destination for each ``src[i]`` that is neither ``own[i]`` nor in its row; -1 if there
    is none.

    Draws are rejected until one is allowed. After ``tries`` draws, all candidates are scanned. Both
    have the weights' distribution among the allowed candidates.

    Args:
        indptr, indices: The excluded edges, with ascending rows; an empty ``indptr`` excludes none.
        ids: The candidates (empty: all numbers below ``count``).
        sums: Running sums of their positive weights (empty: uniform).
        count: Number of candidates.
        tries: Draws before the scan.
        out: Gets the destinations.
    """
    for i in range(len(src)):
        base = key + np.uint64(i) * _A
        begin = np.int64(0)
        end = np.int64(0)
        if len(indptr) > 0:
            begin = np.int64(indptr[src[i]])
            end = np.int64(indptr[src[i] + 1])
        out[i] = -1
        # Rejection is cheap if few candidates are excluded, and may never end if nearly all are.
        most = tries if count > 0 else 0
        for t in range(most):
            u = draw_unit(base, t)
            if len(sums) > 0:
                place = first_above(sums, u * sums[count - 1], np.int64(0), np.int64(count - 1))
            else:
                place = np.int64(u * np.float64(count))
            v = np.int64(ids[place]) if len(ids) > 0 else np.int64(place)
            if v != own[i] and not is_among(indices, v, begin, end):
                out[i] = v
                break
        if out[i] < 0 and count > 0:
            out[i] = _rest(draw_unit(base, tries), ids, sums, count, indices, begin, end, own[i])
