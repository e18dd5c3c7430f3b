"""GPU kernels of neighbour sampling: the CPU's algorithm, draw for draw, without the host knowing
any size.

A batch goes in *steps*, one along each edge type in each hop. It is its ``state``, int64 words in
device memory, in rows of four. Word 0 of the first rows, one for each vertex type, says how many
seeds the type has; that of the row of a step says how many vertices its source type has after it.
The row before that has the step's edges and its random key as words 1 and 2. So with one type, row
``hop`` is how many vertices are known when the hop begins, how many edges it draws, and its key.
Word 3 of row 0 is a flag that is raised where the graph's arrays lead out of the graph. The seeds
follow. Kernels are told the places of the words that they read, ``..._at``: ``begin_at`` and
``end_at`` bound the vertices that draw, ``known_at`` says how many sources are known.

Kernels are launched for the largest size there can be and look up the real one, so nothing waits
for the host. Buffers are as long as whole programs, so that what is read and written in order needs
no masks, which would keep it from going 16 bytes at a time.

Which vertices are known is told by ``first``, one int32 per vertex of the graph, 0 for a vertex
that is not known. Places count down from ``2**31 - 1``: a known vertex has ``LAST - local id``, and
while a step is relabelled, edge ``e`` offers ``LAST - (known + e)`` for its source; the largest
number is the earliest place, whatever the order in which edges come. Edges that won are numbered by
a running sum, which is the order of first occurrence.

The vertices that draw in a hop are all known ones, or with ``ONCE``, for subgraphs, what the hop
before found. Rows, counts and running sums are of those that draw.

With ``TREES`` a vertex of ``n`` is known as ``tree * n + v``, as on the CPU. Such numbers are too
many for a table of all of them. ``first`` is a hash table then: ``keys``, of a power of two
``slots``, says whose slot it is. A batch begins with an empty one. Which slot a vertex gets depends
on the order of threads, but what is in its slot does not.

With ``TIMED`` rows are in the order of ``times``. They are cut to what is not later than the limit
of their tree, which follows the seeds in the state.

What a hop costs, for ``V`` vertices that draw, ``E`` edges drawn and ``N`` vertices found, with ids
of ``g`` bytes in the graph and of ``s`` bytes in the batch (4 or 8):

=================  =====================================  =======================================
kernel             bytes in order                         random requests of 32 bytes
=================  =====================================  =======================================
``measure``        ``V * (2 s + 2 g)``                    ``V`` to ``2 V`` (``indptr``)
running sum        ``V * 2 s``
``pick_*``         ``V * (2 s + 2 g) + E * 2 g``          ``E`` (``indices``), ``E`` atomics
``find_places``    ``E * (g + s + 4)``                    ``E`` (``first``)
running sum        ``E * 8``
``relabel``        ``E * 2 s``                            ``E`` at most (``ranks``), ``N`` written
``settle``         ``N * s``                              ``N`` (``first``)
=================  =====================================  =======================================

So an edge of a graph with int32 ids, for seeds of int64, moves about 50 bytes in order and asks for
3 to 4 sectors; only the one of ``indices`` goes to the host where that array is pinned. With
fan-out -1 ``pick_all`` searches ``indptr`` too, ``log2 V`` reads which neighbouring edges share. A
hop is 5 launches of these kernels and 2 running sums of torch's (2 launches each); a batch of three
hops is 30 with its seeds and the copies to and from the device.
"""

import triton
import triton.language as tl

LAST = tl.constexpr(2**31 - 1)
# Words of a row of the state: vertices known, edges drawn, random key; the fourth of row 0 is the
# flag below, and those of the others are unused.
ROW = tl.constexpr(4)
# Kinds of arrays that are padded; the first two are by vertex.
NODES = tl.constexpr(0)
BEGINS = tl.constexpr(1)
LOCAL = tl.constexpr(2)
POSITIONS = tl.constexpr(3)
DAMAGED = tl.constexpr(3)  # the word that is 1 if the graph's arrays lead out of it
EMPTY = tl.constexpr(-1)  # the key of a slot that is nobody's
MISSING = tl.constexpr(-(2**63))  # below all times that are known, see ``times.py`` of the CPU

# A and B of ``hop.py`` and the multipliers of its ``mix``: the same numbers, or the bits differ.
_A = tl.constexpr(0x9E3779B97F4A7C15)
_B = tl.constexpr(0xD1342543DE82EF95)
_M1 = tl.constexpr(0xBF58476D1CE4E5B9)
_M2 = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def _mix(x):
    """See ``mix`` of the CPU; uint64."""
    x = (x ^ (x >> 30)) * _M1
    x = (x ^ (x >> 27)) * _M2
    return x ^ (x >> 31)


