"""Kernels of expected accesses for draws by weight."""

import math

import numpy as np

from .._jit import kernel, prefetch
from ._vip import chain, drawn, drawn_apart, keep_chances, log_rest

_AHEAD = 24
_NEWTON_STEPS = 20
_STEPS = 200
_TOLERANCE = 1e-6


@kernel
def row_totals(indptr, values, out):  # type: ignore[no-untyped-def]
    """The sum of each row's weights."""
    for u in range(len(indptr) - 1):
        total = 0.0
        for e in range(np.int64(indptr[u]), np.int64(indptr[u + 1])):
            total += np.float64(values[e])
        out[u] = total


@kernel
def _expected(values, begin, end, rate):  # type: ignore[no-untyped-def]
    """How many exponential clocks of a row have rung at time ``rate``, on average, and how many ring in a unit then."""
    count, slope = 0.0, 0.0
    for e in range(begin, end):
        w = np.float64(values[e])
        late = math.exp(-rate * w)
        count += 1.0 - late
        slope += w * late
    return count, slope


@kernel
def solve_rates(indptr, values, totals, fanout, out):  # type: ignore[no-untyped-def]
    """The time at which ``fanout`` of a row's clocks have rung on average; infinite where all edges are drawn.

    Successive draws in proportion to the weights take the edges whose exponential clocks ring first: edge ``e`` is
    among them with a chance of about ``1 - exp(-time * w)`` (Rosen, J. Statistical Planning and Inference 1997).
    """
    for u in range(len(indptr) - 1):
        begin, end = np.int64(indptr[u]), np.int64(indptr[u + 1])
        if fanout < 0 or fanout >= end - begin:
            out[u] = np.inf
        else:
            out[u] = _solve(values, begin, end, totals[u], fanout) if fanout > 0 else 0.0


@kernel
def _solve(values, begin, end, total, fanout):  # type: ignore[no-untyped-def]
    # The count is concave: Newton's steps come from below and never pass the solution.
    rate = fanout / total
    for _ in range(_NEWTON_STEPS):
        count, slope = _expected(values, begin, end, rate)
        missing = fanout - count
        if missing <= _TOLERANCE * fanout:
            return rate
        if slope <= 0.0:
            break
        rate += missing / slope
    # Weights of very different size: find a time that is too late, then halve.
    early, late = rate, np.inf
    for _ in range(_STEPS):
        rate = early * 4.0 if late == np.inf else 0.5 * (early + late)
        count, _slope = _expected(values, begin, end, rate)
        if abs(fanout - count) <= _TOLERANCE * fanout:
            break
        if count < fanout:
            early = rate
        else:
            late = rate
    return rate


@kernel
def push_weighted(  # type: ignore[no-untyped-def]
    indptr,
    indices,
    values,
    totals,
    rates,
    unknown,
    replace,
    later,
    loops,
    mutual,
    back_indptr,
    back_unknown,
    back_fanouts,
    out,
):
    """As ``_vip.push_uniform``, for draws in proportion to ``values`` (all positive).

    The edges back are taken to be drawn as if all had the same weight: theirs would have to be looked up.

    Args:
        indptr: Shape ``(num_dst + 1,)``.
        indices: Shape ``(num_edges,)``.
        values: Shape ``(num_edges,)``.
        totals: Shape ``(num_dst,)``, the sums of the rows.
        rates: Shape ``(num_dst, num_hops)``: draws with replacement, or the times of :func:`solve_rates`.
        unknown: See ``_vip.push_uniform``, as all below.
        replace: As said.
        later: As said.
        loops: As said.
        mutual: As said.
        back_indptr: As said.
        back_unknown: As said.
        back_fanouts: Shape ``(hops,)``.
        out: As said.
    """
    edges, hops = len(indices), len(back_fanouts)
    keep, again, back_keep, back_again = np.empty((4, hops))
    for u in range(len(indptr) - 1):
        if unknown[u, hops - 1] >= 1.0:
            continue
        for e in range(np.int64(indptr[u]), np.int64(indptr[u + 1])):
            if e + _AHEAD < edges:
                prefetch(out, indices[e + _AHEAD])
            v = indices[e]
            if loops and v == u:
                continue
            _weigh_chances(np.float64(values[e]), totals[u], rates, u, replace, later, keep, again)
            if hops > 1 and len(mutual) and mutual[e]:
                degree = np.int64(back_indptr[v + 1]) - np.int64(back_indptr[v])
                keep_chances(degree, back_fanouts, replace, later, back_keep, back_again)
                out[v] += log_rest(drawn_apart(unknown, u, keep, again, back_unknown, v, back_keep, back_again))
            else:
                out[v] += log_rest(drawn(unknown, u, keep, later))


@kernel
def _weigh_chances(w, total, rates, u, replace, later, keep, again):  # type: ignore[no-untyped-def]
    """``_vip.keep_chances`` of an edge of weight ``w``."""
    log = -w
    if replace:
        log = math.log1p(-w / total) if w < total else -np.inf
    least = 1.0
    for t in range(len(keep)):
        keep[t] = math.exp(log * rates[u, t]) if rates[u, t] > 0.0 else 1.0
        least = chain(keep, again, t, later, least)
