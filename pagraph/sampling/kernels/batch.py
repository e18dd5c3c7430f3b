"""Kernels that sample a whole mini-batch: all hops along all edge types, with any kind of pick.

They call the passes of single hops. One call for all hops saves the overhead of each, and the
hand-over of the GIL. :func:`advance` works in scratch memory. It returns where the caller must act
(see *Stops*) and goes on at the next call. Then the size of the result is known, and
:func:`put_blocks` or :func:`put_subgraph` writes it.

Common arguments:

- ``csc``: for each edge type the addresses of ``indptr``, ``indices`` and ``edge_ids`` (0: none),
  the numbers of edges, destinations and sources, flags, the addresses of ``Pages.known`` of
  ``indptr``, ``indices`` and ``edge_ids`` (0: in memory, or not read), and the bytes of an edge id.
  The first
  two have the dtype of the array ``like``, the third that of ``like_ids``. ``narrow`` is None, or
  an int32 array if the flags ``NARROW`` or ``NARROW_IDS`` say that those of some types are
  narrower. ``page_bits`` is None if no array is in a file, else the binary logarithm of a page's
  bytes.
- ``fanouts``: by hop and edge type; -1 takes all edges, ``CALLER`` lets the caller pick. ``ends``:
  for each edge type, the numbers of its source and destination vertex types.
- ``of_types``: for each vertex type, and a last row for the ends, the number of vertices, and where
  its nodes, its hash table and its direct table (*places*) begin in scratch; -1 for the last one:
  the type has a hash table.
- ``weights``: None if all types are drawn from uniformly, for which less is compiled. Else a tuple:
  a table, arrays of the dtypes of weights, sums and guides, and scratch of weighted picks. For each
  edge type the table has the addresses of its weights, sums and guide (0: its edges have equal
  weights), the addresses of the ``indptr`` and the positions of its edges of positive weight (0:
  all are positive), and the number of these.
- ``shared``: None, or for LABOR whether all hops share their random numbers.
- ``trees``: None, or for disjoint trees a tuple: scratch for the vertices and their trees, laid out
  as the nodes; the bytes of an id in the result; and ``timed``. The nodes are then vertices of
  trees, see ``kernels/trees.py``, and have hash tables.
- ``timed``: a table, an array of the times' dtype, ``limits``, and whether only the latest edges
  are drawn. For each edge type the table has the addresses of its
  times and marks (see ``count_until``; 0: no times), that of pairs of source and id in the order of
  the times (0: the graph's arrays are in that order), and the row of ``limits`` that times must be
  above (0: none). ``limits``, shape ``(rows, trees)``, has in row 0 the latest time that may be
  drawn, in the others lower limits.
- ``excluded``: None, or edges to leave out: a table with the arrays of each edge type's
  ``ExcludedEdges`` (address and length of the set, address of the marks, both shifts), and an array
  of the marks' dtype.
- ``work``: scratch of int64. ``ids``: scratch of the graph's id dtype.
- ``room``: the layout of these two, and whether edges are weighed. Seven numbers, at the indices
  ``ROWS`` to ``WEIGHED``::

    work   | report | rows of one hop | indptrs of all hops | set of picks | hash tables
                    ^room[ROWS]       ^room[INDPTRS]        ^room[PICKS]   ^room[TABLES]
    ids    | neighbours of one hop | positions of all edges
                                   ^room[POSITIONS]

  Rows are starts, degrees and counters, and for trees two counts of edges, with
  ``room[NUM_ROWS]`` elements each, the size of the largest frontier; each hop overwrites them.
  Indptrs and positions are kept until the result is written.
- The report, which Python reads::

    work   | status, id, edge type, bytes, hop, phase, row, edge | nodes | edges | parts
           0                                                     REPORT

  For an error status, the id and the edge type are where it occurred; for ``FULL`` the id is the
  number of edges, from ``edge`` on, that there must be room for. ``nodes`` has the number of nodes
  by type, before the first hop and after each; ``edges`` that of edges by hop and edge type.
  ``parts`` are the first elements of the result's arrays.

Stops. A hop along an edge type is drawn in phases. At a stop, ``hop`` and ``edge type`` say which,
and ``row`` and ``edge`` where its indptr begins in ``work`` and its positions among those of all
edges. The caller

- ``ASK_OFFSETS``: asks for the pages of the frontier's offsets, where some are not known to be in
  memory. The same for the next two;
- ``ASK_ROWS``: asks for the pages of the frontier's whole rows;
- ``ASK_EDGES``: asks for the pages of the picked edges, and of the ids that are read;
- ``PICK``: writes the indptr and the positions of the edges.
"""

