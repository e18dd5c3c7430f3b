"""Kernels of reads by seed, and of counted reads."""

import math

import numpy as np

from .._jit import kernel, prefetch
from ..graph._csc import check_id, check_row

_LEAST = 1e-4  # a vertex that is less likely to draw an edge is not followed


@kernel
def _drawn(degree, found, place, hop, fanouts, replace, once):
    """The chance that an edge into the vertex at ``place`` has been drawn by the first ``hop``
    hops."""
    drawn = 0.0
    kept = 1.0
    for t in range(hop - 1, -1, -1):
        fanout = fanouts[t]
        if once:
            kept = 1.0
        if fanout < 0 or (fanout >= degree and not replace):
            kept = 0.0
        elif replace:
            kept *= (1.0 - 1.0 / degree) ** fanout
        else:
            kept *= 1.0 - fanout / degree
        drawn += found[place, t] * (1.0 - kept)
    return drawn


@kernel
def _spread(indptr, indices, fanouts, replace, once, hop, count, ids, slots, found, missed):
    """One hop from the first ``count`` places: multiplies up ``missed``; returns places in use (-1:
    no room), edges."""
    used = count
    work = np.int64(0)
    for place in range(count):
        u = ids[place]
        begin = np.int64(indptr[u])
        end = np.int64(indptr[u + 1])
        check_row(begin, end, len(indices))
        if begin == end:
            continue
        drawn = _drawn(end - begin, found, place, hop, fanouts, replace, once)
        if drawn < _LEAST:
            continue
        work += end - begin
        for e in range(begin, end):
            v = indices[e]
            check_id(v, len(slots))
            where = np.int64(slots[v])
            if where < 0:
                if used == len(ids):
                    return np.int64(-1), work
                where = used
                slots[v] = where
                ids[used] = v
                missed[used] = 1.0
                for t in range(found.shape[1]):
                    found[used, t] = 0.0
                used += 1
            missed[where] *= 1.0 - drawn
    return used, work


@kernel
def reach(
    indptr,
    indices,
    seeds,
    fanouts,
    replace,
    once,
    rate,
    slots,
    ids,
    found,
    known,
    missed,
    limit,
    out,
):
    """Add to ``out[v]``, for each seed, the logarithm of the chance that it does not bring ``v``
    into a batch.

    Without a ``rate`` a batch is a tree for each seed, and what is added is the chance that the
    seed's holds ``v``.

    Args:
        indptr, indices: In-edges, shapes ``(num_nodes + 1,)`` and ``(num_edges,)``.
        seeds, out: Shapes ``(n,)`` and ``(num_nodes,)``.
        fanouts: Shape ``(num_hops,)``, the one that serves the seeds first.
        replace: Draws are with replacement.
        once: A vertex draws in the hop after the one that found it, not in all later ones.
        rate: How likely a seed is in a batch, or 0.
        slots: Shape ``(num_nodes,)``, int32, all -1; so again afterwards.
        ids, known, missed: Shape ``(room,)``: as many vertices as a seed may reach.
        found: Shape ``(room, num_hops + 1)``.
        limit: Edges after which to give up.

    Returns:
        Edges that were looked at, or -1 if a seed reaches more vertices than there is room for, or
        at the limit.
    """
    total = np.int64(0)
    for seed in seeds:
        ids[0], slots[seed] = seed, 0
        count = np.int64(1)
        known[0], missed[0] = 1.0, 1.0
        found[0, :] = 0.0
        found[0, 0] = 1.0
        for hop in range(1, len(fanouts) + 1):
            used, work = _spread(
                indptr, indices, fanouts, replace, once, hop, count, ids, slots, found, missed
            )
            total += work
            # The seeds before have been added by now; callers throw all away. Only ``slots`` is
            # used again, and must be -1 everywhere.
            if used < 0 or total > limit:
                for place in range(len(ids) if used < 0 else used):
                    slots[ids[place]] = -1
                return np.int64(-1)
            for place in range(used):
                before = known[place] if place < count else 0.0
                now = max(1.0 - missed[place], before)
                found[place, hop] = now - before
                known[place], missed[place] = now, 1.0
            count = used
        for place in range(count):
            v = ids[place]
            slots[v] = -1
            if place > 0 and rate == 0.0:
                out[v] += known[place]
            elif place > 0:
                out[v] += math.log1p(-rate * known[place]) if rate * known[place] < 1.0 else -np.inf
    return total


# A count takes 1 ns, a cache miss 100: for 80 000 vertices of a million, 0.47 ms with 24 ahead,
# 0.12 ms with 256.
_AHEAD = 256


@kernel
def add_accesses(ids, ends, counts):
    """Add 1 to ``counts[v, h]`` for every vertex ``v`` that hop ``h`` found.

    Args:
        ids: Shape ``(n,)``, the vertices in the order in which they were found.
        ends: Shape ``(num_hops + 1,)``: how many are known after each hop.
        counts: Shape ``(num_nodes, num_hops + 1)``.
    """
    begin = 0
    for hop in range(len(ends)):
        stop = min(ends[hop], len(ids) - _AHEAD)
        for i in range(begin, stop):
            prefetch(counts, ids[i + _AHEAD] * counts.shape[1])
            counts[ids[i], hop] += 1
        for i in range(max(begin, stop), ends[hop]):
            counts[ids[i], hop] += 1
        begin = ends[hop]
