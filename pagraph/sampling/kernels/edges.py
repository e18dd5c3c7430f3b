"""Look-ups of edges: exclusion, and negative pairs, which are no edges.

Hard negatives are destinations for given sources, by weight, that are not neighbours of them.
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
    """Enter positions into an empty table (-1 is free) of at least twice their number, and mark a
    bit for each."""
    mask = len(table) - 1
    for i in range(len(positions)):
        p = np.int64(positions[i])
        hashed = np.uint64(p) * _A
        bit = hashed >> marks_shift
        # Two looks at one hash: its highest bits choose the mark, and the slot alike.
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
            # In place: what is kept never overtakes what is read.
            positions[kept] = p
            if has_weights:
                weights[kept] = weights[e]
            kept += 1
        # The old end, which is overwritten here, is where the next row begins.
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
            # Tries have draws of their own: none depends on how many tries other pairs took.
            u = draw_below(base, 2 * t, num_src)
            v = draw_below(base, 2 * t + 1, num_dst)
            if no_loops and u == v:
                continue
            begin = indptr[v]
            end = indptr[v + 1]
            # Of a damaged file a row may lead out of the array.
            check_row(begin, end, len(indices))
            is_edge = False
            for e in range(begin, end):
                if indices[e] == u:
                    is_edge = True
                    break
            if is_edge:
                continue
            # After the search of the row: most tries end there, and the set holds only results.
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
    """The candidate at the share ``u`` of the weight of all that are allowed, or -1 where none is;
    looks at all."""
    total = 0.0
    last = np.int64(-1)
    # The first round sums the weights of those allowed (its point is 0, so that it never returns),
    # the second finds the point in this sum.
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
    # By rounding the point may lie above all sums.
    return last


@kernel
def hard_ends(key, src, own, indptr, indices, ids, sums, count, tries, out):
    """``out[i]``: a destination for ``src[i]``, neither ``own[i]`` nor in its row; -1 where there
    is none.

    ``ids`` are the candidates (empty: all numbers below ``count``), ``sums`` the running sums of
    their positive weights (empty: all are as likely). Rows ascend; ``indptr`` is empty where no
    edge is excluded. Draws are thrown away until one is allowed, ``tries`` of them; then all
    candidates are looked at. Both give the weights' distribution among those that are allowed.
    """
    for i in range(len(src)):
        base = key + np.uint64(i) * _A
        begin = np.int64(0)
        end = np.int64(0)
        if len(indptr) > 0:
            begin = np.int64(indptr[src[i]])
            end = np.int64(indptr[src[i] + 1])
        out[i] = -1
        # Rejection is cheap where few candidates are excluded; where nearly all are it would not
        # end, and the exact draw takes over.
        for t in range(tries if count > 0 else 0):
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
