"""Kernels that place vertices: expected draws by part, what they cost, and moves that keep parts
even."""

import numpy as np

from .._jit import kernel, prefetch
from ..graph._csc import check_id, check_row

# Edges to prefetch ahead: rows of other vertices are read and written at random.
_AHEAD = 16


@kernel
def push_draws(indptr, indices, draws, fanout, out):
    """Add to ``out[v]`` how often ``v`` is expected to be drawn by each part.

    A vertex with ``draws[u]`` draws ``fanout`` of its in-neighbours (-1: all) that often.

    Args:
        indptr, indices: Edges by destination, shapes ``(num_dst + 1,)`` and ``(num_edges,)``.
        draws: Shape ``(num_dst, num_parts)``, float32.
        fanout: Neighbours drawn by a vertex.
        out: Shape ``(num_src, num_parts)``, float32.
    """
    parts = draws.shape[1]
    edges = len(indices)
    for u in range(len(indptr) - 1):
        begin = np.int64(indptr[u])
        end = np.int64(indptr[u + 1])
        check_row(begin, end, edges)
        # Most vertices draw nothing in the hop of the seeds.
        is_drawing = False
        for part in range(parts):
            is_drawing = is_drawing or draws[u, part] > 0.0
        if not is_drawing:
            continue
        share = _share(end - begin, fanout)
        for e in range(begin, end):
            if e + _AHEAD < edges:
                prefetch(out, np.int64(indices[e + _AHEAD]) * parts)
            v = indices[e]
            check_id(v, len(out))
            for part in range(parts):
                out[v, part] += share * draws[u, part]


@kernel
def pull_costs(indptr, indices, costs, fanout, out):
    """Add to ``out[u]`` what the in-neighbours that ``u`` draws are expected to cost, by part.

    Args:
        indptr, indices, fanout: As for :func:`push_draws`.
        costs: Cost of one draw of each source, shape ``(num_src, num_parts)``, float32.
        out: Shape ``(num_dst, num_parts)``, float32.
    """
    parts = costs.shape[1]
    edges = len(indices)
    for u in range(len(indptr) - 1):
        begin = np.int64(indptr[u])
        end = np.int64(indptr[u + 1])
        check_row(begin, end, edges)
        share = _share(end - begin, fanout)
        for e in range(begin, end):
            if e + _AHEAD < edges:
                prefetch(costs, np.int64(indices[e + _AHEAD]) * parts)
            v = indices[e]
            check_id(v, len(costs))
            for part in range(parts):
                out[u, part] += share * costs[v, part]


@kernel
def count_ends(indptr, indices, src_owner, dst_owner, is_one_type, src_costs, dst_costs):
    """Subtract 1 for each edge at both of its ends, in the part of the other end; returns the
    number of self-loops, which are left out, as they are never cut.

    Args:
        indptr, indices: As for :func:`push_draws`.
        src_owner, dst_owner: The part of each source and destination, int32.
        is_one_type: Whether sources and destinations are the same vertices.
        src_costs, dst_costs: Shapes ``(num_src, num_parts)`` and ``(num_dst, num_parts)``, float32.
            They are the same memory where both are the same vertices.
    """
    edges = len(indices)
    parts = src_costs.shape[1]
    loops = np.int64(0)
    for u in range(len(indptr) - 1):
        begin = np.int64(indptr[u])
        end = np.int64(indptr[u + 1])
        check_row(begin, end, edges)
        part = dst_owner[u]
        for e in range(begin, end):
            if e + _AHEAD < edges:
                prefetch(src_costs, np.int64(indices[e + _AHEAD]) * parts)
            v = indices[e]
            check_id(v, len(src_owner))
            if is_one_type and v == u:
                loops += 1
                continue
            dst_costs[u, src_owner[v]] -= np.float32(1)
            src_costs[v, part] -= np.float32(1)
    return loops


@kernel
def _share(degree, fanout):
    """Chance that an in-neighbour is among the ``fanout`` of ``degree`` that are drawn."""
    if 0 <= fanout < degree:
        return np.float32(fanout / degree)
    return np.float32(1.0)


@kernel
def _priced(costs, prices, weights, v, part):
    """Cost of ``v`` in a part, with what its weights cost there."""
    total = np.float64(costs[v, part])
    for kind in range(weights.shape[1]):
        total += prices[part, kind] * weights[v, kind]
    return total


@kernel
def choose_parts(costs, prices, weights, inertia, owner, out):
    """Write the cheapest part of each vertex for which a move saves more than its inertia; others
    stay where they are.

    Args:
        costs: Shape ``(num_nodes, num_parts)``, float32.
        prices: Price of a unit of each weight in each part, shape ``(num_parts, kinds)``, float64.
        weights: Shape ``(num_nodes, kinds)``, int64.
        inertia: Shape ``(num_nodes,)``, float64; infinite for a vertex that is not to move.
        owner: The part of each vertex now, int32; ``out`` is the same afterwards.
    """
    for v in range(len(owner)):
        best = owner[v]
        if inertia[v] < np.inf:
            least = _priced(costs, prices, weights, v, best) - inertia[v]
            for part in range(costs.shape[1]):
                cost = _priced(costs, prices, weights, v, part)
                if cost < least:
                    least = cost
                    best = part
        out[v] = best


@kernel
def shed(order, costs, prices, weights, checked, loads, limits, kind, enough, owner):
    """Move vertices of one part, in ``order``, to the cheapest other part that has room for them,
    until the part's load of a ``kind`` of weight is at most ``enough``.

    Args:
        order: Vertices of the part, those that go first in front.
        costs, prices, weights: As for :func:`choose_parts`.
        checked: Kinds of weight for which the other part must have room.
        loads: Weight in each part, shape ``(num_parts, kinds)``, int64; changed.
        limits: Most weight of each kind in a part, int64.
        owner: The part of each vertex, int32; changed.
    """
    for v in order:
        giver = owner[v]
        if loads[giver, kind] <= enough:
            break
        taker = giver
        least = np.inf
        for part in range(costs.shape[1]):
            # What has no weight of a kind needs no room for it.
            has_room = part != giver
            for other in checked:
                weight = weights[v, other]
                if weight > 0 and loads[part, other] + weight > limits[other]:
                    has_room = False
            if has_room:
                cost = _priced(costs, prices, weights, v, part)
                if cost < least:
                    least = cost
                    taker = part
        if taker != giver:
            owner[v] = taker
            for other in range(weights.shape[1]):
                loads[giver, other] -= weights[v, other]
                loads[taker, other] += weights[v, other]


@kernel
def mark_others(indptr, indices, owner, part, is_source):
    """Mark the sources in other parts of the in-edges that ``part`` owns; returns the number of
    these edges."""
    count = np.int64(0)
    for v in range(len(indptr) - 1):
        if owner[v] != part:
            continue
        begin = np.int64(indptr[v])
        end = np.int64(indptr[v + 1])
        check_row(begin, end, len(indices))
        for e in range(begin, end):
            u = indices[e]
            check_id(u, len(owner))
            if owner[u] != part:
                is_source[u] = True
                count += 1
    return count
