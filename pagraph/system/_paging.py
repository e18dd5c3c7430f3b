"""Kernels that request pages of mapped files, and ask the system which are in memory."""

import numpy as np
from numba import types

from .._jit import kernel

# Functions of the process's C library. They are only called for memory that
# `memory.address_on_disk` knows as mapped files. It knows none on systems without these functions.
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
    """Request the pages of sorted rows ``ids``, and return the number of requests.

    A request spans at most ``most`` pages, and gaps of at most ``gap`` pages.
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


@kernel
def count_cold_runs(base, stride, limit, page, starts, told, held, samples, state):
    """Of ``samples`` evenly spaced runs, count those whose first page is not in memory.

    See ``keep_cold`` for ``told`` and ``held``.
    """
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
    """First and last page of a run of rows, clipped to the array; (0, -1) if nothing is left."""
    low = max(np.int64(start), np.int64(0))
    high = min(np.int64(start) + np.int64(length), np.int64(limit))
    if low >= high:
        return np.int64(0), np.int64(-1)
    return (np.int64(base) + low * stride) // page, (np.int64(base) + high * stride - 1) // page


@kernel
def count_pages(base, stride, limit, page, starts, lengths):
    """Number of pages that ``list_pages`` lists.

    ``lengths`` holds one length for each run, or one for all.
    """
    total = np.int64(0)
    for i in range(len(starts)):
        first, last = run_ends(
            base, stride, limit, page, starts[i], lengths[i if len(lengths) > 1 else 0]
        )
        total += last - first + 1
    return total


@kernel
def list_pages(base, stride, limit, page, starts, lengths, out):
    """Write the pages of all runs, in their order, numbered from the page of ``base`` on."""
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
    """Move the distinct pages that are not in memory to the front, and return their number.

    ``pages`` are ascending. ``told`` is whether the system says which pages are in memory. ``held``
    is whether each page is kept as private memory; it is empty if none is.
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
