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

- ``csc``, ``like``, ``like_ids``, ``narrow``, ``ends``: see ``kernels/batch.py``.
- ``num_nodes``: number of the graph's vertices of each type.
- ``runs``, int64: for each run the hop that finds it (-1: seeds), its vertex type, the edge type
  that finds it, and the first and last of the runs, all of one type, from which it is found. They
  are in the order of the result.
- ``longs``: scratch of int64, laid out by :func:`_divide`.
- ``ends_of``, int32: local ids, within their group, of the sources of all edges, then of the
  destinations; ``most`` elements for each edge type.
- ``bounds``, shape ``(groups, runs, 4)``: begin and end of a run's vertices, and of its edges,
  among those of its type in the group.
- ``report``, int64, which Python reads. It begins as that of ``kernels/batch.py``, whose stops
  these are, too; only one group may stop. ``row`` is the next run, ``edge`` the number of groups.
  Then it has::

      number of vertices by type, for the seeds and after each hop
      number of edges by hop and edge type
      first elements of the result's parts: vertices and trees of each vertex type, then both ends
      and ids of each edge type
"""

from typing import Any, NamedTuple

import numpy as np

from ..._jit import array_at, as_rows, inlined, kernel
from ..report import (
    ASK_EDGES,
    ASK_OFFSETS,
    BAD_ROW,
    BAD_SOURCE,
    BEGIN,
    BYTES,
    CALLER,
    DONE,
    EDGE,
    EDGE_TYPE,
    EDGES_ON_DISK,
    FRESH,
    FULL,
    HOP,
    MEASURE,
    NARROW,
    OFFSETS_ON_DISK,
    PHASE,
    PICK,
    READING,
    REPORT,
    ROW,
    STATUS,
    WHAT,
)
from .batch import (
    _EDGES,
    _INDICES,
    FLAGS,
    _copy,
    _total,
    aligned,
    fill_fresh_table,
    hop_key,
    measure_at,
    pick_of_type,
    put_ids,
    read_at,
    relabel_growing,
    stop,
    table_bits_next,
)
from .times import BLOCK, count_until, cut_rows, read_edges
from .trees import in_trees, limits_of, split_trees

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

# Columns of ``bounds``.
_BEGIN = 0
_END = 1
_EDGES_BEGIN = 2
_EDGES_END = 3

_FIRST_GROUP = 16
"""Most trees in the first group; the size of the next follows from its number of vertices."""
_GROWS = 4  # a group has at most this many times the trees of the last, which may have been small
_ROWS = 6
"""Numbers per row of a hop: start, degree, limit, edges up to either limit, offset."""
_SLOTS = 4
"""Slots of a hash table per vertex that there is room for, so that it is at most half full."""
_ANY = np.int64(2**63 - 1)  # no limit


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
    num_limits = 2 if since > 0 else 1
    before = rows[4 * width : 4 * width + (num_limits - 1) * n]
    # A loop, since two calls would inline these kernels' code twice.
    for which in range(num_limits):
        # `count_until` takes limits by row.
        limits_of(trees, limits[which * since], limit)
        counts = rows[(3 + which) * width :]
        count_until(times, marks, limit, starts, degrees, counts)
    cut_rows(upto, before, fanout, replace, latest, starts, degrees, rows[5 * width :])
    return np.int64(rows[5 * width + n])


@kernel
def _read_pairs_at(like, narrow, is_narrow, address, count, positions, sources, ids):
    if narrow is not None and is_narrow:
        read_edges(array_at(narrow, address, count), positions, sources, ids)
        return
    read_edges(array_at(like, address, count), positions, sources, ids)


@kernel
def _read(csc, like, like_ids, narrow, e, pairs, positions, sources, ids):
    """Read the sources and the ids of the edges at ``positions``.

    ``pairs`` is the address of pairs of these, or 0. There they cost one cache miss instead of two.
    """
    is_narrow = csc[e, FLAGS] & NARROW
    count = csc[e, _EDGES]
    if pairs != 0:
        _read_pairs_at(like, narrow, is_narrow, pairs, 2 * count, positions, sources, ids)
        return
    read_at(like, narrow, is_narrow, csc[e, _INDICES], count, positions, sources)
    put_ids(csc, like_ids, narrow, e, positions, ids)


class _Longs(NamedTuple):
    """The parts of ``longs``, in this order.

    rows: the rows of a hop (``_ROWS`` numbers each).
    lifted: the sources of a hop's edges, as vertices of trees.
    nodes: ``most`` elements for each vertex type: a group's vertices of trees.
    vertices, trees: the same for the vertices of all groups, and for their trees.
    ids: ``most`` elements for each edge type: the ids of all edges.
    tables: a hash table for each vertex type.
    counters: four for each vertex type, edge type and run.
    """

    rows: Any
    lifted: Any
    nodes: Any
    vertices: Any
    trees: Any
    ids: Any
    tables: Any
    counters: Any


@inlined
def _divide(longs, most, num_types, num_edge_types):
    """Divide ``longs`` into its parts."""
    lifted_at = _ROWS * (most + 1)
    nodes_at = lifted_at + most
    vertices_at = nodes_at + num_types * most
    trees_at = vertices_at + num_types * most
    ids_at = trees_at + num_types * most
    tables_at = ids_at + num_edge_types * most
    counters_at = tables_at + _SLOTS * num_types * most
    return _Longs(
        longs[:lifted_at],
        longs[lifted_at:nodes_at],
        longs[nodes_at:vertices_at],
        longs[vertices_at:trees_at],
        longs[trees_at:ids_at],
        longs[ids_at:tables_at],
        longs[tables_at:counters_at],
        longs[counters_at:],
    )


class _Group(NamedTuple):
    """Counters of vertices, by vertex type, and of edges, by edge type, while a group is sampled.

    nodes_before, edges_before: those of earlier groups.
    first, known: a hop draws from the group's vertices ``first`` to ``known``.
    found: the group's vertices so far.
    drawn: the group's edges so far.
    """

    nodes_before: Any
    first: Any
    known: Any
    found: Any
    edges_before: Any
    drawn: Any


@inlined
def _counters_of_group(counters, num_types, num_edge_types):
    """Divide the counters of ``longs``."""
    edges_at = 4 * num_types
    drawn_at = edges_at + num_edge_types
    return _Group(
        counters[:num_types],
        counters[num_types : 2 * num_types],
        counters[2 * num_types : 3 * num_types],
        counters[3 * num_types : edges_at],
        counters[edges_at:drawn_at],
        counters[drawn_at : drawn_at + num_edge_types],
    )


class _TreeBatch(NamedTuple):
    """What the trees are drawn from, and how; see :func:`sample_trees`."""

    csc: Any
    like: Any
    like_ids: Any
    narrow: Any
    timed: Any
    like_times: Any
    limits: Any
    ends: Any
    num_nodes: Any
    fanouts: Any
    runs: Any
    replace: Any
    latest: Any
    key: Any


class _TreeRoom(NamedTuple):
    """Memory that trees are sampled in; see :func:`sample_trees`.

    positions, sources: those of a hop's edges.
    src, dst: the parts of ``ends_of``.
    """

    most: Any
    longs: Any
    positions: Any
    sources: Any
    src: Any
    dst: Any
    seen: Any
    bits: Any


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


@inlined
def _of_type(array, most, t):
    """The part of an array with ``most`` elements for each type, from type ``t`` on."""
    return array[t * most :]


@inlined
def _table_of(room, t):
    """The hash table of vertex type ``t``."""
    slots = _SLOTS * room.most
    return room.longs.tables[t * slots : (t + 1) * slots]


@inlined
def _rows_of_hop(room, count):
    """Starts, degrees and offsets of the rows of a hop with ``count`` rows."""
    width = room.most + 1
    rows = room.longs.rows
    return rows[:width], rows[width:], rows[5 * width : 5 * width + count + 1]


@inlined
def _frontier(room, group, t):
    """What a hop draws from, of vertex type ``t``: the vertices, and their trees."""
    low = t * room.most + group.nodes_before[t] + group.first[t]
    high = low + group.known[t] - group.first[t]
    return room.longs.vertices[low:high], room.longs.trees[low:high]


# Steps of `sample_trees` that are called in one place are inlined. A call would pass 200 numbers,
# the named tuples' arrays, and compiling would take up to a fifth longer.


@inlined
def _measure(batch, weights, room, group, hop, e, report):
    """Measure the rows that a hop draws from along edge type ``e``; returns the number of draws, or
    a negative number after an error."""
    frontier, trees = _frontier(room, group, batch.ends[e, 1])
    starts, degrees, offsets = _rows_of_hop(room, len(frontier))
    fanout = batch.fanouts[hop, e]
    total = measure_at(
        batch.like,
        batch.narrow,
        batch.csc,
        weights,
        e,
        frontier,
        fanout,
        batch.replace,
        starts,
        degrees,
        offsets,
    )
    if total < 0:
        report[STATUS] = BAD_ROW
        report[WHAT] = frontier[-1 - total]
        return total
    times_at = batch.timed[e, _TIMES]
    if times_at == 0:
        return total
    num_edges = batch.csc[e, _EDGES]
    return _cut(
        array_at(batch.like_times, times_at, num_edges),
        array_at(batch.like_times, batch.timed[e, _MARKS], (num_edges + BLOCK - 1) // BLOCK),
        batch.limits,
        batch.timed[e, _SINCE],
        trees,
        fanout,
        batch.replace,
        batch.latest,
        room.longs.rows,
    )


@inlined
def _pick(batch, weights, room, group, hop, e, total):
    """Pick ``total`` edges of type ``e`` from the rows that :func:`_measure` wrote."""
    dst = batch.ends[e, 1]
    nodes = _of_type(room.longs.nodes, room.most, dst)
    # Vertices of trees are the counters of the random numbers.
    counters = nodes[group.first[dst] : group.known[dst]]
    # Fan-out -1 takes each edge once.
    repeats = batch.replace and batch.fanouts[hop, e] >= 0
    pick_of_type(
        weights,
        e,
        batch.like,
        batch.narrow,
        batch.csc[e, FLAGS] & NARROW,
        counters,
        batch.fanouts[hop, e],
        repeats,
        hop_key(batch.key, hop, e),
        None,
        room.longs.lifted,  # scratch, which is free until these edges are lifted
        _rows_of_hop(room, len(counters)),
        room.seen,
        room.positions[:total],
    )


@inlined
def _draw(batch, weights, room, group, hop, e, report):
    """Draw a hop's edges of type ``e``: their ids, their local destinations, and their sources as
    vertices of trees.

    Returns their number, or a negative number after an error or at a stop, which ``report`` has.
    """
    phase = report[PHASE]
    report[EDGE_TYPE] = e
    flags = batch.csc[e, FLAGS]
    src = batch.ends[e, 0]
    dst = batch.ends[e, 1]
    num_known = group.edges_before[e] + group.drawn[e]
    _, trees = _frontier(room, group, dst)
    _, _, offsets = _rows_of_hop(room, len(trees))
    total = np.int64(0)
    if phase == BEGIN and len(trees) > 0:
        if batch.fanouts[hop, e] == CALLER:
            return stop(report, PICK, READING)
        if flags & OFFSETS_ON_DISK:
            return stop(report, ASK_OFFSETS, MEASURE)
    if phase <= MEASURE:
        total = _measure(batch, weights, room, group, hop, e, report)
        if total < 0:
            return total
    else:
        total = np.int64(offsets[len(trees)])
    need = total + max(group.nodes_before[src] + group.found[src], num_known)
    if need > room.most:
        report[WHAT] = need
        return stop(report, FULL, BEGIN)
    if phase <= MEASURE:
        _pick(batch, weights, room, group, hop, e, total)
        if flags & EDGES_ON_DISK and batch.timed[e, _PAIRS] == 0:
            return stop(report, ASK_EDGES, READING)
    at = e * room.most + num_known
    _read(
        batch.csc,
        batch.like,
        batch.like_ids,
        batch.narrow,
        e,
        batch.timed[e, _PAIRS],
        room.positions[:total],
        room.sources,
        room.longs.ids[at:],
    )
    report[PHASE] = BEGIN
    bad = _lift(
        room.sources,
        offsets,
        trees,
        batch.num_nodes[src],
        group.first[dst],
        room.longs.lifted,
        room.dst[at:],
    )
    if bad >= 0:
        report[STATUS] = BAD_SOURCE
        report[WHAT] = room.sources[bad]
        return np.int64(-1)
    return total


@inlined
def _number_runs(batch, room, group, r, bounds):
    """Number the sources that :func:`_draw` found, as one run after the other, from ``r`` on;
    returns the first run of another hop or edge type.

    A run's vertices and edges are written to ``bounds``.
    """
    runs = batch.runs
    hop = runs[r, _HOP]
    e = runs[r, _EDGE]
    src = batch.ends[e, 0]
    dst = batch.ends[e, 1]
    _, _, offsets = _rows_of_hop(room, group.known[dst] - group.first[dst])
    local_ids = _of_type(room.src, room.most, e)[group.edges_before[e] + group.drawn[e] :]
    while r < len(runs) and runs[r, _HOP] == hop and runs[r, _EDGE] == e:
        low = offsets[bounds[runs[r, _FIRST], _BEGIN] - group.first[dst]]
        high = offsets[bounds[runs[r, _LAST], _END] - group.first[dst]]
        bounds[r, _BEGIN] = group.found[src]
        bounds[r, _EDGES_BEGIN] = group.drawn[e] + low
        bounds[r, _EDGES_END] = group.drawn[e] + high
        if low < high:
            # Without an upper bound: _lift has checked the sources, and ids of vertices of trees
            # are above num_nodes.
            _, group.found[src], room.bits[src] = relabel_growing(
                room.longs.lifted[low:high],
                _ANY,
                _of_type(room.longs.nodes, room.most, src),
                group.found[src],
                _table_of(room, src),
                room.bits[src],
                local_ids[low:],
            )
        bounds[r, _END] = group.found[src]
        r += 1
    return r


@kernel
def _begin_group(batch, room, group, begin, end, roots, bounds, report):
    """Enter the seeds from ``begin`` to ``end``, which are those of a group; returns the number of
    their runs, or -1 if there is no room for them."""
    seeds, begins, trees, _ = roots
    _clear(group.drawn)
    for t in range(len(batch.num_nodes)):
        low = min(max(begins[t], begin), end)
        high = max(low, min(begins[t + 1], end))
        need = high - low + group.nodes_before[t]
        if need > room.most:
            report[WHAT] = need
            return stop(report, FULL, BEGIN)
        room.bits[t] = _plant(
            seeds[low:high],
            trees[low:high],
            batch.num_nodes[t],
            _of_type(room.longs.nodes, room.most, t),
            _table_of(room, t),
            room.bits[t],
        )
        group.known[t] = 0
        group.found[t] = high - low
    r = 0
    while r < len(batch.runs) and batch.runs[r, _HOP] < 0:
        bounds[r, _BEGIN] = 0
        bounds[r, _END] = group.found[batch.runs[r, _TYPE]]
        bounds[r, _EDGES_BEGIN] = 0
        bounds[r, _EDGES_END] = 0
        r += 1
    return r


@inlined
def _begin_hop(batch, room, group, counts):
    """Draw from what the previous hop found: add it to ``counts``, and split it into vertices and
    trees."""
    for t in range(len(counts)):
        group.first[t] = group.known[t]
        group.known[t] = group.found[t]
        counts[t] += group.known[t] - group.first[t]
        vertices, trees = _frontier(room, group, t)
        nodes = _of_type(room.longs.nodes, room.most, t)
        found = nodes[group.first[t] : group.known[t]]
        split_trees(found, batch.num_nodes[t], vertices, trees)


@inlined
def _end_group(room, group):
    """Add a group's vertices and edges to those of earlier groups; returns its number of
    vertices."""
    num_found = np.int64(0)
    for t in range(len(group.found)):
        group.nodes_before[t] += group.found[t]
        num_found += group.found[t]
        room.bits[t] = table_bits_next(room.bits[t], group.found[t])
    for e in range(len(group.drawn)):
        group.edges_before[e] += group.drawn[e]
    return num_found


@kernel
def sample_trees(edges, times, shape, way, weights, roots, memory, bounds, report):
    """Sample the trees of all seeds, group by group, until the caller must act or all are sampled;
    see the module for what it writes.

    Args:
        edges: ``csc``, ``like``, ``like_ids`` and ``narrow``.
        times: ``timed``, ``like_times`` and ``limits``. ``timed`` has four numbers for each edge
            type: the addresses of times and marks (see ``count_until``; 0: no times); the address
            of pairs of source and id in the order of the times (0: the graph's arrays are in that
            order); the row of ``limits`` that times must be above (0: none). ``like_times`` is an
            array of the times' dtype. ``limits``, shape ``(rows, trees)``, has in row 0 the latest
            time that may be drawn, in the others lower limits.
        shape: ``ends``, ``num_nodes``, ``fanouts`` and ``runs``. ``fanouts`` are by hop and edge
            type; -1 takes all, ``CALLER`` lets the caller pick.
        way: ``replace`` and ``latest``, see ``SubgraphSampler``; the batch's random key; and the
            number of vertices that a group should have. Trees must then be in the order of their
            seeds, one seed each, and each run found from one run. 0: one group.
        weights: See ``kernels/batch.py``; only without times.
        roots: The seeds of all types; where each type begins; each seed's tree; and the bytes of an
            id in the result.
        memory: ``most``, the maximum number of vertices, and of edges, of one type; scratch for the
            positions and sources of a hop's edges, of the dtype of ``like``; scratch for a hash set
            of one vertex's picks; the bits of the size of each vertex type's hash table, kept from
            batch to batch; ``longs``; ``ends_of``.
    """
    csc, like, like_ids, narrow = edges
    timed, like_times, limits = times
    ends, num_nodes, fanouts, runs = shape
    replace, latest, key, in_group = way
    most, picks, seen, bits, longs, ends_of = memory
    num_hops, num_edge_types = fanouts.shape
    num_types = len(num_nodes)
    counts, edges_of, parts = _report(report, num_hops, num_types, num_edge_types)
    divided = _divide(longs, most, num_types, num_edge_types)
    dst_at = num_edge_types * most
    room = _TreeRoom(
        most, divided, picks[:most], picks[most:], ends_of[:dst_at], ends_of[dst_at:], seen, bits
    )
    batch = _TreeBatch(
        csc,
        like,
        like_ids,
        narrow,
        timed,
        like_times,
        limits,
        ends,
        num_nodes,
        fanouts,
        runs,
        replace,
        latest,
        key,
    )
    group = _counters_of_group(divided.counters, num_types, num_edge_types)
    # In the middle of a hop of the only group.
    goes_on = report[PHASE] != FRESH
    if not goes_on:
        _clear(group.nodes_before)
        _clear(group.edges_before)
        report[PHASE] = BEGIN
        report[HOP] = 0
    report[STATUS] = DONE
    begin = 0
    number = 0
    size = 0
    num_found = np.int64(0)  # vertices of the groups so far
    num_seeds = len(roots[0])
    while begin < num_seeds:
        size = min(num_seeds - begin, _next_group(in_group, begin, size, num_found))
        own = bounds[number]
        r = report[ROW]
        if not goes_on:
            r = _begin_group(batch, room, group, begin, begin + size, roots, own, report)
            if r < 0:
                return
        for hop in range(report[HOP], num_hops + 1):
            if not goes_on:
                _begin_hop(batch, room, group, counts[hop])
            goes_on = False
            while r < len(runs) and runs[r, _HOP] == hop:
                e = runs[r, _EDGE]
                total = _draw(batch, weights, room, group, hop, e, report)
                if total < 0:
                    report[HOP] = hop
                    report[ROW] = r
                    return
                edges_of[hop, e] += total
                r = _number_runs(batch, room, group, r, own)
                group.drawn[e] += total
        num_found += _end_group(room, group)
        begin += size
        number += 1
    for hop in range(num_hops):
        for t in range(num_types):
            counts[hop + 1, t] += counts[hop, t]
    report[EDGE] = number
    report[BYTES] = _lay_out(group.nodes_before, group.edges_before, parts, roots[3])


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


class _Ends(NamedTuple):
    """Counters while the result is written.

    nodes, edges: vertices by vertex type, and edges by edge type, up to a run or a group.
    node_places, edge_places: by run, where its next group's vertices and edges go.
    """

    nodes: Any
    edges: Any
    node_places: Any
    edge_places: Any


@inlined
def _counters_of_result(counters, num_types, num_edge_types, num_runs):
    """Divide the counters of ``longs``."""
    nodes_at = num_types + num_edge_types
    edges_at = nodes_at + num_runs
    return _Ends(
        counters[:num_types],
        counters[num_types:nodes_at],
        counters[nodes_at:edges_at],
        counters[edges_at : edges_at + num_runs],
    )


@kernel
def _advance(runs, r, bounds, until):
    """Add a run's vertices and edges of one group."""
    until.nodes[runs[r, _TYPE]] += bounds[r, _END] - bounds[r, _BEGIN]
    if runs[r, _HOP] >= 0:
        until.edges[runs[r, _EDGE]] += bounds[r, _EDGES_END] - bounds[r, _EDGES_BEGIN]


