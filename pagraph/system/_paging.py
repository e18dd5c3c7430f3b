"""Kernels that request pages of mapped files, and ask the system which are in memory."""

import numpy as np
from numba import types

from .._jit import int32_at, kernel

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
def any_cold(base, page, pages, samples, state):
    """Whether any of ``samples`` evenly spaced pages is not in memory."""
    first = np.int64(base) // page
    for i in range(0, len(pages), max(1, len(pages) // samples)):
        if is_cold((first + pages[i]) * page, page, state):
            return True
    return False


@kernel
def are_known(place, rows, length):
    """Whether all pages of runs of ``length`` rows are known to be in memory.

    ``place`` has the addresses of the array and of ``Pages.known``, the bytes of a row and the
    binary logarithm of a page's. All rows must be in the array.
    """
    base, known, size, shift = place
    first = base >> shift
    for i in range(len(rows)):
        begin = base + np.int64(rows[i]) * size
        low = begin >> shift
        high = (begin + length * size - 1) >> shift
        for number in range(low, high + 1):
            if int32_at(np.uint64(known + 4 * (number - first))) == 0:
                return False
    return True


@kernel
def are_runs_known(place, starts, lengths):
    """:func:`are_known` for runs of any lengths."""
    for i in range(len(starts)):
        is_known = lengths[i] <= 0 or are_known(place, starts[i : i + 1], lengths[i])
        if not is_known:
            return False
    return True


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
    """Number of pages of all runs, with repeats.

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
def list_unknown(base, stride, limit, page, starts, lengths, known, out):
    """List the pages of all runs that are not known to be in memory, numbered from the page of
    ``base`` on, and return their number; they become known."""
    at = 0
    before = np.int64(base) // page
    for i in range(len(starts)):
        first, last = run_ends(
            base, stride, limit, page, starts[i], lengths[i if len(lengths) > 1 else 0]
        )
        for number in range(first - before, last - before + 1):
            if known[number] == 0:
                known[number] = 1
                out[at] = number
                at += 1
    return at


@kernel
def keep_cold(base, page, pages, state):
    """Move the pages that are not in memory to the front, and return their number."""
    count = 0
    first = np.int64(base) // page
    for i in range(len(pages)):
        number = pages[i]
        if is_cold((first + number) * page, page, state):
            pages[count] = number
            count += 1
    return count
