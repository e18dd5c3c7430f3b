"""Kernels of expected reads.

They work on rows: the in-neighbours of each vertex that may be drawn. ``unknown[u, t]`` is the
chance that ``u`` is not in the batch after hop ``t``; after hop 0, that it is no seed. From then on
every hop draws from ``u`` again.

An edge ``v -> u`` adds ``v`` only if ``v`` is not yet known. So what matters is the chance that
``u`` is known and ``v`` is not. If ``u -> v`` is an edge too, as in undirected graphs, ``u`` may be
known only through ``v``. This part is taken out, as in belief propagation (``drawn_apart``).
"""

import math

import numpy as np

from .._jit import allocating_kernel, kernel, prefetch
from ..graph._csc import check_id, check_row

# What a vertex draws in the hops after its first: again with new random numbers, again with the
# same ones (LABOR's layer dependency), or nothing (samplers that expand a vertex once).
ANEW = 0
SAME = 1
ONCE = 2

_AHEAD = 24  # elements to prefetch ahead, so that the cache misses of many edges overlap


@kernel
def keep_chances(degree, fanouts, replace, later, keep, again):
    """Fill ``keep``, the chance that a hop does not draw one edge of ``degree``.

    ``again`` becomes the same chance given that no hop before drew it.
    """
    least = 1.0
    for t in range(len(fanouts)):
        fanout = fanouts[t]
        if fanout < 0 or (fanout >= degree and not replace):
            keep[t] = 0.0
        elif replace:
            # ``fanout`` independent draws all miss the edge.
            keep[t] = (1.0 - 1.0 / degree) ** fanout
        else:
            # ``fanout`` of ``degree`` edges are drawn.
            keep[t] = 1.0 - fanout / degree
        least = chain(keep, again, t, later, least)


@kernel
def chain(keep, again, t, later, least):
    """Fill ``again[t]``, and return the least of ``least`` and ``keep[t]``.

    With the ``SAME`` random numbers, a hop draws nothing new unless its fan-out is larger than all
    before. This is an approximation for vertices that were found in between.
    """
    if later == SAME:
        again[t] = min(1.0, keep[t] / least) if least > 0.0 else 0.0
    else:
        again[t] = 1.0 if later == ONCE else keep[t]
    return min(least, keep[t])


@kernel
def drawn(unknown, u, keep, later):
    """The chance that an edge into ``u`` has been drawn after ``len(keep)`` hops."""
    # Backwards, ``rest`` is the chance that hops t, t + 1, ... all miss the edge. A vertex found
    # before hop t has drawn in all of them.
    rest = 1.0
    total = 0.0
    for t in range(len(keep) - 1, -1, -1):
        if later == ANEW:
            rest *= keep[t]
        else:
            rest = min(rest, keep[t]) if later == SAME else keep[t]
        before = unknown[u, t - 1] if t else 1.0
        total += max(before - unknown[u, t], 0.0) * (1.0 - rest)
    return total


@kernel
def drawn_apart(unknown, u, keep, again, back_unknown, v, back_keep, back_again):
    """:func:`drawn` for the edge ``v -> u`` if ``v`` is not known.

    It leaves out the chance that ``u`` is known only through ``v``, and vice versa.
    """
    known = 1.0 - unknown[u, 0]
    left = (1.0 - unknown[u, 0]) * keep[0]
    back_known = 1.0 - back_unknown[v, 0]
    back_left = (1.0 - back_unknown[v, 0]) * back_keep[0]
    for t in range(1, len(keep)):
        now = _without(known, unknown[u, t], back_known - back_left)
        back_now = _without(back_known, back_unknown[v, t], known - left)
        left = left * again[t] + (now - known) * keep[t]
        back_left = back_left * back_again[t] + (back_now - back_known) * back_keep[t]
        known = now
        back_known = back_now
    return known - left


@kernel
def _without(known, unknown, drawn):
    """The chance to be known without an edge that was drawn with chance ``drawn``.

    It is at least ``known``.
    """
    return max(known, 1.0 - min(1.0, unknown / (1.0 - drawn))) if drawn < 1.0 else known


@kernel
def log_rest(chance):
    """The log of ``1 - chance``."""
    return math.log1p(-chance) if chance < 1.0 else -np.inf


