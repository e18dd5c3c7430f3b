"""Kernels for parts: L-hop search, expected draws, relabelling, owners; and for placement."""

import numpy as np

from .._jit import kernel, prefetch
from ..graph._csc import check_id, check_row
from ..sampling.kernels.hop import _A, _B, mix

# Edges to prefetch ahead: random reads of `local`, which is larger than the caches, then overlap.
_AHEAD = 32
# A float has 53 bits: the lowest 11 of 64 are dropped to make a number in [0, 1).
_S11 = np.uint64(11)


@kernel
def mark_sources(indptr, indices, frontier, hop, hop_of):
    """Write ``hop`` for every source of the frontier's in-edges that still has 255.

    Returns the number of entries written.
    """
    count = np.int64(0)
    for i in range(len(frontier)):
        v = frontier[i]
        begin = indptr[v]
        end = indptr[v + 1]
        check_row(begin, end, len(indices))
        for e in range(begin, end):
            u = indices[e]
            check_id(u, len(hop_of))
            if hop_of[u] == 255:
                hop_of[u] = hop
                count += 1
    return count


@kernel
def spread(indptr, indices, frontier, draws, fanout, kept, drawn):
    """Add the expected draws of the frontier's in-neighbours to ``drawn``.

    Only ``kept`` vertices receive draws. Frontier vertex ``i`` samples ``fanout`` in-neighbours
    (-1: all) ``draws[i]`` times. Returns the expected draws of all in-neighbours, kept or not.
    """
    total = 0.0
    for i in range(len(frontier)):
        v = frontier[i]
        begin = indptr[v]
        end = indptr[v + 1]
        check_row(begin, end, len(indices))
        degree = end - begin
        if degree == 0:
            continue
        # Each in-neighbour is among ``fanout`` of ``degree`` with a chance of fanout / degree.
        share = draws[i]
        if 0 <= fanout < degree:
            share = draws[i] * fanout / degree
        total += share * degree
        for e in range(begin, end):
            u = indices[e]
            check_id(u, len(kept))
            if kept[u]:
                drawn[u] += share
    return total


@kernel
def append_rows(indptr, indices, first, ends, out):
    """Append each row to ``out`` at ``ends[v]``, with ``first`` added to its sources.

    ``ends[v]`` is then the position after the row.
    """
    for v in range(len(indptr) - 1):
        at = ends[v]
        begin = indptr[v]
        end = indptr[v + 1]
        check_row(begin, end, len(indices))
        check_row(at, at + (end - begin), len(out))
        for e in range(begin, end):
            out[at] = indices[e] + first
            at += 1
        ends[v] = at


@kernel
def count_inside(indptr, indices, ids, local, counts):
    """Count the in-edges of each of ``ids`` whose source has a local id (``local >= 0``).

    Returns the number of in-edges whose source has none, and the number of these sources that were
    not counted before. Their entries of ``local`` change from -1 to -2.
    """
    missing = np.int64(0)
    sources = np.int64(0)
    for i in range(len(ids)):
        v = ids[i]
        found = 0
        begin = indptr[v]
        end = indptr[v + 1]
        check_row(begin, end, len(indices))
        for e in range(begin, end):
            prefetch(local, indices[min(e + _AHEAD, len(indices) - 1)])
            u = indices[e]
            check_id(u, len(local))
            if local[u] >= 0:
                found += 1
            # -2: absent and counted, so that a source with several edges is counted once.
            elif local[u] == -1:
                local[u] = -2
                sources += 1
        counts[i] = found
        missing += end - begin - found
    return missing, sources


@kernel
def copy_inside(indptr, indices, ids, local, edge_ids, out_indices, out_ids):
    """Copy the edges that :func:`count_inside` counted, in order.

    Writes the source's local id and the edge's id. Without ``edge_ids`` the id is the position.
    """
    at = 0
    for i in range(len(ids)):
        v = ids[i]
        begin = indptr[v]
        end = indptr[v + 1]
        check_row(begin, end, len(indices))
        for e in range(begin, end):
            prefetch(local, indices[min(e + _AHEAD, len(indices) - 1)])
            source = indices[e]
            check_id(source, len(local))
            u = local[source]
            if u >= 0:
                check_row(at, at + 1, len(out_indices))  # as many as were counted
                out_indices[at] = u
                out_ids[at] = edge_ids[e] if len(edge_ids) else e
                at += 1


@kernel
def take_nearer(ids, hop_ends, part, owner, nearest, sizes, tied):
    """Give ``part`` the vertices of ``ids`` that no earlier part holds at the same or a lower hop.

    ``ids`` are ordered by hop. ``sizes`` is updated to the number of vertices of each part.
    ``tied[p]`` receives the number of vertices that parts ``p`` and ``part`` hold at the same hop.
    """
    begin = np.int64(0)
    for hop in range(len(hop_ends)):
        for i in range(begin, hop_ends[hop]):
            v = ids[i]
            if hop < nearest[v]:
                # The previous owner loses it.
                if owner[v] >= 0:
                    sizes[owner[v]] -= 1
                owner[v] = part
                nearest[v] = hop
                sizes[part] += 1
            elif hop == nearest[v]:
                tied[owner[v]] += 1
        begin = hop_ends[hop]


@kernel
def take_ties(ids, hop_ends, part, owner, nearest, sizes, shares):
    """Give ``part`` a share ``shares[p]`` of the vertices that part ``p`` holds at the same hop.

    A hash chooses them.
    """
    begin = np.int64(0)
    for hop in range(len(hop_ends)):
        for i in range(begin, hop_ends[hop]):
            v = ids[i]
            own = owner[v]
            if own != part and hop == nearest[v]:
                # A hash of vertex and part rather than a generator: the order of visits must not
                # change the result.
                drawn = mix(np.uint64(v) * _A + np.uint64(part) * _B)
                if np.float64(drawn >> _S11) * 2.0**-53 < shares[own]:
                    owner[v] = part
                    sizes[own] -= 1
                    sizes[part] += 1
        begin = hop_ends[hop]


# -- placement of all vertices: expected draws by part, their costs, and balancing moves -----------

# Edges to prefetch ahead: rows of other vertices are read and written at random.
_PLACED_AHEAD = 16


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
            if e + _PLACED_AHEAD < edges:
                prefetch(out, np.int64(indices[e + _PLACED_AHEAD]) * parts)
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
            if e + _PLACED_AHEAD < edges:
                prefetch(costs, np.int64(indices[e + _PLACED_AHEAD]) * parts)
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
            if e + _PLACED_AHEAD < edges:
                prefetch(src_costs, np.int64(indices[e + _PLACED_AHEAD]) * parts)
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
