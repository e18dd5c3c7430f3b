"""Kernels that expect how often batches read each page of a CSC."""

import numpy as np

from .._jit import kernel


@kernel
def weight_of(indptr, visits, v):  # type: ignore[no-untyped-def]
    """Reads of the row of ``v`` is read: as ``visits`` says, or if that is empty in proportion to its length."""
    if len(visits) > 0:
        return np.float64(visits[v])
    return np.float64(indptr[v + 1] - indptr[v]) + 1.0


@kernel
def score_offsets(indptr, visits, before, per_page, scores):  # type: ignore[no-untyped-def]
    """Add to ``scores`` the reads of each page of ``indptr``, whose first has ``before`` elements less of it."""
    for v in range(len(indptr) - 1):
        weight = weight_of(indptr, visits, v)
        first = (before + v) // per_page
        last = (before + v + 1) // per_page
        scores[first] += weight
        if last != first:
            scores[last] += weight


@kernel
def score_edges(indptr, visits, picks, before, per_page, scores):  # type: ignore[no-untyped-def]
    """Add to ``scores`` the reads of each page of an array with an element for each edge.

    A visit reads ``picks`` elements of a row, so that it expects that many times the share of the row on the page,
    and at most one read of the page.
    """
    for v in range(len(indptr) - 1):
        start = np.int64(indptr[v])
        end = np.int64(indptr[v + 1])
        if start == end:
            continue
        weight = weight_of(indptr, visits, v)
        each = picks / np.float64(end - start)
        at = start
        while at < end:
            page = (before + at) // per_page
            stop = min(end, (page + 1) * per_page - before)
            scores[page] += weight * min(1.0, each * np.float64(stop - at))
            at = stop
