"""Weighted draws: running sums, exponential keys, ends of negative pairs.

A row is cut at positions that are multiples of ``CHUNK`` (a cache line of float32). Each full chunk
is a group; the edges before and after the full chunks belong to the first and the last group.
``sums`` holds a row's running sums by group. ``guide`` divides the total into as many equal parts,
and has the group at which to begin the search for each (indexed search: Chen and Asau, AIIE
Transactions 1974). Both are indexed by chunk, so rows do not overlap. A row without a full chunk
has no groups.

Without replacement, picks are those of successive sampling: each in proportion to the weights that
are left. Two methods have that distribution. *Keys*: take the edges with the smallest
``-log(u) / weight`` (Efraimidis and Spirakis, IPL 2006), in one pass over the row. *Draws*: draw in
proportion to all weights, and ignore edges that were drawn before. The next pick depends on the set
of picks so far alone, so draws may stop at any time, and keys choose the rest among the other
edges. This bounds the work if a few heavy edges take nearly all draws.

A draw looks up its group in the tables (see ``EdgeWeights``), advances by one step on average, and
scans the group. The first draws of all vertices take these steps together, so that cache misses
overlap.

All weights are positive. Random numbers are those of ``hop.py``; keys count from ``KEYS`` on, which
draws never reach. A draw is exact to 2**-52 of the row's total, the resolution of its random
number.
"""

import math

import numpy as np

from ..._jit import kernel, prefetch
from ...graph._csc import check_row
from .hop import _A, _B, AHEAD, first_above, mix

SHIFT = 4
CHUNK = 1 << SHIFT


@kernel
def keep_positive(indptr, weights, out_indptr, positions):
    """Move the positive weights to the front, row by row; ``positions`` gets their old indices."""
    kept = np.int64(0)
    for v in range(len(indptr) - 1):
        begin = np.int64(indptr[v])
        end = np.int64(indptr[v + 1])
        check_row(begin, end, len(weights))
        for e in range(begin, end):
            if weights[e] > 0:
                check_row(kept, kept + 1, len(positions))  # a file may change after the count
                weights[kept] = weights[e]
                positions[kept] = e
                kept += 1
        out_indptr[v + 1] = kept


@kernel
def groups(start, end):
    """The full chunks of a row: the first, and one past the last."""
    return (start + CHUNK - 1) >> SHIFT, end >> SHIFT


@kernel
def group_ends(start, end, g):
    """The edges of group ``g`` of a row."""
    first, last = groups(start, end)
    begin = start if g == first else g << SHIFT
    stop = end if g == last - 1 else (g + 1) << SHIFT
    return begin, stop


@kernel
def fill_tables(indptr, weights, sums, guide):
    """Write the running sums and the guide of every row with groups."""
    for v in range(len(indptr) - 1):
        start = np.int64(indptr[v])
        end = np.int64(indptr[v + 1])
        check_row(start, end, len(weights))
        first, last = groups(start, end)
        total = 0.0
        for g in range(first, last):
            lo, hi = group_ends(start, end, g)
            for e in range(lo, hi):
                total += np.float64(weights[e])
            sums[g] = total
        # Bounds and sums both ascend, so one pass over the sums makes the guide.
        g = first
        for i in range(last - first):
            bound = total * (np.float64(i) / np.float64(last - first))
            while g < last - 1 and sums[g] <= bound:
                g += 1
            guide[first + i] = g - first


_S12 = np.uint64(12)
_UNIT = 2.0**-52
KEYS = np.int64(1) << 40
# A draw costs as much as the keys of 5 to 20 edges. Draws stop once keys would have cost less.
EDGES_PER_DRAW = 16
_MOST_DRAWN = 64  # picks of a row without replacement that are drawn, else they have keys


@kernel
def draw_unit(base, j):
    """Draw ``j`` of the stream ``base``, uniform in (0, 1): the middle of one of 2**52
    intervals."""
    return (np.float64(np.int64(mix(base + np.uint64(j) * _B) >> _S12)) + 0.5) * _UNIT


@kernel
def _draws(start, degree, k, replace):
    """Whether a row's ``k`` picks are drawn: it has groups and, without replacement, at least two
    edges per pick, so that repeats are few."""
    first, last = groups(start, start + degree)
    return first < last and k > 0 and (replace or (2 * k <= degree and k <= _MOST_DRAWN))


