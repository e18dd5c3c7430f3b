"""GPU kernels of neighbour sampling: the same draws as the CPU's kernels, with no size on the host.

A batch takes *steps*, one per hop and edge type. Its ``state`` is int64 words in device memory, in
rows of four. With ``T`` vertex types::

    row                 word 0                       word 1   word 2        word 3
    t, for type t       its number of seeds                                 row 0: damaged
    T - 1 + s, step s                                edges    random key
    T + s               known vertices of its
                        source type after step s

So with one type, row ``hop`` has the number of vertices known before the hop, its edges and its
key. *Damaged* is set if the graph's arrays point outside the graph. The seeds follow the rows.
Arguments named ``..._at`` are indices of words: ``begin_at`` and ``end_at`` bound the vertices that
draw, ``known_at`` has the number of known sources.

Kernels are launched for the largest possible size and read the real one from the state, so nothing
waits for the host. Buffers have room for whole programs: sequential reads and writes then need no
masks, which would prevent accesses of 16 bytes.

``first`` is the table of known vertices: one int32 per vertex of the graph, 0 for an unknown one. A
known vertex has ``LAST - local id``. While a step is relabelled, edge ``e`` offers the place
``known + e`` to its source, as ``LAST - (known + e)``. An atomic maximum keeps the earliest place,
whatever the order of threads. A running sum over the edges that won then numbers new vertices by
first occurrence.

All known vertices draw in a hop; with ``ONCE``, for subgraphs, only those that the previous hop
found. Rows, counts and running sums are those of the vertices that draw.

With ``TREES``, vertex ``v`` of ``n`` is known as ``tree * n + v``, as on the CPU. A table of all
such numbers would be too large, so ``first`` is a hash table: ``keys`` has the vertex of each slot,
``slots``, a power of two, is their number. Each batch begins with an empty one. The slot of a
vertex depends on the order of threads, the content of its slot does not.

With ``TIMED``, the edges of a row are in the order of ``times``. A row is cut to the edges that are
not later than the limit of its tree; these limits follow the seeds in the state.

The cost of a hop, for ``V`` vertices that draw, ``E`` edges drawn and ``N`` vertices found, with
ids of ``g`` bytes in the graph and of ``s`` bytes in the batch (4 or 8):

=================  =====================================  =======================================
kernel             sequential bytes                       random requests of 32 bytes
=================  =====================================  =======================================
``measure``        ``V * (2 s + 2 g)``                    ``V`` to ``2 V`` (``indptr``)
running sum        ``V * 2 s``
``pick_*``         ``V * (2 s + 2 g) + E * 2 g``          ``E`` (``indices``), ``E`` atomics
``find_places``    ``E * (g + s + 4)``                    ``E`` (``first``)
running sum        ``E * 8``
``relabel``        ``E * 2 s``                            ``E`` at most (``ranks``), ``N`` written
``settle``         ``N * s``                              ``N`` (``first``)
=================  =====================================  =======================================

So for int32 ids in the graph and int64 seeds, an edge moves about 50 sequential bytes and requests
3 to 4 sectors. Only the sector of ``indices`` is read from the host if that array is pinned. With
fan-out -1, ``pick_all`` also searches ``indptr``: ``log2 V`` reads, which neighbouring edges share.
A hop is 5 launches of these kernels and 2 running sums of torch (2 launches each). A batch of three
hops is 30 launches, with its seeds and the copies to and from the device.
"""

import triton
import triton.language as tl

LAST = tl.constexpr(2**31 - 1)
ROW = tl.constexpr(4)  # words per row of the state
# Kinds of arrays that are padded; those up to BEGINS have an entry per vertex.
NODES = tl.constexpr(0)
BEGINS = tl.constexpr(1)
LOCAL = tl.constexpr(2)
POSITIONS = tl.constexpr(3)
DAMAGED = tl.constexpr(3)  # word that is 1 if the graph's arrays point outside the graph
EMPTY = tl.constexpr(-1)  # key of an empty slot
MISSING = tl.constexpr(-(2**63))  # below all known times, see ``MISSING`` in ``times.py``

