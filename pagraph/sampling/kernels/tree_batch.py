"""Kernels that sample whole batches of disjoint trees: all hops of a few trees, then of the next
few.

They compose the kernels of single hops. What the hops of a few trees need stays in the processor's
inner caches, above all the hash table that tells vertices of a tree apart; an epoch's batches of
1000 trees need one of megabytes.
"""

import numpy as np

from ..._jit import allocating_kernel, inlined, kernel
from .hop import insert_nodes, measure, pick_distinct, pick_repeated, read_neighbors, relabel
from .times import count_until, cut_rows, read_edges
from .trees import in_trees

DONE = 0
BAD_ROW = 1
BAD_SOURCE = 2


@kernel
def _split(ids, num_nodes, tree, vertices, trees):
    """The vertices and trees of ids, which are in the order of trees from ``tree`` on; see
    ``split_trees``."""
    first = tree * num_nodes
    for i in range(len(ids)):
        while ids[i] >= first + num_nodes:
            first += num_nodes
            tree += 1
        trees[i] = tree
        vertices[i] = ids[i] - first


@inlined
def _limit(trees, of_trees, times, marks, starts, degrees, limits, counts):
    """``count_until`` by the limits of the rows' trees; the counts, or none where trees have no
    limits."""
    known = 0
    if len(of_trees) > 0:
        known = len(trees)
        # By row, as the kernels of single hops expect limits.
        for i in range(known):
            limits[i] = of_trees[trees[i]]
        count_until(times, marks, limits[:known], starts, degrees, counts)
    return counts[:known]


@kernel
def _lift(sources, offsets, trees, num_src, first, lifted, rows):
    """``in_trees``, and the places of the destinations, which begin at ``first``."""
    for i in range(len(trees)):
        for e in range(offsets[i], offsets[i + 1]):
            rows[e] = first + i
    return in_trees(sources, offsets, trees, num_src, lifted)


@kernel
def _plant(seeds, num_nodes, tree, nodes, tables, bits):
    """Enter a seed for each tree from ``tree`` on into an empty table; returns their number, and
    the table's bits."""
    for i in range(len(seeds)):
        nodes[i] = (tree + i) * num_nodes + seeds[i]
    # A quarter full, so that most groups end before the table has to grow at a half.
    while 1 << bits < 4 * len(seeds):
        bits += 1
    tables[: 1 << bits] = -1
    insert_nodes(nodes, len(seeds), tables[: 1 << bits], np.uint64(64 - bits))
    return len(seeds), bits


@kernel
def _number(ids, nodes, count, tables, bits, local_ids):
    """``relabel`` to its end, in a table that grows; returns the number of nodes, and the table's
    bits."""
    at = np.int64(0)
    while True:
        table = tables[: 1 << bits]
        shift = np.uint64(64 - bits)
        # No upper bound: in_trees has checked the sources, and these ids are beyond the vertices.
        at, count = relabel(ids, at, np.int64(2**63 - 1), nodes, count, table, shift, local_ids)
        if at == len(ids):
            return count, bits
        bits += 1
        tables[: 1 << bits] = -1
        insert_nodes(nodes, count, tables[: 1 << bits], np.uint64(64 - bits))


@kernel
def _measure(graph, num_edges, timed, found, tree, fanout, replace, latest, room):
    """Rows of the nodes found, cut down to the edges that may be drawn; returns the draws, or as
    ``measure``."""
    indptr, num_nodes = graph
    times, marks, until, since = timed
    vertices, trees, starts, degrees, limits, upto, before, offsets = room
    rows = vertices[: len(found)]
    rows_of = trees[: len(found)]
    _split(found, num_nodes, tree, rows, rows_of)
    total = measure(indptr, num_edges, rows, fanout, replace, starts, degrees, offsets)
    if total < 0 or len(until) == 0:
        return total
    early = _limit(rows_of, until, times, marks, starts, degrees, limits, upto)
    late = _limit(rows_of, since, times, marks, starts, degrees, limits, before)
    cut_rows(early, late, fanout, replace, latest, starts, degrees, offsets)
    return np.int64(offsets[len(found)])


@kernel
def _read(edges, positions, sources, ids):
    """The sources and the ids of the edges at ``positions``."""
    indices, edge_ids, pairs = edges
    # Side by side a source and its id are one cache miss, not two.
    if len(pairs) > 0:
        read_edges(pairs, positions, sources, ids)
        return
    read_neighbors(indices, positions, sources)
    if len(edge_ids) > 0:
        read_neighbors(edge_ids, positions, ids)
    else:
        for e in range(len(positions)):
            ids[e] = positions[e]


