"""Kernels that read scattered ranges of a file: which rows make one request, and the loops that keep a queue full.

A *job* is a tuple of integers: (descriptor, first byte of row 0, bytes from row to row, bytes of a row to copy,
alignment of requests, alignment of a read's begin, address of row 0 of the result, bytes from row to row there).
``edges[r]`` is the first row of request ``r``. Each request is read into a slot, and its rows are copied from there.

*state* is shared with the caller: see the names below. *log*, which may be empty, takes samples: time and
depth of the queue.
"""

import numpy as np
from numba import types

from ..._jit import add_atomic, int32_at, kernel

# Found in the C library of the running process. `syscall` takes any number of arguments; both x86-64 and ARM pass
# them where a function of seven expects them.
pread = types.ExternalFunction("pread", types.intp(types.intc, types.uintp, types.uintp, types.int64))
fadvise = types.ExternalFunction("posix_fadvise", types.intc(types.intc, types.int64, types.int64, types.intc))
errno_place = types.ExternalFunction("__errno_location", types.uintp())
clock_gettime = types.ExternalFunction("clock_gettime", types.intc(types.intc, types.uintp))
memcpy = types.ExternalFunction("memcpy", types.uintp(types.uintp, types.uintp, types.uintp))

_MONOTONIC = 1  # CLOCK_MONOTONIC, that of time.perf_counter_ns
_INTERVAL = 500_000  # ns between samples
_WILL_NEED = 3  # POSIX_FADV_WILLNEED

# Words of `state`.
ERROR = 0  # errno of the first read that failed, SHORT where the file ended
PLACE = 1  # byte of the file at which it failed
IN_FLIGHT = 2  # requests that the disk has now
STOP = 3  # not 0: begin no other request
CURSOR = 4  # next request, for threads that share a job
BYTES = 5  # that were read
LAST = 6  # time of the last sample
SAMPLES = 7  # number of samples in the log
CLOCK = 8  # two words: what the clock says
WORDS = 10
SHORT = -1


@kernel
def check_rows(rows, num_rows):  # type: ignore[no-untyped-def]
    """Index of the first row that is out of range or not above the one before; -1: none."""
    before = np.int64(-1)
    for i in range(len(rows)):
        if rows[i] <= before or rows[i] >= num_rows:
            return i
        before = rows[i]
    return -1


@kernel
def check_places(places, num_places):  # type: ignore[no-untyped-def]
    """Index of the first place that is out of range; -1: none."""
    for i in range(len(places)):
        if places[i] < 0 or places[i] >= num_places:
            return i
    return -1


