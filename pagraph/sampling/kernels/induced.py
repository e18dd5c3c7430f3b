"""Kernels of induced edges: those whose source is among given vertices, found and written.

The vertices are a set of bits, 32 in a word beside the number of those in the words before it, in
the order that the words were first written to: one word tells whether a vertex is there, and its
number. In graphs of up to ``MOST_DIRECT`` vertices a vertex has the bit of its id; in larger ones,
where as many bits would not stay in the processor's cache, one of 32 to 64 for each vertex given,
by a hash. The words are 0 before and after.

Edges are looked at 64 at a time, by gathers into the set, and the few that were found one by one.
Of 4.2 M edges, of which 0.75 M were found: 7.7 ms (4.5 to read them), with a hash 10.7; a filter of
bits and a hash table took 12.2.
"""

import numpy as np

from ..._jit import kernel, popcount, prefetch, trailing_zeros
from .hop import _A

MOST_DIRECT = 2**22
CHUNK = 64  # edges that are looked at in one go
_ROWS_AHEAD = 12  # rows between asking for a row's sources and looking at them
_EDGES_AHEAD = 256  # edges of it that are asked for: the rest of a longer row comes in order
_LINE = 16  # sources of 32 bits in a cache line; with 64 bits every second line is asked for
_S5 = np.uint64(5)
_S32 = np.uint64(32)
_LOW5 = np.uint64(31)
_LOW32 = np.uint64(2**32 - 1)
_ONE = np.uint64(1)


@kernel
def _bit_of(v, last, shift):
    """The bit of a vertex, which may be any number; ``shift`` is None where vertices have the bits
    of their ids."""
    if shift is None:
        return min(v, last)
    return (v * _A) >> shift


@kernel
def _number_of(bit, words):
    """The number of a bit that is set."""
    word = words[bit >> _S5]
    return (word >> _S32) - _ONE + popcount(word & ((_ONE << (bit & _LOW5)) - _ONE))


@kernel
def _enter(nodes, last, shift, words, first, after):
    """Enter vertices: ``first`` gets the first place of each bit's number, ``after`` the next place
    of the same bit."""
    for i in range(len(nodes)):
        bit = _bit_of(np.uint64(np.int64(nodes[i])), last, shift)
        words[bit >> _S5] |= _ONE << (bit & _LOW5)
    # Bits are numbered in a pass of its own, when each word has all of its bits. The number is
    # stored plus 1, so that an upper half of 0 is a word without one.
    count = np.uint64(0)
    for i in range(len(nodes)):
        at = _bit_of(np.uint64(np.int64(nodes[i])), last, shift) >> _S5
        if words[at] >> _S32 == 0:
            own = popcount(words[at])
            words[at] |= (count + _ONE) << _S32
            first[count : count + own] = -1
            count += own
    # Backwards, so that each chain begins with the first copy of a vertex.
    for i in range(len(nodes) - 1, -1, -1):
        number = _number_of(_bit_of(np.uint64(np.int64(nodes[i])), last, shift), words)
        after[i] = first[number]
        first[number] = i


@kernel
def _place_of(v, number, nodes, first, after, shift):
    """The place of a vertex whose bit has this number; some place where another vertex alone has
    the bit."""
    place = first[number]
    if shift is not None:
        while after[place] >= 0 and np.int64(nodes[place]) != v:
            place = after[place]
    return place


@kernel
def find_members(nodes, shift, room, edges, state, out_indptr, out, places):
    """Find the edges of rows whose sources are among ``nodes``; returns -1, or the first position
    out of the graph.

    Args:
        nodes: Vertices, of which a repeated one has its first place.
        shift: See :func:`_bit_of`.
        room: The words, all of them 0, and room for two numbers for each vertex.
        edges: The graph's indices and number of sources, and where each row starts and how many
            edges it has.
        state: Row and position to go on from, and how many edges were found; ends before the last
            row where ``out`` has no room for another chunk, to be called again.
        out_indptr: The ``indptr`` of the edges found.
        out, places: Positions of the edges found, and places of their sources.
    """
    words, first, after = room
    indices, num_src, starts, degrees = edges
    limit = np.uint64(num_src)
    # Sources out of the graph look up the last bit: reading stays within the words, and `outside`
    # tells of them after the chunk.
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
            # Asked once for 64 edges, for all of them may be found.
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
                # With a hash another vertex may have the bit: written first, counted if it is it.
                out[at] = q
                places[at] = place
                at += shift is None or np.int64(nodes[place]) == v
            p += CHUNK
        if not full and bad < 0:
            row += 1
            out_indptr[row] = at
            p = starts[row] if row < n else end
    # Only the words that were written to: clearing all would cost more than a small batch.
    for i in range(len(nodes)):
        words[_bit_of(np.uint64(np.int64(nodes[i])), last, shift) >> _S5] = 0
    state[0] = row
    state[1] = p
    state[2] = at
    # ``bad`` is the first of 64 edges of which some lead out of the graph: which is it?
    while bad >= 0 and 0 <= indices[bad] < num_src:
        bad += 1
    return bad


@kernel
def put_found(indptr, positions, places, far, near, out):
    """Write edges that were found: places of both ends, the second by row, and positions."""
    for i in range(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            near[e] = i
    for e in range(len(positions)):
        far[e] = places[e]
        out[e] = positions[e]