@kernel
def plan_draws(frontier, rows, key, replace, sums, scratch):
    """List the rows to draw from, and their first draws as slot of the guide and point in the
    total; returns both counts."""
    starts, degrees, out_indptr = rows
    numbers, slots, points, _ = scratch
    n = len(frontier)
    listed = 0
    drawn = 0
    for i in range(n):
        if i + AHEAD < n:
            prefetch(sums, ((starts[i + AHEAD] + degrees[i + AHEAD]) >> SHIFT) - 1)
        k = np.int64(out_indptr[i + 1]) - np.int64(out_indptr[i])
        if not _draws(starts[i], degrees[i], k, replace):
            continue
        first, last = groups(starts[i], starts[i] + degrees[i])
        base = key + np.uint64(frontier[i]) * _A
        for j in range(k):
            u = draw_unit(base, j)
            slots[drawn] = first + np.int64(u * np.float64(last - first))
            points[drawn] = u * sums[last - 1]
            drawn += 1
        numbers[listed] = i
        listed += 1
    return listed, drawn


@kernel
def find_groups(rows, draws, sums, guide):
    """Replace each draw's slot by its group, and its point by the distance from the group's
    beginning."""
    starts, degrees, out_indptr = rows
    numbers, slots, points = draws
    # Two passes, since the second reads where the first one's guide points: in a single pass each
    # draw would wait for two cache misses in turn.
    at = 0
    drawn = len(slots)
    for i in numbers:
        first, _ = groups(starts[i], starts[i] + degrees[i])
        for _ in range(out_indptr[i + 1] - out_indptr[i]):
            if at + AHEAD < drawn:
                prefetch(guide, slots[at + AHEAD])
            slots[at] = first + guide[slots[at]]
            at += 1
    at = 0
    for i in numbers:
        first, last = groups(starts[i], starts[i] + degrees[i])
        for _ in range(out_indptr[i + 1] - out_indptr[i]):
            if at + AHEAD < drawn:
                prefetch(sums, slots[at + AHEAD])
            slots[at], points[at] = _group_at(sums, first, last, slots[at], points[at])
            at += 1


@kernel
def _group_at(sums, first, last, g, x):
    """The group at point ``x`` of the total, searched from ``g`` on, and the distance of ``x`` from
    its beginning."""
    g = min(g, last - 1)  # beyond only if the row has changed since the guide was made
    while g < last - 1 and sums[g] <= x:
        g += 1
    if g > first:
        x -= sums[g - 1]
    return g, x


@kernel
def _scan(weights, lo, hi, x):
    """The edge of ``lo:hi`` at which the running sum of the weights exceeds ``x``."""
    for e in range(lo, hi - 1):
        x -= np.float64(weights[e])
        if x < 0.0:
            return e
    # Not beyond the last edge: rounding may leave x above 0 after all weights.
    return hi - 1


@kernel
def pick_weighted(frontier, rows, key, replace, tables, scratch, positions):
    """Pick edges of all rows in proportion to their weights.

    Args:
        frontier, key: See ``hop.pick_distinct``.
        rows: Its ``starts``, ``degrees`` and ``out_indptr``.
        replace: With replacement.
        tables: Weights, sums and guide.
        scratch: An int64 per row; an int64 and a float64 per pick; a float64 per pick of the row
            with most picks.
        positions: Gets the positions of the picks.
    """
    weights, sums, guide = tables
    listed, drawn = plan_draws(frontier, rows, key, replace, sums, scratch)
    # The rows that are drawn from, and the group and point of each draw.
    draws = scratch[0][:listed], scratch[1][:drawn], scratch[2][:drawn]
    find_groups(rows, draws, sums, guide)
    if replace:
        pick_short_repeated(frontier, rows, key, weights, positions)
        take_repeated(rows, draws, weights, positions)
        return
    keys = scratch[3]
    pick_short(frontier, rows, key, weights, keys, positions)
    take_distinct(frontier, rows, draws, key, tables, keys, positions)


@kernel
def take_repeated(rows, draws, weights, positions):
    """Write the edges of the draws, for picks with replacement."""
    starts, degrees, out_indptr = rows
    numbers, slots, points = draws
    at = 0
    drawn = len(slots)
    for i in numbers:
        for p in range(np.int64(out_indptr[i]), np.int64(out_indptr[i + 1])):
            if at + AHEAD < drawn:
                prefetch(weights, slots[at + AHEAD] << SHIFT)
            lo, hi = group_ends(starts[i], starts[i] + degrees[i], slots[at])
            positions[p] = _scan(weights, lo, hi, points[at])
            at += 1


