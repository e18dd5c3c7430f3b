"""Kernels that sample a whole batch of trees along any edge types: all hops of one group of trees,
then of the next group.

They call the kernels of single hops. The memory that a group needs stays in the L1 and L2 caches,
above all its hash tables of vertices; those of a batch of 1000 trees would take megabytes.
:func:`sample_trees` works in scratch memory. Then the size of the result is known, and
:func:`put_trees` writes it.

Vertex ``v`` in tree ``t`` has the id ``t * num_nodes + v``. The result is ordered by hop, then by
edge type, then by tree. So a group's vertices are drawn by *runs*: a run is what one edge type
finds from the vertices of one earlier run. In the result a run's vertices are contiguous, tree by
tree over all groups.

Common arguments:

- ``csc``, ``like``, ``like_ids``, ``ends``: see ``kernels/batch.py``.
- ``num_nodes``: number of the graph's vertices of each type.
- ``runs``, int64: for each run the hop that finds it (-1: seeds), its vertex type, the edge type
  that finds it, and the first and last of the runs, all of one type, from which it is found. They
  are in the order of the result.
- ``longs``: scratch of int64, laid out by :func:`_divide`.
- ``ends_of``, int32: local ids, within their group, of the sources of all edges, then of the
  destinations; ``most`` elements for each edge type.
- ``bounds``, shape ``(groups, runs, 4)``: begin and end of a run's vertices, and of its edges,
  among those of its type in the group.
- ``report``, int64, which Python reads::

      0            status: DONE, BAD_ROW, BAD_SOURCE or FULL
      1, 2         vertex and edge type of an error; if FULL, 1 has the elements that are needed
      3            bytes of the result
      4            number of groups
      5 ...        number of vertices by type, for the seeds and after each hop
      then         number of edges by hop and edge type
      then         first elements of the result's parts: vertices and trees of each vertex type,
                   then both ends and ids of each edge type
"""

import numpy as np