import numpy as np

from ..._jit import array_at, as_rows, inlined, kernel
from ...system._paging import are_known, are_runs_known
from ..hop import (
    ASK_EDGES,
    ASK_OFFSETS,
    ASK_ROWS,
    BAD_ROW,
    BAD_SEED,
    BAD_SOURCE,
    BEGIN,
    BYTES,
    CALLER,
    DONE,
    EDGE,
    EDGE_TYPE,
    FLAGS,
    FRESH,
    FULL,
    HOP,
    ID_BYTES,
    IDS,
    KNOWN_EDGES,
    KNOWN_IDS,
    KNOWN_OFFSETS,
    MEASURE,
    NARROW,
    NARROW_IDS,
    PHASE,
    PICK,
    PICKING,
    READING,
    REPORT,
    ROW,
    STATUS,
    WHAT,
)
from .edges import drop
from .hop import (
    SCAN_LIMIT,
    SET_SLOTS,
    clear_places,
    insert_nodes,
    measure,
    mix,
    number,
    pick_distinct,
    pick_repeated,
    read_neighbors,
    relabel,
    renew,
)
from .labor import pick_uniform as pick_shared
from .times import PAIRS, cut_at, read_edges
from .trees import in_trees, put_edges, split_trees
from .weighted import CHUNK, pick_weighted

# Indices of ``room``.
ROWS = 0
NUM_ROWS = 1
INDPTRS = 2
PICKS = 3
TABLES = 4
POSITIONS = 5
WEIGHED = 6

# Columns of ``csc``, besides those of the report's module.
_INDPTR = 0
_INDICES = 1
_EDGES = 3
_DST = 4
_SRC = 5

# Columns of the table of ``weights``.
_VALUES = 0
_SUMS = 1
_GUIDE = 2
KEPT_INDPTR = 3
KEPT = 4
POSITIVE = 5

# Columns of ``of_types``.
_VERTICES = 0
_NODES = 1
_TABLE = 2
_PLACES = 3

# Bytes of a cache line, to which all parts of the result are aligned.
_LINE = 64
_ANY = np.int64(2**63 - 1)  # no limit
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # as in ``seeds.keys.derive_key``


@kernel
def hop_key(key, hop, edge_type):
    """``derive_key(key, hop)``, or for all edge types but the first
    ``derive_key(key, hop, edge_type)``."""
    derived = mix((mix(key + _GOLDEN) ^ mix(np.uint64(hop) + _GOLDEN)) + _GOLDEN)
    if edge_type == 0:
        return derived
    return mix((derived ^ mix(np.uint64(edge_type) + _GOLDEN)) + _GOLDEN)


@kernel
def aligned(at):
    """``at``, in bytes, rounded up to where a part of the result may begin."""
    return (at + _LINE - 1) // _LINE * _LINE


@kernel
def fill_table(nodes, count, tables, bits):
    """Clear a hash table of ``2**bits`` slots and enter the first ``count`` nodes."""
    table = tables[: 1 << bits]
    table[:] = -1
    insert_nodes(nodes, count, table, np.uint64(64 - bits))


@kernel
def fill_fresh_table(nodes, count, table, bits):
    """:func:`fill_table` with ``2**bits`` slots or more; returns the bits of the table's size.

    It is at most a quarter full if ``table`` has room for that, as it must grow when half full.
    """
    while 1 << bits < 4 * count:
        bits += 1
    while 1 << bits > len(table):
        bits -= 1
    fill_table(nodes, count, table, bits)
    return bits


@inlined
def measure_at(like, narrow, csc, weights, t, frontier, fanout, replace, starts, degrees, offsets):
    """:func:`measure` the rows of edges of type ``t``, if weighted those of positive weight."""
    rows_at, num_edges = rows_of_type(csc, weights, t)
    num_rows = csc[t, _DST] + 1
    if narrow is not None and csc[t, FLAGS] & NARROW:
        indptr = array_at(narrow, rows_at, num_rows)
        return measure(indptr, num_edges, frontier, fanout, replace, starts, degrees, offsets)
    indptr = array_at(like, rows_at, num_rows)
    return measure(indptr, num_edges, frontier, fanout, replace, starts, degrees, offsets)


