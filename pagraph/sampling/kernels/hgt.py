"""Kernels of HGSampling: budgets of shares, draws in proportion to squared shares, and a whole
mini-batch in one call.

:func:`draw` calls the kernels of single hops in scratch memory. Then the size of the result is
known, and :func:`put` writes it. Common arguments:

- ``csc``, ``like``, ``like_ids``, ``narrow``, ``ends``: see ``kernels/batch.py``.
- ``spans``, shape ``(num_node_types + 1, 2)``: where the vertices of each type begin in ``nodes``,
  and where its *seen* vertices (those with a share or in the batch) begin in ``seen`` and
  ``shares``.
- ``nodes``: the batch's vertices of each type, in the order of local ids; the seeds come first.
- ``report``, int64, which Python reads. It begins as that of ``kernels/batch.py``, whose stops
  these are, too; the hop after the last one draws the edges among the batch's vertices. ``row`` and
  ``edge`` are where the frontier begins in ``nodes``, and its length. Then it has::

      number of vertices by type, before the first hop and after each
      number of edges by edge type
      first elements of the result's parts: the vertices of each type, then both ends and the ids of
      each edge type's edges
"""

import math

import numpy as np

from ..._jit import as_rows, inlined, kernel, prefetch
from ..hop import (
    BAD_SOURCE,
    BEGIN,
    BYTES,
    DONE,
    EDGE,
    EDGE_TYPE,
    FRESH,
    HOP,
    PHASE,
    REPORT,
    ROW,
    STATUS,
    WHAT,
)
from .batch import (
    _SRC,
    aligned,
    draw_edges,
    fill_fresh_table,
    hop_key,
    put_ids,
    relabel_growing,
    table_bits_next,
)
from .hop import _A, AHEAD, place_of, slot_of
from .trees import put_edges
from .weighted import draw_unit

# Columns of ``spans``.
_NODES = 0
_SEEN = 1

# The rounding error of a key is below 1e-15. A wider margin costs only a few more logarithms.
_ROUNDED_DOWN = 1.0 - 1e-9

TAKEN = -1.0
"""The share of a vertex that is already in the batch; nothing is added to it."""


@kernel
def add_shares(indptr, places, shares):
    """Add 1 / (length of the row) to the share of each edge's source, unless that is ``TAKEN``."""
    for i in range(len(indptr) - 1):
        count = indptr[i + 1] - indptr[i]
        for e in range(indptr[i], indptr[i + 1]):
            if shares[places[e]] >= 0.0:
                shares[places[e]] += 1.0 / count


@kernel
def take_shares(seen, shares, size, key, keys, places, room, nodes, count):
    """Draw ``size`` vertices without replacement, in proportion to their squared shares.

    Takes the vertices with the smallest ``-log(u) / share**2``, u uniform in (0, 1) (Efraimidis and
    Spirakis, IPL 2006), in the order of ``seen``; all if there are not more. Their shares become
    ``TAKEN``.

    Args:
        seen, shares: The vertices and their shares; only shares above 0 are drawn.
        size: Number of vertices to draw.
        key: Random key.
        keys, places, room: Scratch with an element per seen vertex.
        nodes: The batch's vertices; drawn ones are appended.
        count: Number of vertices in the batch.

    Returns:
        The new number of vertices in the batch.
    """
    if size == 0:
        return count
    candidates = _smallest_keys(seen, shares, size, key, keys, places, room)
    limit = math.inf
    at_limit = 0  # vertices to take among those whose key equals the limit, as hashes may collide
    if candidates > size:
        limit = _in_order(keys, candidates, size - 1, room)
        at_limit = size
        for c in range(candidates):
            at_limit -= keys[c] < limit
    for c in range(candidates):
        if keys[c] > limit:
            continue
        if keys[c] == limit:
            if at_limit == 0:
                continue
            at_limit -= 1
        place = places[c]
        nodes[count] = seen[place]
        shares[place] = TAKEN
        count += 1
    return count