@triton.jit
def _below(counter, bound):
    """See ``draw_below`` of the CPU; ``counter`` is ``base + j * B``, uint64, ``bound`` int64."""
    return (((_mix(counter) >> 32) * bound.to(tl.uint64)) >> 32).to(tl.int64)


@triton.jit
def _entry(place):
    """The entry of the table of vertices for a place."""
    return (-place + LAST).to(tl.int32)


@triton.jit
def _slot(keys, slots, v, live, TREES: tl.constexpr):
    """Where the vertices are in the table; one that is not there yet is entered."""
    slot = v
    if TREES:
        last = (slots + tl.zeros_like(v)) - 1
        slot = (_mix(v.to(tl.uint64, bitcast=True)) & last.to(tl.uint64)).to(tl.int64)
        # Nobody's key is -2: where there is no vertex, nothing is ever entered.
        expected = tl.where(live, EMPTY, EMPTY - 1).to(tl.int64)
        sought = live.to(tl.int32)
        while tl.max(sought, axis=None) > 0:
            # Who has found a slot asks again while others go on, and changes nothing by it.
            there = tl.atomic_cas(keys + slot, expected, v, sem="relaxed")
            sought = tl.where((there == EMPTY) | (there == v), 0, sought)
            slot = tl.where(sought > 0, (slot + 1) & last, slot)
    return slot


@triton.jit(do_not_specialize=["count_at", "begin", "slots"])
def enter_seeds(
    state, count_at, begin, nodes, first, keys, slots,
    BLOCK: tl.constexpr, TREES: tl.constexpr = False,
):  # fmt: skip
    """Seeds, in the state from word ``begin`` on, become the first vertices of their type; repeated
    ones keep their places."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = i < tl.load(state + count_at)
    v = tl.load(state + begin + i, mask=live, other=0)
    tl.store(nodes + i, v, mask=live)
    slot = _slot(keys, slots, v, live, TREES)
    tl.atomic_max(first + slot, _entry(i), mask=live, sem="relaxed")


@triton.jit(do_not_specialize=["count", "slots"])
def enter_known(nodes, count, first, keys, slots, BLOCK: tl.constexpr):
    """Enter the first ``count`` vertices of trees into a larger table."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = i < count
    v = tl.load(nodes + i, mask=live, other=0)
    slot = _slot(keys, slots, v, live, True)
    tl.atomic_max(first + slot, _entry(i), mask=live, sem="relaxed")


@triton.jit
def _frontier(state, begin_at, end_at, ONCE: tl.constexpr):
    """The local id of the first vertex that draws in a step, and the number of those that do."""
    end = tl.load(state + end_at)
    first = end * 0
    if ONCE:
        first = tl.load(state + begin_at, mask=begin_at >= 0, other=0)
    return first, end - first


@triton.jit
def _up_to(times, limit, start, degree):
    """How many times of each row, which never decrease, are not above its limit."""
    low = start
    high = start + degree
    while tl.max(high - low, axis=0) > 0:
        middle = (low + high) // 2
        is_open = low < high
        time = tl.load(times + middle, mask=is_open, other=0).to(tl.int64)
        before = is_open & (time <= limit)
        low = tl.where(before, middle + 1, low)
        # Of a row that is searched through, `middle` is both ends.
        high = tl.where(before, high, middle)
    return low - start