@inlined
def read_at(like, narrow, is_narrow, address, count, positions, out):
    """:func:`read_neighbors` from the array of ``count`` elements at an address."""
    if narrow is not None and is_narrow:
        read_neighbors(array_at(narrow, address, count), positions, out)
        return
    read_neighbors(array_at(like, address, count), positions, out)


@kernel
def _read_pairs_at(like, narrow, is_narrow, address, count, positions, sources):
    """Read sources from pairs of source and id, and make the positions ids.

    There they cost one cache miss instead of two.
    """
    if narrow is not None and is_narrow:
        read_edges(array_at(narrow, address, count), positions, sources, positions)
        return
    read_edges(array_at(like, address, count), positions, sources, positions)


@inlined
def rows_of_type(csc, weights, t):
    """Address of the ``indptr`` of the edges of type ``t`` with positive weight, and their
    number."""
    if weights is not None:
        table = weights[0]
        if table[t, KEPT_INDPTR] != 0:
            return table[t, KEPT_INDPTR], table[t, POSITIVE]
    return csc[t, _INDPTR], csc[t, _EDGES]


@kernel
def pick_of_type(
    weights,
    t,
    like,
    narrow,
    is_narrow,
    frontier,
    fanout,
    replace,
    key,
    renewal,
    counters,
    rows,
    seen,
    positions,
):
    """Pick edges of type ``t``, by weight if it has weights; ``fanout`` -1 takes all.

    ``rows`` are starts, degrees and offsets; ``counters`` are scratch.
    """
    if len(positions) == 0:
        return
    if weights is None:
        _pick_uniformly(frontier, fanout, replace, key, renewal, counters, rows, seen, positions)
        return
    table = weights[0]
    if table[t, _VALUES] == 0 or fanout < 0:
        _pick_uniformly(frontier, fanout, replace, key, renewal, counters, rows, seen, positions)
    else:
        _pick_by_weight(weights, t, frontier, replace, key, renewal, counters, rows, positions)
    if table[t, KEPT_INDPTR] != 0:
        # Picks are indices among the edges of positive weight; make them positions.
        read_at(like, narrow, is_narrow, table[t, KEPT], table[t, POSITIVE], positions, positions)


@kernel
def _pick_uniformly(frontier, fanout, replace, key, renewal, counters, rows, seen, positions):
    starts, degrees, offsets = rows
    if renewal is None or len(renewal) == 0:
        pick_as(frontier, fanout, replace, key, starts, degrees, offsets, seen, positions)
        return
    counters = counters[: len(frontier)]
    renew(frontier, renewal, counters)
    pick_as(counters, fanout, replace, key + renewal[3], starts, degrees, offsets, seen, positions)