@allocating_kernel
def push_uniform(
    indptr,
    indices,
    unknown,
    fanouts,
    replace,
    later,
    loops,
    mutual,
    back_indptr,
    back_unknown,
    back_fanouts,
    out,
):
    """Add to ``out[v]`` the log of the chance that some hops have drawn no edge from ``v``.

    Args:
        indptr: Edges by destination, shape ``(num_dst + 1,)``.
        indices: Their sources, shape ``(num_edges,)``.
        unknown: ``unknown`` of the destinations.
        fanouts: Shape ``(hops,)``.
        replace: Whether draws are with replacement.
        later: Draws of a known vertex in later hops: ``ANEW``, ``SAME`` or ``ONCE``.
        loops: Whether both ends are of one type, so that there may be self-loops, which find
            nothing.
        mutual: Shape ``(num_edges,)``, whether each edge has an edge back; empty if none has.
        back_indptr: Rows of the edges back.
        back_unknown: ``unknown`` of the sources.
        back_fanouts: ``fanouts`` of the edges back.
        out: Shape ``(num_src,)``.
    """
    edges = len(indices)
    hops = len(fanouts)
    keep, again, back_keep, back_again = np.empty((4, hops))
    for u in range(len(indptr) - 1):
        begin = np.int64(indptr[u])
        end = np.int64(indptr[u + 1])
        check_row(begin, end, edges)
        if begin == end or unknown[u, hops - 1] >= 1.0:
            continue
        keep_chances(end - begin, fanouts, replace, later, keep, again)
        log = log_rest(drawn(unknown, u, keep, later))
        for e in range(begin, end):
            if e + _AHEAD < edges:
                prefetch(out, indices[e + _AHEAD])
                if hops > 1 and len(mutual):
                    prefetch(back_unknown, indices[e + _AHEAD] * back_unknown.shape[1])
                    prefetch(back_indptr, indices[e + _AHEAD])
            v = indices[e]
            if loops and v == u:
                continue
            check_id(v, len(out))
            if hops > 1 and len(mutual) and mutual[e]:
                degree = np.int64(back_indptr[v + 1]) - np.int64(back_indptr[v])
                keep_chances(degree, back_fanouts, replace, later, back_keep, back_again)
                out[v] += log_rest(
                    drawn_apart(unknown, u, keep, again, back_unknown, v, back_keep, back_again)
                )
            else:
                out[v] += log


# Newton's method is tried first. If it takes more steps, bisection gives a bit a step.
_NEWTON_STEPS = 20
_STEPS = 200
_TOLERANCE = 1e-6  # relative to the fan-out: far below what a ranking can tell


@kernel
def row_totals(indptr, values, out):
    """The sum of each row's weights."""
    for u in range(len(indptr) - 1):
        total = 0.0
        begin = np.int64(indptr[u])
        end = np.int64(indptr[u + 1])
        check_row(begin, end, len(values))
        for e in range(begin, end):
            total += np.float64(values[e])
        out[u] = total


@kernel
def _expected(values, begin, end, rate):
    """Expected number of a row's exponential clocks that have rung by time ``rate``; its slope."""
    count = 0.0
    slope = 0.0
    for e in range(begin, end):
        w = np.float64(values[e])
        late = math.exp(-rate * w)
        count += 1.0 - late
        slope += w * late
    return count, slope


@kernel
def solve_rates(indptr, values, totals, fanout, out):
    """The time at which ``fanout`` of each row's clocks have rung on average.

    Successive draws in proportion to the weights take the edges whose exponential clocks ring
    first. Edge ``e`` is among them with a chance of about ``1 - exp(-time * w)``, so that this
    solves ``sum(1 - exp(-time * w)) = fanout`` (Rosen, J. Statistical Planning and Inference 1997).
    It is infinite if all edges are drawn.
    """
    for u in range(len(indptr) - 1):
        begin = np.int64(indptr[u])
        end = np.int64(indptr[u + 1])
        check_row(begin, end, len(values))
        if fanout < 0 or fanout >= end - begin:
            out[u] = np.inf
        else:
            out[u] = _solve(values, begin, end, totals[u], fanout) if fanout > 0 else 0.0


@kernel
def _solve(values, begin, end, total, fanout):
    # The count is concave, so Newton's steps stay below the solution.
    rate = fanout / total
    for _ in range(_NEWTON_STEPS):
        count, slope = _expected(values, begin, end, rate)
        missing = fanout - count
        if missing <= _TOLERANCE * fanout:
            return rate
        if slope <= 0.0:
            break
        rate += missing / slope
    # The weights differ widely: find a time that is too late, then bisect.
    early = rate
    late = np.inf
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


