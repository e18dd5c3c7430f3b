"""CPU kernels of neighbour sampling, in separate passes so that the cache misses of many edges
overlap.

One hop is ``measure`` (degrees and numbers of draws), ``pick_*`` (positions in the CSC),
``read_neighbors`` (the ids there) and ``relabel`` (local ids, by a small hash table). Threads share
nothing.

Randomness is counter-based: draw ``j`` of vertex ``v`` is ``mix(key + v * A + j * B)``, with
SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014) as ``mix``. So neither the number of
threads nor the order of vertices matters, and GPU kernels make the same draws.
"""

import numpy as np

from ..._jit import kernel, prefetch

_A = np.uint64(0x9E3779B97F4A7C15)
_B = np.uint64(0xD1342543DE82EF95)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S30 = np.uint64(30)
_S27 = np.uint64(27)
_S31 = np.uint64(31)
_S32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_ONE = np.uint64(1)
_LOW6 = np.uint64(63)

# Elements between the prefetch of a cache line and its use; 24 and 64 took 12 % and 6 % longer.
AHEAD = 128
_WORD = 64  # edges of a row that a word has a bit for
SCAN_LIMIT = 16
"""Up to this many picks of a longer row, a linear scan finds repeats faster than a hash set: 15 of
1000 edges take 3.4 ns a pick and 4.3, 25 take 5.6 and 4.2."""
SET_SLOTS = 4
"""Least slots of the hash set per pick. With 2 slots, 50 picks of 1000 edges take 5.8 ns each; with
4, 4.1 ns."""
EMPTY = np.int64(-1)  # a free slot of the hash table


@kernel
def mix(x):
    """SplitMix64's finaliser: 64 well-mixed bits from a 64-bit counter."""
    x = (x ^ (x >> _S30)) * _M1
    x = (x ^ (x >> _S27)) * _M2
    return x ^ (x >> _S31)


@kernel
def draw_below(base, j, bound):
    """Draw ``j`` of the stream ``base``: uniform in ``[0, bound)``, with a bias below
    ``bound / 2**32``."""
    x = mix(base + np.uint64(j) * _B)
    return np.int64(((x >> _S32) * np.uint64(bound)) >> _S32)


@kernel
def counter_of(v, phase, renewed, step):
    """The counter of a vertex whose random numbers batches share; see ``Renewal``."""
    counter = np.uint64(v)
    return counter + step if mix(phase + counter * _A) < renewed else counter


@kernel
def renew(frontier, renewal, counters):
    """The counter of each frontier vertex, as int64; ``renewal`` as in ``Hop``, not empty."""
    phase = renewal[0]
    renewed = renewal[1]
    step = renewal[2]
    for i in range(len(frontier)):
        counters[i] = np.int64(counter_of(frontier[i], phase, renewed, step))


@kernel
def num_draws(degree, fanout, replace):
    """Number of edges that a vertex draws; a negative ``fanout`` takes all."""
    return fanout if fanout >= 0 and degree > 0 and (replace or degree > fanout) else degree


@kernel
def measure(indptr, num_edges, frontier, fanout, replace, starts, degrees, out_indptr):
    """Write the start and degree of each frontier vertex's row, and the ``indptr`` of its draws.

    Returns:
        The total number of draws, or ``-1 - i`` if frontier vertex ``i``, or its row, is outside
        the graph.
    """
    n = len(frontier)
    num_dst = len(indptr) - 1
    out_indptr[0] = 0
    total = np.int64(0)
    for i in range(n):
        if i + AHEAD < n:
            prefetch(indptr, frontier[i + AHEAD])
        v = np.int64(frontier[i])
        if v < 0 or v >= num_dst:
            return np.int64(-1) - i
        start = np.int64(indptr[v])
        degree = np.int64(indptr[v + 1]) - start
        # A damaged file must end in an error here: later passes read these rows unchecked.
        if start < 0 or degree < 0 or start + degree > num_edges:
            return np.int64(-1) - i
        starts[i] = start
        degrees[i] = degree
        total += num_draws(degree, fanout, replace)
        out_indptr[i + 1] = total
    return total


