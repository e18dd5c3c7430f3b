"""Kernels that sample a whole mini-batch: every hop of uniform picks along one edge type, in one call.

They compose the kernels of single hops, so that passes, prefetching and results are theirs; what is saved is the way
from Python into each of them, and the interpreter's lock that every call gives back and takes again.

``renewal`` is as in ``Hop``: empty, or how random numbers are shared with the batches before and after.

``work`` is scratch of int64, laid out as ``small_batch`` says. It begins with what is reported: the
status, the id that an error is about, the bits of the hash table to begin the next batch with, two numbers about the
batch, and then five about each hop.
"""

import numpy as np

from ..._jit import kernel
from .hop import SCAN_LIMIT, insert_nodes, measure, mix, pick_distinct, pick_repeated, read_neighbors, relabel, renew
from .subgraph import put_edges

DONE, BAD_SEED, BAD_ROW, BAD_SOURCE = 0, 1, 2, 3
REPORT, PER_HOP = 5, 5  # numbers reported of the batch, and of each hop

_LINE = 64  # bytes; parts of the result begin on a cache line of their own
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@kernel
def hop_key(key, hop):  # type: ignore[no-untyped-def]
    """``derive_key(key, hop)``."""
    return mix((mix(key + _GOLDEN) ^ mix(np.uint64(hop) + _GOLDEN)) + _GOLDEN)


@kernel
def _aligned(at):  # type: ignore[no-untyped-def]
    return (at + _LINE - 1) // _LINE * _LINE


@kernel
def _fill(nodes, count, tables, bits):  # type: ignore[no-untyped-def]
    table = tables[: 1 << bits]
    table[:] = -1
    insert_nodes(nodes, count, table, np.uint64(64 - bits))


@kernel
def _plant(seeds, num_vertices, nodes, tables, bits):  # type: ignore[no-untyped-def]
    """Enter the seeds into a fresh hash table; returns its bits, or -1 where a seed is outside the graph."""
    n = len(seeds)
    for i in range(n):
        if seeds[i] < 0 or seeds[i] >= num_vertices:
            return -1
        nodes[i] = seeds[i]
    while 1 << bits < 4 * n:
        bits += 1
    while 1 << bits > len(tables):
        bits -= 1
    _fill(nodes, n, tables, bits)
    return bits


@kernel
def _measure(indptr, num_edges, frontier, fanout, replace, starts, degrees, offsets):  # type: ignore[no-untyped-def]
    if fanout > 0:
        return measure(indptr, num_edges, frontier, fanout, replace, starts, degrees, offsets)
    offsets[:] = 0  # a hop that draws nothing reads no row
    return 0


@kernel
def _pick(  # type: ignore[no-untyped-def]
    frontier, fanout, replace, key, renewal, counters, starts, degrees, offsets, seen, positions
):
    if len(positions) == 0:
        return
    if len(renewal) == 0:
        _pick_as(frontier, fanout, replace, key, starts, degrees, offsets, seen, positions)
        return
    counters = counters[: len(frontier)]
    renew(frontier, renewal, counters)
    _pick_as(counters, fanout, replace, key + renewal[3], starts, degrees, offsets, seen, positions)


@kernel
def _pick_as(frontier, fanout, replace, key, starts, degrees, offsets, seen, positions):  # type: ignore[no-untyped-def]
    if replace:
        pick_repeated(frontier, starts, degrees, offsets, key, positions)
        return
    size = 1  # the set is a token where no vertex has to choose among so many
    if fanout > SCAN_LIMIT and np.max(degrees[: len(frontier)]) > fanout:
        while size < 2 * fanout:
            size *= 2
        seen[:size] = -1
    pick_distinct(frontier, starts, degrees, offsets, key, seen[:size], positions)


@kernel
def _relabel(neighbors, num_vertices, nodes, count, tables, bits, local_ids):  # type: ignore[no-untyped-def]
    """``relabel`` to its end, in a table that grows; returns where it ended, the number of nodes, and the bits."""
    at = 0
    while True:
        table, shift = tables[: 1 << bits], np.uint64(64 - bits)
        at, count = relabel(neighbors, at, num_vertices, nodes, count, table, shift, local_ids)
        if at < 0 or at == len(neighbors):
            return at, count, bits
        bits += 1
        _fill(nodes, count, tables, bits)


@kernel
def _bits_next(bits, count):  # type: ignore[no-untyped-def]
    """Bits for the next batch: room for half as many vertices again, but at most one bit fewer than this time."""
    need = 4
    while 1 << need < 3 * count:
        need += 1
    return max(need, bits - 1)


@kernel
def _parts(work, num_hops, room):  # type: ignore[no-untyped-def]
    """The scratch of a batch: its rows' starts, degrees and counters, neighbours, the set of picks, the hash table."""
    _, rows, drawn, seen, _, _ = room
    begin = REPORT + PER_HOP * num_hops
    starts, degrees = work[begin : begin + rows], work[begin + rows : begin + 2 * rows]
    counters = work[begin + 2 * rows : begin + 3 * rows]
    begin += 3 * rows
    return (
        starts,
        degrees,
        counters,
        work[begin : begin + drawn],
        work[begin + drawn : begin + drawn + seen],
        begin + drawn + seen,
    )


