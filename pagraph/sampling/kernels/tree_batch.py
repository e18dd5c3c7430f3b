"""Kernels that sample whole batches of trees along any edge types: all hops of a few trees, then of
the next few.

They compose the kernels of single hops. What the hops of a few trees need stays in the processor's
inner caches, above all the hash tables that tell vertices of a tree apart; an epoch's batches of
1000 trees need some of megabytes. :func:`sample_trees` works in scratch memory alone; then the size
of the result is known, and :func:`put_trees` writes it.

Vertex ``v`` in tree ``t`` has the id ``t * num_nodes + v``. The result is in the order of hops, then
of edge types, and in that of trees only within. So trees that are sampled together are drawn by
*runs*: what one edge type finds from the vertices of one earlier run. All trees' vertices of a run
lie behind each other in the result, tree by tree.

The arguments that both share:

- ``csc``, ``like``, ``like_ids``: see ``kernels/batch.py``; ``ends``: the numbers of the vertex types
  of both ends of each edge type; ``num_nodes``: the vertices of each vertex type.
- ``runs``, int64: for each run the hop that finds it (-1: seeds), its vertex type, the edge type
  that finds it, and the first and the last of the runs, all of one type, that it is found from. They
  are in the order of the result.
- ``drawn``: scratch. Two dimensions, a row for each vertex type: ids of the vertices of a group, and
  the vertices and trees of all groups. For each edge type of all edges the places of both ends among
  the group's vertices, and the ids.
- ``bounds``, shape ``(groups, runs, 4)``: where the vertices and the edges of a run begin and end
  among those of its types in the group.
- ``work``: numbers for each vertex type, edge type and run, four times.
- ``report``, int64: what Python reads afterwards::

      0            status: DONE, BAD_ROW, BAD_SOURCE or FULL
      1, 2         the vertex and the edge type that an error is about; elements that are needed
      3            bytes of the result
      4            groups
      5 ...        vertices of each type, of the seeds and after each hop: (hops + 1) x types
      then         edges of each hop and edge type
      then         where the parts of the result begin, in elements: vertices and trees of each type,
                   then both ends and ids of each edge type
"""

import numpy as np

from ..._jit import array_at, inlined, kernel
from .batch import (
    _DST,
    _EDGES,
    _IDS,
    _INDICES,
    _INDPTR,
    BAD_ROW,
    BAD_SOURCE,
    DONE,
    aligned,
    fill_table,
    hop_key,
    pick_as,
    relabel_growing,
    table_bits_next,
)
from .hop import measure, read_neighbors
from .times import BLOCK, count_until, cut_rows, read_edges
from .trees import in_trees, limits_of, split_trees

FULL = 4
REPORT = 5

# Columns of ``runs``.
_HOP = 0
_TYPE = 1
_EDGE = 2
_FIRST = 3
_LAST = 4

# Columns of ``timed``.
_TIMES = 0
_MARKS = 1
_PAIRS = 2
_SINCE = 3

_FIRST_GROUP = 16
"""Trees of the first group, at most; from what they held follows how many the next one has."""
_GROWS = 4  # times: a group after one of few vertices may find many
_ANY = np.int64(2**63 - 1)


@kernel
def _lift(sources, offsets, trees, num_src, first, lifted, rows):
    """``in_trees``, and the places of the destinations, which begin at ``first``."""
    for i in range(len(trees)):
        for e in range(offsets[i], offsets[i + 1]):
            rows[e] = first + i
    return in_trees(sources, offsets, trees, num_src, lifted)


@kernel
def _plant(seeds, trees, num_nodes, nodes, table, bits):
    """Enter the seeds of some trees into an empty table; returns the table's bits."""
    for i in range(len(seeds)):
        nodes[i] = trees[i] * num_nodes + seeds[i]
    # A quarter full, so that most groups end before the table has to grow at a half.
    while 1 << bits < 4 * len(seeds):
        bits += 1
    while 1 << bits > len(table):
        bits -= 1
    fill_table(nodes, len(seeds), table, bits)
    return bits


@kernel
def _cut(times, marks, limits, since, trees, fanout, replace, latest, rows, offsets):
    """Cut measured rows down to the edges that may be drawn in their trees; returns the draws."""
    n = len(trees)
    starts = rows[0][:n]
    degrees = rows[1][:n]
    limit = rows[2][:n]
    upto = rows[3][:n]
    # By row, as the kernels of single hops expect limits.
    limits_of(trees, limits[0], limit)
    count_until(times, marks, limit, starts, degrees, upto)
    late = n if since > 0 else 0
    before = rows[4][:late]
    if late > 0:
        limits_of(trees, limits[since], limit)
        count_until(times, marks, limit, starts, degrees, before)
    cut_rows(upto, before, fanout, replace, latest, starts, degrees, offsets)
    return np.int64(offsets[n])


