"""Kernels of random walks: walks advance step by step together, so that their cache misses overlap.

A step makes several passes over a group of walks: read the rows, draw an edge of each, follow it.
Each pass prefetches what the next one reads, and a group's traces stay in the L1 cache.

Randomness is that of ``hop.py``: step ``t`` of walk ``i`` draws ``mix(key + i * A + t * B)``. A
step that looks back takes this number as the key of a stream, because it may need several draws.

Common arguments are tuples:

* ``edges``: ``(indptr, indices, num_src)``: the edges by the vertex that a walk leaves, and the
  vertices that they lead to, below ``num_src``.
* ``rows``: ``(indptr, num_edges, kept)``: the rows to draw from and their number of edges. ``kept``
  has each edge's position in ``indices``; empty if positions are the same.
* ``weights``: ``(values, sums, guide)`` of ``rows``, see ``weighted.py``; empty arrays for uniform
  draws.
* ``group``: ``(starts, degrees, positions, streams)``: for each walk of a group, the row to draw
  from, the drawn position in ``indices`` (-1: the walk does not move), and the random stream.
* ``listed``: the walks of the group that draw, ``count`` of them.
"""

import numpy as np

from ..._jit import allocating_kernel, kernel, prefetch
from ...graph._csc import check_id
from .hop import _A, _B, draw_below, is_among, mix
from .weighted import SHIFT, draw_edge, draw_unit, groups

GROUP = 256  # walks that advance together
# Outcomes of :func:`walk`.
SOUND = 0
BAD_ROW = 1  # a damaged row
BAD_SOURCE = 2  # an edge that points outside the graph
# Rejected tries of a step before all edges of its row are weighed; longer rows get a try per edge.
_LEAST_TRIES = 4
FEW = 64  # visits per start up to which `_most_of_few` is used
_LANES = 8  # numbers compared at once
_COUNT = 56  # lowest bit of the count in a rank; vertices are below 2**56
_VERTEX = (1 << _COUNT) - 1


@allocating_kernel
def walk(edges, rows, weights, chances, ends, keys, stay, first, stop, traces, taken):
    """Take the steps ``first`` to ``stop - 1`` of all walks along one edge type.

    Args:
        edges, rows, weights: See the module.
        chances: Probability to take a drawn edge that leads back, one to a neighbour of the walk's
            previous vertex, and any other; the largest is 1.
        ends: Probability to end before each step, shape ``(num_steps,)``; ``(0,)`` for never.
        keys: Random keys of the steps and of the ends.
        stay: Whether a walk stays at a vertex without edges; else it ends.
        first: The first step.
        stop: The step after the last.
        traces: Shape ``(n, num_steps + 1)``, int64, filled up to column ``first``; gets the
            vertices, -1 after a walk's end.
        taken: Shape ``(n, num_steps)``, int64; gets the positions of the edges taken, or -1.
            ``(0, 0)``: not wanted.

    Returns:
        An outcome, and the vertex of an error.
    """
    group = (
        np.empty(GROUP, np.int64),
        np.empty(GROUP, np.int64),
        np.empty(GROUP, np.int64),
        np.empty(GROUP, np.uint64),
    )
    listed = np.empty(GROUP, np.int64)
    searched = np.empty(GROUP, np.int64)
    living = np.empty(GROUP, np.int64)
    looks_back = min(chances) < 1.0
    for low in range(0, len(traces), GROUP):
        part = traces[low : low + GROUP]
        alive = 0
        group[2][:] = -1
        for i in range(len(part)):
            prefetch(rows[0], part[i, first])
            living[alive] = i
            alive += part[i, first] >= 0
            for t in range(first + 1, stop + 1):
                part[i, t] = -1
        for t in range(first, stop):
            count, alive = _begin(
                rows, ends, keys, low, stay, t, part, group, listed, living, alive
            )
            if count < 0:
                return BAD_ROW, -1 - count
            if looks_back and t > 0:
                bad = _draw_looking_back(
                    edges, rows, weights, chances, t, part, group, listed, count, searched
                )
            else:
                _draw(edges, rows, weights, 0, group, listed, count)
                bad = np.int64(-1)
            if bad < 0:
                bad = _follow(edges, rows, t, part, group, living[:alive])
            if bad >= 0:
                return BAD_SOURCE, np.int64(edges[1][bad])
            if len(taken) > 0:
                for i in range(len(part)):
                    taken[low + i, t] = group[2][i]
    return SOUND, np.int64(0)


