"""Kernels of vertex placement: expected draws by part, their costs, and balancing moves."""

import numpy as np

from .._jit import kernel, prefetch
from ..graph._csc import check_id, check_row

# Edges to prefetch ahead: rows of other vertices are read and written at random.
_AHEAD = 16


@kernel
def push_draws(indptr, indices, draws, fanout, out):
    """Add the expected number of times each part draws ``v`` to ``out[v]``.

    Vertex ``u`` samples ``fanout`` of its in-neighbours (-1: all) ``draws[u]`` times.

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
    """Add the expected cost of the in-neighbours that ``u`` draws to ``out[u]``, by part.

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
    """Subtract 1 at both ends of each edge, in the column of the other end's part.

    Self-loops are skipped, since they are never cut. Returns their number.

    Args:
        indptr, indices: As for :func:`push_draws`.
        src_owner, dst_owner: The part of each source and destination, int32.
        is_one_type: Whether sources and destinations are the same vertices.
        src_costs, dst_costs: Shapes ``(num_src, num_parts)`` and ``(num_dst, num_parts)``, float32.
            They share memory if sources and destinations are the same vertices.
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
    """Probability that an in-neighbour is among the ``fanout`` drawn of ``degree``."""
    if 0 <= fanout < degree:
        return np.float32(fanout / degree)
    return np.float32(1.0)


@kernel
def _priced(costs, prices, weights, v, part):
    """Cost of ``v`` in a part, including the price of its weights."""
    total = np.float64(costs[v, part])
    for kind in range(weights.shape[1]):
        total += prices[part, kind] * weights[v, kind]
    return total


@kernel
def choose_parts(costs, prices, weights, inertia, owner, out):
    """Write the cheapest part of each vertex.

    A vertex keeps its part unless a move saves more than its inertia.

    Args:
        costs: Shape ``(num_nodes, num_parts)``, float32.
        prices: Price of a unit of each weight in each part, shape ``(num_parts, kinds)``, float64.
        weights: Shape ``(num_nodes, kinds)``, int64.
        inertia: Shape ``(num_nodes,)``, float64; infinite for a vertex that must not move.
        owner: Current part of each vertex, int32.
        out: New part of each vertex, int32.
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
    """Move vertices out of one part until its load of weight ``kind`` is at most ``enough``.

    Each goes to the cheapest other part with room for it.

    Args:
        order: Vertices of the part in the order of moving.
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
            # A vertex without weight of some kind needs no room of that kind.
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
    """Mark sources in other parts of in-edges that ``part`` owns; returns the number of edges."""
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