# A, B and the multipliers of ``mix`` in the CPU's ``kernels/hop.py``; others give other draws.
_A = tl.constexpr(0x9E3779B97F4A7C15)
_B = tl.constexpr(0xD1342543DE82EF95)
_M1 = tl.constexpr(0xBF58476D1CE4E5B9)
_M2 = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def _lanes(BLOCK: tl.constexpr):
    """The numbers of a program's elements among those of all programs; int64."""
    begin = tl.program_id(0).to(tl.int64) * BLOCK
    return begin + tl.arange(0, BLOCK)


@triton.jit
def _read(pointers, live):
    """Integers as int64; 0 for those that are not live."""
    return tl.load(pointers, mask=live, other=0).to(tl.int64)


@triton.jit
def _mix(x):
    """``mix`` of the CPU; uint64."""
    x = (x ^ (x >> 30)) * _M1
    x = (x ^ (x >> 27)) * _M2
    return x ^ (x >> 31)


@triton.jit
def _below(counter, bound):
    """``draw_below`` of the CPU; ``counter`` is ``base + j * B``, uint64, ``bound`` is int64."""
    # The product of 32 random bits and the bound: its upper half is below the bound.
    random = _mix(counter) >> 32
    product = random * bound.to(tl.uint64)
    return (product >> 32).to(tl.int64)


@triton.jit
def _entry(place):
    """The entry of ``first`` for a place."""
    return (-place + LAST).to(tl.int32)


@triton.jit
def _slot(keys, slots, v, live, TREES: tl.constexpr):
    """The index of each vertex in ``first``; enters vertices that have no slot yet."""
    slot = v
    if TREES:
        last = (slots + tl.zeros_like(v)) - 1
        mixed = _mix(v.to(tl.uint64, bitcast=True))
        slot = (mixed & last.to(tl.uint64)).to(tl.int64)
        # No key is ever -2, so lanes without a vertex enter nothing.
        expected = tl.where(live, EMPTY, EMPTY - 1).to(tl.int64)
        sought = live.to(tl.int32)
        while tl.max(sought, axis=None) > 0:
            # Lanes that have a slot repeat this without effect until all have one.
            there = tl.atomic_cas(keys + slot, expected, v, sem="relaxed")
            found = (there == EMPTY) | (there == v)
            sought = tl.where(found, 0, sought)
            following = (slot + 1) & last
            slot = tl.where(sought > 0, following, slot)
    return slot


@triton.jit
def _enter(first, keys, slots, v, place, live, TREES: tl.constexpr):
    """Offer each vertex a place; the earliest of all offers stays."""
    slot = _slot(keys, slots, v, live, TREES)
    tl.atomic_max(first + slot, _entry(place), mask=live, sem="relaxed")


@triton.jit
def _forget(first, v, live):
    """Clear the entries of vertices, by their ids."""
    tl.store(first + v, tl.zeros_like(v).to(tl.int32), mask=live)


@triton.jit
def _report(state, i, damaged):
    """Note in the state that some element is damaged; ``i`` are the elements' numbers."""
    zero = i * 0
    tl.atomic_max(state + DAMAGED + zero, zero + 1, mask=damaged, sem="relaxed")


@triton.jit(do_not_specialize=["count_at", "begin", "slots"])
def enter_seeds(
    state, count_at, begin,
    nodes,
    first, keys, slots,
    BLOCK: tl.constexpr, TREES: tl.constexpr = False,
):  # fmt: skip
    """Enter the seeds, which begin at word ``begin`` of the state, as the first vertices of their
    type.

    Repeated seeds keep their places in ``nodes``; the first copy is the known one.
    """
    i = _lanes(BLOCK)
    num_seeds = tl.load(state + count_at)
    live = i < num_seeds
    v = tl.load(state + begin + i, mask=live, other=0)
    tl.store(nodes + i, v, mask=live)
    _enter(first, keys, slots, v, i, live, TREES)


@triton.jit(do_not_specialize=["count", "slots"])
def enter_known(nodes, count, first, keys, slots, BLOCK: tl.constexpr):
    """Enter the first ``count`` vertices of trees into an empty, larger hash table."""
    i = _lanes(BLOCK)
    live = i < count
    v = tl.load(nodes + i, mask=live, other=0)
    _enter(first, keys, slots, v, i, live, True)


