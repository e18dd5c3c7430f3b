"""CPU kernels of LABOR: each source vertex has one random number, shared by the whole frontier.

Rows and weights (the paper's ``A``) are those of ``layerwise.py``. ``scales`` are the paper's
``c``, ``pi`` is its importance of each candidate.
"""

import math

import numpy as np

from ..._jit import kernel, prefetch
from .hop import _A, counter_of, mix
from .layerwise import _ROWS_AHEAD, _S11, unit

_ONE = 2.0**53  # numbers in [0, 1) are 53 random bits divided by this
_TOLERANCE = 1e-4  # DGL's, for a row's variance and for the size of the layer
_PLAIN_STEPS = 24  # fixed-point steps before jumps; rows that are nearly complete need thousands
# More steps than ever needed; ends the search if rounding makes it oscillate.
_MOST_STEPS = 1000


@kernel
def _turn(renewal):
    """Whether batches share the sources' random numbers, and the arguments of ``counter_of``; for
    ``renewal`` see ``Hop``."""
    if len(renewal) == 0:
        return False, (np.uint64(0), np.uint64(0), np.uint64(0))
    return True, (renewal[0], renewal[1], renewal[2])


@kernel
def pick_uniform(indices, starts, offsets, fanout, key, renewal, out_offsets, positions):
    """LABOR-0 without weights: take an in-edge of a vertex of degree d if its source's random
    number is below fanout / d.

    Takes all if ``fanout`` is at least d, or -1.

    Returns:
        The number of edges. If ``positions`` has no room for one more than these, it has stopped:
        the number that it must have room for, at least.
    """
    n = len(offsets) - 1
    shares, turn = _turn(renewal)
    total = np.int64(0)
    out_offsets[0] = 0
    for i in range(n):
        if i + _ROWS_AHEAD < n:
            prefetch(indices, starts[i + _ROWS_AHEAD])
        start = starts[i]
        degree = offsets[i + 1] - offsets[i]
        # Each edge is written, then counted: there must be room for the whole row.
        if total + degree >= len(positions):
            return total + degree
        if fanout < 0 or degree <= fanout:
            for p in range(start, start + degree):
                positions[total] = p
                total += 1
        else:
            # Each edge is written, and counted if its number is low: no unpredictable branch.
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
    return total


@kernel
def row_sums(weights, starts, offsets, sums):
    """Write the sum of each row's weights; without weights, its degree."""
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
    """Write the scales if ``pi`` is the weights; they then depend on the vertex alone.

    ``known`` caches them by vertex, 0 if not computed. Threads may race to fill it, but all write
    the same number.
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
    """Write for each candidate the largest scale (times weight, if any) of its edges to the
    frontier."""
    out[:] = 0.0
    for i in range(len(starts)):
        shift = starts[i] - offsets[i]
        for e in range(offsets[i], offsets[i + 1]):
            scale = scales[i] * (np.float64(weights[e + shift]) if len(weights) > 0 else 1.0)
            out[local_ids[e]] = max(out[local_ids[e]], scale)


@kernel
def solve_scales(local_ids, starts, offsets, weights, reciprocals, fanout, sums, scales, room):
    """Solve the scale of each row for which its estimate has the variance of ``fanout`` uniform
    draws (the paper's equation 22).

    Weights are divided by their row's sum, because squares of very large or small ones overflow or
    underflow float64.

    Args:
        reciprocals: 1 / ``pi`` of each candidate; 0 if that is 0.
        sums: See :func:`row_sums`.
        scales: The first guesses; get the solutions.
        room: Scratch, twice the length of the longest row.
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
    """Solve the scale ``c`` of one row:

        sum_j A_j**2 / min(1, c * pi_j) = target

    over its in-edges ``j``, with ``squares`` for ``A_j**2`` and ``inverses`` for ``1 / pi_j``. This
    is equation 22 of the paper (Balin and Catalyurek, "Layer-Neighbor Sampling", NeurIPS 2023). The
    left side minus the sum of squares is the variance of the row's estimate. ``target`` is the
    variance of ``fanout`` uniform draws, plus the same sum.

    The left side falls as ``c`` grows. It is computed as ``sum_j A_j**2 * max(1 / pi_j, c) / c``,
    with one division per row. The result equals that of DGL's fixed-point iteration
    ``c *= left side / target``, up to its tolerance.
    """
    # DGL's small steps from above end here: just within the tolerance.
    goal = target / (1.0 - _TOLERANCE)
    for step in range(_MOST_STEPS):
        variance = _sum_at_least(squares, inverses, scale) / scale
        # Within the factor 1 - _TOLERANCE of each other, whichever is larger.
        near = min(variance, target) >= (1.0 - _TOLERANCE) * max(variance, target)
        if near or step < _PLAIN_STEPS or variance <= goal:
            scale *= variance / target
        else:
            # Rows that are nearly complete would need thousands of plain steps.
            scale = _jump(squares, inverses, goal, scale, scale * variance / target)
        if near:
            break
    return scale


@kernel
def _sum_at_least(squares, inverses, least):
    """The sum of ``squares * max(inverses, least)``, with four accumulators: the latency of the
    additions would limit a single one."""
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
    """The scale at which the variance is ``goal`` if the same probabilities stay below 1; small
    steps would end there, too."""
    # With S the edges whose c * pi is 1 or more, solve for c:
    #   sum_S A**2 + sum_others A**2 / (c * pi) = goal
    sure = 0.0
    other = 0.0
    for j in range(len(squares)):
        if inverses[j] <= scale:
            sure += squares[j]
        else:
            other += squares[j] * inverses[j]
    # The sure edges alone exceed the goal, so there is no such c. A plain step makes some unsure.
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
    """Take each edge whose source's random number is below ``min(1, scale * pi)``, with the weight
    ``A`` divided by that probability.

    The weights of each vertex are scaled to average 1, so that a mean over its edges is the
    estimate. Edges of weight 0 are left out. If ``pi`` is empty, the edge weights are used.
    """
    weighted = len(weights) > 0
    shares, turn = _turn(renewal)
    total = np.int64(0)
    out_offsets[0] = 0
    for i in range(len(starts)):
        shift = starts[i] - offsets[i]
        first = total
        norm = 0.0
        for e in range(offsets[i], offsets[i + 1]):  # without a branch, see pick_uniform
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