@kernel
def _begin(rows, ends, keys, low, stay, t, part, group, listed, living, alive):
    """Read the rows of step ``t`` for the first ``alive`` walks in ``living``, and list those with
    edges.

    Returns:
        The number of walks listed, or ``-1 - v`` if the row of vertex ``v`` is damaged; and the
        number of walks that have not ended.
    """
    indptr, num_edges, _ = rows
    starts, degrees, positions, streams = group
    count = np.int64(0)
    left = np.int64(0)
    for c in range(alive):
        i = living[c]
        v = part[i, t]
        positions[i] = -1
        base = np.uint64(low + i) * _A
        if len(ends) > 0 and draw_unit(keys[1] + base, t) < ends[t]:
            continue
        starts[i] = indptr[v]
        degrees[i] = np.int64(indptr[v + 1]) - starts[i]
        if starts[i] < 0 or degrees[i] < 0 or starts[i] + degrees[i] > num_edges:
            return -1 - v, left
        living[left] = i
        if degrees[i] == 0:
            if stay:
                part[i, t + 1] = v
                left += 1
            continue
        streams[i] = keys[0] + base + np.uint64(t) * _B
        listed[count] = i
        count += 1
        left += 1
    return count, left


@kernel
def _draw(edges, rows, weights, j, group, listed, count):
    """Make draw ``j`` of the listed walks: the position of an edge of each one's row."""
    indices = edges[1]
    kept = rows[2]
    values, sums, guide = weights
    starts, degrees, positions, streams = group
    if len(values) == 0:
        for c in range(count):
            i = listed[c]
            positions[i] = starts[i] + draw_below(streams[i], j, degrees[i])
            prefetch(indices, positions[i])
    else:
        _ask_for_weights(weights, j, group, listed, count)
        for c in range(count):
            i = listed[c]
            positions[i] = draw_edge(
                streams[i], j, starts[i], starts[i] + degrees[i], values, sums, guide
            )
            prefetch(indices, positions[i])
    # If edges of weight 0 are left out, picks index the kept ones. Prefetch all before the first is
    # read.
    if len(kept) > 0:
        for c in range(count):
            prefetch(kept, positions[listed[c]])
        for c in range(count):
            i = listed[c]
            positions[i] = kept[positions[i]]
            prefetch(indices, positions[i])


@kernel
def _ask_for_weights(weights, j, group, listed, count):
    """Prefetch what ``draw_edge`` will read."""
    values, sums, guide = weights
    starts, degrees, _, streams = group
    for c in range(count):
        i = listed[c]
        first, last = groups(starts[i], starts[i] + degrees[i])
        if first < last:
            prefetch(sums, last - 1)
            prefetch(guide, first + np.int64(draw_unit(streams[i], j) * np.float64(last - first)))
        else:
            prefetch(values, starts[i])
    # The guide is loaded by now, and has the sums and weights to prefetch.
    for c in range(count):
        i = listed[c]
        first, last = groups(starts[i], starts[i] + degrees[i])
        if first < last:
            slot = first + np.int64(draw_unit(streams[i], j) * np.float64(last - first))
            g = first + np.int64(guide[slot])
            prefetch(sums, g)
            prefetch(values, g << SHIFT)


@kernel
def _follow(edges, rows, t, part, group, living):
    """Follow the edges drawn in step ``t``; returns the position of one that points outside the
    graph, or -1."""
    _, indices, num_src = edges
    positions = group[2]
    for i in living:
        if positions[i] >= 0:
            w = np.int64(indices[positions[i]])
            if w < 0 or w >= num_src:
                return positions[i]
            prefetch(rows[0], w)
            part[i, t + 1] = w
    return np.int64(-1)