@triton.jit
def _frontier(state, begin_at, end_at, ONCE: tl.constexpr):
    """The local id of the first vertex that draws in a step, and the number of such vertices."""
    end = tl.load(state + end_at)
    first = end * 0
    if ONCE:
        first = tl.load(state + begin_at, mask=begin_at >= 0, other=0)
    return first, end - first


@triton.jit
def _up_to(times, limit, start, degree):
    """Number of edges of each row, sorted by time, whose time is not above the row's limit."""
    low = start
    high = start + degree
    while tl.max(high - low, axis=0) > 0:
        middle = (low + high) // 2
        is_open = low < high
        time = _read(times + middle, is_open)
        before = is_open & (time <= limit)
        low = tl.where(before, middle + 1, low)
        # Once a row's search has ended, `middle` equals both bounds and changes nothing.
        high = tl.where(before, high, middle)
    return low - start


@triton.jit(
    do_not_specialize=["num_edges", "num_dst", "begin_at", "end_at", "until_at", "since_at"]
)
def measure(
    indptr, num_edges,
    nodes, num_dst,
    times,
    state, begin_at, end_at, until_at, since_at,
    starts, degrees, counts, out_indptr,
    FANOUT: tl.constexpr, REPLACE: tl.constexpr, BLOCK: tl.constexpr,
    ONCE: tl.constexpr = False, TREES: tl.constexpr = False,
    TIMED: tl.constexpr = False, SINCE: tl.constexpr = False, LATEST: tl.constexpr = False,
):  # fmt: skip
    """Write the start and length of the row of each vertex that draws, and how many edges it draws;
    0 beyond the last such vertex.

    Args:
        num_dst: Number of the graph's vertices of the type that draws.
        times: With ``TIMED``, the time of each edge.
        until_at: Word with the first tree's upper limit: later edges are cut off.
        since_at: With ``SINCE``, word with its lower limit: edges up to it are cut off.
        LATEST: Keep only the last ``FANOUT`` edges of a row.
    """
    i = _lanes(BLOCK)
    begin, drawing = _frontier(state, begin_at, end_at, ONCE)
    live = i < drawing
    # From `begin` on, the buffer may end within a program, so a mask is needed.
    v = _read(nodes + begin + i, live) if ONCE else tl.load(nodes + i).to(tl.int64)
    tree = v * 0
    if TREES:
        tree = v // num_dst
        v -= tree * num_dst
    start = _read(indptr + v, live)
    end = _read(indptr + v + 1, live)
    degree = end - start
    damaged = (start < 0) | (degree < 0) | (start + degree > num_edges)
    if FANOUT != 0:  # a step that draws nothing must not fail on a damaged row
        _report(state, i, damaged)
    degree = tl.where(damaged, 0, degree)
    if TIMED:
        limit = tl.load(state + until_at + tree, mask=live, other=MISSING)
        stop = _up_to(times, limit, start, degree)
        skipped = tl.zeros_like(stop)
        if SINCE:
            limit = tl.load(state + since_at + tree, mask=live, other=MISSING)
            skipped = _up_to(times, limit, start, degree)
        if LATEST and FANOUT >= 0:
            skipped = tl.maximum(skipped, stop - FANOUT)
        # Negative for a window that ends before it begins.
        degree = tl.maximum(stop - skipped, 0)
        start += skipped
    count = degree
    if FANOUT >= 0:
        count = tl.minimum(degree, FANOUT)
        if REPLACE:
            count = tl.where(degree > 0, FANOUT, 0)
    tl.store(starts + i, start)
    tl.store(degrees + i, degree)
    tl.store(counts + i, count)
    tl.store(out_indptr + i, 0, mask=i == 0)


@triton.jit
def _drawing(
    nodes, num_dst, starts, degrees, out_indptr,
    state, begin_at, end_at, known_at, key_at,
    BLOCK: tl.constexpr, ONCE: tl.constexpr, TREES: tl.constexpr,
):  # fmt: skip
    """What picking needs for ``BLOCK`` vertices that draw.

    Returns the number of known sources and, for each vertex: whether it exists, its tree, the first
    counter of its random numbers, the start and length of its row, and the number of its first
    drawn edge.
    """
    i = _lanes(BLOCK)
    begin, drawing = _frontier(state, begin_at, end_at, ONCE)
    known = tl.load(state + known_at)
    live = i < drawing
    key = tl.load(state + key_at).to(tl.uint64, bitcast=True)
    v = _read(nodes + begin + i, live)
    start = _read(starts + i, live)
    degree = _read(degrees + i, live)
    offset = _read(out_indptr + i, live)
    tree = v // num_dst if TREES else v * 0
    counter = key + v.to(tl.uint64) * _A
    return known, live, tree, counter, start, degree, offset