@kernel
def sample_blocks(indptr, indices, seeds, fanouts, replace, key, renewal, bits, room, work, out):  # type: ignore[no-untyped-def]
    """Each hop expands all known vertices. ``out`` gets the nodes, then each hop's indptr, indices and positions.

    Reported of a hop: the nodes after it, its edges, and where in ``out`` its parts begin, in elements.
    """
    num_vertices, num_hops = len(indptr) - 1, len(fanouts)
    ids, places = out.view(seeds.dtype), out.view(indices.dtype)
    nodes = ids[: room[0]]
    starts, degrees, counters, memory, seen, begin = _parts(work, num_hops, room)
    neighbors, tables = memory.view(indices.dtype), work[begin:]
    bits = _plant(seeds, num_vertices, nodes, tables, bits)
    if bits < 0:
        work[0] = BAD_SEED
        return
    count, at = len(seeds), _aligned(len(nodes) * ids.itemsize)
    for hop in range(num_hops):
        fanout, frontier, report = fanouts[hop], nodes[:count], work[REPORT + PER_HOP * hop :]
        report[2] = at // ids.itemsize
        offsets = ids[report[2] : report[2] + count + 1]
        total = _measure(indptr, len(indices), frontier, fanout, replace, starts, degrees, offsets)
        if total < 0:
            work[0], work[1] = BAD_ROW, frontier[-1 - total]
            return
        at = _aligned(at + len(offsets) * ids.itemsize)
        report[3] = at // ids.itemsize
        local_ids = ids[report[3] : report[3] + total]
        at = _aligned(at + total * ids.itemsize)
        report[4] = at // places.itemsize
        positions = places[report[4] : report[4] + total]
        at = _aligned(at + total * places.itemsize)
        rows = starts, degrees, offsets
        _pick(frontier, fanout, replace, hop_key(key, hop), renewal, counters, *rows, seen, positions)
        sources = neighbors[:total]
        read_neighbors(indices, positions, sources)
        edge, count, bits = _relabel(sources, num_vertices, nodes, count, tables, bits, local_ids)
        if edge < 0:
            work[0], work[1] = BAD_SOURCE, sources[-1 - edge]
            return
        report[0], report[1] = count, total
    work[0], work[2] = DONE, _bits_next(bits, count)


@kernel
def sample_subgraph(  # type: ignore[no-untyped-def]
    indptr, indices, seeds, fanouts, replace, key, renewal, bits, room, work, out, edge_ids
):
    """Each hop expands what the hop before found. ``out`` gets the nodes, both ends of all edges, and the edges' ids.

    Reported of the batch: where both ends and the ids begin, in elements; of a hop: the numbers of nodes and of edges
    after it.
    """
    num_vertices, num_hops = len(indptr) - 1, len(fanouts)
    ids = out.view(seeds.dtype)
    nodes = ids[: room[0]]
    starts, degrees, counters, memory, seen, begin = _parts(work, num_hops, room)
    neighbors = memory.view(indices.dtype)
    kept = work[begin : begin + room[4]].view(indices.dtype)  # positions of all hops
    begin += room[4]
    indptrs, tables = work[begin : begin + room[5]], work[begin + room[5] :]
    bits = _plant(seeds, num_vertices, nodes, tables, bits)
    if bits < 0:
        work[0] = BAD_SEED
        return
    first, count, num_edges, row = 0, len(seeds), 0, 0
    begin = _aligned(len(nodes) * ids.itemsize) // ids.itemsize
    sources = ids[begin:]
    for hop in range(num_hops):
        fanout, frontier = fanouts[hop], nodes[first:count]
        first, offsets = count, indptrs[row : row + len(frontier) + 1]
        row += len(offsets)
        total = _measure(indptr, len(indices), frontier, fanout, replace, starts, degrees, offsets)
        if total < 0:
            work[0], work[1] = BAD_ROW, frontier[-1 - total]
            return
        positions = kept[num_edges : num_edges + total]
        rows = starts, degrees, offsets
        _pick(frontier, fanout, replace, hop_key(key, hop), renewal, counters, *rows, seen, positions)
        read_neighbors(indices, positions, neighbors[:total])
        local_ids = sources[num_edges : num_edges + total]
        edge, count, bits = _relabel(neighbors[:total], num_vertices, nodes, count, tables, bits, local_ids)
        if edge < 0:
            work[0], work[1] = BAD_SOURCE, neighbors[-1 - edge]
            return
        num_edges += total
        work[REPORT + PER_HOP * hop], work[REPORT + PER_HOP * hop + 1] = count, num_edges
    work[0], work[2] = DONE, _bits_next(bits, count)
    work[3], work[4] = begin, _put(seeds, fanouts, work, kept, indptrs, sources, out, num_edges, edge_ids)


@kernel
def _put(seeds, fanouts, work, positions, indptrs, sources, out, num_edges, edge_ids):  # type: ignore[no-untyped-def]
    """Write the edges' destinations behind their sources, and their ids behind both; returns where these begin."""
    before = len(out) - len(sources) * sources.itemsize
    at = _aligned(before + 2 * num_edges * sources.itemsize) // 8
    out_ids = out.view(np.int64)[at : at + num_edges]
    destinations = sources[num_edges : 2 * num_edges]
    row, first, end, edge = 0, 0, len(seeds), 0
    for hop in range(len(fanouts)):
        rows = indptrs[row : row + end - first + 1]
        total = rows[-1]
        drawn = rows, sources[edge : edge + total], positions[edge : edge + total]
        put_edges(*drawn, edge_ids, first, edge, sources, destinations, out_ids)
        row += len(rows)
        first, end, edge = end, work[REPORT + PER_HOP * hop], edge + total
    return at
