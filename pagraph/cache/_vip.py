"""Kernels of expected accesses: how likely an edge is drawn by some hop, multiplied up over the edges of a vertex.

All work on rows: ``indptr`` and the in-neighbours of each vertex that may be drawn. ``found[t, u]`` is the chance that
hop ``t`` finds ``u`` (0: a seed), and not before. From then on every hop draws from ``u`` again.
"""

import math

import numpy as np

from .._jit import kernel, prefetch

_AHEAD = 24
_NEWTON_STEPS = 20
_STEPS = 200
_TOLERANCE = 1e-6


@kernel
def keep_chance(degree, fanout, replace):  # type: ignore[no-untyped-def]
    """The chance that one hop leaves an edge out of ``degree`` alone."""
    if fanout < 0 or (fanout >= degree and not replace):
        return 0.0
    if replace:
        return (1.0 - 1.0 / degree) ** fanout
    return 1.0 - fanout / degree


@kernel
def push_uniform(indptr, indices, found, fanouts, replace, same, out):  # type: ignore[no-untyped-def]
    """Add to ``out[v]`` the logarithm of the chance that no edge from ``v`` has been drawn after these hops.

    Args:
        indptr: Shape ``(num_dst + 1,)``.
        indices: Shape ``(num_edges,)``.
        found: Shape ``(hops, num_dst)``.
        fanouts: Shape ``(hops,)``.
        replace: Draws are with replacement.
        same: A vertex's draws are the same in all hops, as far as the fan-outs are.
        out: Shape ``(num_src,)``.
    """
    edges = len(indices)
    for u in range(len(indptr) - 1):
        begin, end = np.int64(indptr[u]), np.int64(indptr[u + 1])
        if begin == end:
            continue
        keep, drawn = 1.0, 0.0
        for t in range(len(fanouts) - 1, -1, -1):
            once = keep_chance(end - begin, fanouts[t], replace)
            keep = min(keep, once) if same else keep * once
            drawn += found[t, u] * (1.0 - keep)
        if drawn <= 0.0:
            continue
        log = math.log1p(-drawn) if drawn < 1.0 else -np.inf
        for e in range(begin, end):
            if e + _AHEAD < edges:
                prefetch(out, indices[e + _AHEAD])
            out[indices[e]] += log


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
    """How many exponential clocks of a row have rung at time ``rate``, on average, and how many ring then a second."""
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
    among them with a chance of about ``1 - exp(-time * w)`` (Rosen, J. Appl. Prob. 1997).
    """
    for u in range(len(indptr) - 1):
        begin, end = np.int64(indptr[u]), np.int64(indptr[u + 1])
        if fanout < 0 or fanout >= end - begin:
            out[u] = np.inf
            continue
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
def push_weighted(indptr, indices, values, totals, found, rates, replace, same, out):  # type: ignore[no-untyped-def]
    """As :func:`push_uniform`, for draws in proportion to ``values`` (all positive).

    Args:
        indptr: Shape ``(num_dst + 1,)``.
        indices: Shape ``(num_edges,)``.
        values: Shape ``(num_edges,)``.
        totals: Shape ``(num_dst,)``, the sums of the rows.
        found: Shape ``(hops, num_dst)``.
        rates: Shape ``(hops, num_dst)``: draws with replacement, or the times of :func:`solve_rates`.
        replace: Draws are with replacement.
        same: See :func:`push_uniform`.
        out: Shape ``(num_src,)``.
    """
    hops, edges = len(rates), len(indices)
    sums = np.empty(hops, np.float64)
    for u in range(len(indptr) - 1):
        begin, end = np.int64(indptr[u]), np.int64(indptr[u + 1])
        rate, known = 0.0, 0.0
        for t in range(hops - 1, -1, -1):
            rate = max(rate, rates[t, u]) if same else rate + rates[t, u]
            sums[t] = rate
            known += found[t, u]
        if known <= 0.0 or rate <= 0.0:
            continue
        for e in range(begin, end):
            if e + _AHEAD < edges:
                prefetch(out, indices[e + _AHEAD])
            out[indices[e]] += _log_not_drawn(np.float64(values[e]), totals[u], found, u, sums, replace)


@kernel
def _log_not_drawn(w, total, found, u, sums, replace):  # type: ignore[no-untyped-def]
    log = -w
    if replace:
        log = math.log1p(-w / total) if w < total else -np.inf
    drawn = 0.0
    for t in range(len(sums)):
        if sums[t] > 0.0 and found[t, u] > 0.0:
            drawn -= found[t, u] * math.expm1(sums[t] * log)
    return math.log1p(-drawn) if drawn < 1.0 else -np.inf
