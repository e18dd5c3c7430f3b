"""CPU kernels of layer-wise sampling: passes over the in-edges of a frontier, whose rows lie one
after the other.

Row ``i`` of a frontier is ``offsets[i]:offsets[i + 1]`` of such an array and begins at
``starts[i]`` of the CSC. Where edges have weights they are an array in CSC order; an empty one
stands for weights of 1.
"""

import numpy as np

from ..._jit import kernel, prefetch
from ...graph._csc import check_id, check_row
from .hop import _B, first_above, mix, place_of, slot_of

_AHEAD = 24  # elements between asking for a cache line and using it
_ROWS_AHEAD = 6  # the same for rows: their first lines only, the processor sees the rest coming
_S11 = np.uint64(11)
_TO_UNIT = 2.0**-53


@kernel
def unit(x):
    """A uniform number in [0, 1) of 53 bits from 64 random bits."""
    return np.float64(x >> _S11) * _TO_UNIT


@kernel
def read_rows(indices, starts, offsets, out):
    """The sources of all in-edges of the frontier."""
    n = len(starts)
    for i in range(n):
        if i + _ROWS_AHEAD < n:
            prefetch(indices, starts[i + _ROWS_AHEAD])
        shift = starts[i] - offsets[i]
        for e in range(offsets[i], offsets[i + 1]):
            out[e] = indices[e + shift]


@kernel
def number_sources(indices, starts, offsets, places, local_ids):
    """Number the sources of all in-edges in the order of their discovery, by a table of all
    vertices filled with -1.

    Without a branch on whether a source is new, which cannot be predicted. Returns how many there
    are, or ``-1 - p`` where position ``p`` leads out of the graph.
    """
    n = len(starts)
    count = np.int64(0)
    for i in range(n):
        if i + _ROWS_AHEAD < n:
            prefetch(indices, starts[i + _ROWS_AHEAD])
        shift = starts[i] - offsets[i]
        for e in range(offsets[i], offsets[i + 1]):
            v = np.int64(indices[e + shift])
            if v < 0 or v >= len(places):
                return np.int64(-1) - (e + shift)
            known = np.int64(places[v])
            local = count if known < 0 else known
            # Written whether it is new or not: a store costs less than a branch guessed wrong.
            places[v] = local
            local_ids[e] = local
            count += known < 0
    return count


@kernel
def row_scales(weights, starts, offsets, out):
    """The factor that makes the weights of each row add up to 1; 0 for rows without any weight."""
    for i in range(len(starts)):
        total = np.float64(offsets[i + 1] - offsets[i])
        if len(weights) > 0:
            total = 0.0
            for p in range(starts[i], starts[i] + offsets[i + 1] - offsets[i]):
                total += np.float64(weights[p])
        out[i] = 1.0 / total if total > 0.0 else 0.0


@kernel
def add_squares(local_ids, starts, offsets, scales, weights, out):
    """Add the square of each normalised edge weight to its source's importance (``out``, zeroed
    here)."""
    out[:] = 0.0
    for i in range(len(starts)):
        scale = scales[i]
        square = scale * scale
        shift = starts[i] - offsets[i]
        for e in range(offsets[i], offsets[i + 1]):
            if len(weights) > 0:
                p = np.float64(weights[e + shift]) * scale
                square = p * p
            out[local_ids[e]] += square


@kernel
def column_squares(indptr, indices, weights, out):
    """``add_squares`` for all rows of a graph, by vertex."""
    for v in range(len(indptr) - 1):
        begin = np.int64(indptr[v])
        end = np.int64(indptr[v + 1])
        check_row(begin, end, len(indices))
        total = np.float64(end - begin)
        if len(weights) > 0:
            total = 0.0
            for e in range(begin, end):
                total += np.float64(weights[e])
        if total > 0.0:
            for e in range(begin, end):
                if e + _AHEAD < len(indices):
                    prefetch(out, indices[e + _AHEAD])
                weight = np.float64(weights[e]) if len(weights) > 0 else 1.0
                p = weight / total
                u = indices[e]
                check_id(u, len(out))
                out[u] += p * p


@kernel
def _cap(importance, size):
    """The ``c`` with which ``min(1, c * p)`` adds up to ``size``, and how many reach 1.

    Starts below and only grows: each round counts those that reach 1 and shares the rest out among
    the others. Where one is at 1 to the last bit, rounding may take it away again: a round without
    a new one is the last.
    """
    c = 0.0
    certain = np.int64(0)
    while True:
        reached = np.int64(0)
        rest = 0.0
        for p in importance:
            sure = c * p >= 1.0
            reached += sure
            rest += 0.0 if sure else p
        # No vertex reached 1 in this round: the others' shares are what c was computed from.
        if reached <= certain and c > 0.0:
            return c, reached
        certain = reached
        if certain >= size or rest <= 0.0:
            return c, certain
        c = (size - certain) / rest


