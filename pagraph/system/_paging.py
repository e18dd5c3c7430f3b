"""Kernels that ask the system about pages of mapped files, and for them."""

import numpy as np
from numba import types

from .._jit import kernel

# Found in the C library of the running process; only called for memory that `memory.address_on_disk` knows as mapped
# files, which it never does where these functions are missing.
madvise = types.ExternalFunction("madvise", types.intc(types.uintp, types.uintp, types.intc))
mincore = types.ExternalFunction("mincore", types.intc(types.uintp, types.uintp, types.uintp))

_WILL_NEED = 3  # MADV_WILLNEED, the same number on every system that has it


@kernel
def is_cold(address, page, state):  # type: ignore[no-untyped-def]
    """Whether the page at ``address`` is not in memory; ``state`` is scratch of one uint8."""
    begin = np.uint64(address - address % page)
    return mincore(begin, np.uint64(page), np.uint64(state.ctypes.data)) == 0 and state[0] & 1 == 0


@kernel
def count_cold_rows(base, stride, limit, page, rows, samples, state):  # type: ignore[no-untyped-def]
    """Number of ``samples`` evenly spaced ``rows`` whose first page is not in memory."""
    cold = 0
    for i in range(0, len(rows), max(1, len(rows) // samples)):
        row = np.int64(rows[i])
        if 0 <= row < limit:
            cold += is_cold(np.int64(base) + row * stride, page, state)
    return cold


@kernel
def ask(base, stride, row_bytes, limit, page, gap, most, ids):  # type: ignore[no-untyped-def]
    """Request the pages of sorted rows ``ids``: gaps of at most ``gap`` pages, ``most`` a request; returns how many."""
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