@triton.jit(
    do_not_specialize=["num_edges", "num_dst", "begin_at", "end_at", "until_at", "since_at"]
)
def measure(
    indptr, num_edges, nodes, num_dst, times, state, begin_at, end_at, until_at, since_at,
    starts, degrees, counts, out_indptr,
    FANOUT: tl.constexpr, REPLACE: tl.constexpr, BLOCK: tl.constexpr, ONCE: tl.constexpr = False,
    TREES: tl.constexpr = False, TIMED: tl.constexpr = False, SINCE: tl.constexpr = False,
    LATEST: tl.constexpr = False,
):  # fmt: skip
    """Begin and length of the row of each vertex that draws, and how many to draw; 0 where there is
    no vertex.

    Args:
        num_dst: Vertices of the type that draws, in the graph.
        times: Of each edge, where ``TIMED``.
        until_at, since_at: The words with the limits of the first tree: its rows' times are not
            above the one, and with ``SINCE`` above the other.
        LATEST: Leave the last ``FANOUT`` edges of a row only.
    """
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    begin, drawing = _frontier(state, begin_at, end_at, ONCE)
    live = i < drawing
    # Behind the first vertex of a hop the buffer does not end with a whole program.
    v = tl.load(nodes + begin + i, mask=live, other=0) if ONCE else tl.load(nodes + i)
    v = v.to(tl.int64)
    tree = v * 0
    if TREES:
        tree = v // num_dst
        v -= tree * num_dst
    start = tl.load(indptr + v, mask=live, other=0).to(tl.int64)
    degree = tl.load(indptr + v + 1, mask=live, other=0).to(tl.int64) - start
    damaged = (start < 0) | (degree < 0) | (start + degree > num_edges)
    if FANOUT != 0:  # a hop that draws nothing reads nothing, whatever the arrays say
        tl.atomic_max(state + DAMAGED + i * 0, i * 0 + 1, mask=damaged, sem="relaxed")
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
        # A window that ends before it begins has no edge.
        degree = tl.maximum(stop - skipped, 0)
        start += skipped
    count = degree
    if FANOUT >= 0:
        count = tl.where(degree > 0, FANOUT, 0) if REPLACE else tl.minimum(degree, FANOUT)
    tl.store(starts + i, start)
    tl.store(degrees + i, degree)
    tl.store(counts + i, count)
    tl.store(out_indptr + i, 0, mask=i == 0)


