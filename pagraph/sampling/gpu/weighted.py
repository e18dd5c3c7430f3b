"""GPU kernel of weighted picks: the draws and keys of the CPU's ``sampling/kernels/weighted.py``.

A program is one warp and picks for one vertex; the picks are a row of registers. Draws are made in
parallel and accepted in order. Keys are computed for a block of edges at once; edges that may enter
the heap do so one by one, in order. So the heap, and the order of picks, are the CPU's.

Random numbers are bit-identical to the CPU's. Logarithms, and sums that a compiler contracts, may
differ in the last bit. Then a pick differs only if its random number of 52 bits falls between the
two results: about once in 10**14 picks.
"""

import triton
import triton.language as tl

from .kernels import _A, _B, _frontier, _mix, _offer, _read

# As in ``kernels/weighted.py``.
_SHIFT = tl.constexpr(4)
_CHUNK = tl.constexpr(16)
_KEYS = tl.constexpr(1 << 40)
_UNIT = tl.constexpr(2.0**-52)
_MOST_DRAWN = tl.constexpr(64)
_EDGES_PER_DRAW = tl.constexpr(16)


@triton.jit
def _unit(base, j):
    """``draw_unit`` of the CPU."""
    counter = base + j.to(tl.uint64) * _B
    random = (_mix(counter) >> 12).to(tl.int64)
    return (random.to(tl.float64) + 0.5) * _UNIT


@triton.jit
def _at(values, column, i):
    """Element ``i`` of a row of registers."""
    only = tl.where(column == i, values, tl.zeros_like(values))
    return tl.sum(only, axis=0)


@triton.jit
def _total(weights, start, end):
    """``_total`` of the CPU; added in the same order, for the same rounding."""
    total = start.to(tl.float64) * 0.0
    for e in range(start, end):
        total += tl.load(weights + e).to(tl.float64)
    return total


@triton.jit
def _edge_of(u, wanted, weights, sums, guide, start, end, first, last):
    """The edges at the shares ``u`` of a row's total weight; ``draw_edge`` of the CPU."""
    low = start + tl.zeros_like(u).to(tl.int64)
    high = end + tl.zeros_like(low)
    if first < last:
        x = u * tl.load(sums + last - 1)
        num_groups = (last - first).to(tl.float64)
        slot = first + (u * num_groups).to(tl.int64)
        group = first + _read(guide + slot, wanted)
        # Beyond only if the row has changed since the guide was made.
        group = tl.minimum(group, last - 1)
        goes_on = wanted.to(tl.int32)
        while tl.max(goes_on, axis=0) > 0:
            is_searched = goes_on > 0
            is_below = tl.load(sums + group, mask=is_searched, other=0.0) <= x
            goes_on = (is_searched & (group < last - 1) & is_below).to(tl.int32)
            group += goes_on
        is_later = wanted & (group > first)
        x -= tl.load(sums + group - 1, mask=is_later, other=0.0)
        low = tl.where(group == first, low, group << _SHIFT)
        high = tl.where(group == last - 1, high, (group + 1) << _SHIFT)
    else:
        x = u * _total(weights, start, end)
    # Not beyond the last edge: rounding may leave x above 0 after all weights.
    goes_on = (wanted & (low < high - 1)).to(tl.int32)
    while tl.max(goes_on, axis=0) > 0:
        is_searched = goes_on > 0
        weight = tl.load(weights + low, mask=is_searched, other=0).to(tl.float64)
        x = tl.where(is_searched, x - weight, x)
        goes_on = tl.where(x < 0.0, 0, goes_on)
        low += goes_on
        goes_on = tl.where(low < high - 1, goes_on, 0)
    return low


@triton.jit
def _take(drawn, count, chosen, free, wanted, column):
    """Add the first ``count`` draws to the picks, in order and without repeats, up to ``wanted``
    picks."""
    j = count * 0
    while (j < count) & (free < wanted):
        e = _at(drawn, column, j)
        same = (chosen == e) & (column < free)
        is_known = tl.max(same.to(tl.int32), axis=0)
        if is_known == 0:
            chosen = tl.where(column == free, e, chosen)
            free += 1
        j += 1
    return chosen, free