@kernel
def _smallest_keys(seen, shares, size, key, keys, places, room):
    """Collect candidates that include the ``size`` smallest keys, and all equal to the largest of
    these; returns their number.

    A budget has many times the vertices that a hop draws. Whenever ``2 * size`` keys were
    collected, those above the ``size``-th smallest are dropped, and it becomes an upper bound for
    further ones. So most vertices need no logarithm.
    """
    count = 0
    full = 2 * size
    bound = math.inf
    for i in range(len(seen)):
        if shares[i] <= 0.0:
            continue
        u = draw_unit(key + np.uint64(seen[i]) * _A, 0)
        square = shares[i] * shares[i]
        # Since -log(u) >= 1 - u, the key is above the bound: no logarithm needed.
        if (1.0 - u) * _ROUNDED_DOWN > bound * square:
            continue
        mine = -math.log(u) / square
        if mine > bound:
            continue
        keys[count] = mine
        places[count] = i
        count += 1
        if count == full:
            bound = _in_order(keys, count, size - 1, room)
            count = _drop_above(bound, count, keys, places)
            full = max(full, 2 * count)  # if many keys equal the bound, all of them stay
    return count


@kernel
def _in_order(values, count, place, room):
    """The value at index ``place`` of the first ``count`` values if they were sorted, by Hoare's
    FIND (CACM 1961) in ``room``.

    Not ``np.partition``, which takes 5 s to compile; all of HGSampling took 11 s with it.
    """
    for i in range(count):
        room[i] = values[i]
    low = 0
    high = count - 1
    while low < high:
        pivot = room[(low + high) >> 1]
        i = low
        j = high
        # In the end, values up to j are at most the pivot, those from i on at least.
        while i <= j:
            while room[i] < pivot:
                i += 1
            while room[j] > pivot:
                j -= 1
            if i <= j:
                swapped = room[i]
                room[i] = room[j]
                room[j] = swapped
                i += 1
                j -= 1
        if place <= j:
            high = j
        elif place >= i:
            low = i
        else:
            return pivot
    return room[place]


@kernel
def _drop_above(bound, count, keys, places):
    """Drop the keys above a bound, with their places, in place; returns how many are left."""
    left = 0
    for c in range(count):
        if keys[c] <= bound:
            keys[left] = keys[c]
            places[left] = places[c]
            left += 1
    return left


@kernel
def keep_known(offsets, sources, nodes, table, shift, positions, places, kept):
    """Keep, in place, the drawn edges whose sources are in the batch; returns their number.

    Args:
        offsets: The ``indptr`` of the drawn edges.
        sources: Their sources.
        nodes, table, shift: The batch's vertices, their hash table and its shift.
        positions: Positions of the edges in the graph; become those of kept ones.
        places: Gets the local ids of kept edges' sources; may be the memory of ``sources``.
        kept: Gets the ``indptr`` of kept edges.
    """
    mask = len(table) - 1
    total = np.int64(offsets[-1])
    at = np.int64(0)
    kept[0] = 0
    for i in range(len(offsets) - 1):
        for e in range(offsets[i], offsets[i + 1]):
            if e + AHEAD < total:
                prefetch(table, slot_of(sources[e + AHEAD], shift))
            place = place_of(np.int64(sources[e]), nodes, table, mask, shift)
            if place >= 0:
                positions[at] = positions[e]
                places[at] = place
                at += 1
        kept[i + 1] = at
    return at


@inlined
def _report(report, num_hops, num_node_types, num_edge_types):
    """Views of ``report``: vertices by hop and type, edges by type, and the parts."""
    edges_at = REPORT + (num_hops + 1) * num_node_types
    parts_at = edges_at + num_edge_types
    counts = as_rows(report[REPORT:edges_at], num_hops + 1, num_node_types)
    return counts, report[edges_at:parts_at], report[parts_at:]


@kernel
def _begin(spans, counts, bits, nodes, seen, shares, tables):
    """Enter the seeds as seen vertices that are in the batch."""
    for t in range(len(counts)):
        begin = spans[t, _SEEN]
        seeds = nodes[spans[t, _NODES] : spans[t, _NODES] + counts[t]]
        for i in range(len(seeds)):
            seen[begin + i] = seeds[i]
            shares[begin + i] = TAKEN
        bits[t] = fill_fresh_table(seeds, len(seeds), tables[t], bits[t])


@kernel
def _draw_along(edges, t, frontier, fanout, key, of_hop, at, report):
    """Draw edges of type ``t`` uniformly, without replacement; see ``draw_edges``.

    The ``indptr`` becomes the last of the rows of ``of_hop``. The positions are written from
    element ``at`` on. Returns the number of edges, negative after an error.
    """
    csc, like, narrow, page_bits = edges
    rows, picks, sources, positions, _ = of_hop
    offsets = rows[2][: len(frontier) + 1]
    report[EDGE_TYPE] = t
    # Without a renewal nobody writes counters, so they need no memory of their own.
    of_frontier = rows[0], rows[1], rows[1], rows[1]
    return draw_edges(
        csc,
        like,
        narrow,
        page_bits,
        None,
        None,
        None,
        None,
        t,
        frontier,
        frontier,
        frontier,
        fanout,
        False,
        key,
        key,
        None,
        of_frontier,
        offsets,
        picks,
        positions[at:],
        sources,
        report,
    )


