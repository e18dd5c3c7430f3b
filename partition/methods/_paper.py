"""Kernels of the paper's greedy stream: training vertices are assigned one by one to the part with
the highest score.

Stamps, one or two bytes per vertex that may be counted, mark what was counted for the current
training vertex. Such small tables stay in the processor's cache; they are cleared when stamps start
again. A bit for each (vertex, remaining hops, part) records what a part holds. A vertex that was
followed as far before is not followed again, so all parts together read an edge at most
``hops * num_parts`` times.
"""

import numpy as np

from ..._jit import allocating_kernel, kernel
from ...graph._csc import check_id, check_row, check_sound, is_row


@kernel
def count_train_sources(indptr, indices, rank, row_ptr):
    """Write to ``row_ptr`` where each vertex's row of training sources begins."""
    total = np.int64(0)
    row_ptr[0] = 0
    for v in range(len(indptr) - 1):
        begin = indptr[v]
        end = indptr[v + 1]
        check_row(begin, end, len(indices))
        for e in range(begin, end):
            u = indices[e]
            check_id(u, len(rank))
            total += rank[u] >= 0
        row_ptr[v + 1] = total


@allocating_kernel
def fill_train_sources(indptr, indices, rank, row_ptr, rows):
    """Write the ranks of each vertex's training sources, ascending, to ``rows``."""
    for v in range(len(indptr) - 1):
        at = row_ptr[v]
        ascending = True
        begin = indptr[v]
        end = indptr[v + 1]
        check_row(begin, end, len(indices))
        for e in range(begin, end):
            u = indices[e]
            check_id(u, len(rank))
            r = rank[u]
            if r >= 0:
                check_row(at, at + 1, len(rows))  # a mapped file may change after the count
                ascending = ascending and (at == row_ptr[v] or rows[at - 1] <= r)
                rows[at] = r
                at += 1
        if not ascending:
            rows[row_ptr[v] : at].sort()


@kernel
def follow(indptr, indices, start, depth, stamp, reached, queue):
    """Write ``start`` and all vertices within ``depth`` hops to ``queue``, each once; returns their
    number.

    Returns -1 if an edge points outside the graph, since a kernel that may raise costs 90 ns more
    per call.
    """
    queue[0] = start
    head, tail = np.int64(0), np.int64(1)
    # For one hop, depth is 0, and `reached` is too short for the start.
    if depth > 0:
        reached[start] = stamp
    for _ in range(depth):
        stop = tail
        while head < stop:
            u = queue[head]
            head += 1
            first = indptr[u]
            last = indptr[u + 1]
            if not is_row(first, last, len(indices)):
                return np.int64(-1)
            for e in range(first, last):
                v = indices[e]
                if v < 0 or v >= len(reached):
                    return np.int64(-1)
                if reached[v] != stamp:
                    reached[v] = stamp
                    queue[tail] = v
                    tail += 1
    return tail


@kernel
def count_row(rows, begin, end, limit, stamp, counted, owners, counts):
    """Count the vertices of ``rows[begin:end]`` below ``limit`` that have no stamp yet, by owner;
    returns whether all are in range."""
    if not is_row(begin, end, len(rows)):
        return False
    for e in range(begin, end):
        v = np.uint64(np.int64(rows[e]))
        if v >= np.uint64(limit):  # as unsigned, one comparison also finds ids below 0
            return v < len(counted)
        # Adding 0 or 1 takes half the time of an unpredictable branch.
        counts[owners[v]] += counted[v] != stamp
        counted[v] = stamp
    return True


@kernel
def choose(counts, average, floor, spare, sizes, held):
    """The part with the highest score among those with room; of equal scores, the one with fewer
    training vertices, then the later one.

    A part has room if it has fewer than ``floor`` training vertices, or ``floor`` while ``spare``
    parts may still get one more.
    """
    best = -1
    best_score = 0.0
    for i in range(len(sizes)):
        if sizes[i] < floor or (sizes[i] == floor and spare > 0):
            # Section 3.4: (1 + |TV_i & IN(t)|) * (avg - |TV_i|) / (|V_i| + 1). `counts[0]` is for
            # vertices without an owner.
            score = (1 + counts[i + 1]) * (average - sizes[i]) / (held[i] + 1)
            if best < 0 or score > best_score or (score == best_score and sizes[i] <= sizes[best]):
                best = i
                best_score = score
    return best


@kernel
def absorb(indptr, indices, start, part, queue, members):
    """Add ``start`` and all vertices within reach to a part.

    Bit ``part`` of ``members[v, h]`` is set if the part holds ``v`` and all vertices within ``h``
    hops of it. Returns the number of vertices that are new to the part, or -1 if an edge points
    outside the graph.
    """
    hops = members.shape[1]
    byte = part >> 3
    bit = np.uint8(1 << (part & 7))
    new = np.int64(members[start, 0, byte] & bit == 0)
    for h in range(hops):
        members[start, h, byte] |= bit
    queue[0] = start
    head, tail = np.int64(0), np.int64(1)
    for left in range(hops - 1, -1, -1):
        stop = tail
        while head < stop:
            u = queue[head]
            head += 1
            first = indptr[u]
            last = indptr[u + 1]
            if not is_row(first, last, len(indices)):
                return np.int64(-1)
            for e in range(first, last):
                v = indices[e]
                if v < 0 or v >= len(members):
                    return np.int64(-1)
                # If held with as many hops left, all vertices behind it are held, too.
                if members[v, left, byte] & bit == 0:
                    new += members[v, 0, byte] & bit == 0
                    for h in range(left + 1):
                        members[v, h, byte] |= bit
                    if left > 0:
                        queue[tail] = v
                        tail += 1
    return new


@kernel
def assign(
    indptr, indices, row_ptr, rows, by_rank, train, begin, end,
    last_stamp, counted, owners, reached, queue, members, counts, sizes, held, parts,
):  # fmt: skip
    """Assign ``train[begin:end]`` to parts, one by one; the arrays after ``last_stamp`` are the
    state, kept between calls."""
    num_train = len(train)
    hops = members.shape[1]
    num_parts = len(sizes)
    floor = num_train // num_parts
    average = num_train / num_parts
    spare = num_train % num_parts
    # Earlier calls may have used some of the places above `floor`.
    for i in range(num_parts):
        spare -= sizes[i] > floor
    for i in range(begin, end):
        t = train[i]
        stamp = i % last_stamp + 1
        if stamp == 1:  # stamps start again, so old ones must be cleared
            counted[:] = 0
        counts[:] = 0
        near = follow(indptr, indices, t, hops - 1, i + 1, reached, queue)
        # By rank, rows ascend, and vertices from rank `i` on have no part yet.
        limit = i if by_rank else len(indptr) - 1
        is_sound = near >= 0
        for j in range(near):
            u = queue[j]
            is_sound &= count_row(
                rows, row_ptr[u], row_ptr[u + 1], limit, stamp, counted, owners, counts
            )
        part = choose(counts, average, floor, spare, sizes, held)
        spare -= sizes[part] == floor
        sizes[part] += 1
        new = absorb(indptr, indices, t, part, queue, members)
        check_sound(is_sound and new >= 0)
        held[part] += new
        owners[i if by_rank else t] = part + 1
        parts[i] = part