@triton.jit
def _offer(
    indices, origin, num_nodes,
    tree, position, e, known, live,
    state,
    positions, neighbors,
    first, keys, slots,
    TREES: tl.constexpr, HAS_ORIGIN: tl.constexpr,
):  # fmt: skip
    """Read the sources of drawn edges, and offer each edge as its source's first place.

    Args:
        origin: With ``HAS_ORIGIN``, the position of each edge among all edges of the graph.
        num_nodes: Number of the graph's vertices of the source type.
        tree: Tree in which each edge is drawn.
    """
    v = _read(indices + position, live)
    if HAS_ORIGIN:
        position = _read(origin + position, live)
    tl.store(positions + e, position, mask=live)
    inside = (v >= 0) & (v < num_nodes)
    _report(state, e, live & (inside == 0))
    if TREES:
        number = v + tree * num_nodes
        v = tl.where(inside, number, -1)
    tl.store(neighbors + e, v, mask=live)
    _enter(first, keys, slots, v, known + e, live & inside, TREES)


@triton.jit(
    do_not_specialize=[
        "num_nodes", "num_dst", "begin_at", "end_at", "known_at", "slots", "key_at",
    ]
)  # fmt: skip
def pick_distinct(
    indices, origin, num_nodes,
    nodes, num_dst, starts, degrees, out_indptr,
    state, begin_at, end_at, known_at,
    positions, neighbors,
    first, keys, slots,
    key_at,
    FANOUT: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
    ONCE: tl.constexpr = False, TREES: tl.constexpr = False, HAS_ORIGIN: tl.constexpr = False,
):  # fmt: skip
    """Pick distinct edges by Floyd's algorithm for ``BLOCK`` vertices, each in a row of registers.

    ``K`` is a power of two >= ``FANOUT``.
    """
    known, live, tree, counter, start, degree, offset = _drawing(
        nodes, num_dst, starts, degrees, out_indptr,
        state, begin_at, end_at, known_at, key_at,
        BLOCK, ONCE, TREES,
    )  # fmt: skip
    column = tl.arange(0, K).to(tl.int64)[None, :]
    chosen = tl.full((BLOCK, K), -1, tl.int64)
    top = degree - FANOUT
    for j in range(FANOUT):
        # For rows of at most FANOUT edges the bound is 0 or less; their draws are replaced below.
        drawn = _below(counter, top + 1)
        same = chosen == drawn[:, None]
        taken = tl.max(same.to(tl.int32), axis=1)
        drawn = tl.where(taken > 0, top, drawn)
        chosen = tl.where(column == j, drawn[:, None], chosen)
        counter += _B
        top += 1
    takes_all = degree <= FANOUT
    chosen = tl.where(takes_all[:, None], column, chosen)
    # Columns from `count` on are unused: K is rounded up, and rows may be short.
    count = tl.minimum(degree, FANOUT)
    used = live[:, None] & (column < count[:, None])
    position = start[:, None] + chosen
    e = offset[:, None] + column
    tree = tree[:, None] + column * 0
    _offer(
        indices, origin, num_nodes, tree, position, e, known, used,
        state, positions, neighbors, first, keys, slots,
        TREES, HAS_ORIGIN,
    )  # fmt: skip


