"""Kernels that count how often each part needs each vertex, and move training vertices between
parts by cost.

``counts[l, v, p]`` is the number of vertices that part ``p`` holds within ``l`` hops and that are
``v`` or have ``v`` as an in-neighbour. If it is not 0, the part holds ``v`` within ``l + 1`` hops.
So the vertices that a training vertex adds or frees are found hop by hop, by following only
vertices that come or go. Counts saturate at 255: such a vertex never leaves the part.

An item is one training vertex, or several that stay together: ``members[begin[i]:begin[i + 1]]``.

The objective is the sum of ``load`` over the parts, a part's number of vertices to the power of 1,
2, 4, ...: the larger a part, the more another vertex costs. Power 1 is the number of vertices of
all parts together; with higher powers, the largest part dominates. ``held`` has the number of
vertices of each part; kernels update it. ``unit`` is a power of 2 of about 1 / the graph's
vertices, so that powers do not overflow, and equal loads stay equal with power 1.
"""

import heapq
import math

import numpy as np

from ..._jit import allocating_kernel, kernel, prefetch
from ...graph._csc import check_id, checked_row

_FULL = 255  # a byte's largest count
# Elements between a prefetch and its use: summing up their costs takes as long as a cache miss,
# about 100 ns.
_AHEAD = 16


@kernel
def change(indptr, indices, counts, part, frontier, n, fresh, step):
    """Add the first ``n`` vertices of ``frontier`` to a part (``step`` 1) or remove them (-1).

    Returns the number of vertices that the part gains or loses. Overwrites ``frontier`` and
    ``fresh``.
    """
    # A vertex comes when its count leaves 0, and goes when it falls to 0.
    turning = 0 if step > 0 else 1
    for level in range(len(counts)):
        count = counts[level]
        m = 0
        for i in range(n):
            v = frontier[i]
            begin, end = checked_row(indptr, v, len(indices))
            # The vertex itself counts, too; `begin - 1` stands for it.
            for e in range(begin - 1, end):
                u = v if e < begin else np.int64(indices[e])
                check_id(u, len(count))
                c = np.int64(count[u, part])
                if c == turning:
                    fresh[m] = u
                    m += 1
                # A saturated count may stand for more, so it must not fall.
                if c < _FULL:
                    count[u, part] = c + step
        for i in range(m):
            frontier[i] = fresh[i]
        n = m
    return n


@kernel
def cost(indptr, indices, counts, part, members, limit, frontier, fresh, stamps, clock):
    """The number of vertices that ``members`` would add to a part; any number above ``limit`` if it
    exceeds that."""
    n = len(members)
    for i in range(n):
        frontier[i] = members[i]
    for level in range(len(counts)):
        count = counts[level]
        # Stamps mark the vertices found at this level. The clock only grows, so they are never
        # cleared.
        clock[0] += 1
        now = clock[0]
        m = 0
        for i in range(n):
            v = frontier[i]
            begin, end = checked_row(indptr, v, len(indices))
            for e in range(begin - 1, end):
                u = v if e < begin else np.int64(indices[e])
                check_id(u, len(count))
                if count[u, part] == 0 and stamps[u] != now:
                    stamps[u] = now
                    fresh[m] = u
                    m += 1
                    # Another part costs less, so the exact number does not matter. Only the last
                    # level has all vertices that the part would hold.
                    if m > limit and level == len(counts) - 1:
                        return m
        for i in range(m):
            frontier[i] = fresh[i]
        n = m
    return n


@kernel
def freed_by_one(indptr, indices, count, v, own):
    """For one hop, the number of vertices that part ``own`` would lose without vertex ``v``.

    An in-neighbour by several edges is counted several times, so it is not freed.
    """
    freed = np.int64(count[v, own] == 1)
    begin, end = checked_row(indptr, v, len(indices))
    for e in range(begin, end):
        u = indices[e]
        check_id(u, len(count))
        freed += count[u, own] == 1
    return freed


@kernel
def costs_of_one(indptr, indices, count, v, costs):
    """For one hop, write the number of vertices that ``v`` would add to each part.

    An in-neighbour by several edges counts several times; avoiding that would cost a search.
    """
    costs[:] = 0
    begin, end = checked_row(indptr, v, len(indices))
    for e in range(begin - 1, end):
        if e + _AHEAD < end:
            prefetch(count, np.int64(indices[e + _AHEAD]) * len(costs))
        u = v if e < begin else np.int64(indices[e])
        check_id(u, len(count))
        row = count[u]
        for p in range(len(costs)):
            costs[p] += row[p] == 0  # adding 0 or 1 is cheaper than an unpredictable branch