@allocating_kernel
def push_weighted(
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
    """:func:`push_uniform` for draws in proportion to weights; its other arguments are the same.

    For the edges back it assumes equal weights, since theirs would have to be looked up.

    Args:
        values: The weights, all positive, shape ``(num_edges,)``.
        totals: The sums of the rows' weights, shape ``(num_dst,)``.
        rates: Shape ``(num_dst, num_hops)``: number of draws with replacement, or the times of
            :func:`solve_rates`.
    """
    edges = len(indices)
    hops = len(back_fanouts)
    keep, again, back_keep, back_again = np.empty((4, hops))
    for u in range(len(indptr) - 1):
        if unknown[u, hops - 1] >= 1.0:
            continue
        begin = np.int64(indptr[u])
        end = np.int64(indptr[u + 1])
        check_row(begin, end, edges)
        for e in range(begin, end):
            if e + _AHEAD < edges:
                prefetch(out, indices[e + _AHEAD])
            v = indices[e]
            check_id(v, len(out))
            if loops and v == u:
                continue
            _weigh_chances(np.float64(values[e]), totals[u], rates, u, replace, later, keep, again)
            if hops > 1 and len(mutual) and mutual[e]:
                degree = np.int64(back_indptr[v + 1]) - np.int64(back_indptr[v])
                keep_chances(degree, back_fanouts, replace, later, back_keep, back_again)
                out[v] += log_rest(
                    drawn_apart(unknown, u, keep, again, back_unknown, v, back_keep, back_again)
                )
            else:
                out[v] += log_rest(drawn(unknown, u, keep, later))


@kernel
def _weigh_chances(w, total, rates, u, replace, later, keep, again):
    """:func:`keep_chances` for an edge of weight ``w``."""
    log = -w
    if replace:
        log = math.log1p(-w / total) if w < total else -np.inf
    least = 1.0
    for t in range(len(keep)):
        keep[t] = math.exp(log * rates[u, t]) if rates[u, t] > 0.0 else 1.0
        least = chain(keep, again, t, later, least)


@kernel
def turn_rows(indices, starts, indptr, out):
    """Write the destinations of each source's edges, which begin at ``starts``.

    ``starts`` is consumed.
    """
    for u in range(len(indptr) - 1):
        begin = np.int64(indptr[u])
        end = np.int64(indptr[u + 1])
        check_row(begin, end, len(indices))
        for e in range(begin, end):
            v = indices[e]
            check_id(v, len(starts))
            at = starts[v]
            check_row(at, at + 1, len(out))
            out[at] = u
            starts[v] = at + 1


@kernel
def mark_mutual(indptr, indices, turned_indptr, turned, largest, step, stamps, out):
    """Set ``out[e]`` for each edge ``v -> u`` with an edge back ``u -> v``; returns their number.

    Args:
        indptr: Edges by destination, shape ``(num_dst + 1,)``.
        indices: Their sources, shape ``(num_edges,)``.
        turned_indptr: Rows of ``turned`` by source.
        turned: Destinations of the edges ``u -> v``.
        largest: Longer rows are skipped.
        step: Only every ``step``-th row is looked at.
        stamps: Scratch, shape ``(num_src,)``, filled with -1.
        out: Shape ``(num_edges,)``; empty to only count.
    """
    count = 0
    for u in range(0, len(indptr) - 1, step):
        begin = np.int64(indptr[u])
        end = np.int64(indptr[u + 1])
        check_row(begin, end, len(indices))
        if begin == end or end - begin > largest:
            continue
        first = np.int64(turned_indptr[u])
        last = np.int64(turned_indptr[u + 1])
        check_row(first, last, len(turned))
        for t in range(first, last):
            v = turned[t]
            check_id(v, len(stamps))
            stamps[v] = u
        for e in range(begin, end):
            v = indices[e]
            check_id(v, len(stamps))
            if stamps[v] == u:
                count += 1
                if len(out):
                    out[e] = True
    return count


@kernel
def expand_rows(order, indptr, edge_ids, draws, ids, scores):
    """Write the edges of the rows in ``order``, with their row's ``draws``.

    ``edge_ids`` is empty if ids are positions.
    """
    at = 0
    for v in order:
        begin = np.int64(indptr[v])
        end = np.int64(indptr[v + 1])
        check_row(begin, end, len(ids))
        check_row(at, at + end - begin, len(ids))
        for e in range(begin, end):
            ids[at] = edge_ids[e] if len(edge_ids) else e
            scores[at] = draws[v]
            at += 1
