"""Kernels of edge times: sorting rows by time, and cutting rows to the edges between two times."""

import numpy as np

from ..._jit import allocating_kernel, array_at, kernel, prefetch, prefetch_outer, stack_int64
from ...graph._csc import check_row
from .hop import first_above, num_draws

BLOCK = 32
"""Edges per mark; see :func:`count_until`."""
_LOG_BLOCK = 5
_AHEAD = 24  # rows between the prefetch of a block of times and its use
_RING = 32  # a power of two above _AHEAD
_EDGES_AHEAD = 128  # edges between the prefetch of a pair and its copy
# Columns of the table in `timed`; see `kernels/batch.py`.
_TIMES = 0
_MARKS = 1
PAIRS = 2
_SINCE = 3
_SHORT = 32  # rows of up to this many edges are sorted by insertion


@allocating_kernel
def sort_rows(indptr, times, order):
    """Sort each row of ``times`` in place, and write the old positions of its edges to ``order``;
    stable."""
    for v in range(len(indptr) - 1):
        start = np.int64(indptr[v])
        end = np.int64(indptr[v + 1])
        check_row(start, end, len(times))
        # Most rows are short, and argsort would allocate memory for each.
        if end - start <= _SHORT:
            _insert(start, end, times, order)
        else:
            # Merge sort is stable, like the insertion sort: equal times stay in CSC order.
            row = times[start:end].copy()
            places = np.argsort(row, kind="mergesort")
            for j in range(end - start):
                times[start + j] = row[places[j]]
                order[start + j] = start + places[j]


@kernel
def _insert(start, end, times, order):
    """Sort one row by insertion; stable, as only strictly later times move."""
    for e in range(start, end):
        time = times[e]
        at = e
        while at > start and times[at - 1] > time:
            times[at] = times[at - 1]
            order[at] = order[at - 1]
            at -= 1
        times[at] = time
        order[at] = e


@kernel
def count_until(times, marks, limits, starts, degrees, counts):
    """Count the times in each sorted row that are not above the row's limit.

    ``marks`` has every 32nd of all ``times``. A binary search over the marks finds the block of 32
    times in which the limit lies, and the whole block is compared without a branch. It is
    prefetched while other rows are searched. Per row of an RMAT graph with 20 M edges this took 40
    ns, a binary search of the row 94, and one of the block after that of the marks 60.
    """
    n = len(limits)
    # Too few edges for the comparison of a whole block below.
    if len(times) < BLOCK:
        for i in range(n):
            counts[i] = first_above(times, limits[i], starts[i], starts[i] + degrees[i]) - starts[i]
        return
    # The marks of row i are searched while the block of row i - _AHEAD is compared, which was
    # prefetched by its search. A ring buffer has the begins of the blocks in between.
    begins = stack_int64(_RING)
    for i in range(n + _AHEAD):
        if i + _AHEAD < n:
            prefetch(marks, (starts[i + _AHEAD] + (degrees[i + _AHEAD] >> 1)) >> _LOG_BLOCK)
        if i < n:
            block = (starts[i] + BLOCK - 1) >> _LOG_BLOCK
            left = ((starts[i] + degrees[i] + BLOCK - 1) >> _LOG_BLOCK) - block
            # Without a branch, as the half to take is unpredictable.
            while left > 0:
                half = (left + 1) >> 1
                block += half * np.int64(marks[block + half - 1] <= limits[i])
                left -= half
            # The last block may be short, so it is moved down into the array. The comparison below
            # ignores times outside the row.
            begin = max(np.int64(0), min((block - 1) << _LOG_BLOCK, len(times) - BLOCK))
            begins[i & (_RING - 1)] = begin
            for t in range(0, BLOCK, 8):
                prefetch(times, begin + t)
        j = i - _AHEAD
        if j >= 0:
            begin = begins[j & (_RING - 1)]
            limit = limits[j]
            low = starts[j] - begin
            high = low + degrees[j]
            found = np.int64(0)
            for t in range(BLOCK):
                found += np.int64((times[begin + t] <= limit) & (t >= low) & (t < high))
            # The row's times before the block are not above the limit.
            counts[j] = max(np.int64(0), -low) + found


@kernel
def cut_rows(upto, before, fanout, replace, latest, starts, degrees, out_indptr):
    """Cut each row to its edges ``before`` to ``upto``, and with ``latest`` to the last ``fanout``
    of these.

    An empty ``before`` stands for zeros. Overwrites ``starts`` and ``degrees`` of the whole rows;
    writes the ``indptr`` of the draws like ``hop.measure``.
    """
    total = np.int64(0)
    out_indptr[0] = 0
    for i in range(len(upto)):
        first = np.int64(0) if len(before) == 0 else before[i]
        if latest and fanout >= 0:
            first = max(first, upto[i] - fanout)
        # Negative for a window that ends before it begins.
        degree = max(np.int64(0), upto[i] - first)
        starts[i] += first
        degrees[i] = degree
        total += num_draws(degree, fanout, replace)
        out_indptr[i + 1] = total


@kernel
def cut_at(timed, t, num_edges, trees, fanout, replace, starts, degrees, cuts, out_indptr):
    """Cut the rows of edges of type ``t`` to those within their trees' time limits; returns the
    number of draws.

    ``trees`` are those of the frontier. ``cuts`` is scratch: an element per row, and two.
    """
    table, like, limits, latest = timed
    n = len(trees)
    if table[t, _TIMES] == 0:
        return np.int64(out_indptr[n])
    times = array_at(like, table[t, _TIMES], num_edges)
    marks = array_at(like, table[t, _MARKS], (num_edges + BLOCK - 1) // BLOCK)
    limit, counts = cuts
    num_limits = 2 if table[t, _SINCE] > 0 else 1
    # A loop, since two calls would inline the kernel's code twice.
    for which in range(num_limits):
        row = which * table[t, _SINCE]
        for i in range(n):
            limit[i] = limits[row, trees[i]]
        count_until(times, marks, limit[:n], starts, degrees, counts[which * n :])
    before = counts[n : num_limits * n]
    cut_rows(counts[:n], before, fanout, replace, latest, starts, degrees, out_indptr)
    return np.int64(out_indptr[n])


@kernel
def read_edges(edges, positions, sources, ids):
    """Read the source and the id of the edges at ``positions`` from ``edges``, which has these as
    pairs.

    ``ids`` may be the same memory as ``positions``.
    """
    n = len(positions)
    for e in range(n):
        if e + _EDGES_AHEAD < n:
            prefetch_outer(edges, 2 * positions[e + _EDGES_AHEAD])
        at = 2 * positions[e]
        sources[e] = edges[at]
        ids[e] = edges[at + 1]
