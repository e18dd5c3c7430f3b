"""Kernels that count how each part reaches each vertex, and move training vertices between parts by
what that costs.

``counts[l, v, p]`` is how many of the vertices that part ``p`` holds within ``l`` hops are ``v`` or
have ``v`` as an in-neighbour: the part holds ``v`` within ``l + 1`` hops where it is not 0. So what
a training vertex brings or frees is found by following only the vertices that come or go, hop by
hop. Counts stop at 255 and then stay: a vertex that so many need in one part never leaves it.

An item is one training vertex, or several that stay together: ``members[begin[i]:begin[i + 1]]``.

What is made small is the sum over the parts of ``load``, the part's vertices to the power of 1, 2,
4, ...: a vertex more costs the more, the larger the part is already. Power 1 are the vertices of
all parts together; the higher the power, the more does the largest part alone count. ``held`` is
how many vertices each part holds; kernels keep it true. ``unit`` is a power of 2 of about 1 / the
graph's vertices: powers then do not overflow, and ties of power 1 stay ties.
"""

import heapq
import math

import numpy as np

from ..._jit import allocating_kernel, kernel, prefetch
from ...graph._csc import check_id, check_row

_FULL = 255  # the most that a byte counts
# Elements to prefetch ahead: enough for a cache miss (about 100 ns) to pass while the costs of the
# elements before are added up.
_AHEAD = 16


@kernel
def change(indptr, indices, counts, part, frontier, n, fresh, step):
    """Add the first ``n`` vertices of ``frontier`` to a part (``step`` 1) or take them out of it
    (-1); returns how many vertices it then holds more or less. Both arrays are overwritten."""
    # A vertex comes if nothing needed it before, and goes if only one thing did.
    turning = 0 if step > 0 else 1
    for level in range(len(counts)):
        count = counts[level]
        m = 0
        for i in range(n):
            v = frontier[i]
            begin = np.int64(indptr[v])
            end = np.int64(indptr[v + 1])
            check_row(begin, end, len(indices))
            # A vertex is within reach of itself: ``begin - 1`` stands for it.
            for e in range(begin - 1, end):
                u = v if e < begin else np.int64(indices[e])
                check_id(u, len(count))
                c = np.int64(count[u, part])
                if c == turning:
                    fresh[m] = u
                    m += 1
                # A count that stopped may stand for more: taking out of it could reach 0 too early.
                if c < _FULL:
                    count[u, part] = c + step
        for i in range(m):
            frontier[i] = fresh[i]
        n = m
    return n


@kernel
def cost(indptr, indices, counts, part, members, limit, frontier, fresh, stamps, clock):
    """Number of vertices a part would hold more with ``members``; any number above ``limit`` if it
    is above."""
    n = len(members)
    for i in range(n):
        frontier[i] = members[i]
    for level in range(len(counts)):
        count = counts[level]
        # Stamps say what this level has found already. The clock never runs back, so that they need
        # no clearing.
        clock[0] += 1
        now = clock[0]
        m = 0
        for i in range(n):
            v = frontier[i]
            begin = np.int64(indptr[v])
            end = np.int64(indptr[v + 1])
            check_row(begin, end, len(indices))
            for e in range(begin - 1, end):
                u = v if e < begin else np.int64(indices[e])
                check_id(u, len(count))
                if count[u, part] == 0 and stamps[u] != now:
                    stamps[u] = now
                    fresh[m] = u
                    m += 1
                    # Another part costs less: the exact number no longer matters. Only the last
                    # level counts vertices that the part would hold.
                    if m > limit and level == len(counts) - 1:
                        return m
        for i in range(m):
            frontier[i] = fresh[i]
        n = m
    return n


@kernel
def freed_by_one(indptr, indices, count, v, own):
    """For one hop: number of vertices that its ``own`` part would hold less without one vertex; one
    to which several edges lead is needed several times, and stays."""
    freed = np.int64(count[v, own] == 1)
    begin = indptr[v]
    end = indptr[v + 1]
    check_row(begin, end, len(indices))
    for e in range(begin, end):
        u = indices[e]
        check_id(u, len(count))
        freed += count[u, own] == 1
    return freed


@kernel
def costs_of_one(indptr, indices, count, v, costs):
    """For one hop: number of vertices that each part would hold more with one vertex; one to which
    several edges lead counts several times, which is not worth a search."""
    costs[:] = 0
    begin = indptr[v]
    end = indptr[v + 1]
    check_row(begin, end, len(indices))
    for e in range(begin - 1, end):
        if e + _AHEAD < end:
            prefetch(count, np.int64(indices[e + _AHEAD]) * len(costs))
        u = v if e < begin else np.int64(indices[e])
        check_id(u, len(count))
        row = count[u]
        for p in range(len(costs)):
            costs[p] += (
                row[p] == 0
            )  # adding 0 or 1 is cheaper than a branch that cannot be foreseen


@kernel
def change_one(indptr, indices, count, v, part, step):
    """For one hop: count (``step`` 1) or no longer count (-1) one vertex in a part; returns how
    many vertices it then holds more or less."""
    turning = 0 if step > 0 else 1
    turned = 0
    begin = np.int64(indptr[v])
    end = np.int64(indptr[v + 1])
    check_row(begin, end, len(indices))
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
    """Count from scratch what the parts of all members need, and what each part holds."""
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
    """What a part that holds ``held`` vertices adds to the sum that is made small."""
    share = held * unit
    for _ in range(squarings):
        share *= share
    return share