@triton.jit(
    do_not_specialize=[
        "num_nodes", "num_dst", "begin_at", "end_at", "known_at", "slots", "key_at",
    ]
)  # fmt: skip
def pick_repeated(
    indices, origin, num_nodes,
    nodes, num_dst, starts, degrees, out_indptr,
    state, begin_at, end_at, known_at,
    positions, neighbors,
    first, keys, slots,
    key_at,
    FANOUT: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
    ONCE: tl.constexpr = False, TREES: tl.constexpr = False, HAS_ORIGIN: tl.constexpr = False,
):  # fmt: skip
    """Pick edges with replacement for ``BLOCK`` vertices; ``K`` is a power of two >= ``FANOUT``."""
    known, live, tree, counter, start, degree, offset = _drawing(
        nodes, num_dst, starts, degrees, out_indptr,
        state, begin_at, end_at, known_at, key_at,
        BLOCK, ONCE, TREES,
    )  # fmt: skip
    column = tl.arange(0, K).to(tl.int64)[None, :]
    counter = counter[:, None] + column.to(tl.uint64) * _B
    position = start[:, None] + _below(counter, degree[:, None])
    draws = live & (degree > 0)
    used = draws[:, None] & (column < FANOUT)
    e = offset[:, None] + column
    tree = tree[:, None] + column * 0
    _offer(
        indices, origin, num_nodes, tree, position, e, known, used,
        state, positions, neighbors, first, keys, slots,
        TREES, HAS_ORIGIN,
    )  # fmt: skip


@triton.jit
def _row_of(out_indptr, e, live, count, STEPS: tl.constexpr):
    """The row of each edge, and the number of that row's first edge, by binary search."""
    low = tl.zeros_like(e)
    high = low + count
    for _ in range(STEPS):  # out_indptr[low] <= e < out_indptr[high]
        middle = (low + high) // 2
        begin = _read(out_indptr + middle, live)
        before = begin <= e
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    return low, _read(out_indptr + low, live)