@kernel
def change_one(indptr, indices, count, v, part, step):
    """For one hop, add a vertex to a part (``step`` 1) or remove it (-1); returns the number of
    vertices that the part gains or loses."""
    turning = 0 if step > 0 else 1
    turned = 0
    begin, end = checked_row(indptr, v, len(indices))
    for e in range(begin - 1, end):
        u = v if e < begin else np.int64(indices[e])
        check_id(u, len(count))
        c = np.int64(count[u, part])
        turned += c == turning
        if c < _FULL:
            count[u, part] = c + step
    return turned


@kernel
def recount(indptr, indices, counts, members, parts, held):
    """Compute ``counts`` and ``held`` from scratch for the parts of all members."""
    counts[:] = 0
    for i in range(len(members)):
        change_one(indptr, indices, counts[0], members[i], parts[i], 1)
    for level in range(1, len(counts)):
        for v in range(counts.shape[1]):
            for p in range(counts.shape[2]):
                if counts[level - 1, v, p] > 0:
                    change_one(indptr, indices, counts[level], v, p, 1)
    held[:] = 0
    last = counts[len(counts) - 1]
    for v in range(counts.shape[1]):
        for p in range(counts.shape[2]):
            held[p] += last[v, p] > 0


@kernel
def load(held, unit, squarings):
    """A part's term of the objective: ``held * unit`` to the power of ``2**squarings``."""
    share = held * unit
    for _ in range(squarings):
        share *= share
    return share


@kernel
def growth(held, gained, unit, squarings):
    """By how much the load of a part of ``held`` vertices grows if it gains ``gained`` more."""
    return load(held + gained, unit, squarings) - load(held, unit, squarings)


@kernel
def room_below(held, unit, squarings, lowest):
    """An upper bound of the vertices that a part can gain before its load has grown by more than
    ``lowest``."""
    if lowest == np.inf:
        return np.int64(2**62)
    share = load(held, unit, squarings) + lowest
    for _ in range(squarings):
        share = math.sqrt(share)
    # One more, so that rounding cannot exclude the best part.
    return np.int64(share / unit) - held + 1


@allocating_kernel
def place(
    indptr,
    indices,
    counts,
    members,
    order,
    best,
    room,
    parts,
    held,
    unit,
    squarings,
    frontier,
    fresh,
    stamps,
    clock,
):
    """Assign single vertices, in ``order``, to the part whose load grows least.

    Ties go to the part with more ``room``, which is updated. ``best`` is the part of the previous
    vertex; returns the part of the last one.
    """
    k = counts.shape[2]
    costs = np.empty(k, np.int64)
    single = len(counts) == 1
    for i in range(len(order)):
        item = order[i]
        # The previous vertex's part comes first: it is mostly the cheapest, and a low `lowest` ends
        # the search in other parts early.
        before = best
        if single:
            costs_of_one(indptr, indices, counts[0], members[item], costs)
        lowest = np.inf
        for j in range(k):
            p = (before + j) % k
            if room[p] == 0 or lowest == 0:
                continue
            if not single:
                limit = room_below(held[p], unit, squarings, lowest)
                one = members[item : item + 1]
                costs[p] = cost(
                    indptr, indices, counts, p, one, limit, frontier, fresh, stamps, clock
                )
            more = growth(held[p], costs[p], unit, squarings)
            if more < lowest or (more == lowest and room[p] > room[best]):
                best = p
                lowest = more
        parts[item] = best
        room[best] -= 1
        if single:
            held[best] += change_one(indptr, indices, counts[0], members[item], best, 1)
        else:
            frontier[0] = members[item]
            held[best] += change(indptr, indices, counts, best, frontier, 1, fresh, 1)
    return best


@allocating_kernel
def improve_singles(
    indptr, indices, count, members, order, least, most, parts, sizes, held, unit, squarings
):
    """One pass over single vertices for one hop: move each to the part where it lowers the
    objective most.

    Its part must keep at least ``least`` training vertices, the other one may have at most
    ``most``.
    """
    costs = np.empty(count.shape[1], np.int64)
    for i in range(len(order)):
        item = order[i]
        v = members[item]
        own = parts[item]
        over = sizes[own] > most
        if sizes[own] <= least:
            continue
        # Out of a part that is too large, move at any cost; else a move must free vertices.
        freed = freed_by_one(indptr, indices, count, v, own)
        if freed == 0 and not over:
            continue
        costs_of_one(indptr, indices, count, v, costs)
        best = own
        lowest = np.inf
        if not over:
            lowest = growth(held[own] - freed, freed, unit, squarings)
        for p in range(len(costs)):
            if p == own or sizes[p] >= most:
                continue
            more = growth(held[p], costs[p], unit, squarings)
            if more < lowest or (more == lowest and sizes[p] < sizes[best] - 1):
                best = p
                lowest = more
        if best != own:
            held[own] -= change_one(indptr, indices, count, v, own, -1)
            held[best] += change_one(indptr, indices, count, v, best, 1)
            sizes[own] -= 1
            sizes[best] += 1
            parts[item] = best


