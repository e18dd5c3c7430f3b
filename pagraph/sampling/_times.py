"""Kernels of temporal sampling: rows in the order of time, and the part of a row that a limit leaves."""

import numpy as np

from .._jit import kernel, prefetch

_AHEAD = 32
_SHORT = 32  # rows up to here are sorted by insertion


@kernel
def rows_are_sorted(indptr, times):  # type: ignore[no-untyped-def]
    """Whether the times never decrease within a row."""
    for v in range(len(indptr) - 1):
        for e in range(np.int64(indptr[v]) + 1, np.int64(indptr[v + 1])):
            if times[e] < times[e - 1]:
                return False
    return True


@kernel
def sort_rows(indptr, times, order):  # type: ignore[no-untyped-def]
    """Sort each row by time and write where its edges were to ``order``; equal times stay in order."""
    for v in range(len(indptr) - 1):
        start, end = np.int64(indptr[v]), np.int64(indptr[v + 1])
        if end - start <= _SHORT:
            _insert(start, end, times, order)
        else:
            row = times[start:end].copy()
            places = np.argsort(row, kind="mergesort")
            for j in range(end - start):
                times[start + j] = row[places[j]]
                order[start + j] = start + places[j]


@kernel
def _insert(start, end, times, order):  # type: ignore[no-untyped-def]
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
def cut_rows(times, until, fanout, replace, latest, starts, degrees, out_indptr):  # type: ignore[no-untyped-def]
    """Cut sorted rows down to the times up to ``until``, or to the last ``fanout`` of these; count the draws.

    ``starts`` and ``degrees`` of the whole rows are overwritten; ``out_indptr`` is as ``_cpu.measure`` makes it.
    """
    n = len(until)
    total = np.int64(0)
    out_indptr[0] = 0
    for i in range(n):
        if i + _AHEAD < n:
            prefetch(times, starts[i + _AHEAD] + (degrees[i + _AHEAD] >> 1))
        low, high = starts[i], starts[i] + degrees[i]
        while low < high:
            middle = (low + high) >> 1
            if times[middle] <= until[i]:
                low = middle + 1
            else:
                high = middle
        degree = low - starts[i]
        if latest and fanout >= 0 and degree > fanout:
            starts[i] = low - fanout
            degree = np.int64(fanout)
        degrees[i] = degree
        if fanout >= 0 and degree > 0 and (replace or degree > fanout):
            total += fanout
        else:
            total += degree
        out_indptr[i + 1] = total