@kernel
def _begin_runs(runs, num_groups, bounds, until):
    """Find where each run begins in the result, which is ordered by run, then group."""
    _clear(until.nodes)
    _clear(until.edges)
    for r in range(len(runs)):
        until.node_places[r] = until.nodes[runs[r, _TYPE]]
        if runs[r, _HOP] >= 0:
            until.edge_places[r] = until.edges[runs[r, _EDGE]]
        for g in range(num_groups):
            _advance(runs, r, bounds[g], until)


@kernel
def _put_vertices(runs, most, longs, bounds, until, parts, ids, whole):
    """Write the vertices of a group, and their trees."""
    for r in range(len(runs)):
        t = runs[r, _TYPE]
        begin = bounds[r, _BEGIN]
        count = bounds[r, _END] - begin
        place = until.node_places[r]
        at = t * most + until.nodes[t] + begin
        _copy(longs.vertices[at : at + count], ids, parts[2 * t] + place)
        _copy(longs.trees[at : at + count], whole, parts[2 * t + 1] + place)
        # The group's vertices of trees are no longer needed: their memory gets the local ids.
        local_ids = _of_type(longs.nodes, most, t)[begin:]
        for i in range(count):
            local_ids[i] = place + i
        until.node_places[r] += count


@kernel
def put_trees(ends, num_nodes, fanouts, runs, most, longs, ends_of, bounds, report, ids, whole):
    """Write the result: vertices and trees of each vertex type, and both ends and ids of the edges
    of each edge type.

    ``ids`` and ``whole`` are the same memory, in the batch's id dtype and as int64.
    """
    num_hops, num_edge_types = fanouts.shape
    num_types = len(num_nodes)
    divided = _divide(longs, most, num_types, num_edge_types)
    all_src = ends_of[: num_edge_types * most]
    all_dst = ends_of[num_edge_types * most :]
    _, edges_of, parts = _report(report, num_hops, num_types, num_edge_types)
    until = _counters_of_result(divided.counters, num_types, num_edge_types, len(runs))
    # Scratch is ordered by group, then run. So first find where each run begins in the result, then
    # copy group by group.
    num_groups = report[EDGE]
    _begin_runs(runs, num_groups, bounds, until)
    _clear(until.nodes)
    _clear(until.edges)
    for g in range(num_groups):
        _put_vertices(runs, most, divided, bounds[g], until, parts, ids, whole)
        for r in range(len(runs)):
            e = runs[r, _EDGE]
            begin = bounds[g, r, _EDGES_BEGIN]
            count = bounds[g, r, _EDGES_END] - begin
            if count == 0:
                continue
            at = e * most + until.edges[e] + begin
            part = 2 * (num_types + e)
            out = parts[part] + until.edge_places[r]
            of_src = _of_type(divided.nodes, most, ends[e, 0])
            _place(all_src[at : at + count], of_src, ids, out)
            out += _total(edges_of, num_hops, e)
            of_dst = _of_type(divided.nodes, most, ends[e, 1])
            _place(all_dst[at : at + count], of_dst, ids, out)
            _copy(divided.ids[at : at + count], whole, parts[part + 1] + until.edge_places[r])
            until.edge_places[r] += count
        for r in range(len(runs)):
            _advance(runs, r, bounds[g], until)