from ..._jit import array_at, as_rows, inlined, kernel
from .batch import (
    _DST,
    _EDGES,
    _IDS,
    _INDICES,
    BAD_ROW,
    BAD_SOURCE,
    DONE,
    _copy,
    _total,
    aligned,
    fill_fresh_table,
    hop_key,
    pick_as,
    pick_of_type,
    relabel_growing,
    rows_of_type,
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
"""Most trees in the first group; the size of the next follows from its number of vertices."""
_GROWS = 4  # a group has at most this many times the trees of the last, which may have been small
_ROWS = 6
"""Numbers per row of a hop: start, degree, limit, edges up to either limit, offset."""
_SLOTS = 4
"""Slots of a hash table per vertex that there is room for, so that it is at most half full."""
_ANY = np.int64(2**63 - 1)


@kernel
def _lift(sources, offsets, trees, num_src, first, lifted, rows):
    """``in_trees``, and the local ids of the destinations, which begin at ``first``."""
    for i in range(len(trees)):
        for e in range(offsets[i], offsets[i + 1]):
            rows[e] = first + i
    return in_trees(sources, offsets, trees, num_src, lifted)


@kernel
def _plant(seeds, trees, num_nodes, nodes, table, bits):
    """Enter the seeds of a group into an empty hash table; returns the bits of its size."""
    for i in range(len(seeds)):
        nodes[i] = trees[i] * num_nodes + seeds[i]
    return fill_fresh_table(nodes, len(seeds), table, bits)


@kernel
def _cut(times, marks, limits, since, trees, fanout, replace, latest, rows):
    """Cut rows to the edges within their trees' time limits; returns the number of draws."""
    n = len(trees)
    width = len(rows) // _ROWS
    starts = rows[:n]
    degrees = rows[width : width + n]
    limit = rows[2 * width : 2 * width + n]
    upto = rows[3 * width : 3 * width + n]
    before = rows[4 * width : 4 * width + (n if since > 0 else 0)]
    # A loop, since two calls would inline these kernels' code twice.
    for which in range(2 if since > 0 else 1):
        # `count_until` takes limits by row.
        limits_of(trees, limits[which * since], limit)
        counts = rows[(3 + which) * width :]
        count_until(times, marks, limit, starts, degrees, counts)
    cut_rows(upto, before, fanout, replace, latest, starts, degrees, rows[5 * width :])
    return np.int64(rows[5 * width + n])


@kernel
def _read(indices, known_ids, pairs, positions, sources, ids):
    """Read the sources and the ids of the edges at ``positions``."""
    # In pairs, a source and its id cost one cache miss instead of two.
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
def _divide(longs, most, num_types, num_edge_types):
    """Divide ``longs`` into its parts, in this order.

    - the rows of a hop (``_ROWS`` numbers each);
    - the sources of a hop's edges, as vertices of trees;
    - for each vertex type ``most`` elements: a group's vertices of trees; the vertices of all
      groups; their trees;
    - for each edge type ``most`` elements: the ids of all edges;
    - a hash table for each vertex type;
    - four counters for each vertex type, edge type and run.
    """
    lifted_at = _ROWS * (most + 1)
    nodes_at = lifted_at + most
    vertices_at = nodes_at + num_types * most
    trees_at = vertices_at + num_types * most
    ids_at = trees_at + num_types * most
    tables_at = ids_at + num_edge_types * most
    work_at = tables_at + _SLOTS * num_types * most
    return (
        longs[:lifted_at],
        longs[lifted_at:nodes_at],
        longs[nodes_at:vertices_at],
        longs[vertices_at:trees_at],
        longs[trees_at:ids_at],
        longs[ids_at:tables_at],
        longs[tables_at:work_at],
        longs[work_at:],
    )


@inlined
def _report(report, num_hops, num_types, num_edge_types):
    """Views of ``report``: vertices by hop and type, edges by hop and type, and the parts."""
    edges_at = REPORT + (num_hops + 1) * num_types
    parts_at = edges_at + num_hops * num_edge_types
    counts = as_rows(report[REPORT:edges_at], num_hops + 1, num_types)
    edges = as_rows(report[edges_at:parts_at], num_hops, num_edge_types)
    return counts, edges, report[parts_at:]


@kernel
def _clear(numbers):
    for i in range(len(numbers)):
        numbers[i] = 0


@kernel
def _next_group(in_group, trees, size, num_nodes):
    """Maximum number of trees in the next group.

    The first ``trees`` had ``num_nodes`` vertices, and the last group had ``size`` trees.
    """
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
    weights,
    seeds,
    begins,
    trees_of,
    width,
    most,
    picks,
    seen,
    bits,
    longs,
    ends_of,
    bounds,
    report,
):
    """Sample the trees of all seeds, group by group; see the module for what it writes.

    Args:
        timed: For each edge type four numbers: the addresses of times and marks (see
            ``count_until``; 0: no times); the address of pairs of source and id in the order of the
            times (0: the graph's arrays are in that order); the row of ``limits`` that times must
            be above (0: none).
        like_times: An array of the times' dtype.
        limits: Shape ``(rows, trees)``: row 0 has the latest time that may be drawn, the others
            lower limits.
        fanouts: By hop and edge type; -1 takes all.
        replace, latest: See ``SubgraphSampler``.
        in_group: Number of vertices that a group should have. Trees must then be in the order of
            their seeds, one seed each, and each run found from one run. 0: one group.
        key: The batch's random key.
        weights: See ``kernels/batch.py``; only without times.
        seeds, begins, trees_of: The seeds of all types, where each type begins, and each seed's
            tree.
        width: Bytes of an id in the result.
        most: Maximum number of vertices, and of edges, of one type.
        picks: Scratch for the positions and sources of a hop's edges, of the dtype of ``like``.
        seen: Scratch for a hash set of one vertex's picks.
        bits: Bits of the size of each vertex type's hash table; kept from batch to batch.
    """
    num_hops, num_edge_types = fanouts.shape
    num_types = len(num_nodes)
    counts, edges_of, parts = _report(report, num_hops, num_types, num_edge_types)
    rows, lifted, nodes, vertices, trees, all_ids, tables, work = _divide(
        longs, most, num_types, num_edge_types
    )
    all_src = ends_of[: num_edge_types * most]
    all_dst = ends_of[num_edge_types * most :]
    positions = picks[:most]
    sources = picks[most:]
    starts = rows[: most + 1]
    degrees = rows[most + 1 :]
    all_offsets = rows[5 * (most + 1) :]
    slots = _SLOTS * most
    node_base = work[:num_types]
    # Numbers of the group's vertices: before this hop, before the previous one, and now.
    known = work[num_types : 2 * num_types]
    first = work[2 * num_types : 3 * num_types]
    found = work[3 * num_types : 4 * num_types]
    edge_base = work[4 * num_types : 4 * num_types + num_edge_types]  # edges of earlier groups
    now = work[4 * num_types + num_edge_types : 4 * num_types + 2 * num_edge_types]
    _clear(node_base)
    _clear(edge_base)
    begin = 0
    group = 0
    size = 0
    held = np.int64(0)  # vertices of the groups so far
    while begin < len(seeds):
        left = len(seeds) - begin
        size = min(left, _next_group(in_group, begin, size, held))
        for t in range(num_types):
            low = min(max(begins[t], begin), begin + size)
            high = max(low, min(begins[t + 1], begin + size))
            if high - low + node_base[t] > most:
                report[0] = FULL
                report[1] = high - low + node_base[t]
                return
            bits[t] = _plant(
                seeds[low:high],
                trees_of[low:high],
                num_nodes[t],
                nodes[t * most :],
                tables[t * slots : (t + 1) * slots],
                bits[t],
            )
            known[t] = 0
            found[t] = high - low
        _clear(now)
        r = 0
        while r < len(runs) and runs[r, _HOP] < 0:
            bounds[group, r, 0] = 0
            bounds[group, r, 1] = found[runs[r, _TYPE]]
            bounds[group, r, 2] = 0
            bounds[group, r, 3] = 0
            r += 1
        for hop in range(num_hops + 1):
            for t in range(num_types):
                # This hop draws from what the previous one found: vertices `first` to `known`.
                first[t] = known[t]
                known[t] = found[t]
                counts[hop, t] += known[t] - first[t]
                at = t * most
                low = at + node_base[t] + first[t]
                split_trees(
                    nodes[at + first[t] : at + known[t]], num_nodes[t], vertices[low:], trees[low:]
                )
            while r < len(runs) and runs[r, _HOP] == hop:
                e = runs[r, _EDGE]
                src = ends[e, 0]
                dst = ends[e, 1]
                n = known[dst] - first[dst]
                low = dst * most + node_base[dst] + first[dst]
                frontier = vertices[low : low + n]
                rows_of = trees[low : low + n]
                offsets = all_offsets[: n + 1]
                num_edges = csc[e, _EDGES]
                rows_at, num_drawn = rows_of_type(csc, weights, e)
                total = measure(
                    array_at(like, rows_at, csc[e, _DST] + 1),
                    num_drawn,
                    frontier,
                    fanouts[hop, e],
                    replace,
                    starts,
                    degrees,
                    offsets,
                )
                if total < 0:
                    report[0] = BAD_ROW
                    report[1] = frontier[-1 - total]
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
                    )
                need = total + max(node_base[src] + found[src], edge_base[e] + now[e])
                if need > most:
                    report[0] = FULL
                    report[1] = need
                    return
                picked = positions[:total]
                low = dst * most + first[dst]
                once = replace and fanouts[hop, e] >= 0  # fan-out -1 takes each edge once
                if weights is None:
                    pick_as(
                        nodes[low : low + n],
                        fanouts[hop, e],
                        once,
                        hop_key(key, hop, e),
                        starts,
                        degrees,
                        offsets,
                        seen,
                        picked,
                    )
                else:
                    pick_of_type(
                        weights,
                        e,
                        like,
                        nodes[low : low + n],
                        fanouts[hop, e],
                        once,
                        hop_key(key, hop, e),
                        weights[5],
                        lifted,
                        starts,
                        degrees,
                        offsets,
                        seen,
                        picked,
                    )
                at = e * most + edge_base[e] + now[e]
                _read(
                    array_at(like, csc[e, _INDICES], num_edges),
                    array_at(like_ids, csc[e, _IDS], num_edges if csc[e, _IDS] else 0),
                    array_at(like, pairs_at, 2 * num_edges if pairs_at else 0),
                    picked,
                    sources,
                    all_ids[at:],
                )
                bad = _lift(
                    sources, offsets, rows_of, num_nodes[src], first[dst], lifted, all_dst[at:]
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
                        # Without an upper bound: _lift has checked the sources, and ids of vertices
                        # of trees are above num_nodes.
                        _, found[src], bits[src] = relabel_growing(
                            lifted[low:high],
                            _ANY,
                            nodes[src * most :],
                            found[src],
                            tables[src * slots : (src + 1) * slots],
                            bits[src],
                            all_src[at + low :],
                        )
                    bounds[group, r, 1] = found[src]
                    r += 1
                now[e] += total
        for t in range(num_types):
            node_base[t] += found[t]
            held += found[t]
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
    """Write the parts of the report; returns the bytes of the result, at least one."""
    # Shifts instead of divisions, each of which would compile a check for 0.
    shift = 2 if width == 4 else 3
    at = np.int64(0)
    part = 0
    for t in range(len(num_nodes)):
        parts[part] = at >> shift
        at = aligned(at + (num_nodes[t] << shift))
        parts[part + 1] = at >> 3
        at = aligned(at + (num_nodes[t] << 3))
        part += 2
    for e in range(len(num_edges)):
        parts[part] = at >> shift
        at = aligned(at + (2 * num_edges[e] << shift))
        parts[part + 1] = at >> 3
        at = aligned(at + (num_edges[e] << 3))
        part += 2
    return max(at, 1)


@kernel
def _place(ends, places, out, begin):
    """Write ends of edges, given as local ids in their group, as local ids in the batch."""
    for i in range(len(ends)):
        out[begin + i] = places[ends[i]]


@kernel
def put_trees(ends, num_nodes, fanouts, runs, most, longs, ends_of, bounds, report, ids, whole):
    """Write the result: vertices and trees of each vertex type, and both ends and ids of the edges
    of each edge type.

    ``ids`` and ``whole`` are the same memory, in the batch's id dtype and as int64.
    """
    num_hops, num_edge_types = fanouts.shape
    num_types = len(num_nodes)
    _, _, nodes, vertices, trees, all_ids, _, work = _divide(longs, most, num_types, num_edge_types)
    all_src = ends_of[: num_edge_types * most]
    all_dst = ends_of[num_edge_types * most :]
    num_runs = len(runs)
    _, edges_of, parts = _report(report, num_hops, num_types, num_edge_types)
    node_base = work[:num_types]
    edge_base = work[num_types : num_types + num_edge_types]
    # Where the next group's vertices and edges of each run go.
    node_places = work[num_types + num_edge_types : num_types + num_edge_types + num_runs]
    edge_places = work[num_types + num_edge_types + num_runs :]
    _clear(node_base)
    _clear(edge_base)
    # Scratch is ordered by group, then run; the result by run, then group. So first find where each
    # run begins in the result, then copy group by group.
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
    _clear(node_base)
    _clear(edge_base)
    for g in range(report[4]):
        for r in range(num_runs):
            t = runs[r, _TYPE]
            begin = bounds[g, r, 0]
            count = bounds[g, r, 1] - begin
            place = node_places[r]
            at = t * most + node_base[t] + begin
            _copy(vertices[at : at + count], ids, parts[2 * t] + place)
            _copy(trees[at : at + count], whole, parts[2 * t + 1] + place)
            # The group's vertices of trees are no longer needed: their memory gets the local ids.
            at = t * most + begin
            for i in range(count):
                nodes[at + i] = place + i
            node_places[r] += count
        for r in range(num_runs):
            e = runs[r, _EDGE]
            count = bounds[g, r, 3] - bounds[g, r, 2]
            if count == 0:
                continue
            at = e * most + edge_base[e] + bounds[g, r, 2]
            part = 2 * (num_types + e)
            out = parts[part] + edge_places[r]
            _place(all_src[at : at + count], nodes[ends[e, 0] * most :], ids, out)
            out += _total(edges_of, num_hops, e)
            _place(all_dst[at : at + count], nodes[ends[e, 1] * most :], ids, out)
            _copy(all_ids[at : at + count], whole, parts[part + 1] + edge_places[r])
            edge_places[r] += count
        for r in range(num_runs):
            node_base[runs[r, _TYPE]] += bounds[g, r, 1] - bounds[g, r, 0]
            if runs[r, _HOP] >= 0:
                edge_base[runs[r, _EDGE]] += bounds[g, r, 3] - bounds[g, r, 2]