@kernel
def pick_distinct(frontier, starts, degrees, out_indptr, key, seen, positions):
    """Pick uniformly without replacement by Floyd's algorithm (Bentley and Floyd, CACM 1987).

    Rows with as many draws as edges are taken whole. ``seen`` is scratch of a power-of-two length,
    at least ``SET_SLOTS`` times the largest number of draws, filled with -1; only for more than
    ``SCAN_LIMIT``.
    """
    for i in range(len(frontier)):
        start = starts[i]
        degree = degrees[i]
        begin = np.int64(out_indptr[i])
        k = np.int64(out_indptr[i + 1]) - begin
        if k == degree:
            # All edges, in CSC order and without random numbers.
            for j in range(k):
                positions[begin + j] = start + j
        elif degree <= _WORD:
            _pick_few(key + np.uint64(frontier[i]) * _A, start, degree, begin, k, positions)
        elif k <= SCAN_LIMIT:
            base = key + np.uint64(frontier[i]) * _A
            # One bit per pick modulo 64. Without a match no scan is needed (12 % less time).
            met = np.uint64(0)
            for j in range(k):
                top = degree - k + j
                pick = start + draw_below(base, j, top + 1)
                if (met >> (np.uint64(pick) & _LOW6)) & _ONE:
                    for t in range(begin, begin + j):
                        if positions[t] == pick:
                            pick = start + top
                            break
                met |= _ONE << (np.uint64(pick) & _LOW6)
                positions[begin + j] = pick
        else:
            _pick_many(key + np.uint64(frontier[i]) * _A, start, degree, begin, k, seen, positions)


@kernel
def _pick_few(base, start, degree, begin, k, positions):
    """The same picks as by the scan in :func:`pick_distinct`, of at most ``_WORD`` edges."""
    met = np.uint64(0)
    for j in range(k):
        top = np.int64(degree) - k + j
        pick = draw_below(base, j, top + 1)
        # Floyd: a pick that was drawn before is replaced by the top of its range, which no earlier
        # draw could reach. A shift by 8 bits selects it: LLVM would make a branch of a plain
        # selection here, which is often mispredicted (4.7 instead of 2 ns a pick).
        is_met = (met >> np.uint64(pick)) & _ONE
        pick = (top << 8 | pick) >> np.int64(is_met << np.uint64(3)) & (_WORD - 1)
        met |= _ONE << np.uint64(pick)
        positions[begin + j] = start + pick


@kernel
def _pick_many(base, start, degree, begin, k, seen, positions):
    """The same picks as by the scan in :func:`pick_distinct`, with a hash set instead."""
    mask = len(seen) - 1
    for j in range(k):
        top = degree - k + j
        pick = draw_below(base, j, top + 1)
        # Picks are uniform, so their low bits can index the set without a hash.
        slot = pick & mask
        while seen[slot] != -1 and seen[slot] != pick:
            slot = (slot + 1) & mask
        if seen[slot] == pick:
            pick = top
            slot = pick & mask
            while seen[slot] != -1:
                slot = (slot + 1) & mask
        seen[slot] = pick
        positions[begin + j] = start + pick
    # The next row, and this thread's next hop, need an empty set.
    seen[:] = -1


@kernel
def pick_repeated(frontier, starts, degrees, out_indptr, key, positions):
    """Pick uniformly with replacement."""
    for i in range(len(frontier)):
        base = key + np.uint64(frontier[i]) * _A
        begin = np.int64(out_indptr[i])
        for j in range(np.int64(out_indptr[i + 1]) - begin):
            positions[begin + j] = starts[i] + draw_below(base, j, degrees[i])


@kernel
def pick_all(starts, out_indptr, positions):
    """Take all edges of each row, in CSC order."""
    for i in range(len(out_indptr) - 1):
        begin = np.int64(out_indptr[i])
        for j in range(np.int64(out_indptr[i + 1]) - begin):
            positions[begin + j] = starts[i] + j


@kernel
def read_neighbors(indices, positions, out):
    """``out[e] = indices[positions[e]]``."""
    n = len(positions)
    for e in range(n):
        if e + AHEAD < n:
            prefetch(indices, positions[e + AHEAD])
        out[e] = indices[positions[e]]


@kernel
def slot_of(v, shift):
    """The first slot to probe for a vertex in a hash table of ``2 ** (64 - shift)`` slots."""
    # Fibonacci hashing (Knuth, TAOCP 3, 6.4): the high bits of the product depend on all bits of v,
    # so consecutive ids spread over the whole table.
    return np.int64((np.uint64(v) * _A) >> shift)


