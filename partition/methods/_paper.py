"""Kernels of the paper's score: training vertices come one by one and go where most of their
neighbours are.

Stamps, one or two bytes for every vertex that may be counted, say what was counted already for the
training vertex at hand: tables that small stay in the processor's cache, and are cleared when the
stamps run out. What a part holds is a bit for each (vertex, hops it may still be followed, part): a
vertex already followed as far is not followed again, so that all parts together read an edge
``hops * num_parts`` times at most, however many training vertices share it.
"""

import numpy as np

from ..._jit import allocating_kernel, kernel
from ...graph._csc import check_id, check_row, check_sound, is_row


@kernel
def count_train_sources(indptr, indices, rank, row_ptr):
    """Write to ``row_ptr`` where each vertex's row begins once all but training sources are left
    out."""
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
    """The ranks of each vertex's training in-neighbours, ascending."""
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
                check_row(at, at + 1, len(rows))  # as many as were counted
                ascending = ascending and (at == row_ptr[v] or rows[at - 1] <= r)
                rows[at] = r
                at += 1
        if not ascending:
            rows[row_ptr[v] : at].sort()


@kernel
def follow(indptr, indices, start, depth, stamp, reached, queue):
    """Put ``start`` and all that it reaches within ``depth`` hops into ``queue``, each once;
    returns how many.

    Returns -1 where an edge leads out of the graph: a function of arrays that may raise costs 90 ns
    a call more.
    """
    queue[0] = start
    head, tail = np.int64(0), np.int64(1)
    # With one hop nothing is followed, and ``reached`` has no entry for the start.
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
    """Add those of ``rows[begin:end]`` below ``limit`` that do not bear the stamp yet to the counts
    of their owners; returns whether all are in range."""
    if not is_row(begin, end, len(rows)):
        return False
    for e in range(begin, end):
        v = np.uint64(np.int64(rows[e]))
        if v >= np.uint64(limit):  # the one branch asks for ids below 0 as well
            return v < len(counted)
        # Adding 0 or 1 takes half the time of a branch that nobody can predict.
        counts[owners[v]] += counted[v] != stamp
        counted[v] = stamp
    return True


@kernel
def choose(counts, average, floor, spare, sizes, held):
    """The part of the highest score among those with room (below ``floor`` training vertices, or at
    ``floor`` while fewer than ``spare`` have more); of equals the one with fewer training
    vertices."""
    best = -1
    best_score = 0.0
    for i in range(len(sizes)):
        if sizes[i] < floor or (sizes[i] == floor and spare > 0):
            # Section 3.4: (1 + |TV_i & IN(t)|) * (avg - |TV_i|) / (|V_i| + 1). ``counts[0]`` is of
            # vertices that no part owns.
            score = (1 + counts[i + 1]) * (average - sizes[i]) / (held[i] + 1)
            if best < 0 or score > best_score or (score == best_score and sizes[i] <= sizes[best]):
                best = i
                best_score = score
    return best


@kernel
def absorb(indptr, indices, start, part, queue, members):
    """Give ``start`` and what it reaches to ``part``; returns how many of these vertices are new
    there, or -1 as above; bit ``part`` of ``members[v, h]`` says that the part holds ``v`` and all
    that it reaches in ``h`` hops."""
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
                # Held with as many hops left: all behind it is in the part already.
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
    """Give ``train[begin:end]`` to parts, one by one; all arrays after ``last_stamp`` are what is
    known so far."""
    num_train = len(train)
    hops = members.shape[1]
    num_parts = len(sizes)
    floor = num_train // num_parts
    average = num_train / num_parts
    spare = num_train % num_parts
    # The call before may have given some of the places above ``floor`` away.
    for i in range(num_parts):
        spare -= sizes[i] > floor
    for i in range(begin, end):
        t = train[i]
        stamp = i % last_stamp + 1
        if stamp == 1:  # stamps begin again, so old ones must go
            counted[:] = 0
        counts[:] = 0
        near = follow(indptr, indices, t, hops - 1, i + 1, reached, queue)
        # By rank, rows are ascending: from rank ``i`` on, vertices have no part yet.
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
