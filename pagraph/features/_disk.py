"""Kernels that tell the system which pages of a mapped file are about to be read."""

import numpy as np

from .._jit import kernel
from ._gather import find_slot, located
from ._memory import madvise, mincore

_WILL_NEED = 3  # MADV_WILLNEED, the same number on every system that has it


@kernel
def count_cold(base, stride, limit, table, page, slots, num_cached, ids, samples, state):  # type: ignore[no-untyped-def]
    """How many of ``samples`` evenly spaced ``ids`` are neither in the cache nor on a page in memory."""
    cold = 0
    step = max(1, len(ids) // samples)
    for i in range(0, len(ids), step):
        row = located(table, limit, np.int64(ids[i]))
        if row < 0 or find_slot(slots, num_cached, np.int64(ids[i])) >= 0:
            continue
        start = np.int64(base) + row * stride
        address = np.uint64(start - start % page)
        if mincore(address, np.uint64(page), np.uint64(state.ctypes.data)) == 0 and state[0] & 1 == 0:
            cold += 1
    return cold


@kernel
def announce(base, stride, row_bytes, limit, page, gap, most, ids):  # type: ignore[no-untyped-def]
    """Start reading the pages of the rows ``ids`` (sorted), without waiting; returns the number of requests.

    Rows whose pages are at most ``gap`` pages apart share a request, and no request is longer than ``most``
    pages.
    """
    requests = 0
    first = np.int64(-1)
    last = np.int64(-1)
    for i in range(len(ids)):
        row = np.int64(ids[i])
        if row < 0 or row >= limit:
            continue
        start = np.int64(base) + row * stride
        low = start // page
        high = (start + row_bytes - 1) // page
        if first >= 0 and low - last <= gap + 1 and high - first < most:
            last = max(last, high)
            continue
        if first >= 0:
            madvise(np.uint64(first * page), np.uint64((last - first + 1) * page), _WILL_NEED)
            requests += 1
        first = low
        last = high
    if first >= 0:
        madvise(np.uint64(first * page), np.uint64((last - first + 1) * page), _WILL_NEED)
        requests += 1
    return requests