@triton.jit(do_not_specialize=["num_nodes", "num_dst", "begin_at", "end_at", "known_at", "slots"])
def pick_all(
    indices, origin, num_nodes,
    nodes, num_dst, starts, degrees, out_indptr,
    state, begin_at, end_at, known_at,
    positions, neighbors,
    first, keys, slots,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
    ONCE: tl.constexpr = False, TREES: tl.constexpr = False, HAS_ORIGIN: tl.constexpr = False,
):  # fmt: skip
    """Take all edges of each row.

    Programs divide the edges, not the vertices, since row lengths may differ a lot. ``STEPS`` is at
    least the number of halvings from the number of vertices to 1.
    """
    e = _lanes(BLOCK)
    first_row, drawing = _frontier(state, begin_at, end_at, ONCE)
    known = tl.load(state + known_at)
    num_drawn = tl.load(out_indptr + drawing)
    live = e < num_drawn
    row, begin = _row_of(out_indptr, e, live, drawing, STEPS)
    start = _read(starts + row, live)
    position = start + e - begin
    tree = e * 0
    if TREES:
        v = tl.load(nodes + first_row + row, mask=live, other=0)
        tree = v // num_dst
    _offer(
        indices, origin, num_nodes, tree, position, e, known, live,
        state, positions, neighbors, first, keys, slots,
        TREES, HAS_ORIGIN,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_nodes", "begin_at", "end_at", "known_at", "slots"])
def find_places(
    neighbors, num_nodes,
    out_indptr,
    state, begin_at, end_at, known_at,
    first, keys, slots,
    places, flags,
    BLOCK: tl.constexpr,
    ONCE: tl.constexpr = False, TREES: tl.constexpr = False,
):  # fmt: skip
    """Write the first place of each edge's source, and a flag if this edge is that place.

    Where there is no edge, or a damaged one, writes -1 and no flag: 0 could be a valid place.
    """
    e = _lanes(BLOCK)
    _, drawing = _frontier(state, begin_at, end_at, ONCE)
    known = tl.load(state + known_at)
    v = tl.load(neighbors + e).to(tl.int64)
    num_drawn = tl.load(out_indptr + drawing)
    live = (e < num_drawn) & (v >= 0) & (v < num_nodes)
    slot = _slot(keys, slots, v, live, TREES)
    entry = _read(first + slot, live)
    place = tl.where(live, -entry + LAST, -1)
    is_first = live & (place == known + e)
    tl.store(places + e, place)
    tl.store(flags + e, is_first.to(tl.int32))


@triton.jit(do_not_specialize=["begin_at", "end_at", "known_at"])
def relabel(
    neighbors, out_indptr,
    state, begin_at, end_at, known_at,
    ranks, local_ids, nodes,
    BLOCK: tl.constexpr,
    ONCE: tl.constexpr = False,
):  # fmt: skip
    """Replace places in ``local_ids`` by local ids, and append new vertices to ``nodes``.

    ``ranks`` are the running sums of the flags of :func:`find_places`.
    """
    e = _lanes(BLOCK)
    _, drawing = _frontier(state, begin_at, end_at, ONCE)
    known = tl.load(state + known_at)
    place = tl.load(local_ids + e).to(tl.int64)
    num_drawn = tl.load(out_indptr + drawing)
    new = (e < num_drawn) & (place >= known)
    # The edge that was first numbers its vertex: it is the `rank`-th new one, counted from 1.
    rank = tl.load(ranks + (place - known), mask=new, other=1).to(tl.int64)
    local = tl.where(new, known + rank - 1, place)
    tl.store(local_ids + e, local)
    finds = new & (place == known + e)
    v = tl.load(neighbors + e, mask=finds, other=0)
    tl.store(nodes + local, v, mask=finds)


@triton.jit(
    do_not_specialize=[
        "begin_at", "end_at", "known_at", "edges_at", "out_at", "capacity", "slots",
    ]
)  # fmt: skip
def settle(
    nodes, out_indptr,
    ranks, capacity,
    state, begin_at, end_at, known_at, edges_at, out_at,
    first, keys, slots,
    CLEAR: tl.constexpr, BLOCK: tl.constexpr,
    ONCE: tl.constexpr = False, TREES: tl.constexpr = False,
):  # fmt: skip
    """Write the step's sizes to the state, and the local ids of new vertices to ``first``.

    Args:
        capacity: Length of ``ranks``, whose last number is that of new vertices.
        CLEAR: After the last step: clear the entries of all known vertices instead.
    """
    _, drawing = _frontier(state, begin_at, end_at, ONCE)
    known = tl.load(state + known_at)
    found = tl.load(ranks + capacity - 1).to(tl.int64)
    known_after = known + found
    # All known vertices to clear them, else only those that the step found.
    i = _lanes(BLOCK)
    if not CLEAR:
        i += known
    live = i < known_after
    v = _read(nodes + i, live)
    if CLEAR:
        _forget(first, v, live)
    else:
        slot = _slot(keys, slots, v, live, TREES)
        tl.store(first + slot, _entry(i), mask=live)
    if tl.program_id(0) == 0:
        num_drawn = tl.load(out_indptr + drawing).to(tl.int64)
        tl.store(state + edges_at, num_drawn)
        tl.store(state + out_at, known_after)


@triton.jit(do_not_specialize=["known_at"])
def forget(nodes, state, known_at, first, BLOCK: tl.constexpr):
    """Clear the entries of all known vertices of a type."""
    i = _lanes(BLOCK)
    known = tl.load(state + known_at)
    live = i < known
    v = _read(nodes + i, live)
    _forget(first, v, live)


@triton.jit(do_not_specialize=["begin_at", "end_at", "hop", "edges_at", "stride"])
def put_edges(
    indices, positions, edge_ids, out_indptr,
    state, begin_at, end_at,
    hop, edges_at, stride,
    edge_index, numbers,
    HOPS: tl.constexpr, HAS_IDS: tl.constexpr,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write a subgraph's edges of one type and hop, once all hops are drawn; see the CPU's
    ``put_subgraph``.

    Args:
        indices, positions, out_indptr: Those of the hop.
        edge_ids: With ``HAS_IDS``, the user's id of each position.
        edges_at: Word with the number of edges of the type's first hop.
        stride: Words from one hop to the next.
        edge_index: Local ids of the sources of all hops' edges, then of their destinations.
        numbers: Ids of all hops' edges, int64.
        STEPS: See :func:`pick_all`.
    """
    e = _lanes(BLOCK)
    first, drawing = _frontier(state, begin_at, end_at, True)
    num_drawn = tl.load(out_indptr + drawing)
    live = e < num_drawn
    # The edges of earlier hops come first.
    place = e
    total = drawing * 0
    for h in tl.static_range(HOPS):
        of_hop = tl.load(state + edges_at + h * stride)
        place += tl.where(hop > h, of_hop, 0)
        total += of_hop
    row, _ = _row_of(out_indptr, e, live, drawing, STEPS)
    source = tl.load(indices + e, mask=live, other=0)
    tl.store(edge_index + place, source, mask=live)
    tl.store(edge_index + total + place, first + row, mask=live)
    number = _read(positions + e, live)
    if HAS_IDS:
        number = _read(edge_ids + number, live)
    tl.store(numbers + place, number, mask=live)


@triton.jit
def _target(state, offset, SLAB: tl.constexpr, TYPE: tl.constexpr):
    """The pointer to an array of the batch's slab, which begins at a multiple of 16 bytes."""
    address = tl.load(state + SLAB) + offset
    return tl.multiple_of(address.to(tl.pointer_type(TYPE)), 16)


@triton.jit(do_not_specialize=["offset", "capacity"])
def copy_out(
    source, state, offset, capacity,
    SLAB: tl.constexpr,
    COUNT: tl.constexpr, HOPS: tl.constexpr, STEP: tl.constexpr,
    TIMES: tl.constexpr, MORE: tl.constexpr,
    WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy the used part of a buffer into the batch's slab.

    Args:
        source: The buffer.
        state: The batch's state.
        offset: Offset in bytes from the address in word ``SLAB``; a multiple of 16.
        capacity: Maximum number of elements.
        COUNT, HOPS, STEP, TIMES, MORE: Define the used length: the sum of ``HOPS`` words from
            ``COUNT`` on, ``STEP`` words apart, times ``TIMES``, plus ``MORE``.
        WIDE: Whether elements of the copy have 8 bytes, else 4.
    """
    TYPE: tl.constexpr = tl.int64 if WIDE else tl.int32
    i = _lanes(BLOCK)
    used = tl.load(state + COUNT)
    for h in tl.static_range(1, HOPS):
        used += tl.load(state + COUNT + h * STEP)
    length = tl.minimum(used * TIMES + MORE, capacity)
    live = i < length
    target = _target(state, offset, SLAB, TYPE)
    value = tl.load(source + i, mask=live, other=0)
    tl.store(target + i, value.to(TYPE), mask=live)


@triton.jit(do_not_specialize=["offset", "capacity", "room"])
def pad_out(
    source, state, ends, offset, capacity, room,
    SLAB: tl.constexpr, EDGES: tl.constexpr,
    PARTS: tl.constexpr, KIND: tl.constexpr,
    WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """:func:`copy_out` with padding after each hop's vertices and edges, as ``pad_blocks`` does.

    Args:
        source, state, offset, SLAB, WIDE: See :func:`copy_out`.
        ends: Ends of each hop's vertices with padding, int64.
        capacity: Length of the padded array.
        room: Number of edges of the hop with padding.
        EDGES: Word with the number of edges of the hop.
        PARTS: Number of hops whose vertices the array has, or refers to.
        KIND: NODES, BEGINS (an ``indptr``), LOCAL (local ids) or POSITIONS.
    """
    TYPE: tl.constexpr = tl.int64 if WIDE else tl.int32
    i = _lanes(BLOCK)
    live = i < capacity
    begin = tl.zeros([1], dtype=tl.int64)
    first = tl.zeros([1], dtype=tl.int64)
    if KIND <= BEGINS:
        at = i
        inside = i < 0
        for part in tl.static_range(PARTS):
            end = tl.load(state + part * ROW)
            stop = tl.load(ends + part)
            here = (i >= first) & (i < stop)
            moved = i - first + begin
            # Padding rows are empty: they begin at the end of their hop's last row.
            at = tl.where(here, tl.minimum(moved, end), at)
            is_row = here & (moved < end)
            inside = inside | is_row
            begin = end
            first = stop
        if KIND == NODES:
            value = tl.load(source + at, mask=live & inside, other=-1).to(tl.int64)
        else:
            value = _read(source + at, live & (i < first))
            # Except the last row, which gets all padding edges.
            value = tl.where(i == first, room, value)
    else:
        num_drawn = tl.load(state + EDGES)
        drawn = i < num_drawn
        value = tl.load(source + i, mask=live & drawn, other=-1).to(tl.int64)
        if KIND == LOCAL:
            local = value
            for part in tl.static_range(PARTS):
                end = tl.load(state + part * ROW)
                here = (local >= begin) & (local < end)
                value = tl.where(here, local - begin + first, value)
                begin = end
                first = tl.load(ends + part)
            value = tl.where(drawn, value, first - 1)
    target = _target(state, offset, SLAB, TYPE)
    tl.store(target + i, value.to(TYPE), mask=live)
