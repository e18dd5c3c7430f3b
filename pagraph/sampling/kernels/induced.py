"""Kernels of induced edges: find and write the edges whose source is among given vertices.

The vertices are a bit set. A 64-bit word has 32 bits, and the number of bits in words that were
first written before it; so one word gives both whether a vertex is in the set, and its number. In
graphs of up to ``MOST_DIRECT`` vertices, a vertex has the bit of its id. In larger ones that many
bits would not stay in the cache; a hash then chooses one of 32 to 64 bits per given vertex. All
words are 0 before and after a call.

Edges are checked 64 at a time by gathers into the set, and the few that are found one by one. For
4.2 M edges, of which 0.75 M were found, this took 7.7 ms (4.5 to read them), and 10.7 with a hash.
A filter of bits and a hash table took 12.2.
"""

import numpy as np

from ..._jit import kernel, popcount, prefetch, trailing_zeros
from .hop import _A

MOST_DIRECT = 2**22
CHUNK = 64  # edges that are checked at once
_ROWS_AHEAD = 12  # rows between the prefetch of a row's sources and their use
_EDGES_AHEAD = 256  # edges of a row to prefetch; the hardware prefetches the rest of longer rows
_LINE = 16  # sources of 32 bits per cache line; for 64 bits every second line is prefetched
_S5 = np.uint64(5)
_S32 = np.uint64(32)
_LOW5 = np.uint64(31)
_ONE = np.uint64(1)


@kernel
def _bit_of(v, last, shift):
    """The bit of a vertex, which may be any number.

    Args:
        v: The vertex.
        last: The largest bit.
        shift: Shift of the hash; None: vertices have the bits of their ids.
    """
    if shift is None:
        return min(v, last)
    return (v * _A) >> shift


@kernel
def _number_of(bit, words):
    """The number of a bit that is set, among all set bits."""
    word = words[bit >> _S5]
    return (word >> _S32) - _ONE + popcount(word & ((_ONE << (bit & _LOW5)) - _ONE))


@kernel
def _enter(nodes, last, shift, words, first, after):
    """Enter vertices into the set.

    ``first`` gets the first index in ``nodes`` for each bit's number, ``after`` the next index with
    the same bit, or -1.
    """
    for i in range(len(nodes)):
        bit = _bit_of(np.uint64(np.int64(nodes[i])), last, shift)
        words[bit >> _S5] |= _ONE << (bit & _LOW5)
    # Bits are numbered in a second pass, once each word has all of its bits. Numbers are stored
    # plus 1, so that an upper half of 0 is a word without a number.
    count = np.uint64(0)
    for i in range(len(nodes)):
        at = _bit_of(np.uint64(np.int64(nodes[i])), last, shift) >> _S5
        if words[at] >> _S32 == 0:
            own = popcount(words[at])
            words[at] |= (count + _ONE) << _S32
            first[count : count + own] = -1
            count += own
    # Backwards, so that each chain has the first copy of a vertex first.
    for i in range(len(nodes) - 1, -1, -1):
        number = _number_of(_bit_of(np.uint64(np.int64(nodes[i])), last, shift), words)
        after[i] = first[number]
        first[number] = i


@kernel
def _place_of(v, number, nodes, first, after, shift):
    """The first index in ``nodes`` of a vertex whose bit has this number; the index of another
    vertex if it is not in ``nodes``."""
    place = first[number]
    if shift is not None:
        while after[place] >= 0 and np.int64(nodes[place]) != v:
            place = after[place]
    return place


@kernel
def find_members(nodes, shift, room, edges, state, out_indptr, out, places):
    """Find the edges of rows whose sources are among ``nodes``.

    Args:
        nodes: Vertices. Of a repeated one, the first copy is the source of its edges.
        shift: See :func:`_bit_of`.
        room: Scratch: the set's words, all 0, and two arrays with an element per vertex.
        edges: The graph's ``indices`` and number of sources; start and length of each row.
        state: Row and position to continue with, and the number of edges found; updated. If ``out``
            has no room for another chunk, the row is not the last one: call again with more.
        out_indptr: Gets the ``indptr`` of the edges found.
        out, places: Get their positions, and the indices of their sources in ``nodes``.

    Returns:
        -1, or the first position of an edge that points outside the graph.
    """
    words, first, after = room
    indices, num_src, starts, degrees = edges
    limit = np.uint64(num_src)
    # Sources outside the graph read the last bit, to stay within the words; `outside` is checked
    # after the chunk.
    last = np.uint64(max(num_src, 1) - 1)
    row = state[0]
    p = state[1]
    at = state[2]
    n = len(starts)
    bad = np.int64(-1)
    full = False
    _enter(nodes, last, shift, words, first, after)
    while row < n and bad < 0 and not full:
        end = starts[row] + degrees[row]
        if row + _ROWS_AHEAD < n:
            for e in range(0, min(degrees[row + _ROWS_AHEAD], _EDGES_AHEAD), _LINE):
                prefetch(indices, starts[row + _ROWS_AHEAD] + e)
        while p < end:
            # Checked once per chunk: all of its edges may be found.
            if at + CHUNK > len(out):
                full = True
                break
            found = np.uint64(0)
            outside = False
            for j in range(min(CHUNK, end - p)):
                v = np.uint64(np.int64(indices[p + j]))
                outside |= v >= limit
                bit = _bit_of(v, last, shift)
                found |= ((words[bit >> _S5] >> (bit & _LOW5)) & _ONE) << np.uint64(j)
            if outside:
                bad = p
                break
            while found != 0:
                q = p + np.int64(trailing_zeros(found))
                found &= found - _ONE
                v = np.int64(indices[q])
                number = _number_of(_bit_of(np.uint64(v), last, shift), words)
                place = _place_of(v, number, nodes, first, after, shift)
                # With a hash, another vertex may have the bit: written, and counted if it matches.
                out[at] = q
                places[at] = place
                at += shift is None or np.int64(nodes[place]) == v
            p += CHUNK
        if not full and bad < 0:
            row += 1
            out_indptr[row] = at
            p = starts[row] if row < n else end
    # Clear only the words in use; clearing all would cost more than a small batch.
    for i in range(len(nodes)):
        words[_bit_of(np.uint64(np.int64(nodes[i])), last, shift) >> _S5] = 0
    state[0] = row
    state[1] = p
    state[2] = at
    # `bad` is the first edge of the chunk; advance to the one that points outside the graph.
    while bad >= 0 and 0 <= indices[bad] < num_src:
        bad += 1
    return bad


@kernel
def put_found(indptr, positions, places, far, near, out):
    """Write the edges that were found: both ends' local ids (``near`` is the row), and
    positions."""
    for i in range(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            near[e] = i
    for e in range(len(positions)):
        far[e] = places[e]
        out[e] = positions[e]