@kernel
def sample_trees(
    graph,
    edges,
    timed,
    seeds,
    fanouts,
    replace,
    latest,
    keys,
    group,
    rows,
    room,
    drawn,
    ends,
    edge_ends,
):
    """Sample the trees of all seeds, ``group`` at a time; returns a status and the id that it is
    about.

    Args:
        graph: ``indptr``, and the number of vertices.
        edges: Sources and ids of the edges of its rows (no ids: their places), and both side by
            side, or none there.
        timed: Times and marks, see ``count_until``; the last time of each tree, and the one that
            all must be above (empty: no limit).
        seeds: The root of each tree.
        fanouts, keys: Of each hop.
        replace, latest: See ``SubgraphSampler``.
        group: Trees to sample together.
        rows: Scratch for the rows of a hop of a group: vertices, trees, starts, degrees, limits,
            the counts up to either limit, offsets.
        room: Scratch for its edges: positions, sources, lifted ones; the set of picks, the hash
            table.
        drawn: Gets the ids of all nodes in trees, and of all edges both ends, as places in the
            group, and ids.
        ends, edge_ends: Get the nodes and edges of each group up to each hop, shapes
            ``(groups, hops + 1)``.
    """
    trees = rows[1]
    starts = rows[2]
    degrees = rows[3]
    offsets = rows[7]
    positions, sources, lifted, seen, tables = room
    all_nodes, all_src, all_dst, all_ids = drawn
    begin = 0
    at = 0
    bits = 10
    for g in range(len(ends)):
        tree = g * group
        nodes = all_nodes[begin:]
        count, bits = _plant(seeds[tree : tree + group], graph[1], tree, nodes, tables, bits)
        first = 0
        num_edges = 0
        ends[g, 0] = count
        edge_ends[g, 0] = 0
        for hop in range(len(fanouts)):
            found = nodes[first:count]
            total = _measure(
                graph, len(edges[0]), timed, found, tree, fanouts[hop], replace, latest, rows
            )
            if total < 0:
                return BAD_ROW, np.int64(rows[0][-1 - total])
            picked = positions[:total]
            if replace:
                pick_repeated(found, starts, degrees, offsets, keys[hop], picked)
            else:
                pick_distinct(found, starts, degrees, offsets, keys[hop], seen, picked)
            _read(edges, picked, sources[:total], all_ids[at:])
            bad = _lift(
                sources, offsets, trees[: len(found)], graph[1], first, lifted, all_dst[at:]
            )
            if bad >= 0:
                return BAD_SOURCE, np.int64(sources[bad])
            # The next hop draws from what this one finds, not again from what was known.
            first = count
            count, bits = _number(lifted[:total], nodes, count, tables, bits, all_src[at:])
            at += total
            num_edges += total
            ends[g, hop + 1] = count
            edge_ends[g, hop + 1] = num_edges
        begin += count
        # The next group has about as many; a larger table would be cleared.
        while 1 << bits > max(1024, 8 * count):
            bits -= 1
    return DONE, np.int64(0)


@allocating_kernel
def put_trees(num_nodes, group, drawn, ends, edge_ends, nodes, trees, src, dst, ids):
    """Write what ``sample_trees`` drew hop by hop, over all groups; the last five are the result.

    Args:
        num_nodes, group, drawn, ends, edge_ends: As there.
        nodes, trees: Vertices and trees.
        src, dst, ids: Both ends of the edges as places among these, and the edges' ids.
    """
    all_nodes, all_src, all_dst, all_ids = drawn
    num_groups, levels = ends.shape
    # The result is ordered by hop, then by group; what was drawn by group, then by hop. First count
    # where each hop begins, then go through the groups and move their parts there. ``places`` are
    # where the next group's part of each hop goes.
    places = np.zeros(levels + 1, np.int64)
    edge_places = np.zeros(levels + 1, np.int64)
    for level in range(levels):
        for g in range(num_groups):
            places[level + 1] += ends[g, level] - (ends[g, level - 1] if level else 0)
            edge_places[level + 1] += edge_ends[g, level] - (
                edge_ends[g, level - 1] if level else 0
            )
        places[level + 1] += places[level]
        edge_places[level + 1] += edge_places[level]
    shifts = np.empty(levels, np.int64)  # from a place in the group to one in the batch
    node_begin = 0
    edge_begin = 0
    for g in range(num_groups):
        begin = 0
        for level in range(levels):
            end = ends[g, level]
            place = places[level]
            shifts[level] = place - begin
            found = all_nodes[node_begin + begin : node_begin + end]
            _split(
                found,
                num_nodes,
                g * group,
                nodes[place : place + end - begin],
                trees[place : place + end - begin],
            )
            places[level] += end - begin
            begin = end
        begin = 0
        for level in range(1, levels):
            end = edge_ends[g, level]
            place = edge_places[level]
            shift = shifts[level]
            limit = ends[g, level - 1]
            # A source was found in this hop, or in an earlier one whose nodes moved by another
            # shift.
            for e in range(end - begin):
                at = edge_begin + begin + e
                source = np.int64(all_src[at])
                if source >= limit:
                    src[place + e] = source + shift
                else:
                    of = level - 1
                    while of > 0 and source < ends[g, of - 1]:
                        of -= 1
                    src[place + e] = source + shifts[of]
                dst[place + e] = all_dst[at] + shifts[level - 1]
                ids[place + e] = all_ids[at]
            edge_places[level] += end - begin
            begin = end
        node_begin += ends[g, levels - 1]
        edge_begin += edge_ends[g, levels - 1]