@kernel
def room_below(held, unit, squarings, lowest):
    """Number of vertices of which one more makes the load of a part grow by more than
    ``lowest``."""
    if lowest == np.inf:
        return np.int64(2**62)
    share = load(held, unit, squarings) + lowest
    for _ in range(squarings):
        share = math.sqrt(share)
    # One more, so that rounding cannot end a count below what would have been the best.
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
    """Put single vertices, in ``order``, where the load grows least; ties go to the part with more
    ``room``, which is used up. ``best`` is the part of the one before; returns that of the last."""
    k = counts.shape[2]
    costs = np.empty(k, np.int64)
    single = len(counts) == 1
    for i in range(len(order)):
        item = order[i]
        # The part of the vertex before is asked first: it mostly costs least, and then ``lowest``
        # ends the search in other parts early.
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
            more = load(held[p] + costs[p], unit, squarings)
            more -= load(held[p], unit, squarings)
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
    """One pass over single vertices for one hop: each goes where the load grows least, while its
    part keeps ``least`` and the other has ``most`` at most."""
    costs = np.empty(count.shape[1], np.int64)
    for i in range(len(order)):
        item = order[i]
        v, own = members[item], parts[item]
        over = sizes[own] > most
        if sizes[own] <= least:
            continue
        # A part that is too large gives vertices away at any cost; else a move must free something.
        freed = freed_by_one(indptr, indices, count, v, own)
        if freed == 0 and not over:
            continue
        costs_of_one(indptr, indices, count, v, costs)
        best = own
        lowest = np.inf
        if not over:
            lowest = load(held[own], unit, squarings)
            lowest -= load(held[own] - freed, unit, squarings)
        for p in range(len(costs)):
            if p == own or sizes[p] >= most:
                continue
            more = load(held[p] + costs[p], unit, squarings)
            more -= load(held[p], unit, squarings)
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
    """One pass over items, of any number of members and for any number of hops; see
    ``improve_singles``."""
    k = counts.shape[2]
    for i in range(len(order)):
        item = order[i]
        block = members[begin[item] : begin[item + 1]]
        weight = len(block)
        own = parts[item]
        if sizes[own] - weight < least:
            continue
        # The item is taken out first, so that its cost in the other parts is compared with what it
        # really frees, and is put back where it costs least, which may be its own part.
        for m in range(weight):
            frontier[m] = block[m]
        freed = change(indptr, indices, counts, own, frontier, weight, fresh, -1)
        over = sizes[own] > most
        sizes[own] -= weight
        held[own] -= freed
        best = own
        lowest = np.inf
        if not over:
            lowest = load(held[own] + freed, unit, squarings)
            lowest -= load(held[own], unit, squarings)
        if over or freed > 0:
            for p in range(k):
                if p == own or sizes[p] + weight > most:
                    continue
                limit = room_below(held[p], unit, squarings, lowest)
                c = cost(indptr, indices, counts, p, block, limit, frontier, fresh, stamps, clock)
                more = load(held[p] + c, unit, squarings)
                more -= load(held[p], unit, squarings)
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
    """Fill the parts to ``sizes`` in turn, with the training vertex that brings least within one
    hop, else the next of ``starts``. ``part_of`` has for every vertex -1 (to be given a part) or -2
    (no training vertex)."""
    vertices = len(part_of)
    held_by = np.full(vertices, -1, np.int32)
    # Of a vertex and its in-neighbours, how many the part does not hold.
    missing = np.zeros(vertices, np.int64)
    asked_by = np.full(vertices, -1, np.int32)  # the part that ``missing`` is about
    begin = 0
    for part in range(len(sizes)):
        # numba needs an entry to know the list's type.
        queue = [(np.int64(0), np.int64(-1))]
        queue.pop()
        for _ in range(sizes[part]):
            v = np.int64(-1)
            # Entries are never updated: those of vertices that have a part by now, or of which more
            # has come into the part since, are skipped.
            while v < 0 and len(queue) > 0:
                key, candidate = heapq.heappop(queue)
                if part_of[candidate] == -1 and missing[candidate] == key:
                    v = candidate
            # Nothing that is left touches the part: begin at the next start.
            while v < 0:
                if part_of[starts[begin]] == -1:
                    v = np.int64(starts[begin])
                begin += 1
            part_of[v] = part
            first = np.int64(indptr[v])
            last = np.int64(indptr[v + 1])
            check_row(first, last, len(indices))
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
    """Give each vertex in ``order`` the label that most of its in-neighbours have, if its cluster
    stays within ``limit``; returns how many changed. ``sums`` is each label's weight; ``votes`` is
    zero before and after."""
    changed = 0
    for i in range(len(order)):
        v = order[i]
        n = 0
        begin = indptr[v]
        end = indptr[v + 1]
        check_row(begin, end, len(indices))
        for e in range(begin, end):
            u = indices[e]
            check_id(u, len(labels))
            if u == v:  # else graphs with self-loops would keep one vertex to a cluster
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