@kernel
def _read(indices, known_ids, pairs, positions, sources, ids):
    """The sources and the ids of the edges at ``positions``."""
    # Side by side a source and its id are one cache miss, not two.
    if len(pairs) > 0:
        read_edges(pairs, positions, sources, ids)
        return
    read_neighbors(indices, positions, sources)
    if len(known_ids) > 0:
        read_neighbors(known_ids, positions, ids)
    else:
        for e in range(len(positions)):
            ids[e] = positions[e]


@inlined
def _report(report, num_hops, num_types, num_edge_types):
    """Parts of ``report``: vertices by hop and type, edges by hop and type, where the parts
    begin."""
    edges_at = REPORT + (num_hops + 1) * num_types
    parts_at = edges_at + num_hops * num_edge_types
    counts = report[REPORT:edges_at].reshape((num_hops + 1, num_types))
    edges = report[edges_at:parts_at].reshape((num_hops, num_edge_types))
    return counts, edges, report[parts_at:]


@kernel
def _next_group(in_group, trees, size, num_nodes):
    """Trees of the next group, at most, where the first ``trees`` held so many vertices, and the
    last group had that size."""
    if in_group == 0:
        return _ANY
    if trees == 0:
        return min(_FIRST_GROUP, in_group)
    return max(1, min(in_group * trees // max(1, num_nodes), _GROWS * size))


@kernel
def sample_trees(
    csc,
    like,
    like_ids,
    timed,
    like_times,
    limits,
    ends,
    num_nodes,
    fanouts,
    runs,
    replace,
    latest,
    in_group,
    key,
    seeds,
    begins,
    trees_of,
    width,
    rows,
    room,
    tables,
    bits,
    drawn,
    bounds,
    work,
    report,
):
    """Sample the trees of all seeds, some at a time; see the module for what it fills.

    Args:
        timed: For each edge type the addresses of times and marks (see ``count_until``; 0: no
            times), and of sources and ids side by side in the order of the times (0: in that of the
            rows); the row of ``limits`` that all times must be above, 0 for none. ``like_times`` is
            an array of the times' dtype.
        limits: By tree: the last time that may be drawn, then such as times must be above.
        fanouts: By hop and edge type, -1 for all.
        replace, latest: See ``SubgraphSampler``.
        in_group: Vertices that trees sampled together should have; 0: all are sampled together.
            Else trees are in the order of their seeds, each with one, and each run has one that it
            is found from.
        key: The batch's random key.
        seeds, begins, trees_of: The seeds of all types, where those of each type begin, and the tree
            of each.
        width: Bytes of an id of the result.
        rows: Scratch of a hop: starts, degrees, limits, the counts up to either limit, offsets.
        room: Scratch for its edges: positions, sources, lifted ones; the set of picks.
        tables, bits: A hash table for each vertex type, and the bits of each.
    """
    num_hops, num_edge_types = fanouts.shape
    num_types = len(num_nodes)
    counts, edges_of, parts = _report(report, num_hops, num_types, num_edge_types)
    nodes, vertices, trees, all_src, all_dst, all_ids = drawn
    positions, sources, lifted, seen = room
    most = nodes.shape[1]
    starts = rows[0]
    degrees = rows[1]
    node_base = work[:num_types]
    known = work[num_types : 2 * num_types]  # vertices of the group up to the hop before
    first = work[2 * num_types : 3 * num_types]  # up to the one before that
    found = work[3 * num_types : 4 * num_types]  # up to now
    edge_base = work[4 * num_types : 4 * num_types + num_edge_types]  # edges of earlier groups
    now = work[4 * num_types + num_edge_types : 4 * num_types + 2 * num_edge_types]
    counts[:] = 0
    edges_of[:] = 0
    node_base[:] = 0
    edge_base[:] = 0
    begin = 0
    group = 0
    size = 0
    while begin < len(seeds):
        left = len(seeds) - begin
        size = min(left, _next_group(in_group, begin, size, np.sum(node_base)))
        for t in range(num_types):
            low = min(max(begins[t], begin), begin + size)
            high = max(low, min(begins[t + 1], begin + size))
            if high - low + node_base[t] > most:
                report[0] = FULL
                report[1] = high - low + node_base[t]
                return
            bits[t] = _plant(
                seeds[low:high], trees_of[low:high], num_nodes[t], nodes[t], tables[t], bits[t]
            )
            known[t] = 0
            found[t] = high - low
        now[:] = 0
        r = 0
        while r < len(runs) and runs[r, _HOP] < 0:
            bounds[group, r, 0] = 0
            bounds[group, r, 1] = found[runs[r, _TYPE]]
            bounds[group, r, 2] = 0
            bounds[group, r, 3] = 0
            r += 1
        for hop in range(num_hops + 1):
            for t in range(num_types):
                # The next hop draws from what this one finds, not again from what was known.
                first[t] = known[t]
                known[t] = found[t]
                counts[hop, t] += known[t] - first[t]
                at = node_base[t]
                split_trees(
                    nodes[t, first[t] : known[t]],
                    num_nodes[t],
                    vertices[t, at + first[t] : at + known[t]],
                    trees[t, at + first[t] : at + known[t]],
                )
            while r < len(runs) and runs[r, _HOP] == hop:
                e = runs[r, _EDGE]
                src = ends[e, 0]
                dst = ends[e, 1]
                low = node_base[dst] + first[dst]
                high = node_base[dst] + known[dst]
                n = high - low
                offsets = rows[5][: n + 1]
                rows_of = trees[dst, low:high]
                num_edges = csc[e, _EDGES]
                total = measure(
                    array_at(like, csc[e, _INDPTR], csc[e, _DST] + 1),
                    num_edges,
                    vertices[dst, low:high],
                    fanouts[hop, e],
                    replace,
                    starts[:n],
                    degrees[:n],
                    offsets,
                )
                if total < 0:
                    report[0] = BAD_ROW
                    report[1] = vertices[dst, low - 1 - total]
                    return
                pairs_at = np.int64(0)
                if timed[e, _TIMES] != 0:
                    pairs_at = timed[e, _PAIRS]
                    total = _cut(
                        array_at(like_times, timed[e, _TIMES], num_edges),
                        array_at(like_times, timed[e, _MARKS], (num_edges + BLOCK - 1) // BLOCK),
                        limits,
                        timed[e, _SINCE],
                        rows_of,
                        fanouts[hop, e],
                        replace,
                        latest,
                        rows,
                        offsets,
                    )
                need = total + max(node_base[src] + found[src], edge_base[e] + now[e])
                if need > most:
                    report[0] = FULL
                    report[1] = need
                    return
                picked = positions[:total]
                pick_as(
                    nodes[dst, first[dst] : known[dst]],
                    fanouts[hop, e],
                    replace and fanouts[hop, e] >= 0,  # all edges are taken once
                    hop_key(key, hop, e),
                    starts[:n],
                    degrees[:n],
                    offsets,
                    seen,
                    picked,
                )
                at = edge_base[e] + now[e]
                _read(
                    array_at(like, csc[e, _INDICES], num_edges),
                    array_at(like_ids, csc[e, _IDS], num_edges if csc[e, _IDS] else 0),
                    array_at(like, pairs_at, 2 * num_edges if pairs_at else 0),
                    picked,
                    sources[:total],
                    all_ids[e, at:],
                )
                bad = _lift(
                    sources, offsets, rows_of, num_nodes[src], first[dst], lifted, all_dst[e, at:]
                )
                if bad >= 0:
                    report[0] = BAD_SOURCE
                    report[1] = sources[bad]
                    report[2] = e
                    return
                edges_of[hop, e] += total
                while r < len(runs) and runs[r, _HOP] == hop and runs[r, _EDGE] == e:
                    begin_row = bounds[group, runs[r, _FIRST], 0] - first[dst]
                    end_row = bounds[group, runs[r, _LAST], 1] - first[dst]
                    low = offsets[begin_row]
                    high = offsets[end_row]
                    bounds[group, r, 0] = found[src]
                    bounds[group, r, 2] = now[e] + low
                    bounds[group, r, 3] = now[e] + high
                    if low < high:
                        # No upper bound: _lift has checked the sources, and these ids are beyond
                        # the vertices.
                        _, found[src], bits[src] = relabel_growing(
                            lifted[low:high],
                            _ANY,
                            nodes[src],
                            found[src],
                            tables[src],
                            bits[src],
                            all_src[e, at + low :],
                        )
                    bounds[group, r, 1] = found[src]
                    r += 1
                now[e] += total
        for t in range(num_types):
            node_base[t] += found[t]
            bits[t] = table_bits_next(bits[t], found[t])
        for e in range(num_edge_types):
            edge_base[e] += now[e]
        begin += size
        group += 1
    for hop in range(num_hops):
        for t in range(num_types):
            counts[hop + 1, t] += counts[hop, t]
    report[0] = DONE
    report[4] = group
    report[3] = _lay_out(node_base, edge_base, parts, width)


@kernel
def _lay_out(num_nodes, num_edges, parts, width):
    """Say where the parts of the result begin, in elements; returns its bytes, at least one."""
    at = 0
    part = 0
    for t in range(len(num_nodes)):
        parts[part] = at // width
        at = aligned(at + num_nodes[t] * width)
        parts[part + 1] = at // 8
        at = aligned(at + num_nodes[t] * 8)
        part += 2
    for e in range(len(num_edges)):
        parts[part] = at // width
        at = aligned(at + 2 * num_edges[e] * width)
        parts[part + 1] = at // 8
        at = aligned(at + 8 * num_edges[e])
        part += 2
    return max(at, 1)


@kernel
def put_trees(ends, fanouts, runs, drawn, bounds, work, report, ids, longs):
    """Write the result: vertices and trees of each vertex type, both ends and the ids of the edges
    of each edge type.

    ``ids`` and ``longs`` are the same memory, as ids of the batch and as int64.
    """
    num_hops, num_edge_types = fanouts.shape
    nodes, vertices, trees, all_src, all_dst, all_ids = drawn
    num_types = len(nodes)
    num_runs = len(runs)
    counts, edges_of, parts = _report(report, num_hops, num_types, num_edge_types)
    node_base = work[:num_types]
    edge_base = work[num_types : num_types + num_edge_types]
    # Where the next group's part of each run goes.
    node_places = work[num_types + num_edge_types : num_types + num_edge_types + num_runs]
    edge_places = work[num_types + num_edge_types + num_runs :][:num_runs]
    node_base[:] = 0
    edge_base[:] = 0
    # The result is ordered by run, then by group; what was drawn by group, then by run. First count
    # where each run begins, then go through the groups and move their parts there.
    for r in range(num_runs):
        t = runs[r, _TYPE]
        node_places[r] = node_base[t]
        for g in range(report[4]):
            node_base[t] += bounds[g, r, 1] - bounds[g, r, 0]
        if runs[r, _HOP] >= 0:
            e = runs[r, _EDGE]
            edge_places[r] = edge_base[e]
            for g in range(report[4]):
                edge_base[e] += bounds[g, r, 3] - bounds[g, r, 2]
    node_base[:] = 0
    edge_base[:] = 0
    for g in range(report[4]):
        for r in range(num_runs):
            t = runs[r, _TYPE]
            begin = bounds[g, r, 0]
            count = bounds[g, r, 1] - begin
            final = nodes[t, begin : begin + count]  # the group's ids are not needed any more
            place = node_places[r]
            at = node_base[t] + begin
            part = parts[2 * t] + place
            for i in range(count):
                final[i] = place + i
                ids[part + i] = vertices[t, at + i]
            part = parts[2 * t + 1] + place
            for i in range(count):
                longs[part + i] = trees[t, at + i]
            node_places[r] += count
        for r in range(num_runs):
            e = runs[r, _EDGE]
            count = bounds[g, r, 3] - bounds[g, r, 2]
            if count == 0:
                continue
            at = edge_base[e] + bounds[g, r, 2]
            part = 2 * (num_types + e)
            out = parts[part] + edge_places[r]
            total = np.int64(0)
            for hop in range(num_hops):
                total += edges_of[hop, e]
            final_src = nodes[ends[e, 0]]
            final_dst = nodes[ends[e, 1]]
            for i in range(count):
                ids[out + i] = final_src[all_src[e, at + i]]
            for i in range(count):
                ids[out + total + i] = final_dst[all_dst[e, at + i]]
            out = parts[part + 1] + edge_places[r]
            for i in range(count):
                longs[out + i] = all_ids[e, at + i]
            edge_places[r] += count
        for r in range(num_runs):
            node_base[runs[r, _TYPE]] += bounds[g, r, 1] - bounds[g, r, 0]
            if runs[r, _HOP] >= 0:
                edge_base[runs[r, _EDGE]] += bounds[g, r, 3] - bounds[g, r, 2]