@triton.jit
def _drawing(
    nodes, num_dst, starts, degrees, out_indptr, state, begin_at, end_at, known_at, key_at,
    BLOCK: tl.constexpr, ONCE: tl.constexpr, TREES: tl.constexpr,
):  # fmt: skip
    """``BLOCK`` vertices that draw: how many sources are known, which of the vertices are there,
    their trees, random streams, rows and offsets."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    begin, drawing = _frontier(state, begin_at, end_at, ONCE)
    known = tl.load(state + known_at)
    live = i < drawing
    key = tl.load(state + key_at).to(tl.uint64, bitcast=True)
    v = tl.load(nodes + begin + i, mask=live, other=0).to(tl.int64)
    start = tl.load(starts + i, mask=live, other=0).to(tl.int64)
    degree = tl.load(degrees + i, mask=live, other=0).to(tl.int64)
    offset = tl.load(out_indptr + i, mask=live, other=0).to(tl.int64)
    tree = v // num_dst if TREES else v * 0
    return known, live, tree, key + v.to(tl.uint64) * _A, start, degree, offset


@triton.jit
def _offer(
    indices, origin, num_nodes, tree, position, e, known, live,
    state, positions, neighbors, first, keys, slots,
    TREES: tl.constexpr, HAS_ORIGIN: tl.constexpr,
):  # fmt: skip
    """Read the sources of drawn edges, and offer each edge as its source's first place.

    Args:
        origin: With ``HAS_ORIGIN``, where each edge is among all edges of the graph.
        num_nodes: Vertices of the sources' type.
        tree: That each edge is drawn in.
    """
    v = tl.load(indices + position, mask=live, other=0).to(tl.int64)
    if HAS_ORIGIN:
        position = tl.load(origin + position, mask=live, other=0).to(tl.int64)
    tl.store(positions + e, position, mask=live)
    inside = (v >= 0) & (v < num_nodes)
    tl.atomic_max(state + DAMAGED + e * 0, e * 0 + 1, mask=live & (inside == 0), sem="relaxed")
    if TREES:
        v = tl.where(inside, v + tree * num_nodes, -1)
    tl.store(neighbors + e, v, mask=live)
    entered = live & inside
    slot = _slot(keys, slots, v, entered, TREES)
    tl.atomic_max(first + slot, _entry(known + e), mask=entered, sem="relaxed")


@triton.jit(
    do_not_specialize=[
        "num_nodes", "num_dst", "begin_at", "end_at", "known_at", "slots", "key_at",
    ]
)  # fmt: skip
def pick_distinct(
    indices, origin, num_nodes, nodes, num_dst, starts, degrees, out_indptr,
    state, begin_at, end_at, known_at, positions, neighbors, first, keys, slots, key_at,
    FANOUT: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, ONCE: tl.constexpr = False,
    TREES: tl.constexpr = False, HAS_ORIGIN: tl.constexpr = False,
):  # fmt: skip
    """Floyd's picks for ``BLOCK`` vertices at once, a row of registers each; ``K`` is a power of
    two >= ``FANOUT``."""
    known, live, tree, counter, start, degree, offset = _drawing(
        nodes, num_dst, starts, degrees, out_indptr,
        state, begin_at, end_at, known_at, key_at,
        BLOCK, ONCE, TREES,
    )  # fmt: skip
    column = tl.arange(0, K).to(tl.int64)
    chosen = tl.full((BLOCK, K), -1, tl.int64)
    top = degree - FANOUT
    for j in range(FANOUT):
        # Rows that fit have a bound of 0 or less here: what they draw is not looked at.
        drawn = _below(counter, top + 1)
        taken = tl.max((chosen == drawn[:, None]).to(tl.int32), axis=1)
        drawn = tl.where(taken > 0, top, drawn)
        chosen = tl.where(column[None, :] == j, drawn[:, None], chosen)
        counter += _B
        top += 1
    chosen = tl.where((degree <= FANOUT)[:, None], column[None, :], chosen)
    count = tl.minimum(degree, FANOUT)
    # Columns from the count on are padding: K is a power of two, and rows may be short.
    e = offset[:, None] + column[None, :]
    mask = live[:, None] & (column[None, :] < count[:, None])
    tree = tree[:, None] + column[None, :] * 0
    _offer(
        indices, origin, num_nodes, tree, start[:, None] + chosen, e, known, mask,
        state, positions, neighbors, first, keys, slots,
        TREES, HAS_ORIGIN,
    )  # fmt: skip


@triton.jit(
    do_not_specialize=[
        "num_nodes", "num_dst", "begin_at", "end_at", "known_at", "slots", "key_at",
    ]
)  # fmt: skip
def pick_repeated(
    indices, origin, num_nodes, nodes, num_dst, starts, degrees, out_indptr,
    state, begin_at, end_at, known_at, positions, neighbors, first, keys, slots, key_at,
    FANOUT: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, ONCE: tl.constexpr = False,
    TREES: tl.constexpr = False, HAS_ORIGIN: tl.constexpr = False,
):  # fmt: skip
    """Picks with replacement for ``BLOCK`` vertices at once; ``K`` is a power of two >=
    ``FANOUT``."""
    known, live, tree, counter, start, degree, offset = _drawing(
        nodes, num_dst, starts, degrees, out_indptr,
        state, begin_at, end_at, known_at, key_at,
        BLOCK, ONCE, TREES,
    )  # fmt: skip
    column = tl.arange(0, K).to(tl.int64)
    counter = counter[:, None] + (column.to(tl.uint64) * _B)[None, :]
    chosen = _below(counter, degree[:, None])
    e = offset[:, None] + column[None, :]
    mask = (live & (degree > 0))[:, None] & (column[None, :] < FANOUT)
    tree = tree[:, None] + column[None, :] * 0
    _offer(
        indices, origin, num_nodes, tree, start[:, None] + chosen, e, known, mask,
        state, positions, neighbors, first, keys, slots,
        TREES, HAS_ORIGIN,
    )  # fmt: skip


@triton.jit
def _row_of(out_indptr, e, live, count, STEPS: tl.constexpr):
    """The row that each edge is of, and where that row begins."""
    low = tl.zeros_like(e)
    high = low + count
    for _ in range(STEPS):  # out_indptr[low] <= e < out_indptr[high]
        middle = (low + high) // 2
        before = tl.load(out_indptr + middle, mask=live, other=0).to(tl.int64) <= e
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    return low, tl.load(out_indptr + low, mask=live, other=0).to(tl.int64)


@triton.jit(do_not_specialize=["num_nodes", "num_dst", "begin_at", "end_at", "known_at", "slots"])
def pick_all(
    indices, origin, num_nodes, nodes, num_dst, starts, degrees, out_indptr,
    state, begin_at, end_at, known_at, positions, neighbors, first, keys, slots,
    STEPS: tl.constexpr, BLOCK: tl.constexpr, ONCE: tl.constexpr = False,
    TREES: tl.constexpr = False, HAS_ORIGIN: tl.constexpr = False,
):  # fmt: skip
    """Every in-edge. Programs divide the edges, not the vertices: rows may be of very different
    lengths.

    ``STEPS`` halve the number of vertices to 1, or are more.
    """
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    first_row, drawing = _frontier(state, begin_at, end_at, ONCE)
    known = tl.load(state + known_at)
    live = e < tl.load(out_indptr + drawing)
    row, begin = _row_of(out_indptr, e, live, drawing, STEPS)
    position = tl.load(starts + row, mask=live, other=0).to(tl.int64) + e - begin
    tree = e * 0
    if TREES:
        tree = tl.load(nodes + first_row + row, mask=live, other=0) // num_dst
    _offer(
        indices, origin, num_nodes, tree, position, e, known, live,
        state, positions, neighbors, first, keys, slots,
        TREES, HAS_ORIGIN,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_nodes", "begin_at", "end_at", "known_at", "slots"])
def find_places(
    neighbors, num_nodes, out_indptr, state, begin_at, end_at, known_at,
    first, keys, slots, places, flags,
    BLOCK: tl.constexpr, ONCE: tl.constexpr = False, TREES: tl.constexpr = False,
):  # fmt: skip
    """The first place of each edge's source, with a flag if it is the edge itself; -1, and no flag,
    where there is no edge or a damaged one: no vertex is found there, even if none is known yet."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    _, drawing = _frontier(state, begin_at, end_at, ONCE)
    known = tl.load(state + known_at)
    v = tl.load(neighbors + e).to(tl.int64)
    live = (e < tl.load(out_indptr + drawing)) & (v >= 0) & (v < num_nodes)
    slot = _slot(keys, slots, v, live, TREES)
    place = -tl.load(first + slot, mask=live, other=0).to(tl.int64) + LAST
    place = tl.where(live, place, -1)
    tl.store(places + e, place)
    tl.store(flags + e, (live & (place == known + e)).to(tl.int32))


