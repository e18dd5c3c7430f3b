"""CPU kernels of layer-wise sampling: passes over all in-edges of a frontier.

Arrays by in-edge have the frontier's rows one after the other: row ``i`` is
``offsets[i]:offsets[i + 1]``, and begins at ``starts[i]`` in the CSC. ``weights`` are in CSC order;
an empty array stands for weights of 1.
"""

import numpy as np

from ..._jit import kernel, prefetch
from ...graph._csc import check_id, check_row
from .hop import _B, first_above, mix, place_of, slot_of

_AHEAD = 24  # elements between the prefetch of a cache line and its use
_ROWS_AHEAD = 6  # the same in rows; only a row's first line, the hardware prefetches the others
_S11 = np.uint64(11)
_TO_UNIT = 2.0**-53


@kernel
def unit(x):
    """A uniform number in [0, 1) with 53 bits, from 64 random bits."""
    return np.float64(x >> _S11) * _TO_UNIT


@kernel
def read_rows(indices, starts, offsets, out):
    """Write the sources of all in-edges of the frontier."""
    n = len(starts)
    for i in range(n):
        if i + _ROWS_AHEAD < n:
            prefetch(indices, starts[i + _ROWS_AHEAD])
        shift = starts[i] - offsets[i]
        for e in range(offsets[i], offsets[i + 1]):
            out[e] = indices[e + shift]


@kernel
def number_sources(indices, starts, offsets, places, local_ids):
    """Number the sources of all in-edges by first occurrence.

    ``places`` is a direct table of all vertices, filled with -1. Returns the number of sources, or
    ``-1 - p`` if the edge at position ``p`` points outside the graph.
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
            # Always written, as a store costs less than a mispredicted branch.
            places[v] = local
            local_ids[e] = local
            count += known < 0
    return count


@kernel
def row_scales(weights, starts, offsets, out):
    """Write the factor that normalises each row's weights to a sum of 1; 0 for rows without
    weight."""
    for i in range(len(starts)):
        total = np.float64(offsets[i + 1] - offsets[i])
        if len(weights) > 0:
            total = 0.0
            for p in range(starts[i], starts[i] + offsets[i + 1] - offsets[i]):
                total += np.float64(weights[p])
        out[i] = 1.0 / total if total > 0.0 else 0.0


@kernel
def add_squares(local_ids, starts, offsets, scales, weights, out):
    """Write the importance of each source: the sum of its squared normalised edge weights."""
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
    """:func:`add_squares` for all rows of a graph, by vertex; ``out`` comes zeroed."""
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
    """The ``c`` for which ``min(1, c * p)`` adds up to ``size``, and how many of these are 1.

    ``c`` starts too small and grows. Each round counts the probabilities that reach 1, and divides
    the rest of ``size`` among the others. Rounding may push one back below 1, so the first round
    without a new one is the last.
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
        # No new vertex reached 1, so c was computed from exactly the others.
        if reached <= certain and c > 0.0:
            return c, reached
        certain = reached
        if certain >= size or rest <= 0.0:
            return c, certain
        c = (size - certain) / rest


@kernel
def choose(importance, size, key, out):
    """Draw ``size`` vertices with probabilities ``pi = min(1, c * p)``; ``out`` gets 1 / pi for
    drawn vertices, 0 for others.

    By the ordered pivotal method (Deville and Tille, Biometrika 1998). Each vertex meets the one
    that is still undecided, and a draw moves probability between the two until one of them is
    certain or impossible. Every ``pi`` and the number of draws are exact, and each range of
    vertices gets about its expected share.
    """
    positive = np.int64(0)
    for p in importance:
        positive += p > 0.0
    # Take all that are positive; _cap has no solution if there are too few.
    if positive <= size:
        for u in range(len(importance)):
            out[u] = 1.0 if importance[u] > 0.0 else 0.0
        return
    c, certain = _cap(importance, size)
    left = size - certain
    open_ = np.int64(-1)  # the undecided vertex
    chance = 0.0  # its current probability
    for u in range(len(importance)):
        # Not c * 0: c is infinite if the others' squares underflow.
        pi = c * importance[u] if importance[u] > 0.0 else 0.0
        out[u] = 1.0 if pi >= 1.0 else 0.0
        if pi <= 0.0 or pi >= 1.0:
            continue
        both = chance + pi
        # If the two probabilities sum to less than 1, one vertex gets the sum and the other is
        # out. Else one is drawn and the other keeps the excess over 1. On average both keep their
        # probabilities.
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
    if left > 0:  # rounding left the last one just below 1
        out[open_] = 1.0 / (c * importance[open_])


@kernel
def draw_repeated(sums, size, key, out):
    """Write ``size`` independent draws from the distribution with these running sums, of which the
    last is positive."""
    last = len(sums) - 1
    # Excludes entries of weight 0 at the end, which rounding could draw.
    while last > 0 and sums[last - 1] == sums[last]:
        last -= 1
    for j in range(size):
        x = unit(mix(key + np.uint64(j) * _B)) * sums[last]
        out[j] = first_above(sums, x, 0, last)


@kernel
def mark(vertices, marks, shift):
    """Clear ``marks``, of length ``2**(64 - shift)``, and set the byte of each vertex's hash."""
    marks[:] = 0
    for v in vertices:
        marks[slot_of(v, shift)] = 1


@kernel
def filter_rows(indices, starts, offsets, marks, shift, out_offsets, positions):
    """Write positions of the in-edges whose source, or another with its hash, is marked.

    ``positions`` has room for all in-edges: each is written, and counted if marked. A branch per
    in-edge would be unpredictable.
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
    """Write the index of each source in ``nodes``, or ``len(nodes)``; ``table`` is the hash table
    of ``nodes`` that ``relabel`` has filled."""
    mask = len(table) - 1
    for e in range(len(sources)):
        place = place_of(np.int64(sources[e]), nodes, table, mask, shift)
        local_ids[e] = place if place >= 0 else len(nodes)


@kernel
def take_rows(
    local_ids, starts, offsets, scales, weights, factors, chosen, out_offsets, positions, out
):
    """Write positions and weights of the in-edges from chosen vertices.

    An edge's weight is its share of the row, times its source's factor (above 0 if chosen). There
    is room for all in-edges: each is written, and counted if wanted, which costs less than an
    unpredictable branch. ``chosen`` is scratch with a byte per candidate, to read less memory than
    the factors.
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
    """:func:`take_rows` for the in-edges that :func:`filter_rows` has kept; changes positions and
    offsets in place."""
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