@kernel
def _pick_by_weight(weights, t, frontier, replace, key, renewal, counters, rows, positions):
    table, like_values, like_sums, like_guide, scratch = weights
    counters = counters[: len(frontier)]
    if renewal is None or len(renewal) == 0:
        for i in range(len(frontier)):
            counters[i] = frontier[i]
    else:
        renew(frontier, renewal, counters)
        key = key + renewal[3]
    count = table[t, POSITIVE]
    tables = (
        array_at(like_values, table[t, _VALUES], count),
        array_at(like_sums, table[t, _SUMS], count // CHUNK),
        array_at(like_guide, table[t, _GUIDE], count // CHUNK),
    )
    pick_weighted(counters, rows, key, replace, tables, scratch, positions)


@kernel
def _has_above(values, count, limit):
    """Whether any of the first ``count`` values is above a limit; without a branch per value."""
    above = 0
    for i in range(count):
        above |= values[i] > limit
    return above != 0


@kernel
def pick_as(frontier, fanout, replace, key, starts, degrees, offsets, seen, positions):
    """Pick uniformly from each row, with or without replacement; ``frontier`` are the counters of
    the random numbers."""
    if replace:
        pick_repeated(frontier, starts, degrees, offsets, key, positions)
        return
    size = 1  # without rows that need the hash set, to not clear it
    if fanout > SCAN_LIMIT and _has_above(degrees, len(frontier), fanout):
        while size < SET_SLOTS * fanout:
            size *= 2
        seen[:size] = -1
    pick_distinct(frontier, starts, degrees, offsets, key, seen[:size], positions)


@kernel
def relabel_growing(neighbors, num_vertices, nodes, count, tables, bits, local_ids):
    """Run ``relabel`` for all neighbours, growing the hash table as needed.

    Returns what ``relabel`` does, and the bits of the table's size.
    """
    at = np.int64(0)
    while True:
        table = tables[: 1 << bits]
        shift = np.uint64(64 - bits)
        at, count = relabel(neighbors, at, num_vertices, nodes, count, table, shift, local_ids)
        if at < 0 or at == len(neighbors):
            return at, count, bits
        bits += 1
        fill_table(nodes, count, tables, bits)


@kernel
def table_bits_next(bits, count):
    """Bits of the next batch's hash table: room for 1.5 times as many vertices, and at most one bit
    fewer than now."""
    need = 4
    while 1 << need < 3 * count:
        need += 1
    return max(need, bits - 1)


@inlined
def _part(array, of_types, column, t):
    """The part of an array that belongs to vertex type ``t``."""
    return array[of_types[t, column] : of_types[t + 1, column]]


@kernel
def _are_vertices(of_types, counts, nodes):
    """Whether all seeds are vertices of the graph."""
    for t in range(len(counts)):
        limit = of_types[t, _VERTICES]
        seeds = _part(nodes, of_types, _NODES, t)
        for i in range(counts[t]):
            if seeds[i] < 0 or seeds[i] >= limit:
                return False
    return True


@kernel
def _plant(of_types, counts, nodes, tables, places, bits):
    """Enter the seeds into fresh hash tables or direct tables; the first copy of repeated ones."""
    for t in range(len(counts)):
        n = counts[t]
        seeds = _part(nodes, of_types, _NODES, t)
        if of_types[t, _PLACES] < 0:
            table = _part(tables, of_types, _TABLE, t)
            bits[t] = fill_fresh_table(seeds, n, table, bits[t])
        else:
            own = places[of_types[t, _PLACES] :]
            # Backwards, so that the first copy of a repeated seed is written last.
            for i in range(n - 1, -1, -1):
                own[seeds[i]] = i


@kernel
def _end(of_types, counts, nodes, places, bits):
    """Clear the direct tables, and choose the sizes of the next batch's hash tables."""
    for t in range(len(counts)):
        if of_types[t, _PLACES] < 0:
            bits[t] = table_bits_next(bits[t], counts[t])
        else:
            clear_places(
                _part(nodes, of_types, _NODES, t)[: counts[t]], places[of_types[t, _PLACES] :]
            )


@inlined
def _report(work, fanouts, of_types):
    """Views of the report: ``nodes``, ``edges`` and ``parts``; see the module."""
    num_hops, num_types = fanouts.shape
    num_node_types = len(of_types) - 1
    begin = REPORT
    end = REPORT + (num_hops + 1) * num_node_types
    counts = as_rows(work[begin:end], num_hops + 1, num_node_types)
    begin = end
    end = end + num_hops * num_types
    return counts, as_rows(work[begin:end], num_hops, num_types), work[end:]


@inlined
def pages_of(csc, like, narrow, page_bits, t, column, known):
    """The ``place`` of ``are_known`` for an array of edges of type ``t``."""
    size = like.itemsize
    if narrow is not None and csc[t, FLAGS] & NARROW:
        size = 4
    return csc[t, column], csc[t, known], size, page_bits


@kernel
def _are_known(csc, like, narrow, page_bits, t, positions):
    """Whether the pages of these edges, and of their ids, are known to be in memory."""
    if csc[t, KNOWN_EDGES] != 0:
        place = pages_of(csc, like, narrow, page_bits, t, _INDICES, KNOWN_EDGES)
        if not are_known(place, positions, 1):
            return False
    if csc[t, KNOWN_IDS] == 0:
        return True
    place = csc[t, IDS], csc[t, KNOWN_IDS], csc[t, ID_BYTES], page_bits
    return are_known(place, positions, 1)


@inlined
def stop(work, status, phase):
    """Let the caller act and go on with a phase; returns what :func:`draw_edges` does."""
    work[STATUS] = status
    work[PHASE] = phase
    return np.int64(-1)


@kernel
def _drop_excluded(excluded, t, offsets, positions):
    """Leave out the excluded ones of picked edges, in place."""
    table, like_marks = excluded
    if table[t, 0] == 0:
        return
    own = array_at(table[0], table[t, 0], table[t, 1])
    marks = array_at(like_marks, table[t, 2], table[t, 1] << 1)
    drop(
        offsets,
        positions,
        like_marks[:0],
        own,
        np.uint64(table[t, 3]),
        marks,
        np.uint64(table[t, 4]),
    )


@kernel
def _pick_shared_at(like, narrow, csc, t, starts, whole, fanout, key, renewal, offsets, positions):
    """LABOR's picks of edges of type ``t``."""
    address = csc[t, _INDICES]
    count = csc[t, _EDGES]
    if narrow is not None and csc[t, FLAGS] & NARROW:
        indices = array_at(narrow, address, count)
        return pick_shared(indices, starts, whole, fanout, key, renewal, offsets, positions)
    indices = array_at(like, address, count)
    return pick_shared(indices, starts, whole, fanout, key, renewal, offsets, positions)


@kernel
def draw_edges(
    csc,
    like,
    narrow,
    page_bits,
    weights,
    shared,
    excluded,
    trees,
    t,
    frontier,
    numbers,
    trees_of,
    fanout,
    replace,
    key,
    key_of_sources,
    renewal,
    rows,
    offsets,
    seen,
    positions,
    neighbors,
    work,
):
    """Draw the edges of type ``t`` from a frontier, from the phase in ``work`` on, and read their
    sources.

    Args:
        frontier, numbers, trees_of: The vertices, the counters of their random numbers, and for
            trees their trees.
        fanout: 0: no edges.
        key: The random key of the hop and edge type.
        key_of_sources: For LABOR, that of the sources.
        renewal: See ``Hop``; None or empty: batches share no random numbers.
        rows: Scratch for the rows, with one element more than the frontier.
        offsets: Gets the ``indptr`` of the drawn edges.
        seen: Scratch for a hash set of one vertex's picks.
        positions, neighbors: Get the positions and the sources; one position more may be written.

    Returns:
        The number of edges, negative after an error and at a stop.
    """
    phase = work[PHASE]
    flags = csc[t, FLAGS]
    starts, degrees, counters, counts = rows
    # Without reading rows, so that a damaged one is no error here.
    if fanout == 0 or len(frontier) == 0:
        offsets[:] = 0
        return np.int64(0)
    if phase == BEGIN:
        if fanout == CALLER:
            return stop(work, PICK, READING)
        if page_bits is not None and csc[t, KNOWN_OFFSETS] != 0:
            place = pages_of(csc, like, narrow, page_bits, t, _INDPTR, KNOWN_OFFSETS)
            if not are_known(place, frontier, 2):
                return stop(work, ASK_OFFSETS, MEASURE)
    if phase <= MEASURE:
        draws = fanout
        of_draws = offsets
        if shared is not None:
            # LABOR looks at whole rows.
            draws = -1
            of_draws = counters
        total = measure_at(
            like, narrow, csc, weights, t, frontier, draws, replace, starts, degrees, of_draws
        )
        if total < 0:
            work[STATUS] = BAD_ROW
            work[WHAT] = frontier[-1 - total]
            return total
        if trees is not None:
            timed = trees[3]
            cuts = counters, counts
            total = cut_at(
                timed, t, csc[t, _EDGES], trees_of, fanout, replace, starts, degrees, cuts, offsets
            )
        if shared is None:
            if total >= len(positions):
                work[WHAT] = total
                return stop(work, FULL, BEGIN)
        elif page_bits is not None and csc[t, KNOWN_EDGES] != 0:
            place = pages_of(csc, like, narrow, page_bits, t, _INDICES, KNOWN_EDGES)
            if not are_runs_known(place, starts[: len(frontier)], degrees):
                return stop(work, ASK_ROWS, PICKING)
    if phase <= PICKING:
        if shared is None:
            picks = positions[: offsets[-1]]
            of_picks = starts, degrees, offsets
            pick_of_type(
                weights,
                t,
                like,
                narrow,
                csc[t, FLAGS] & NARROW,
                numbers,
                fanout,
                replace and fanout >= 0,  # -1 takes each edge once
                key,
                renewal,
                counters,
                of_picks,
                seen,
                picks,
            )
        else:
            need = _pick_shared_at(
                like,
                narrow,
                csc,
                t,
                starts,
                counters[: len(frontier) + 1],
                fanout,
                key_of_sources,
                renewal,
                offsets,
                positions,
            )
            if need >= len(positions):
                work[WHAT] = need
                return stop(work, FULL, BEGIN)
        if excluded is not None:
            _drop_excluded(excluded, t, offsets, positions)
        is_read = shared is not None  # LABOR has asked for whole rows, and read them
        if page_bits is not None and not is_read:
            is_read = _are_known(csc, like, narrow, page_bits, t, positions[: offsets[-1]])
            if not is_read:
                return stop(work, ASK_EDGES, READING)
    total = np.int64(offsets[-1])
    picks = positions[:total]
    work[PHASE] = BEGIN
    count = csc[t, _EDGES]
    if trees is not None:
        pairs = trees[3][0][t, PAIRS]
        if pairs != 0:
            _read_pairs_at(like, narrow, flags & NARROW, pairs, 2 * count, picks, neighbors)
            return total
    read_at(like, narrow, flags & NARROW, csc[t, _INDICES], count, picks, neighbors)
    return total


@kernel
def _number_sources(neighbors, limit, src, of_types, nodes, count, tables, places, bits, out):
    """Write the local ids of neighbours of vertex type ``src``, which has ``count`` nodes.

    Returns a negative number if one is not below ``limit`` (``-1 - e`` at number ``e``), and the
    new number of nodes.
    """
    known = _part(nodes, of_types, _NODES, src)
    if of_types[src, _PLACES] < 0:
        table = _part(tables, of_types, _TABLE, src)
        at, count, bits[src] = relabel_growing(
            neighbors, limit, known, count, table, bits[src], out
        )
    else:
        own = places[of_types[src, _PLACES] :]
        at, count = number(neighbors, limit, known, count, own, out)
    return at, count


@kernel
def _lift_seeds(of_types, counts, nodes, trees_of):
    """Make the seeds vertices of their trees."""
    for t in range(len(counts)):
        num_vertices = of_types[t, _VERTICES]
        begin = of_types[t, _NODES]
        for i in range(begin, begin + counts[t]):
            nodes[i] += trees_of[i] * num_vertices


@kernel
def _split(of_types, counts, hop, nodes, vertices, trees_of):
    """Split what the previous hop found into vertices and trees."""
    for t in range(len(of_types) - 1):
        begin = of_types[t, _NODES]
        low = begin
        if hop > 0:
            low += counts[hop - 1, t]
        high = begin + counts[hop, t]
        split_trees(nodes[low:high], of_types[t, _VERTICES], vertices[low:high], trees_of[low:high])


@inlined
def _begin_batch(of_types, room, counts, trees, nodes, tables, places, bits, work):
    """Enter the seeds; returns whether all are vertices of the graph."""
    if not _are_vertices(of_types, counts[0], nodes):
        work[STATUS] = BAD_SEED
        return False
    if trees is not None:
        _lift_seeds(of_types, counts[0], nodes, trees[1])
    _plant(of_types, counts[0], nodes, tables, places, bits)
    work[HOP] = 0
    work[EDGE_TYPE] = 0
    work[PHASE] = BEGIN
    work[ROW] = room[INDPTRS]
    work[EDGE] = 0
    return True


@inlined
def _key_of_sources(shared, key, hop, renewal):
    """For LABOR, the random key of the sources of a hop."""
    if shared is None:
        return key
    own = key if shared else hop_key(key, hop, 0)
    return own + renewal[3] if len(renewal) > 0 else own


@kernel
def advance(
    csc,
    like,
    narrow,
    page_bits,
    fanouts,
    ends,
    of_types,
    room,
    replace,
    once,
    key,
    renewal,
    weights,
    shared,
    excluded,
    trees,
    bits,
    nodes,
    ids,
    sources,
    local_ids,
    places,
    work,
):
    """Draw hops until the caller must act, or all are drawn; see the module. At the end, or after
    an error, writes the rest of the report.

    Args:
        once: Each hop expands what the previous one found; else all known vertices.
        key, renewal: See ``Hop``.
        bits: Bits of the size of each vertex type's hash table; updated for the next batch.
        nodes: For each type, its seeds; gets all known vertices. The numbers of seeds are already
            in the report, whose phase is ``FRESH``.
        ids: Gets the positions of all edges.
        sources: For trees, scratch for the sources of a hop's edges; else ``ids``.
        local_ids: Gets the local ids of all edges' sources.
        places: Direct tables, all -1; cleared at the end.
    """
    counts, drawn, _ = _report(work, fanouts, of_types)
    tables = work[room[TABLES] :]
    if work[PHASE] == FRESH and not _begin_batch(
        of_types, room, counts, trees, nodes, tables, places, bits, work
    ):
        return
    begin = room[ROWS]
    num_rows = room[NUM_ROWS]
    rows = (
        work[begin : begin + num_rows],
        work[begin + num_rows : begin + 2 * num_rows],
        work[begin + 2 * num_rows : begin + 3 * num_rows],
        work[begin + 3 * num_rows : room[INDPTRS]],
    )
    seen = work[room[PICKS] : room[TABLES]]
    work[STATUS] = DONE
    last = work[HOP]
    for hop in range(work[HOP], len(fanouts)):
        last = hop + 1
        # `now` grows with each edge type; all frontiers are those before this hop.
        now = counts[last]
        if work[EDGE_TYPE] == 0 and work[PHASE] == BEGIN:
            for t in range(len(now)):
                now[t] = counts[hop, t]
            if trees is not None:
                _split(of_types, counts, hop, nodes, trees[0], trees[1])
        for t in range(work[EDGE_TYPE], len(ends)):
            src = ends[t, 0]
            dst = ends[t, 1]
            first = counts[hop - 1, dst] if once and hop > 0 else 0
            numbers = _part(nodes, of_types, _NODES, dst)[first : counts[hop, dst]]
            frontier = numbers
            trees_of = numbers
            if trees is not None:
                frontier = _part(trees[0], of_types, _NODES, dst)[first : counts[hop, dst]]
                trees_of = _part(trees[1], of_types, _NODES, dst)[first : counts[hop, dst]]
            row = work[ROW]
            edge = work[EDGE]
            total = draw_edges(
                csc,
                like,
                narrow,
                page_bits,
                weights,
                shared,
                excluded,
                trees,
                t,
                frontier,
                numbers,
                trees_of,
                fanouts[hop, t],
                replace,
                hop_key(key, hop, t),
                _key_of_sources(shared, key, hop, renewal),
                renewal,
                rows,
                work[row : row + len(frontier) + 1],
                seen,
                ids[room[POSITIONS] + edge :],
                ids,
                work,
            )
            if total < 0:
                break
            neighbors = ids[:total]
            at = np.int64(0)
            limit = csc[t, _SRC]
            if trees is not None:
                offsets = work[row : row + len(frontier) + 1]
                num_src = of_types[src, _VERTICES]
                at = in_trees(neighbors, offsets, trees_of, num_src, sources)
                limit = _ANY
            if at >= 0:
                out = local_ids[edge : edge + total]
                at, now[src] = _number_sources(
                    sources[:total],
                    limit,
                    src,
                    of_types,
                    nodes,
                    now[src],
                    tables,
                    places,
                    bits,
                    out,
                )
            if at < 0:
                work[STATUS] = BAD_SOURCE
                work[WHAT] = neighbors[-1 - at]
                break
            drawn[hop, t] = total
            work[ROW] = row + len(frontier) + 1
            work[EDGE] = edge + total
            work[EDGE_TYPE] = t + 1
        if work[STATUS] != DONE:
            break
        work[EDGE_TYPE] = 0
        work[HOP] = last
    if work[STATUS] > FULL:
        return
    # After an error, too: this thread's next batch needs empty direct tables.
    _end(of_types, counts[last], nodes, places, bits)
    if work[STATUS] == DONE:
        width = nodes.itemsize
        if trees is not None:
            width = trees[2]
        widths = width, ids.itemsize
        work[BYTES] = _lay_out(work, fanouts, ends, of_types, once, trees, room[WEIGHED], *widths)


@kernel
def _total(drawn, hops, t):
    """Number of edges of type ``t`` in the first ``hops`` hops."""
    total = np.int64(0)
    for hop in range(hops):
        total += drawn[hop, t]
    return total


@kernel
def _lay_out(work, fanouts, ends, of_types, once, trees, weighed, width, place_width):
    """Write ``parts`` of the report; returns the bytes of the result.

    The nodes of each type come first. Then, for blocks, the indptr, the indices, the positions and,
    if edges are weighed, the weights of each hop and edge type; for a subgraph, both ends and the
    ids of each edge type's edges. At last, for trees, that of each node.
    """
    counts, drawn, parts = _report(work, fanouts, of_types)
    at = 0
    part = 0
    for t in range(len(of_types) - 1):
        parts[part] = at // width
        at = aligned(at + counts[-1, t] * width)
        part = part + 1
    for t in range(len(ends) if once else 0):
        total = _total(drawn, len(drawn), t)
        parts[part] = at // width
        at = aligned(at + 2 * total * width)
        parts[part + 1] = at // 8
        at = aligned(at + 8 * total)
        part = part + 2
    for hop in range(0 if once else len(drawn)):
        for t in range(len(ends)):
            parts[part] = at // width
            at = aligned(at + (counts[hop, ends[t, 1]] + 1) * width)
            parts[part + 1] = at // width
            at = aligned(at + drawn[hop, t] * width)
            parts[part + 2] = at // place_width
            at = aligned(at + drawn[hop, t] * place_width)
            part = part + 3
            if weighed:
                parts[part] = at // 4
                at = aligned(at + drawn[hop, t] * 4)
                part = part + 1
    if trees is not None:
        for t in range(len(of_types) - 1):
            parts[part] = at // 8
            at = aligned(at + 8 * counts[-1, t])
            part = part + 1
    return max(at, _LINE)


@kernel
def put_blocks(
    fanouts,
    ends,
    of_types,
    room,
    nodes,
    ids,
    local_ids,
    kept_weights,
    work,
    local,
    positions,
    weights,
):
    """Write the result as blocks, laid out by ``_lay_out``.

    ``local``, ``positions`` and ``weights`` are the same memory, in the id dtypes of the batch and
    of the graph, and as float32. ``kept_weights`` has the weights of all edges if they are weighed.
    """
    counts, drawn, parts = _report(work, fanouts, of_types)
    _put_nodes(of_types, counts[-1], parts, nodes, local)
    row = room[INDPTRS]
    kept = room[POSITIONS]
    edge = 0
    part = len(of_types) - 1
    for hop in range(len(drawn)):
        for t in range(len(ends)):
            num_rows = counts[hop, ends[t, 1]] + 1
            total = drawn[hop, t]
            _copy(work[row : row + num_rows], local, parts[part])
            _copy(local_ids[edge : edge + total], local, parts[part + 1])
            _copy(ids[kept + edge : kept + edge + total], positions, parts[part + 2])
            part += 3
            if room[WEIGHED]:
                _copy(kept_weights[edge : edge + total], weights, parts[part])
                part += 1
            row += num_rows
            edge += total


@kernel
def _put_nodes(of_types, counts, parts, nodes, out):
    for t in range(len(counts)):
        _copy(_part(nodes, of_types, _NODES, t)[: counts[t]], out, parts[t])


@kernel
def _put_in_trees(of_types, counts, parts, num_edge_types, nodes, local, longs):
    """Write the vertices of trees, and their trees."""
    trees_at = len(counts) + 2 * num_edge_types
    for t in range(len(counts)):
        own = _part(nodes, of_types, _NODES, t)[: counts[t]]
        split_trees(own, of_types[t, _VERTICES], local[parts[t] :], longs[parts[trees_at + t] :])


@kernel
def _copy(values, out, begin):
    for i in range(len(values)):
        out[begin + i] = values[i]


@kernel
def put_ids(csc, like_ids, narrow, t, positions, out):
    """Write the ids of the edges at these positions."""
    if csc[t, IDS] == 0:
        for e in range(len(positions)):
            out[e] = positions[e]
        return
    is_narrow = csc[t, FLAGS] & NARROW_IDS
    read_at(like_ids, narrow, is_narrow, csc[t, IDS], csc[t, _EDGES], positions, out)


@kernel
def put_subgraph(
    csc,
    like_ids,
    narrow,
    fanouts,
    ends,
    of_types,
    room,
    disjoint,
    nodes,
    ids,
    local_ids,
    work,
    local,
    longs,
):
    """Write the result as a subgraph, laid out by ``_lay_out``.

    ``local`` and ``longs`` are the same memory, in the batch's id dtype and as int64.
    """
    counts, drawn, parts = _report(work, fanouts, of_types)
    if disjoint:
        _put_in_trees(of_types, counts[-1], parts, len(ends), nodes, local, longs)
    else:
        _put_nodes(of_types, counts[-1], parts, nodes, local)
    row = room[INDPTRS]
    kept = room[POSITIONS]
    edge = 0
    for hop in range(len(drawn)):
        for t in range(len(ends)):
            part = len(of_types) - 1 + 2 * t
            dst = ends[t, 1]
            total = drawn[hop, t]
            first = counts[hop - 1, dst] if hop > 0 else 0
            offsets = work[row : row + counts[hop, dst] - first + 1]
            before = _total(drawn, hop, t)
            of_type = _total(drawn, len(drawn), t)
            positions = ids[kept + edge : kept + edge + total]
            put_edges(
                offsets,
                local_ids[edge : edge + total],
                first,
                local[parts[part] + before :],
                local[parts[part] + of_type + before :],
            )
            put_ids(csc, like_ids, narrow, t, positions, longs[parts[part + 1] + before :])
            row += len(offsets)
            edge += total