@kernel
def take_distinct(frontier, rows, draws, key, tables, keys, positions):
    """Write the distinct edges of the draws, and pick as many more as are missing; ``keys`` is
    scratch."""
    starts, degrees, out_indptr = rows
    numbers, slots, points = draws
    weights, sums, guide = tables
    at = 0
    drawn = len(slots)
    for i in numbers:
        start = starts[i]
        end = starts[i] + degrees[i]
        begin = np.int64(out_indptr[i])
        stop = np.int64(out_indptr[i + 1])
        free = begin
        for _ in range(stop - begin):
            if at + AHEAD < drawn:
                prefetch(weights, slots[at + AHEAD] << SHIFT)
            lo, hi = group_ends(start, end, slots[at])
            free = _add(positions, begin, free, _scan(weights, lo, hi, points[at]))
            at += 1
        if free < stop:
            base = key + np.uint64(frontier[i]) * _A
            free = _draw_more(base, start, end, weights, sums, guide, begin, free, stop, positions)
            if free < stop:
                # _pick_by_keys skips the picked edges as it walks the row, so they must ascend.
                _sort(positions, begin, free)
                _pick_by_keys(base, start, end, weights, begin, free, stop, keys, positions)


@kernel
def _add(positions, begin, free, e):
    """Write ``e`` to ``positions[free]`` unless it was picked before; returns the next free
    index."""
    for t in range(begin, free):
        if positions[t] == e:
            return free
    positions[free] = e
    return free + 1


