"""Kernels of expected reads.

All work on rows, the in-neighbours of each vertex that may be drawn. ``unknown[u, t]`` is the
chance that ``u`` is not known after hop ``t`` (0: it is no seed). Once known, every hop draws from
``u`` again.

An edge ``v -> u`` cannot find a ``v`` that was known before; so what counts is the chance that
``u`` is known although ``v`` is not. Where ``u -> v`` is an edge, too, as everywhere in an
undirected graph, ``u`` may owe it to ``v`` that it is known: that part is taken out, as in belief
propagation (``_drawn_apart``).
"""

import math

import numpy as np

from .._jit import allocating_kernel, kernel, prefetch
from ..graph._csc import check_id, check_row

# Draws of a vertex in the hops after its first: again, by new random numbers; again, by the same
# ones (LABOR's layer dependency); or none (samplers that expand a vertex once).
ANEW = 0
SAME = 1
ONCE = 2

_AHEAD = 24  # elements to prefetch ahead, so that the cache misses of many edges overlap


@kernel
def keep_chances(degree, fanouts, replace, later, keep, again):
    """Fill ``keep``, the chance that a hop leaves an edge out of ``degree`` alone; ``again``: if
    all before it did."""
    least = 1.0
    for t in range(len(fanouts)):
        fanout = fanouts[t]
        if fanout < 0 or (fanout >= degree and not replace):
            keep[t] = 0.0
        elif replace:
            # ``fanout`` independent draws miss an edge.
            keep[t] = (1.0 - 1.0 / degree) ** fanout
        else:
            # ``fanout`` of ``degree`` are taken.
            keep[t] = 1.0 - fanout / degree
        least = chain(keep, again, t, later, least)


@kernel
def chain(keep, again, t, later, least):
    """Fill ``again[t]``; ``least`` is the least chance so far, which is returned with hop ``t``.

    With the ``SAME`` random numbers in all hops, a hop takes nothing new unless its fan-out is
    larger (than all before: an approximation for vertices that were found in between).
    """
    if later == SAME:
        again[t] = min(1.0, keep[t] / least) if least > 0.0 else 0.0
    else:
        again[t] = 1.0 if later == ONCE else keep[t]
    return min(least, keep[t])


@kernel
def drawn(unknown, u, keep, later):
    """The chance that an edge into ``u`` has been drawn after ``len(keep)`` hops."""
    # Backwards, ``rest`` is the chance that hops t, t + 1, ... all leave the edge out; a vertex
    # found before hop t has drawn in all of them.
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
    """:func:`drawn` for the edge ``v -> u`` if ``v`` is not known: without what ``u`` owes to
    ``v``, and vice versa."""
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
    """The chance to be known without the edge that has been drawn with chance ``drawn``; not below
    ``known``."""
    return max(known, 1.0 - min(1.0, unknown / (1.0 - drawn))) if drawn < 1.0 else known


@kernel
def log_rest(chance):
    """The logarithm of the chance that something does not happen."""
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
    """Add to ``out[v]`` the logarithm of the chance that no edge from ``v`` has been drawn after
    some hops.

    Args:
        indptr, indices: Edges by destination, shapes ``(num_dst + 1,)`` and ``(num_edges,)``.
        unknown, back_unknown: ``unknown`` of the destinations, and of the sources.
        fanouts, back_fanouts: Shape ``(hops,)``, and those of the edges back.
        replace: Draws are with replacement.
        later: Draws of a known vertex in later hops: ``ANEW``, ``SAME`` or ``ONCE``.
        loops: Both ends are of one type: an edge may lead from a vertex to itself, and finds
            nothing.
        mutual: Shape ``(num_edges,)``, whether there is an edge back; empty if there is none at
            all.
        back_indptr: Rows of the edges back.
        out: Shape ``(num_src,)``.
    """
    edges, hops = len(indices), len(fanouts)
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


# Newton's method is tried first; what it does not solve in a few steps is halved, a bit a step.
_NEWTON_STEPS = 20
_STEPS = 200
_TOLERANCE = 1e-6  # of the fan-out: far below what a ranking can tell


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
    """Expected number of a row's exponential clocks that have rung at time ``rate``, and its
    slope."""
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
    """The time at which ``fanout`` of a row's clocks have rung on average; infinite where all edges
    are drawn.

    Successive draws in proportion to the weights take the edges whose exponential clocks ring
    first: edge ``e`` is among them with a chance of about ``1 - exp(-time * w)`` (Rosen, J.
    Statistical Planning and Inference 1997).
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
    """:func:`push_uniform` for draws in proportion to ``values`` (all positive); the other
    arguments are the same.

    The edges back are taken to be drawn as if all had the same weight: theirs would have to be
    looked up.

    Args:
        values: Shape ``(num_edges,)``.
        totals: Shape ``(num_dst,)``, the sums of the rows.
        rates: Shape ``(num_dst, num_hops)``: draws with replacement, or the times of
            :func:`solve_rates`.
    """
    edges, hops = len(indices), len(back_fanouts)
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
    """:func:`keep_chances` of an edge of weight ``w``."""
    log = -w
    if replace:
        log = math.log1p(-w / total) if w < total else -np.inf
    least = 1.0
    for t in range(len(keep)):
        keep[t] = math.exp(log * rates[u, t]) if rates[u, t] > 0.0 else 1.0
        least = chain(keep, again, t, later, least)


@kernel
def turn_rows(indices, starts, indptr, out):
    """The destinations of each source's edges; ``starts`` says where they begin, and is
    consumed."""
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
    """Set ``out[e]`` where edge ``e``, ``v -> u``, has ``v`` among ``turned[u]``; returns how many
    there are.

    Args:
        indptr, indices: Edges by destination, shapes ``(num_dst + 1,)`` and ``(num_edges,)``.
        turned_indptr, turned: The ends ``v`` of edges ``u -> v`` by their source.
        largest, step: Leave longer rows out; look at every so many rows only.
        stamps: Shape ``(num_src,)``, filled with -1.
        out: Shape ``(num_edges,)``, or empty: only count.
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
    """The edges of the rows in ``order``, with their row's ``draws``; ``edge_ids`` is empty where
    ids are positions."""
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
