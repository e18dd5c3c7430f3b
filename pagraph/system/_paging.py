"""Kernels that ask the system about pages of mapped files, and for them."""

import numpy as np
from numba import types

from .._jit import kernel

# Found in the C library of the running process; only called for memory that
# `memory.address_on_disk` knows as mapped files, which it never does where these functions are
# missing.
madvise = types.ExternalFunction("madvise", types.intc(types.uintp, types.uintp, types.intc))
mincore = types.ExternalFunction("mincore", types.intc(types.uintp, types.uintp, types.uintp))

_WILL_NEED = 3  # MADV_WILLNEED, the same number on every system that has it


@kernel
def is_cold(address, page, state):
    """Whether the page at ``address`` is not in memory; ``state`` is scratch of one uint8."""
    begin = np.uint64(address - address % page)
    return mincore(begin, np.uint64(page), np.uint64(state.ctypes.data)) == 0 and state[0] & 1 == 0


@kernel
def ask(base, stride, row_bytes, limit, page, gap, most, ids):
    """Request the pages of sorted rows ``ids``: gaps of at most ``gap`` pages, ``most`` a request;
    returns how many."""
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


@kernel
def count_cold_runs(base, stride, limit, page, starts, told, held, samples, state):
    """Number of ``samples`` evenly spaced runs whose first page is not in memory; see
    ``keep_cold``."""
    cold = 0
    first = np.int64(base) // page
    for i in range(0, len(starts), max(1, len(starts) // samples)):
        row = np.int64(starts[i])
        if 0 <= row < limit:
            address = np.int64(base) + row * stride
            kept = len(held) > 0 and held[address // page - first]
            cold += not kept and (not told or is_cold(address, page, state))
    return cold


@kernel
def run_ends(base, stride, limit, page, start, length):
    """First and last page of a run of rows, those outside of the array left out; the last before
    the first: none."""
    low = max(np.int64(start), np.int64(0))
    high = min(np.int64(start) + np.int64(length), np.int64(limit))
    if low >= high:
        return np.int64(0), np.int64(-1)
    return (np.int64(base) + low * stride) // page, (np.int64(base) + high * stride - 1) // page


@kernel
def count_pages(base, stride, limit, page, starts, lengths):
    """Number of pages that ``list_pages`` lists; ``lengths`` is one for each run, or one for
    all."""
    total = np.int64(0)
    for i in range(len(starts)):
        first, last = run_ends(
            base, stride, limit, page, starts[i], lengths[i if len(lengths) > 1 else 0]
        )
        total += last - first + 1
    return total


@kernel
def list_pages(base, stride, limit, page, starts, lengths, out):
    """Numbers of the pages of all runs, counted from the page of ``base``, in the order of the
    runs."""
    at = 0
    before = np.int64(base) // page
    for i in range(len(starts)):
        first, last = run_ends(
            base, stride, limit, page, starts[i], lengths[i if len(lengths) > 1 else 0]
        )
        for number in range(first, last + 1):
            out[at] = number - before
            at += 1


@kernel
def keep_cold(base, page, pages, told, held, state):
    """Move the distinct ones of ascending ``pages`` that are not in memory to the front; returns
    how many.

    ``told``: the system tells which are. ``held``: whether each page is kept in memory of our own;
    empty: none is.
    """
    count = 0
    before = np.int64(-1)
    first = np.int64(base) // page
    for i in range(len(pages)):
        number = pages[i]
        if number == before:
            continue
        before = number
        if len(held) > 0 and held[number]:
            continue
        if told and not is_cold((first + number) * page, page, state):
            continue
        pages[count] = number
        count += 1
    return count
