"""CPU kernels of LABOR: one random number for each source vertex, shared by the whole frontier.

Rows, weights (``A`` in the paper) and the arrays behind them are as in ``_layerwise.py``; ``scales`` are the paper's
``c``, ``pi`` its importance of each candidate.
"""

import numpy as np

from .._jit import kernel, prefetch
from ._cpu import _A, mix
from ._layerwise import _ROWS_AHEAD, unit

_TOLERANCE = 1e-4  # DGL's, for one row's variance and for the size of the layer
_PLAIN_STEPS = 24  # fixed-point steps before Newton's: rows that are nearly complete take thousands
_MOST_STEPS = 1000


@kernel
def shared_number(key, vertex):  # type: ignore[no-untyped-def]
    """The number in [0, 1) of a source vertex."""
    return unit(mix(key + np.uint64(vertex) * _A))


@kernel
def pick_uniform(indices, starts, offsets, fanout, key, out_offsets, positions):  # type: ignore[no-untyped-def]
    """LABOR-0 without weights: an in-edge of a vertex of degree d is taken if its source's number is below fanout / d.

    All are taken where ``fanout`` is not below the degree, or is -1. ``positions`` has room for all in-edges.
    """
    n = len(starts)
    total = np.int64(0)
    out_offsets[0] = 0
    for i in range(n):
        if i + _ROWS_AHEAD < n:
            prefetch(indices, starts[i + _ROWS_AHEAD])
        start, degree = starts[i], offsets[i + 1] - offsets[i]
        if fanout < 0 or degree <= fanout:
            for p in range(start, start + degree):
                positions[total] = p
                total += 1
        else:
            limit = fanout / degree
            for p in range(start, start + degree):
                positions[total] = p
                total += shared_number(key, indices[p]) < limit
        out_offsets[i + 1] = total


@kernel
def first_scales(weights, starts, offsets, fanout, sums, scales):  # type: ignore[no-untyped-def]
    """Sum of each row's weights, and fan-out over sum (0 for rows without any)."""
    for i in range(len(starts)):
        degree = offsets[i + 1] - offsets[i]
        total = np.float64(degree)
        if len(weights) > 0:
            total = 0.0
            for p in range(starts[i], starts[i] + degree):
                total += np.float64(weights[p])
        sums[i] = total
        scales[i] = fanout / total if total > 0.0 else 0.0


@kernel
def largest_scales(local_ids, offsets, starts, weights, scales, out):  # type: ignore[no-untyped-def]
    """For each candidate the largest scale (times weight, if there are any) over its edges to the frontier."""
    out[:] = 0.0
    for i in range(len(starts)):
        shift = starts[i] - offsets[i]
        for e in range(offsets[i], offsets[i + 1]):
            scale = scales[i] * (np.float64(weights[e + shift]) if len(weights) > 0 else 1.0)
            if scale > out[local_ids[e]]:
                out[local_ids[e]] = scale


@kernel
def solve_scales(local_ids, starts, offsets, weights, pi, fanout, sums, scales):  # type: ignore[no-untyped-def]
    """Scale each row so that its estimate's variance is that of ``fanout`` uniform draws (the paper's equation 22).

    ``pi`` may be empty: then each edge's weight stands for it. Weights are divided by their row's sum, lest the squares
    of very large or small ones leave the range of float64.
    """
    for i in range(len(starts)):
        begin, end = offsets[i], offsets[i + 1]
        if sums[i] <= 0.0:
            continue
        target = 1.0 / min(fanout, end - begin)
        if len(weights) > 0:
            target -= 1.0 / (end - begin)
            for p in range(starts[i], starts[i] + end - begin):
                target += (np.float64(weights[p]) / sums[i]) ** 2
        shift = starts[i] - begin
        scales[i] = _solve_row(local_ids, begin, end, shift, weights, pi, sums[i], target, scales[i])


@kernel
def _solve_row(local_ids, begin, end, shift, weights, pi, total, target, scale):  # type: ignore[no-untyped-def]
    """The scale at which the sum of ``A * A / min(1, scale * pi)`` is ``target``, as DGL's iteration would leave it."""
    goal = target / (1.0 - _TOLERANCE)
    for step in range(_MOST_STEPS):
        sure, other = 0.0, 0.0  # sums of A * A where scale * pi reaches 1, of A * A / pi elsewhere
        for e in range(begin, end):
            w = np.float64(weights[e + shift]) if len(weights) > 0 else 1.0
            p = pi[local_ids[e]] if len(pi) > 0 else w
            if w > 0.0 and scale * p >= 1.0:
                sure += (w / total) ** 2
            elif w > 0.0 and p > 0.0:  # beside weights 1e300 times as large, pi is 0
                other += (w / total) ** 2 / p
        variance = sure + other / scale
        near = min(variance, target) >= (1.0 - _TOLERANCE) * max(variance, target)
        if near or step < _PLAIN_STEPS or variance <= goal or sure >= goal:
            scale *= variance / target
        else:
            scale = other / (goal - sure)  # small steps end where the goal is met: go there at once
        if near:
            break
    return scale


@kernel
def expected_vertices(pi):  # type: ignore[no-untyped-def]
    """The sum of ``min(1, pi)``."""
    total = 0.0
    for p in pi:
        total += min(1.0, p)
    return total


@kernel
def pick_weighted(indices, local_ids, starts, offsets, weights, pi, scales, key, out_offsets, positions, out):  # type: ignore[no-untyped-def]
    """Take each edge whose source's number is below ``min(1, scale * pi)``; weigh it with ``A`` over that probability.

    The weights of each vertex are scaled to average 1, so that a mean over the edges is the estimate. Edges of
    weight 0 are left out. ``pi`` may be empty: then each edge's weight stands for it.
    """
    n = len(starts)
    total = np.int64(0)
    out_offsets[0] = 0
    for i in range(n):
        shift = starts[i] - offsets[i]
        first, norm = total, 0.0
        for e in range(offsets[i], offsets[i + 1]):
            a = np.float64(weights[e + shift]) if len(weights) > 0 else 1.0
            chance = min(1.0, scales[i] * (pi[local_ids[e]] if len(pi) > 0 else a))
            if a > 0.0 and shared_number(key, indices[e + shift]) < chance:
                positions[total] = e + shift
                out[total] = a / chance
                norm += a / chance
                total += 1
        for t in range(first, total):
            out[t] *= (total - first) / norm
        out_offsets[i + 1] = total
