"""CPU kernels of LABOR: one random number for each source vertex, shared by the whole frontier.

Rows, weights (``A`` in the paper) and the arrays behind them are as in ``layerwise.py``; ``scales``
are the paper's ``c``, ``pi`` its importance of each candidate.
"""

import math

import numpy as np

from ..._jit import kernel, prefetch
from .hop import _A, counter_of, mix
from .layerwise import _ROWS_AHEAD, _S11, unit

_ONE = 2.0**53  # the numbers in [0, 1) are 53 random bits over this
_TOLERANCE = 1e-4  # DGL's, for one row's variance and for the size of the layer
_PLAIN_STEPS = 24  # fixed-point steps before Newton's: rows that are nearly complete take thousands
# More than the search ever takes; ends it if rounding makes it oscillate.
_MOST_STEPS = 1000


@kernel
def _turn(renewal):
    """Whether batches share the sources' numbers, and the arguments of ``counter_of``; ``renewal``
    as in ``Hop``."""
    if len(renewal) == 0:
        return False, (np.uint64(0), np.uint64(0), np.uint64(0))
    return True, (renewal[0], renewal[1], renewal[2])


@kernel
def pick_uniform(indices, starts, offsets, fanout, key, renewal, out_offsets, positions):
    """LABOR-0 without weights: an in-edge of a vertex of degree d is taken if its source's number
    is below fanout / d.

    All are taken where ``fanout`` is not below the degree, or is -1. ``positions`` has room for all
    in-edges.
    """
    n = len(starts)
    shares, turn = _turn(renewal)
    total = np.int64(0)
    out_offsets[0] = 0
    for i in range(n):
        if i + _ROWS_AHEAD < n:
            prefetch(indices, starts[i + _ROWS_AHEAD])
        start = starts[i]
        degree = offsets[i + 1] - offsets[i]
        if fanout < 0 or degree <= fanout:
            for p in range(start, start + degree):
                positions[total] = p
                total += 1
        else:
            # An edge is written first and kept if its number is low: the outcome cannot be
            # predicted.
            limit = np.uint64(math.ceil(fanout / degree * _ONE))
            if not shares:
                for p in range(start, start + degree):
                    positions[total] = p
                    total += (mix(key + np.uint64(indices[p]) * _A) >> _S11) < limit
            else:
                for p in range(start, start + degree):
                    positions[total] = p
                    total += (mix(key + counter_of(indices[p], *turn) * _A) >> _S11) < limit
        out_offsets[i + 1] = total


@kernel
def row_sums(weights, starts, offsets, sums):
    """The sum of each row's weights."""
    for i in range(len(starts)):
        degree = offsets[i + 1] - offsets[i]
        total = np.float64(degree)
        if len(weights) > 0:
            total = 0.0
            for p in range(starts[i], starts[i] + degree):
                total += np.float64(weights[p])
        sums[i] = total


@kernel
def scales_by_weight(frontier, starts, offsets, weights, fanout, known, scales, room):
    """The scales if weights stand for ``pi``: they depend on the vertex alone; kept in ``known``.

    ``known`` is 0 where not computed. Threads may race to fill it: all write the same number.
    """
    for i in range(len(starts)):
        scales[i] = known[frontier[i]]
        degree = offsets[i + 1] - offsets[i]
        if scales[i] != 0.0 or degree == 0:
            continue
        total = 0.0
        for p in range(starts[i], starts[i] + degree):
            total += np.float64(weights[p])
        if total <= 0.0:
            continue
        squares = room[:degree]
        inverses = room[degree : 2 * degree]
        target = 1.0 / min(fanout, degree) - 1.0 / degree
        for j in range(degree):
            w = np.float64(weights[starts[i] + j])
            squares[j] = (w / total) * (w / total)
            target += squares[j]
            inverses[j] = 1.0 / w if w > 0.0 else 0.0
        scales[i] = _solve_row(squares, inverses, target, fanout / total)
        known[frontier[i]] = scales[i]


@kernel
def largest_scales(local_ids, offsets, starts, weights, scales, out):
    """For each candidate the largest scale (times weight, if any) of its edges to the frontier."""
    out[:] = 0.0
    for i in range(len(starts)):
        shift = starts[i] - offsets[i]
        for e in range(offsets[i], offsets[i + 1]):
            scale = scales[i] * (np.float64(weights[e + shift]) if len(weights) > 0 else 1.0)
            out[local_ids[e]] = max(out[local_ids[e]], scale)


@kernel
def solve_scales(local_ids, starts, offsets, weights, reciprocals, fanout, sums, scales, room):
    """Scale each row so that its estimate's variance is that of ``fanout`` uniform draws (the
    paper's equation 22).

    Weights are divided by their row's sum, as squares of very large or small ones overflow or
    underflow float64. ``reciprocals`` are those of ``pi`` (0 where that is 0); ``room`` is scratch,
    twice the largest row.
    """
    for i in range(len(starts)):
        begin = offsets[i]
        degree = offsets[i + 1] - offsets[i]
        if sums[i] <= 0.0:
            continue
        squares = room[:degree]
        inverses = room[degree : 2 * degree]
        target = 1.0 / min(fanout, degree)
        if len(weights) > 0:
            target -= 1.0 / degree
        for j in range(degree):
            share = (np.float64(weights[starts[i] + j]) if len(weights) > 0 else 1.0) / sums[i]
            squares[j] = share * share
            if len(weights) > 0:
                target += squares[j]
            inverses[j] = reciprocals[local_ids[begin + j]]
        scales[i] = _solve_row(squares, inverses, target, scales[i])