@kernel
def choose(importance, size, key, out):
    """Draw ``size`` vertices with probabilities ``pi = min(1, c * p)``; ``out`` is 1 / pi of them,
    0 of the others.

    The pivotal method in the given order (Deville and Tille, Biometrika 1998): one vertex at a time
    meets the one that is still undecided, and a draw moves as much probability from one to the
    other as makes one of them certain or impossible. Exact in every ``pi`` and in the number drawn,
    and of each stretch of vertices the share that is due.
    """
    positive = np.int64(0)
    for p in importance:
        positive += p > 0.0
    # All can be taken, each for certain; _cap has no solution where fewer are positive than wanted.
    if positive <= size:
        for u in range(len(importance)):
            out[u] = 1.0 if importance[u] > 0.0 else 0.0
        return
    c, certain = _cap(importance, size)
    left = size - certain
    open_ = np.int64(-1)  # the undecided vertex
    chance = 0.0  # its probability by now
    for u in range(len(importance)):
        # C is infinite where the others' squares vanish.
        pi = c * importance[u] if importance[u] > 0.0 else 0.0
        out[u] = 1.0 if pi >= 1.0 else 0.0
        if pi <= 0.0 or pi >= 1.0:
            continue
        both = chance + pi
        # Two probabilities meet. Below 1 in sum, one gets all of it and the other is out; above,
        # one is drawn and the other keeps what is above 1. Both keep their probabilities on
        # average.
        r = unit(mix(key + np.uint64(u) * _B))
        if both < 1.0:
            if r * both < pi:
                open_ = u
            chance = both
            continue
        if r * (2.0 - both) < 1.0 - chance:
            out[u] = 1.0 / pi
        else:
            out[open_] = 1.0 / (c * importance[open_])
            open_ = u
        left -= 1
        chance = both - 1.0
    if left > 0:  # by rounding short of 1
        out[open_] = 1.0 / (c * importance[open_])


@kernel
def draw_repeated(sums, size, key, out):
    """``size`` independent draws from the distribution with these running sums, the last of which
    is positive."""
    last = len(sums) - 1
    # Without the entries of weight 0 at the end, on which rounding could let a draw fall.
    while last > 0 and sums[last - 1] == sums[last]:
        last -= 1
    for j in range(size):
        x = unit(mix(key + np.uint64(j) * _B)) * sums[last]
        out[j] = first_above(sums, x, 0, last)


@kernel
def mark(vertices, marks, shift):
    """Set the byte of each vertex's hash in ``marks``, of a power-of-two length
    ``2**(64 - shift)``."""
    marks[:] = 0
    for v in vertices:
        marks[slot_of(v, shift)] = 1


@kernel
def filter_rows(indices, starts, offsets, marks, shift, out_offsets, positions):
    """Positions of the in-edges whose source is marked (or shares its hash); there is room for all
    in-edges.

    Without a branch: which edges come from few drawn vertices cannot be predicted, and is asked of
    every in-edge.
    """
    n = len(starts)
    total = np.int64(0)
    out_offsets[0] = 0
    for i in range(n):
        if i + _ROWS_AHEAD < n:
            prefetch(indices, starts[i + _ROWS_AHEAD])
        for p in range(starts[i], starts[i] + offsets[i + 1] - offsets[i]):
            positions[total] = p
            total += np.int64(marks[slot_of(indices[p], shift)])
        out_offsets[i + 1] = total


@kernel
def find(sources, nodes, table, shift, local_ids):
    """The place of each source in ``nodes``, or one past the last; ``table`` is what ``relabel``
    made of ``nodes``."""
    mask = len(table) - 1
    for e in range(len(sources)):
        place = place_of(np.int64(sources[e]), nodes, table, mask, shift)
        local_ids[e] = place if place >= 0 else len(nodes)


@kernel
def take_rows(
    local_ids, starts, offsets, scales, weights, factors, chosen, out_offsets, positions, out
):
    """Positions and weights of the in-edges that come from chosen vertices: their share of the row
    times the factor.

    There is room for all in-edges: an edge is written first and counted if it is wanted, which
    costs less than a branch that cannot be predicted. ``chosen`` is scratch, a byte for each
    candidate: smaller than the factors.
    """
    for u in range(len(factors)):
        chosen[u] = factors[u] > 0.0
    total = np.int64(0)
    out_offsets[0] = 0
    for i in range(len(starts)):
        shift = starts[i] - offsets[i]
        first = total
        for e in range(offsets[i], offsets[i + 1]):
            positions[total] = e + shift
            if len(weights) > 0:
                total += chosen[local_ids[e]] & np.uint8(weights[e + shift] > 0.0)
            else:
                total += np.int64(chosen[local_ids[e]])
        for t in range(first, total):
            out[t] = scales[i] * factors[local_ids[positions[t] - shift]]
            if len(weights) > 0:
                out[t] *= np.float64(weights[positions[t]])
        out_offsets[i + 1] = total


@kernel
def take_marked(local_ids, positions, offsets, scales, weights, factors, out):
    """``take_rows`` for the in-edges that ``filter_rows`` let through; positions and offsets change
    in place."""
    total = np.int64(0)
    begin = np.int64(0)
    for i in range(len(scales)):
        for e in range(begin, offsets[i + 1]):
            weight = scales[i] * factors[local_ids[e]]
            if len(weights) > 0:
                weight *= np.float64(weights[positions[e]])
            positions[total] = positions[e]
            out[total] = weight
            total += weight > 0.0
        begin = offsets[i + 1]
        offsets[i + 1] = total