@kernel
def _draw_more(base, start, end, weights, sums, guide, begin, free, stop, positions):
    """Draw until ``positions`` is full up to ``stop``, or more draws would cost more than keys.

    Returns the next free index.
    """
    # The bound depends on the row and the fan-out alone. If it depended on the draws, it would
    # change the distribution of the picks.
    for j in range(stop - begin, 2 * (stop - begin) + (end - start) // EDGES_PER_DRAW):
        free = _add(positions, begin, free, draw_edge(base, j, start, end, weights, sums, guide))
        if free == stop:
            break
    return free


@kernel
def draw_edge(base, j, start, end, weights, sums, guide):
    """Draw ``j`` of the stream ``base``: an edge of a row in proportion to its weight."""
    first, last = groups(start, end)
    u = draw_unit(base, j)
    if first >= last:  # no full chunk, so there are no tables: at most 2 * (CHUNK - 1) edges
        return _scan(weights, start, end, u * _total(weights, start, end))
    slot = first + np.int64(u * np.float64(last - first))
    g, x = _group_at(sums, first, last, first + np.int64(guide[slot]), u * sums[last - 1])
    lo, hi = group_ends(start, end, g)
    return _scan(weights, lo, hi, x)


@kernel
def _total(weights, start, end):
    """The sum of the weights of a row."""
    total = 0.0
    for e in range(start, end):
        total += np.float64(weights[e])
    return total


@kernel
def _sort(values, begin, end):
    """Sort a few values by insertion."""
    for i in range(begin + 1, end):
        value = values[i]
        at = i
        while at > begin and values[at - 1] > value:
            values[at] = values[at - 1]
            at -= 1
        values[at] = value


@kernel
def pick_short(frontier, rows, key, weights, keys, positions):
    """Pick from the rows that ``plan_draws`` leaves out, without replacement: all edges if there
    are as many as picks, else by keys."""
    starts, degrees, out_indptr = rows
    n = len(frontier)
    for i in range(n):
        if i + AHEAD < n:
            prefetch(weights, starts[i + AHEAD])
        start = starts[i]
        degree = degrees[i]
        begin = np.int64(out_indptr[i])
        stop = np.int64(out_indptr[i + 1])
        if stop - begin == degree:
            for j in range(degree):
                positions[begin + j] = start + j
        elif not _draws(start, degree, stop - begin, False):
            base = key + np.uint64(frontier[i]) * _A
            _pick_by_keys(base, start, start + degree, weights, begin, begin, stop, keys, positions)


@kernel
def pick_short_repeated(frontier, rows, key, weights, positions):
    """Pick from the rows that ``plan_draws`` leaves out, with replacement: one scan of the row per
    draw."""
    starts, degrees, out_indptr = rows
    for i in range(len(frontier)):
        start = starts[i]
        end = starts[i] + degrees[i]
        begin = np.int64(out_indptr[i])
        stop = np.int64(out_indptr[i + 1])
        if begin == stop or _draws(start, degrees[i], stop - begin, True):
            continue
        total = _total(weights, start, end)
        base = key + np.uint64(frontier[i]) * _A
        for j in range(stop - begin):
            positions[begin + j] = _scan(weights, start, end, draw_unit(base, j) * total)


@kernel
def _pick_by_keys(base, start, end, weights, begin, free, stop, keys, positions):
    """Fill ``positions[free:stop]`` with the edges of the smallest keys that are not in
    ``positions[begin:free]`` (ascending).

    ``keys`` and these positions form a heap. Once it is full, most edges are rejected without a
    logarithm, since ``-log(1 - u) >= u``.
    """
    want = stop - free
    count = np.int64(0)
    lo = start
    for t in range(begin, free + 1):
        hi = np.int64(positions[t]) if t < free else end
        for e in range(lo, hi):
            u = draw_unit(base, KEYS + e - start)
            weight = np.float64(weights[e])
            if count < want:
                # 1 - u is uniform like u and never 0, and the bound above holds for it.
                _push(keys, positions, free, count, -math.log(1.0 - u) / weight, e)
                count += 1
            elif u < keys[0] * weight:
                key = -math.log(1.0 - u) / weight
                if key < keys[0]:
                    _replace_largest(keys, positions, free, want, key, e)
        lo = hi + 1


@kernel
def _push(keys, positions, free, i, key, e):
    """Add a key to a heap of ``i`` keys with the largest at its top, and its edge at the same place
    after ``free``."""
    while i > 0 and keys[(i - 1) >> 1] < key:
        up = (i - 1) >> 1
        keys[i] = keys[up]
        positions[free + i] = positions[free + up]
        i = up
    keys[i] = key
    positions[free + i] = e


@kernel
def _replace_largest(keys, positions, free, count, key, e):
    """Replace the largest key of a heap, and its edge."""
    i = 0
    while 2 * i + 1 < count:
        down = 2 * i + 1
        # The larger child moves up, so that the top stays the largest key.
        if down + 1 < count and keys[down + 1] > keys[down]:
            down += 1
        if keys[down] <= key:
            break
        keys[i] = keys[down]
        positions[free + i] = positions[free + down]
        i = down
    keys[i] = key
    positions[free + i] = e


@kernel
def draw_places(count, key, out):
    """Write independent draws, uniform in ``[0, count)`` with a bias up to ``count / 2**52``."""
    for j in range(len(out)):
        out[j] = min(np.int64(draw_unit(key, j) * np.float64(count)), count - 1)


@kernel
def uniform_places(key, begins, ends, out):
    """Write a uniform draw from ``[begins[i], ends[i])`` to ``out[i]``; if that is empty, the place
    before ``ends[i]``, or 0."""
    for i in range(len(out)):
        if begins[i] < ends[i]:
            out[i] = begins[i] + np.int64(draw_unit(key, i) * np.float64(ends[i] - begins[i]))
        else:
            out[i] = max(ends[i] - 1, 0)


@kernel
def weighted_places(key, begins, ends, sums, out):
    """Write a draw from ``[begins[i], ends[i])`` to ``out[i]``, in proportion to the increments of
    ``sums``.

    If these have no weight, the last place before ``ends[i]`` with some, or 0.
    """
    for i in range(len(out)):
        begin = begins[i]
        end = ends[i]
        out[i] = 0
        if end == 0 or sums[end - 1] <= 0.0:
            continue
        base = sums[begin - 1] if begin > 0 else 0.0
        top = sums[end - 1]
        if begin >= end or top <= base:
            out[i] = first_above(sums, np.nextafter(top, 0.0), np.int64(0), np.int64(end - 1))
            continue
        point = base + draw_unit(key, i) * (top - base)
        if point >= top:  # by rounding
            point = base
        # The first sum above the point: never a place without weight.
        out[i] = first_above(sums, point, np.int64(begin), np.int64(end - 1))