@kernel
def _give_shares(edges, ends, spans, hop, fanout, key, counts, bits, nodes, budget, of_hop, report):
    """Let the vertices that the previous hop drew give shares, along all edge types; returns
    whether there was no error.

    ``counts`` has the numbers of the batch's vertices by hop, as in the report.
    """
    seen, shares, tables, num_seen = budget
    rows, _, sources, _, places = of_hop
    for t in range(report[EDGE_TYPE], len(ends)):
        src = ends[t, 0]
        dst = ends[t, 1]
        begin = spans[dst, _NODES]
        first = counts[hop - 1, dst] if hop > 0 else 0
        frontier = nodes[begin + first : begin + counts[hop, dst]]
        report[ROW] = begin + first
        report[EDGE] = len(frontier)
        total = _draw_along(edges, t, frontier, fanout, hop_key(key, hop, t), of_hop, 0, report)
        if total < 0:
            return False
        low = spans[src, _SEEN]
        high = spans[src + 1, _SEEN]
        before = num_seen[src]
        at, num_seen[src], bits[src] = relabel_growing(
            sources[:total],
            edges[0][t, _SRC],
            seen[low:high],
            before,
            tables[src],
            bits[src],
            places[:total],
        )
        if at < 0:
            report[STATUS] = BAD_SOURCE
            report[WHAT] = sources[-1 - at]
            return False
        of_type = shares[low:high]
        of_type[before : num_seen[src]] = 0.0
        add_shares(rows[2][: len(frontier) + 1], places[:total], of_type)
    report[EDGE_TYPE] = 0
    return True


@kernel
def _keep_edges(
    edges, ends, spans, hop, fanout, key, counts, nodes, tables, small, of_hop, kept, drawn, report
):
    """Draw edges of all vertices, and keep those from vertices of the batch; returns whether there
    was no error.

    Their random numbers are those of a hop after the last, ``hop``. ``small`` is scratch for the
    bits of the size of each type's hash table.
    """
    rows, _, sources, positions, places = of_hop
    # Tables of the batch's vertices alone stay in the inner caches: those of seen vertices have 20
    # times as many, and took 30 % of a batch's time.
    if report[EDGE_TYPE] == 0 and report[PHASE] == BEGIN:
        for t in range(len(counts)):
            small[t] = fill_fresh_table(nodes[spans[t, _NODES] :], counts[t], tables[t], 4)
    edge = 0
    row = 0
    for t in range(report[EDGE_TYPE]):
        edge += drawn[t]
        row += counts[ends[t, 1]] + 1
    for t in range(report[EDGE_TYPE], len(ends)):
        src = ends[t, 0]
        dst = ends[t, 1]
        frontier = nodes[spans[dst, _NODES] :][: counts[dst]]
        report[ROW] = spans[dst, _NODES]
        report[EDGE] = len(frontier)
        total = _draw_along(edges, t, frontier, fanout, hop_key(key, hop, t), of_hop, edge, report)
        if total < 0:
            return False
        # The next type's edges follow the kept ones.
        drawn[t] = keep_known(
            rows[2][: len(frontier) + 1],
            sources[:total],
            nodes[spans[src, _NODES] : spans[src + 1, _NODES]],
            tables[src][: 1 << small[src]],
            np.uint64(64 - small[src]),
            positions[edge : edge + total],
            places[edge:],
            kept[row:],
        )
        edge += drawn[t]
        row += len(frontier) + 1
    return True