@kernel
def improve(
    indptr,
    indices,
    counts,
    members,
    begin,
    order,
    least,
    most,
    parts,
    sizes,
    held,
    unit,
    squarings,
    frontier,
    fresh,
    stamps,
    clock,
):
    """One pass over items of any number of members, for any number of hops; see
    :func:`improve_singles`."""
    k = counts.shape[2]
    for i in range(len(order)):
        item = order[i]
        block = members[begin[item] : begin[item + 1]]
        weight = len(block)
        own = parts[item]
        if sizes[own] - weight < least:
            continue
        # Remove the item first, to know exactly what it frees; then add it where it costs least,
        # which may be its own part.
        for m in range(weight):
            frontier[m] = block[m]
        freed = change(indptr, indices, counts, own, frontier, weight, fresh, -1)
        over = sizes[own] > most
        sizes[own] -= weight
        held[own] -= freed
        best = own
        lowest = np.inf
        if not over:
            lowest = growth(held[own], freed, unit, squarings)
        if over or freed > 0:
            for p in range(k):
                if p == own or sizes[p] + weight > most:
                    continue
                limit = room_below(held[p], unit, squarings, lowest)
                c = cost(indptr, indices, counts, p, block, limit, frontier, fresh, stamps, clock)
                more = growth(held[p], c, unit, squarings)
                if more < lowest or (more == lowest and sizes[p] < sizes[best]):
                    best = p
                    lowest = more
        parts[item] = best
        sizes[best] += weight
        for m in range(weight):
            frontier[m] = block[m]
        held[best] += change(indptr, indices, counts, best, frontier, weight, fresh, 1)


@allocating_kernel
def grow(indptr, indices, out_indptr, out_indices, starts, sizes, part_of):
    """Fill the parts to ``sizes`` one after the other, with the training vertex that adds fewest
    vertices within one hop, or the next of ``starts`` if none touches the part.

    ``part_of`` comes with -1 for training vertices and -2 for others; it gets the parts.
    """
    vertices = len(part_of)
    held_by = np.full(vertices, -1, np.int32)
    # How many of a vertex and its in-neighbours the part does not hold.
    missing = np.zeros(vertices, np.int64)
    asked_by = np.full(vertices, -1, np.int32)  # the part for which `missing` was computed
    begin = 0
    for part in range(len(sizes)):
        # numba needs an entry to know the list's type.
        queue = [(np.int64(0), np.int64(-1))]
        queue.pop()
        for _ in range(sizes[part]):
            v = np.int64(-1)
            # Entries are never updated, so outdated ones are skipped: of vertices that have a part
            # now, or fewer missing ones.
            while v < 0 and len(queue) > 0:
                key, candidate = heapq.heappop(queue)
                if part_of[candidate] == -1 and missing[candidate] == key:
                    v = candidate
            # No vertex left touches the part: take the next start.
            while v < 0:
                if part_of[starts[begin]] == -1:
                    v = np.int64(starts[begin])
                begin += 1
            part_of[v] = part
            first, last = checked_row(indptr, v, len(indices))
            for e in range(first - 1, last):
                u = v if e < first else np.int64(indices[e])
                check_id(u, vertices)
                if held_by[u] == part:
                    continue
                held_by[u] = part
                for f in range(out_indptr[u] - 1, out_indptr[u + 1]):
                    w = u if f < out_indptr[u] else np.int64(out_indices[f])
                    if part_of[w] != -1:
                        continue
                    if asked_by[w] != part:
                        asked_by[w] = part
                        missing[w] = 1 + np.int64(indptr[w + 1]) - np.int64(indptr[w])
                    missing[w] -= 1
                    heapq.heappush(queue, (missing[w], w))


@kernel
def propagate(indptr, indices, order, weights, limit, labels, sums, votes, voted):
    """Give each vertex in ``order`` the label of most of its in-neighbours, if that label's weight
    stays within ``limit``; returns the number of changes.

    ``sums`` has the weight of each label. ``votes`` is all 0 before and after.
    """
    changed = 0
    for i in range(len(order)):
        v = order[i]
        n = 0
        begin, end = checked_row(indptr, v, len(indices))
        for e in range(begin, end):
            u = indices[e]
            check_id(u, len(labels))
            if u == v:  # a self-loop would vote for a vertex's own cluster
                continue
            label = labels[u]
            if votes[label] == 0:
                voted[n] = label
                n += 1
            votes[label] += 1
        own = labels[v]
        best = own
        most = votes[own]
        for j in range(n):
            label = voted[j]
            if votes[label] > most and sums[label] + weights[v] <= limit:
                best = label
                most = votes[label]
            votes[label] = 0
        if best != own:
            labels[v] = best
            sums[own] -= weights[v]
            sums[best] += weights[v]
            changed += 1
    return changed