@kernel
def _draw_looking_back(edges, rows, weights, chances, t, part, group, listed, count, searched):
    """Draw the edges of step ``t`` by rejection: draw an edge, take it with its probability, else
    draw again.

    After several tries, all edges are weighed. Their number depends on the row alone, not on the
    draws, so the distribution stays exact. Rows must ascend.

    Returns:
        The position of an edge that points outside the graph, or -1.
    """
    _, indices, num_src = edges
    _, degrees, positions, streams = group
    for c in range(count):
        streams[listed[c]] = mix(streams[listed[c]])
    # For u below `surely` the edge is taken, from `never` on it is rejected, whether it leads to a
    # neighbour or not. Only in between must a row be searched.
    surely = min(chances[1], chances[2])
    never = max(chances[1], chances[2])
    tries = 0
    while count > 0:
        _draw(edges, rows, weights, 2 * tries, group, listed, count)
        left = np.int64(0)
        to_search = np.int64(0)
        for c in range(count):
            i = listed[c]
            x = np.int64(indices[positions[i]])
            if x < 0 or x >= num_src:
                return positions[i]
            u = draw_unit(streams[i], 2 * tries + 1)
            back = x == part[i, t - 1]
            if not back and surely <= u < never:
                prefetch(edges[0], x)
                searched[to_search] = i
                to_search += 1
            elif u >= (chances[0] if back else surely):
                listed[left] = i
                left += 1
        _find_rows(edges, positions, searched, to_search)
        for c in range(to_search):
            i = searched[c]
            near = has_edge(edges, np.int64(indices[positions[i]]), part[i, t - 1])
            if near != (chances[1] > chances[2]):
                listed[left] = i
                left += 1
        # Rejected walks try again, or weigh all edges after their last try.
        tries += 1
        count = np.int64(0)
        for c in range(left):
            i = listed[c]
            if tries < max(_LEAST_TRIES, degrees[i]):
                listed[count] = i
                count += 1
            else:
                positions[i] = _weigh_all(
                    edges, rows, weights, chances, part[i, t - 1], group, i, 2 * tries
                )
                if positions[i] < 0:
                    return -1 - positions[i]
    return np.int64(-1)


@kernel
def _find_rows(edges, positions, searched, count):
    """Prefetch the middles of the rows that will be searched."""
    indptr, indices, _ = edges
    for c in range(count):
        x = np.int64(indices[positions[searched[c]]])
        check_id(x, len(indptr) - 1)
        prefetch(indices, (np.int64(indptr[x]) + np.int64(indptr[x + 1])) >> 1)


@kernel
def has_edge(edges, v, w):
    """Whether ``v`` has an edge to ``w``; rows ascend."""
    indptr, indices, _ = edges
    check_id(v, len(indptr) - 1)
    low = max(np.int64(indptr[v]), 0)
    high = min(np.int64(indptr[v + 1]), len(indices))
    return is_among(indices, w, low, high)


@kernel
def _weigh_all(edges, rows, weights, chances, before, group, i, j):
    """Draw an edge in proportion to weight times chance, in one pass (Chao, Biometrika 1982).

    Draws count from ``j`` on.

    Returns:
        The position of the edge, or ``-1 - p`` if the edge at ``p`` points outside the graph.
    """
    _, indices, num_src = edges
    kept = rows[2]
    values = weights[0]
    starts, degrees, _, streams = group
    total = 0.0
    pick = np.int64(0)
    for r in range(starts[i], starts[i] + degrees[i]):
        e = np.int64(kept[r]) if len(kept) > 0 else r
        x = np.int64(indices[e])
        if x < 0 or x >= num_src:
            return -1 - e
        share = np.float64(values[r]) if len(values) > 0 else 1.0
        if x == before:
            share *= chances[0]
        elif has_edge(edges, x, before):
            share *= chances[1]
        else:
            share *= chances[2]
        total += share
        # Each edge replaces the pick with probability share / total so far. So in the end each is
        # picked with probability share / total of the row.
        if draw_unit(streams[i], j + r - starts[i]) * total < share:
            pick = e
    return pick


