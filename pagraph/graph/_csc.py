"""Kernels over the offsets of a CSC, and the expected reads of each of its pages."""

import numpy as np

from .._jit import inlined, kernel
from ..errors import FormatError

# Offsets and ids may lie in a mapped file, which another process may write at any time. So a kernel
# checks each value right before it indexes by it, even if the file was checked when it was opened.
# The checks take scalars only: LLVM counts the references of arrays that are passed to a function
# that may raise, which costs 22 ns a call. A function that takes an array is inlined.


@kernel
def is_row(begin, end, num_edges):
    """Whether ``begin:end`` is a slice of an array of ``num_edges``."""
    return 0 <= begin <= end <= num_edges


@kernel
def check_row(begin, end, num_edges):
    """Raise FormatError unless :func:`is_row`."""
    if begin < 0 or begin > end or end > num_edges:
        raise FormatError(
            "the graph's indptr must be non-decreasing, up to the number of edges: damaged file?"
        )


@inlined
def checked_row(indptr, v, num_edges):
    """Where the edges of ``v`` begin and end, int64; FormatError unless :func:`is_row`."""
    begin = np.int64(indptr[v])
    end = np.int64(indptr[v + 1])
    check_row(begin, end, num_edges)
    return begin, end


@kernel
def check_id(v, limit):
    """Raise FormatError unless ``v`` is in ``[0, limit)``."""
    if v < 0 or v >= limit:
        raise FormatError("the graph's ids must be below the number of its vertices: damaged file?")


@kernel
def check_sound(is_sound):
    """Raise FormatError if a kernel has found wrong rows or ids."""
    if not is_sound:
        raise FormatError(
            "the graph's rows must follow each other and hold ids of its vertices: damaged file?"
        )


@kernel
def count_degrees(dst, counts):
    """Add the number of occurrences of each id of ``dst`` to ``counts[id]``."""
    for i in range(len(dst)):
        v = dst[i]
        check_id(v, len(counts))
        counts[v] += 1


@kernel
def fill_csc(src, dst, cursor, indices, edge_ids):
    """Stable counting sort by destination; ``cursor`` starts as ``indptr[:-1]`` and is consumed."""
    for e in range(len(dst)):
        v = dst[e]
        check_id(v, len(cursor))
        slot = cursor[v]
        check_row(slot, slot + 1, len(indices))
        cursor[v] = slot + 1
        indices[slot] = src[e]
        edge_ids[slot] = e


@kernel
def expand_indptr(indptr, out):
    """Write the destination of every edge of a CSC."""
    for v in range(len(indptr) - 1):
        begin = indptr[v]
        end = indptr[v + 1]
        check_row(begin, end, len(out))
        for e in range(begin, end):
            out[e] = v


@kernel
def is_sorted(values):
    """Whether ``values`` never decreases."""
    for i in range(1, len(values)):  # noqa: SIM110 (numba compiles the loop, not the generator)
        if values[i] < values[i - 1]:
            return False
    return True


@kernel
def rows_are_sorted(indptr, values):
    """Whether ``values`` never decreases within a row."""
    for v in range(len(indptr) - 1):
        begin = np.int64(indptr[v])
        end = np.int64(indptr[v + 1])
        check_row(begin, end, len(values))
        for e in range(begin + 1, end):
            if values[e] < values[e - 1]:
                return False
    return True


@kernel
def count_loops(indptr, indices, counts):
    """Add the number of self-loops of each vertex to ``counts``."""
    for v in range(len(indptr) - 1):
        begin = indptr[v]
        end = indptr[v + 1]
        check_row(begin, end, len(indices))
        for e in range(begin, end):
            if indices[e] == v:
                counts[v] += 1


@kernel
def count_up(out):
    """``out[i] = i``, on one thread: ``torch.arange`` would start more, which compete with the
    loader's."""
    for i in range(len(out)):
        out[i] = i


@kernel
def find_rows(indptr, positions, begins, length, out):
    """Write the row of each edge, which is one of the ``length`` rows from ``begins`` on."""
    # Bisection for the first row that begins after the edge; the edge is in the row before.
    for i in range(len(positions)):
        low = max(begins[i], 0) + 1
        high = min(begins[i] + length, len(indptr))
        while low < high:
            middle = (low + high) >> 1
            if indptr[middle] > positions[i]:
                high = middle
            else:
                low = middle + 1
        out[i] = low - 1


@kernel
def weight_of(indptr, visits, v):
    """How often the row of ``v`` is expected to be read.

    That is ``visits[v]``. If ``visits`` is empty it is the row's length plus one, so that a vertex
    that is only a seed counts too.
    """
    if len(visits) > 0:
        return np.float64(visits[v])
    return np.float64(indptr[v + 1] - indptr[v]) + 1.0


@kernel
def score_offsets(indptr, visits, before, per_page, scores):
    """Add to ``scores`` the expected reads of each page of ``indptr``.

    ``indptr`` begins ``before`` elements after the start of its first page.
    """
    # A row is found by two offsets, its own and the next. They may lie on two pages.
    for v in range(len(indptr) - 1):
        weight = weight_of(indptr, visits, v)
        first = (before + v) // per_page
        last = (before + v + 1) // per_page
        scores[first] += weight
        if last != first:
            scores[last] += weight


@kernel
def score_edges(indptr, visits, picks, before, per_page, scores):
    """Add to ``scores`` the expected reads of each page of an array with one element per edge.

    A visit picks ``picks`` elements of a row. The page gets the share of them that lies on it, and
    at most one read a visit.
    """
    for v in range(len(indptr) - 1):
        start = np.int64(indptr[v])
        end = np.int64(indptr[v + 1])
        if start == end:
            continue
        check_row(start, end, len(scores) * per_page - before)
        weight = weight_of(indptr, visits, v)
        each = picks / np.float64(end - start)
        at = start
        while at < end:
            page = (before + at) // per_page
            stop = min(end, (page + 1) * per_page - before)
            scores[page] += weight * min(1.0, each * np.float64(stop - at))
            at = stop


@kernel
def number(ids, places):
    """``places[ids[i]] = i``."""
    for i in range(len(ids)):
        places[ids[i]] = i