@kernel
def insert_one(local, nodes, table, shift):
    """Enter ``nodes[local]`` into a table; of a repeated vertex, the first copy stays."""
    mask = len(table) - 1
    v = np.int64(nodes[local])
    tag = np.uint64(v) & _LOW
    slot = slot_of(v, shift)
    while table[slot] != EMPTY:
        entry = np.uint64(table[slot])
        if (entry >> _S32) == tag and np.int64(nodes[np.int64(entry & _LOW)]) == v:
            return
        slot = (slot + 1) & mask
    table[slot] = np.int64((tag << _S32) | np.uint64(local))


@kernel
def insert_nodes(nodes, count, table, shift):
    """Enter the first ``count`` nodes into an empty table."""
    for local in range(count):
        insert_one(local, nodes, table, shift)


@kernel
def relabel(neighbors, begin, num_src, nodes, count, table, shift, local_ids):
    """Write the local id of each neighbour from edge ``begin`` on; append new vertices to
    ``nodes``.

    A table entry has the low half of the vertex id as its high half, and the local id as its low
    half, so most look-ups read one cache line. The full id is compared, too, for graphs with 2**32
    vertices or more. Stops when the table is half full.

    Returns:
        The edge to continue with (``len(neighbors)`` if done, ``-1 - e`` if edge ``e`` points
        outside the graph), and the number of nodes.
    """
    mask = len(table) - 1
    limit = len(table) >> 1
    n = len(neighbors)
    for e in range(begin, n):
        if e + AHEAD < n:
            prefetch(table, slot_of(neighbors[e + AHEAD], shift))
        v = np.int64(neighbors[e])
        if v < 0 or v >= num_src:
            return np.int64(-1) - e, count
        tag = np.uint64(v) & _LOW
        slot = slot_of(v, shift)
        while True:
            entry = table[slot]
            if entry == EMPTY:
                # The caller doubles the table and continues with this edge. Linear probing needs
                # many probes if more than half of the slots are used.
                if count >= limit:
                    return np.int64(e), count
                table[slot] = np.int64((tag << _S32) | np.uint64(count))
                nodes[count] = v
                local_ids[e] = count
                count += 1
                break
            if (np.uint64(entry) >> _S32) == tag:
                local = np.int64(np.uint64(entry) & _LOW)
                # Another vertex may have the same low half.
                if np.int64(nodes[local]) == v:
                    local_ids[e] = local
                    break
            slot = (slot + 1) & mask
    return np.int64(n), count


@kernel
def number(neighbors, num_src, nodes, count, places, local_ids):
    """:func:`relabel` with a direct table: ``places`` has the local id of each vertex of the graph
    (-1: none).

    Without a branch that could be mispredicted: the element after the last node is written whether
    the neighbour is new or not.
    """
    n = len(neighbors)
    for e in range(n):
        if e + AHEAD < n:
            prefetch(places, neighbors[e + AHEAD])
        v = np.int64(neighbors[e])
        if v < 0 or v >= num_src:
            return np.int64(-1) - e, count
        place = places[v]
        is_new = place < 0
        if is_new:
            place = np.int32(count)
        places[v] = place
        nodes[count] = v
        local_ids[e] = place
        count += is_new
    return np.int64(n), count


@kernel
def clear_places(nodes, places):
    """Reset the entries of ``nodes`` in the direct table of :func:`number` to -1."""
    n = len(nodes)
    for i in range(n):
        if i + AHEAD < n:
            prefetch(places, nodes[i + AHEAD])
        places[nodes[i]] = -1


@kernel
def place_of(v, nodes, table, mask, shift):
    """The first index of a vertex in ``nodes``, or -1; ``table`` is the hash table of ``nodes``
    that ``relabel`` has filled."""
    tag = np.uint64(v) & _LOW
    slot = slot_of(v, shift)
    while table[slot] != EMPTY:
        entry = np.uint64(table[slot])
        if (entry >> _S32) == tag:
            place = np.int64(entry & _LOW)
            if np.int64(nodes[place]) == v:
                return place
        slot = (slot + 1) & mask
    return np.int64(-1)


@kernel
def first_above(values, x, low, high):
    """The first index in ``[low, high)`` whose value is above ``x``, or ``high``; values ascend."""
    while low < high:
        middle = (low + high) >> 1
        if values[middle] > x:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def first_from(values, x, low, high):
    """The first index in ``[low, high)`` whose value is ``x`` or more, or ``high``; values
    ascend."""
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < x:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def is_among(values, x, low, high):
    """Whether ``x`` is among the ascending ``values[low:high]``."""
    place = first_from(values, x, low, high)
    return place < high and values[place] == x