@triton.jit
def _ascending(chosen, count, column):
    """The first ``count`` picks in ascending order."""
    largest = tl.zeros_like(chosen) + (2**62)
    left = tl.where(column < count, chosen, largest)
    ordered = chosen
    for i in range(count):
        least = tl.min(left, axis=0)
        ordered = tl.where(column == i, least, ordered)
        left = tl.where(left == least, largest, left)
    return ordered


@triton.jit
def _put(keys, chosen, free, i, key, e, column):
    """Write place ``i`` of the heap; the heap's edges are the picks from ``free`` on."""
    keys = tl.where(column == i, key, keys)
    chosen = tl.where(column == free + i, e, chosen)
    return keys, chosen


@triton.jit
def _move(keys, chosen, free, i, source, column):
    """Copy place ``source`` of the heap to place ``i``."""
    key = _at(keys, column, source)
    e = _at(chosen, column, free + source)
    return _put(keys, chosen, free, i, key, e, column)


@triton.jit
def _push(keys, chosen, free, i, key, e, column):
    """``_push`` of the CPU: add a key to a heap of ``i`` keys with the largest at its top."""
    up = (i - 1) >> 1
    while (i > 0) & (_at(keys, column, up) < key):
        keys, chosen = _move(keys, chosen, free, i, up, column)
        i = up
        up = (i - 1) >> 1
    return _put(keys, chosen, free, i, key, e, column)


@triton.jit
def _larger_child(keys, column, i, count):
    """The place of the larger child of place ``i`` in a heap; ``count`` or more if it has none."""
    left = 2 * i + 1
    right = left + 1
    is_right = (right < count) & (_at(keys, column, right) > _at(keys, column, left))
    return left + is_right.to(tl.int64)


@triton.jit
def _replace_largest(keys, chosen, free, count, key, e, column):
    """``_replace_largest`` of the CPU."""
    i = count * 0
    down = _larger_child(keys, column, i, count)
    while (down < count) & (_at(keys, column, down) > key):
        keys, chosen = _move(keys, chosen, free, i, down, column)
        i = down
        # The larger child moves up, so that the top stays the largest key.
        down = _larger_child(keys, column, i, count)
    return _put(keys, chosen, free, i, key, e, column)


@triton.jit
def _by_keys(base, weights, start, end, chosen, free, wanted, column, BLOCK: tl.constexpr):
    """Fill the picks up to ``wanted`` with the unpicked edges that have the smallest keys;
    ``_pick_by_keys`` of the CPU."""
    lane = tl.arange(0, BLOCK).to(tl.int64)
    keys = tl.zeros_like(column).to(tl.float64)
    room = wanted - free
    count = free * 0
    begin = start
    while begin < end:
        e = begin + lane
        waits = e < end
        for i in range(free):
            waits = waits & (e != _at(chosen, column, i))
        u = _unit(base, e - start + _KEYS)
        weight = tl.load(weights + e, mask=waits, other=1).to(tl.float64)
        top = _at(keys, column, 0)
        # Since -log(1 - u) >= u, this rejects most edges without a logarithm.
        may = (waits & ((count < room) | (u < top * weight))).to(tl.int64)
        while tl.max(may, axis=0) > 0:
            place = tl.min(tl.where(may > 0, lane, BLOCK), axis=0)
            # 1 - u is uniform like u and never 0, and the bound above holds for it.
            key = -tl.log(1.0 - _at(u, lane, place)) / _at(weight, lane, place)
            picked = begin + place
            if count < room:
                keys, chosen = _push(keys, chosen, free, count, key, picked, column)
                count += 1
            elif key < top:
                keys, chosen = _replace_largest(keys, chosen, free, count, key, picked, column)
            top = _at(keys, column, 0)
            waits = waits & (lane > place)
            may = (waits & ((count < room) | (u < top * weight))).to(tl.int64)
        begin += BLOCK
    return chosen