@kernel
def _solve_row(squares, inverses, target, scale):
    """The scale ``c`` of one row of the frontier: the root of

        sum_j A_j**2 / min(1, c * pi_j) = target

    over its in-edges ``j``, with ``squares`` for ``A_j**2`` and ``inverses`` for ``1 / pi_j``.
    That is equation 22 of the paper (Balin and Catalyurek, "Layer-Neighbor Sampling", NeurIPS
    2023): its left side, less the sum of the squares, is the variance of the row's estimate, and
    ``target`` holds that of ``fanout`` uniform draws and the same sum.

    The left side falls as ``c`` grows. It is computed as ``sum_j A_j**2 * max(1 / pi_j, c) / c``,
    with one division for the whole row. The result is what DGL's fixed-point iteration
    ``c *= left side / target`` would leave, up to its tolerance.
    """
    # Where DGL's small steps end when they come from above: just within tolerance of the target.
    goal = target / (1.0 - _TOLERANCE)
    for step in range(_MOST_STEPS):
        variance = _sum_at_least(squares, inverses, scale) / scale
        # variance is within a factor 1 - _TOLERANCE of the target, whichever of them is larger.
        near = min(variance, target) >= (1.0 - _TOLERANCE) * max(variance, target)
        if near or step < _PLAIN_STEPS or variance <= goal:
            scale *= variance / target
        else:
            # Rows that are nearly complete would take thousands of plain steps.
            scale = _jump(squares, inverses, goal, scale, scale * variance / target)
        if near:
            break
    return scale


@kernel
def _sum_at_least(squares, inverses, least):
    """The sum of ``squares * max(inverses, least)``; with four accumulators, as one would wait
    for each addition."""
    a = 0.0
    b = 0.0
    c = 0.0
    d = 0.0
    whole = len(squares) & ~3
    for j in range(0, whole, 4):
        a += squares[j] * max(inverses[j], least)
        b += squares[j + 1] * max(inverses[j + 1], least)
        c += squares[j + 2] * max(inverses[j + 2], least)
        d += squares[j + 3] * max(inverses[j + 3], least)
    for j in range(whole, len(squares)):
        a += squares[j] * max(inverses[j], least)
    return (a + b) + (c + d)


@kernel
def _jump(squares, inverses, goal, scale, plain):
    """Where the variance is ``goal`` if the same probabilities stay below 1: small steps end there
    as well."""
    # With S the edges whose c * pi is 1 or more:
    #   sum_S A**2 + sum_others A**2 / (c * pi) = goal,  solved for c.
    sure = 0.0
    other = 0.0
    for j in range(len(squares)):
        if inverses[j] <= scale:
            sure += squares[j]
        else:
            other += squares[j] * inverses[j]
    # The sure edges alone are above the goal: no c keeps them sure, a plain step lets some go.
    if goal <= sure:
        return plain
    return other / (goal - sure)


@kernel
def expected_vertices(pi):
    """The sum of ``min(1, pi)``."""
    total = 0.0
    for p in pi:
        total += min(1.0, p)
    return total


@kernel
def pick_weighted(
    indices,
    local_ids,
    starts,
    offsets,
    weights,
    pi,
    scales,
    key,
    renewal,
    out_offsets,
    positions,
    out,
):
    """Take each edge whose source's number is below ``min(1, scale * pi)``; weigh it with ``A``
    over that probability.

    The weights of each vertex are scaled to average 1, so that a mean over the edges is the
    estimate. Edges of weight 0 are left out. ``pi`` may be empty: then each edge's weight stands
    for it.
    """
    weighted = len(weights) > 0
    shares, turn = _turn(renewal)
    total = np.int64(0)
    out_offsets[0] = 0
    for i in range(len(starts)):
        shift = starts[i] - offsets[i]
        first = total
        norm = 0.0
        for e in range(offsets[i], offsets[i + 1]):  # without a branch, as in pick_uniform
            w = np.float64(weights[e + shift]) if weighted else 1.0
            chance = min(1.0, scales[i] * (pi[local_ids[e]] if len(pi) > 0 else w))
            positions[total] = e + shift
            out[total] = chance
            counter = np.uint64(indices[e + shift])
            if shares:
                counter = counter_of(counter, *turn)
            total += (unit(mix(key + counter * _A)) < chance) & (w > 0.0)
        for t in range(first, total):
            out[t] = (np.float64(weights[positions[t]]) if weighted else 1.0) / out[t]
            norm += out[t]
        for t in range(first, total):
            out[t] *= (total - first) / norm
        out_offsets[i + 1] = total