@kernel
def draw(edges, shape, width, key, bits, nodes, budget, room, of_hop, kept, small, report):
    """Sample all hops, and the edges among the batch's vertices, until the caller must act or all
    is done.

    Args:
        edges: ``csc``, ``like``, ``narrow`` and ``page_bits``.
        shape: ``ends``, ``spans``, ``sizes`` and ``fanouts``. ``sizes``, shape
            ``(num_hops, num_node_types)``: number of vertices to draw. ``fanouts``: maximum number
            of in-neighbours to which a vertex gives shares, and of in-edges per vertex that are
            considered in the end (0: the caller finds the edges).
        width: Bytes of an id in the result.
        key: The batch's random key.
        bits: Bits of the size of each type's hash table; kept from batch to batch.
        budget: The seen vertices and their shares; scratch for a hash table per type, shape
            ``(num_node_types, 2**n)``; scratch for the number of seen vertices of each type.
        room: Scratch for the draws of one type, see :func:`take_shares`.
        of_hop: Scratch of a hop: starts, degrees and offsets of a frontier, shape ``(3, n)``; a
            hash set of one vertex's picks; the edges' sources, their positions in the graph, and
            the sources' local ids. In the end the last two have those of the edges of all types.
        kept: Gets the ``indptr`` of each edge type's edges, type by type.
        small: Scratch for the bits of the size of each type's last hash table.
    """
    ends, spans, sizes, fanouts = shape
    seen, shares, tables, num_seen = budget
    keys, chosen, in_order = room
    num_hops, num_types = sizes.shape
    counts, drawn, parts = _report(report, num_hops, num_types, len(ends))
    report[STATUS] = DONE
    if report[PHASE] == FRESH:
        _begin(spans, counts[0], bits, nodes, seen, shares, tables)
        drawn[:] = 0
        for t in range(num_types):
            num_seen[t] = counts[0, t]
        report[HOP] = 0
        report[EDGE_TYPE] = 0
        report[PHASE] = BEGIN
    for hop in range(report[HOP], num_hops):
        if not _give_shares(
            edges, ends, spans, hop, fanouts[0], key, counts, bits, nodes, budget, of_hop, report
        ):
            return
        for t in range(num_types):
            begin = spans[t, _SEEN]
            end = begin + num_seen[t]
            # Numbered after the edge types, so that all keys of a hop differ.
            counts[hop + 1, t] = take_shares(
                seen[begin:end],
                shares[begin:end],
                sizes[hop, t],
                hop_key(key, hop, len(ends) + t),
                keys,
                chosen,
                in_order,
                nodes[spans[t, _NODES] : spans[t + 1, _NODES]],
                counts[hop, t],
            )
        report[HOP] = hop + 1
    if fanouts[1] > 0 and not _keep_edges(
        edges,
        ends,
        spans,
        num_hops,
        fanouts[1],
        key,
        counts[-1],
        nodes,
        tables,
        small,
        of_hop,
        kept,
        drawn,
        report,
    ):
        return
    for t in range(num_types):
        bits[t] = table_bits_next(bits[t], num_seen[t])
    report[BYTES] = _lay_out(counts[-1], drawn, parts, width)


@kernel
def _lay_out(counts, drawn, parts, width):
    """Write the parts of the report; returns the bytes of the result, at least one."""
    at = 0
    for t in range(len(counts)):
        parts[t] = at // width
        at = aligned(at + counts[t] * width)
    for t in range(len(drawn)):
        part = len(counts) + 2 * t
        parts[part] = at // width
        at = aligned(at + 2 * drawn[t] * width)
        parts[part + 1] = at // 8
        at = aligned(at + 8 * drawn[t])
    return max(at, 1)


@kernel
def put(
    csc, like_ids, narrow, ends, spans, num_hops, nodes, positions, places, kept, report, ids, longs
):
    """Write the result: the vertices of each type, and both ends and the ids of each edge type's
    edges.

    ``ids`` and ``longs`` are the same memory, in the batch's id dtype and as int64.
    """
    num_types = len(spans) - 1
    counts, drawn, parts = _report(report, num_hops, num_types, len(ends))
    for t in range(num_types):
        begin = spans[t, _NODES]
        for i in range(counts[-1, t]):
            ids[parts[t] + i] = nodes[begin + i]
    edge = 0
    row = 0
    for t in range(len(ends)):
        total = drawn[t]
        num_rows = counts[-1, ends[t, 1]] + 1
        part = num_types + 2 * t
        # `kept` may not have been written for a type without edges.
        if total == 0:
            row += num_rows
            continue
        begin = parts[part]
        put_edges(
            kept[row : row + num_rows],
            places[edge : edge + total],
            0,
            ids[begin : begin + total],
            ids[begin + total : begin + 2 * total],
        )
        put_ids(csc, like_ids, narrow, t, positions[edge : edge + total], longs[parts[part + 1] :])
        edge += total
        row += num_rows