@triton.jit
def _picks_of_row(
    base, weights, sums, guide, start, degree, k, column,
    REPLACE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The positions of ``k`` picks from a row, in the CPU's order."""
    end = start + degree
    first_group = (start + _CHUNK - 1) >> _SHIFT
    last_group = end >> _SHIFT
    chosen = start + column
    if REPLACE:
        if k > 0:
            chosen = _edge_of(
                _unit(base, column), column < k,
                weights, sums, guide,
                start, end, first_group, last_group,
            )  # fmt: skip
    elif k < degree:
        free = k * 0
        # In rows with few edges per pick, most draws would be repeats.
        has_groups = first_group < last_group
        if has_groups & (2 * k <= degree) & (k <= _MOST_DRAWN):
            j = k * 0
            # Beyond this many draws, keys of all edges cost less.
            most = 2 * k + degree // _EDGES_PER_DRAW
            while (j < most) & (free < k):
                number = j + column
                wanted = (column < k) & (number < most)
                drawn = _edge_of(
                    _unit(base, number), wanted,
                    weights, sums, guide,
                    start, end, first_group, last_group,
                )  # fmt: skip
                count = tl.minimum(k, most - j)
                chosen, free = _take(drawn, count, chosen, free, k, column)
                j += k
            if free < k:
                chosen = _ascending(chosen, free, column)
        if free < k:
            chosen = _by_keys(base, weights, start, end, chosen, free, k, column, BLOCK)
    return chosen


@triton.jit(
    do_not_specialize=[
        "num_nodes", "num_dst", "begin_at", "end_at", "known_at", "slots", "key_at",
    ]
)  # fmt: skip
def pick_weighted(
    indices, origin, num_nodes,
    nodes, num_dst, starts, degrees, out_indptr,
    state, begin_at, end_at, known_at,
    positions, neighbors,
    first, keys, slots,
    key_at,
    weights, sums, guide,
    FANOUT: tl.constexpr, K: tl.constexpr, REPLACE: tl.constexpr,
    BLOCK: tl.constexpr,
    ONCE: tl.constexpr = False, TREES: tl.constexpr = False, HAS_ORIGIN: tl.constexpr = False,
):  # fmt: skip
    """Pick edges of one vertex in proportion to their weights, which are above 0.

    Args:
        weights, sums, guide: See ``EdgeWeights``.
        K: A power of two >= ``FANOUT``.
        BLOCK: Number of edges whose keys are computed at once.
    """
    i = tl.program_id(0).to(tl.int64)
    frontier, drawing = _frontier(state, begin_at, end_at, ONCE)
    # Launched for the largest possible number of vertices; programs without one end here.
    if i < drawing:
        v = tl.load(nodes + frontier + i).to(tl.int64)
        start = tl.load(starts + i).to(tl.int64)
        degree = tl.load(degrees + i).to(tl.int64)
        offset = tl.load(out_indptr + i).to(tl.int64)
        key = tl.load(state + key_at).to(tl.uint64, bitcast=True)
        base = key + v.to(tl.uint64) * _A
        column = tl.arange(0, K).to(tl.int64)
        k = tl.minimum(degree, FANOUT)
        if REPLACE:
            k = tl.where(degree > 0, degree * 0 + FANOUT, 0)
        chosen = _picks_of_row(base, weights, sums, guide, start, degree, k, column, REPLACE, BLOCK)
        tree = column * 0
        if TREES:
            tree += v // num_dst
        known = tl.load(state + known_at)
        e = offset + column
        picked = column < k
        _offer(
            indices, origin, num_nodes, tree, chosen, e, known, picked,
            state, positions, neighbors, first, keys, slots,
            TREES, HAS_ORIGIN,
        )  # fmt: skip