@kernel
def span(rows, first, behind, job):  # type: ignore[no-untyped-def]
    """First byte and number of bytes, in whole blocks, of a request for rows ``first`` to ``behind``."""
    _, base, stride, row_bytes, align, _, _, _ = job
    low = (base + rows[first] * stride) // align * align
    high = -(-(base + rows[behind - 1] * stride + row_bytes) // align) * align
    return low, high - low


@kernel
def count_gaps(rows, job, counts):  # type: ignore[no-untyped-def]
    """Count neighbours with ``b`` unread blocks between them in ``counts[b]``, those that touch or share one in [0].

    Returns the blocks that the rows lie on.
    """
    _, base, stride, row_bytes, align, _, _, _ = job
    blocks = np.int64(0)
    behind = np.int64(0)
    for i in range(len(rows)):
        start = base + rows[i] * stride
        first = start // align
        if i > 0 and first - behind < len(counts):
            counts[max(0, first - behind)] += 1
        end = -(-(start + row_bytes) // align)
        blocks += end - (max(first, behind) if i > 0 else first)
        behind = end
    return blocks


@kernel
def make_requests(rows, job, gap, most, edges):  # type: ignore[no-untyped-def]
    """Merge rows over at most ``gap`` blocks into requests of at most ``most`` bytes; how many, and the largest."""
    _, base, stride, row_bytes, align, _, _, _ = job
    requests = 0
    largest = np.int64(0)
    low = np.int64(0)
    high = np.int64(0)  # behind the last byte of the request in the making
    for i in range(len(rows)):
        start = base + rows[i] * stride
        begin = start // align * align
        end = -(-(start + row_bytes) // align) * align
        if i > 0 and begin - high <= gap * align and end - low <= most:
            high = max(high, end)
            largest = max(largest, high - low)
            continue
        edges[requests] = i
        requests += 1
        low = begin
        high = end
        largest = max(largest, high - low)
    edges[requests] = len(rows)
    return requests, largest


@kernel
def deliver(rows, places, first, behind, job, slot, low):  # type: ignore[no-untyped-def]
    """Copy the rows of a request, which begins at byte ``low`` of the file, from its slot to their places."""
    _, base, stride, row_bytes, _, _, out, out_stride = job
    for i in range(first, behind):
        place = places[i] if len(places) else i
        source = np.uint64(slot + base + rows[i] * stride - low)
        memcpy(np.uint64(out + place * out_stride), source, np.uint64(row_bytes))


@kernel
def needed(rows, behind, job, low):  # type: ignore[no-untyped-def]
    """Bytes that a request must bring: up to the end of its last row."""
    _, base, stride, row_bytes, _, _, _, _ = job
    return base + rows[behind - 1] * stride + row_bytes - low


@kernel
def note_depth(state, log, in_flight):  # type: ignore[no-untyped-def]
    """Say how many requests the disk has, and sample it now and then."""
    state[IN_FLIGHT] = in_flight
    if state[SAMPLES] < len(log) - (in_flight > 0):  # the last place is for the end
        clock_gettime(np.int32(_MONOTONIC), np.uint64(state.ctypes.data + 8 * CLOCK))
        now = state[CLOCK] * 1_000_000_000 + state[CLOCK + 1]
        if now - state[LAST] >= _INTERVAL or in_flight == 0:
            log[state[SAMPLES], 0] = now
            log[state[SAMPLES], 1] = in_flight
            state[SAMPLES] += 1
            state[LAST] = now


@kernel
def fail(state, error, place):  # type: ignore[no-untyped-def]
    """Keep the first error, and let no other request begin."""
    if add_atomic(state, STOP, 1) == 0:
        state[PLACE] = place
        state[ERROR] = error


@kernel
def read_whole(job, slot, low, nbytes, got, need, state):  # type: ignore[no-untyped-def]
    """Read what is missing of a request of which ``got`` bytes are there; whether all that is needed came."""
    descriptor, _, _, _, _, block, _, _ = job
    while got < need:
        got = got // block * block
        more = pread(np.int32(descriptor), np.uint64(slot + got), np.uint64(nbytes - got), low + got)
        if more < 0:
            fail(state, int32_at(errno_place()), low + got)
            return False
        if more == 0 or (got + more < need and more < block):
            fail(state, SHORT, low + got + more)
            return False
        got += more
        add_atomic(state, BYTES, more)
    return True


@kernel
def read_by_pread(rows, places, edges, requests, job, slot, state, log):  # type: ignore[no-untyped-def]
    """Read requests one after the other, beside other threads that share the cursor; the slot is this thread's own."""
    while state[STOP] == 0:
        request = add_atomic(state, CURSOR, 1)
        if request >= requests:
            return
        first, behind = edges[request], edges[request + 1]
        low, nbytes = span(rows, first, behind, job)
        flying = add_atomic(state, IN_FLIGHT, 1) + 1
        if len(log):
            note_depth(state, log, flying)
        whole = read_whole(job, slot, low, nbytes, 0, needed(rows, behind, job, low), state)
        add_atomic(state, IN_FLIGHT, -1)
        if whole:
            deliver(rows, places, first, behind, job, slot, low)


@kernel
def read_behind_advice(rows, places, edges, requests, job, slot, depth, state, log):  # type: ignore[no-untyped-def]
    """Read requests one after the other, each asked of the system ``depth`` requests before."""
    descriptor = np.int32(job[0])
    asked = 0
    for request in range(requests):
        while asked < min(requests, request + depth):
            low, nbytes = span(rows, edges[asked], edges[asked + 1], job)
            fadvise(descriptor, low, nbytes, _WILL_NEED)
            asked += 1
        note_depth(state, log, asked - request)
        if state[STOP] != 0:
            break
        first, behind = edges[request], edges[request + 1]
        low, nbytes = span(rows, first, behind, job)
        if read_whole(job, slot, low, nbytes, 0, needed(rows, behind, job, low), state):
            deliver(rows, places, first, behind, job, slot, low)
    note_depth(state, log, 0)