@triton.jit(do_not_specialize=["begin_at", "end_at", "known_at"])
def relabel(
    neighbors, out_indptr, state, begin_at, end_at, known_at, ranks, local_ids, nodes,
    BLOCK: tl.constexpr, ONCE: tl.constexpr = False,
):  # fmt: skip
    """Places, in ``local_ids``, become local ids; new vertices are appended. ``ranks`` are the
    flags' running sums."""
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    _, drawing = _frontier(state, begin_at, end_at, ONCE)
    known = tl.load(state + known_at)
    place = tl.load(local_ids + e).to(tl.int64)
    new = (e < tl.load(out_indptr + drawing)) & (place >= known)
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
    nodes, out_indptr, ranks, capacity,
    state, begin_at, end_at, known_at, edges_at, out_at, first, keys, slots,
    CLEAR: tl.constexpr, BLOCK: tl.constexpr, ONCE: tl.constexpr = False,
    TREES: tl.constexpr = False,
):  # fmt: skip
    """Write down the step's sizes. New vertices are known by their local ids from now on, or after
    the last step none of their type is.

    Args:
        capacity: Length of ``ranks``, the running sums whose last is the number of new vertices.
        CLEAR: Forget all vertices.
    """
    _, drawing = _frontier(state, begin_at, end_at, ONCE)
    known = tl.load(state + known_at)
    found = tl.load(ranks + capacity - 1).to(tl.int64)
    # To clear goes through all vertices, else only through those that the step found.
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    if not CLEAR:
        i += known
    live = i < known + found
    v = tl.load(nodes + i, mask=live, other=0).to(tl.int64)
    if CLEAR:
        tl.store(first + v, tl.zeros_like(i).to(tl.int32), mask=live)
    else:
        slot = _slot(keys, slots, v, live, TREES)
        tl.store(first + slot, _entry(i), mask=live)
    if tl.program_id(0) == 0:
        tl.store(state + edges_at, tl.load(out_indptr + drawing).to(tl.int64))
        tl.store(state + out_at, known + found)


