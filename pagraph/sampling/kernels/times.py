"""Kernels of edge times: sorting rows by time, and cutting them down to what lies between two
times."""

import numpy as np

from ..._jit import allocating_kernel, kernel, prefetch, prefetch_outer, stack_int64
from ...graph._csc import check_row
from .hop import first_above, num_draws

BLOCK = 32
"""Edges that one of the marks stands for."""
_LOG_BLOCK = 5
_AHEAD = 24  # rows between asking for a block of times and looking through it
_RING = 32  # more than that, and a power of two
_EDGES_AHEAD = 128  # edges between asking for a pair and copying it
_SHORT = 32  # rows up to here are sorted by insertion


@allocating_kernel
def sort_rows(indptr, times, order):
    """Sort each row by time and write where its edges were to ``order``; equal times stay in
    order."""
    for v in range(len(indptr) - 1):
        start = np.int64(indptr[v])
        end = np.int64(indptr[v + 1])
        check_row(start, end, len(times))
        # Most rows are short, and argsort would allocate for each of them.
        if end - start <= _SHORT:
            _insert(start, end, times, order)
        else:
            # Merge sort is stable: edges of equal time stay in CSC order, as insertion keeps them.
            row = times[start:end].copy()
            places = np.argsort(row, kind="mergesort")
            for j in range(end - start):
                times[start + j] = row[places[j]]
                order[start + j] = start + places[j]


@kernel
def _insert(start, end, times, order):
    """Insertion sort of one row; only a strictly later time moves, so equal ones stay in order."""
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
    """The number of times in each sorted row that are not above the row's limit.

    ``marks`` are every 32nd of all ``times``: halving these finds the block of 32 in which the
    row's times begin to be above the limit, and the whole block is compared without a branch. The
    block comes from memory while other rows are searched for. Per row of an RMAT graph with 20 M
    edges: 40 ns, where halving the row itself took 94, and 60 where the block was halved, too.
    """
    n = len(limits)
    # A whole block is compared below, wherever it lies; so few edges do not fill one.
    if len(times) < BLOCK:
        for i in range(n):
            counts[i] = first_above(times, limits[i], starts[i], starts[i] + degrees[i]) - starts[i]
        return
    # Row i is searched among the marks while row i - _AHEAD looks through its block, which was
    # asked for when it was searched. A ring holds where the blocks between the two begin.
    begins = stack_int64(_RING)
    for i in range(n + _AHEAD):
        if i + _AHEAD < n:
            prefetch(marks, (starts[i + _AHEAD] + (degrees[i + _AHEAD] >> 1)) >> _LOG_BLOCK)
        if i < n:
            block = (starts[i] + BLOCK - 1) >> _LOG_BLOCK
            left = ((starts[i] + degrees[i] + BLOCK - 1) >> _LOG_BLOCK) - block
            # Halving without a branch: which half is taken cannot be predicted.
            while left > 0:
                half = (left + 1) >> 1
                block += half * np.int64(marks[block + half - 1] <= limits[i])
                left -= half
            # The last block of all may be short: it is moved down to lie in the array, and the
            # comparison with low and high below leaves out what is not the row's.
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
            # Times of the row before the block are not above the limit.
            counts[j] = max(np.int64(0), -low) + found


@kernel
def cut_rows(upto, before, fanout, replace, latest, starts, degrees, out_indptr):
    """Cut rows down to their first ``upto`` edges without the first ``before``, or to the last
    ``fanout`` of these.

    ``before`` is empty where none are left out. ``starts`` and ``degrees`` of the whole rows are
    overwritten; ``out_indptr`` counts the draws, as ``hop.measure`` makes it.
    """
    total = np.int64(0)
    out_indptr[0] = 0
    for i in range(len(upto)):
        first = np.int64(0) if len(before) == 0 else before[i]
        if latest and fanout >= 0:
            first = max(first, upto[i] - fanout)
        # A window that ends before it begins has no edge.
        degree = max(np.int64(0), upto[i] - first)
        starts[i] += first
        degrees[i] = degree
        total += num_draws(degree, fanout, replace)
        out_indptr[i + 1] = total


@kernel
def read_edges(edges, positions, sources, ids):
    """The source and the id of the edges at ``positions``, of which ``edges`` has two numbers each.

    ``ids`` may be the positions themselves.
    """
    n = len(positions)
    for e in range(n):
        if e + _EDGES_AHEAD < n:
            prefetch_outer(edges, 2 * positions[e + _EDGES_AHEAD])
        at = 2 * positions[e]
        sources[e] = edges[at]
        ids[e] = edges[at + 1]