@allocating_kernel
def most_visited(traces, per_start, every, most, sources, starts, counts):
    """Write the vertices that the walks of each start visit most often; of equally frequent ones,
    larger ids come first.

    Args:
        traces: Shape ``(n * per_start, num_steps + 1)``: walks, start by start.
        per_start: Number of walks per start.
        every: Steps between visits that count.
        most: Maximum number of vertices per start.
        sources: Gets the vertices.
        starts: Gets the start of each.
        counts: Gets the number of visits of each.

    Returns:
        The number of vertices written.
    """
    most_distinct = per_start * ((traces.shape[1] - 1) // every)
    if most_distinct <= FEW:
        return _most_of_few(traces, per_start, every, most, sources, starts, counts)
    bits = 4
    while (1 << bits) < 2 * most_distinct:
        bits += 1
    mask = (1 << bits) - 1
    shift = np.uint64(64 - bits)
    table = np.full(1 << bits, -1, np.int64)  # index of the distinct vertex, or -1
    seen = np.empty(most_distinct, np.int64)
    visits = np.empty(most_distinct, np.int64)
    slots = np.empty(most_distinct, np.int64)
    begin = np.int64(0)
    for low in range(0, len(traces), per_start):
        distinct = 0
        for i in range(low, low + per_start):
            for t in range(every, traces.shape[1], every):
                v = traces[i, t]
                if v < 0:
                    break
                slot = np.int64((np.uint64(v) * _A) >> shift)
                while table[slot] >= 0 and seen[table[slot]] != v:
                    slot = (slot + 1) & mask
                if table[slot] < 0:
                    table[slot] = distinct
                    seen[distinct] = v
                    visits[distinct] = 0
                    slots[distinct] = slot
                    distinct += 1
                visits[table[slot]] += 1
        end = begin
        # Clear only the slots in use; the table is sized for the most possible visits.
        for d in range(distinct):
            table[slots[d]] = -1
            end = _enter(sources, counts, begin, end, most, seen[d], visits[d])
        starts[begin:end] = traces[low, 0]
        begin = end
    return begin


@allocating_kernel
def _most_of_few(traces, per_start, every, most, sources, starts, counts):
    """:func:`most_visited` for up to ``FEW`` visits per start: compares each with all others,
    without branches.

    1000 starts of up to 20 visits took 0.24 ms; a hash table took 0.55.
    """
    # A rank has the count in its high bits, and the vertex below.
    visited = np.empty(FEW, np.int64)
    ranks = np.empty(FEW, np.int64)
    begin = np.int64(0)
    for low in range(0, len(traces), per_start):
        n = 0
        for i in range(low, low + per_start):
            for t in range(every, traces.shape[1], every):
                visited[n] = traces[i, t]
                n += traces[i, t] >= 0  # -1 after a walk's end
        padded = (n + _LANES - 1) & ~(_LANES - 1)
        visited[n:padded] = -1
        for lane in range(padded):
            ranks[lane] = visited[lane]
        for j in range(n):
            for k in range(0, padded, _LANES):
                for lane in range(k, k + _LANES):
                    ranks[lane] += np.int64(visited[lane] == visited[j]) << _COUNT
        end = begin
        last = np.int64(2**63 - 1)
        while end < begin + most:
            best = np.int64(-1)
            for lane in range(padded):
                rank = ranks[lane] if ranks[lane] < last else np.int64(-1)
                best = max(best, rank)
            if best < 0:
                break
            sources[end] = best & _VERTEX
            counts[end] = best >> _COUNT
            end += 1
            last = best
        starts[begin:end] = traces[low, 0]
        begin = end
    return begin


@kernel
def _enter(sources, counts, begin, end, most, v, count):
    """Insert a vertex into a list of at most ``most``, ordered by count and id; returns the list's
    end."""
    at = end
    while at > begin and (
        counts[at - 1] < count or (counts[at - 1] == count and sources[at - 1] < v)
    ):
        at -= 1
    if at == begin + most:  # the list is full of vertices that come first
        return end
    end = min(end + 1, begin + most)
    for i in range(end - 1, at, -1):
        sources[i] = sources[i - 1]
        counts[i] = counts[i - 1]
    sources[at] = v
    counts[at] = count
    return end