@triton.jit(do_not_specialize=["known_at"])
def forget(nodes, state, known_at, first, BLOCK: tl.constexpr):
    """No vertex of a type is known any more."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = i < tl.load(state + known_at)
    v = tl.load(nodes + i, mask=live, other=0).to(tl.int64)
    tl.store(first + v, tl.zeros_like(i).to(tl.int32), mask=live)


@triton.jit(do_not_specialize=["begin_at", "end_at", "hop", "edges_at", "stride"])
def put_edges(
    indices, positions, edge_ids, out_indptr,
    state, begin_at, end_at, hop, edges_at, stride, edge_index, numbers,
    HOPS: tl.constexpr, HAS_IDS: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the edges of one type and hop of a subgraph, once all hops are drawn, as
    ``put_subgraph`` of the CPU does.

    Args:
        indices, positions, out_indptr: Of the hop.
        edge_ids: The user's id of each position, if there are any.
        edges_at, stride: The word with the edges of the type's first hop, and words from one hop to
            the next.
        edge_index: The local ids of the sources of all hops' edges, and behind them of the
            destinations.
        numbers: The ids of all hops' edges, int64.
        STEPS: See :func:`pick_all`.
    """
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    first, drawing = _frontier(state, begin_at, end_at, True)
    live = e < tl.load(out_indptr + drawing)
    place = e
    total = drawing * 0
    for h in tl.static_range(HOPS):
        drawn = tl.load(state + edges_at + h * stride)
        place += tl.where(hop > h, drawn, 0)
        total += drawn
    row, _ = _row_of(out_indptr, e, live, drawing, STEPS)
    tl.store(edge_index + place, tl.load(indices + e, mask=live, other=0), mask=live)
    tl.store(edge_index + total + place, first + row, mask=live)
    number = tl.load(positions + e, mask=live, other=0).to(tl.int64)
    if HAS_IDS:
        number = tl.load(edge_ids + number, mask=live, other=0).to(tl.int64)
    tl.store(numbers + place, number, mask=live)


@triton.jit(do_not_specialize=["offset", "capacity"])
def copy_out(
    source, state, offset, capacity,
    SLAB: tl.constexpr, COUNT: tl.constexpr, HOPS: tl.constexpr, STEP: tl.constexpr,
    TIMES: tl.constexpr, MORE: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy the used part of a buffer into the batch's own memory.

    Args:
        source: The buffer.
        state: The batch's state.
        offset: Bytes from the address in word ``SLAB`` of the state; a multiple of 16.
        capacity: Numbers that have room there.
        COUNT, HOPS, STEP, TIMES, MORE: How many are used: the sum of word ``COUNT`` and of those of
            the hops after it, each ``STEP`` words further, times ``TIMES``, and ``MORE``.
        WIDE: Whether the copy is of 8 bytes a number, else of 4.
    """
    TYPE: tl.constexpr = tl.int64 if WIDE else tl.int32
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    used = tl.load(state + COUNT)
    for h in tl.static_range(1, HOPS):
        used += tl.load(state + COUNT + h * STEP)
    live = i < tl.minimum(used * TIMES + MORE, capacity)
    target = tl.multiple_of((tl.load(state + SLAB) + offset).to(tl.pointer_type(TYPE)), 16)
    tl.store(target + i, tl.load(source + i, mask=live, other=0).to(TYPE), mask=live)


@triton.jit(do_not_specialize=["offset", "capacity", "room"])
def pad_out(
    source, state, ends, offset, capacity, room,
    SLAB: tl.constexpr, EDGES: tl.constexpr, PARTS: tl.constexpr, KIND: tl.constexpr,
    WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """:func:`copy_out` with padding behind what each hop has found, as ``pad_blocks`` writes it.

    Args:
        source, state, offset, SLAB, WIDE: See there.
        ends: int64: where the vertices of each hop end, with padding.
        capacity: Numbers of the padded array.
        room: Edges of the hop, with padding.
        EDGES: The word that says how many edges the hop has.
        PARTS: Hops whose vertices the array is of, or refers to.
        KIND: What the array is: NODES, BEGINS of rows, LOCAL ids, or POSITIONS.
    """
    TYPE: tl.constexpr = tl.int64 if WIDE else tl.int32
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
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
            # Rows of padding are empty: they begin where those of their hop end.
            at = tl.where(here, tl.minimum(moved, end), at)
            inside = inside | (here & (moved < end))
            begin = end
            first = stop
        if KIND == NODES:
            value = tl.load(source + at, mask=live & inside, other=-1).to(tl.int64)
        else:
            value = tl.load(source + at, mask=live & (i < first), other=0).to(tl.int64)
            # But for the last one, to which the padding edges lead.
            value = tl.where(i == first, room, value)
    else:
        drawn = i < tl.load(state + EDGES)
        value = tl.load(source + i, mask=live & drawn, other=-1).to(tl.int64)
        if KIND == LOCAL:
            local = value
            for part in tl.static_range(PARTS):
                end = tl.load(state + part * ROW)
                value = tl.where((local >= begin) & (local < end), local - begin + first, value)
                begin = end
                first = tl.load(ends + part)
            value = tl.where(drawn, value, first - 1)
    target = tl.multiple_of((tl.load(state + SLAB) + offset).to(tl.pointer_type(TYPE)), 16)
    tl.store(target + i, value.to(TYPE), mask=live)
