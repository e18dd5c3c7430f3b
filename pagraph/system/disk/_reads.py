"""Kernels that read scattered rows of a file: they merge rows into requests and keep a queue full.

A *job* is a tuple of integers::

    descriptor | first byte of row 0 in the file | stride of rows in the file
    bytes of a row to copy | alignment of requests | alignment of a read's begin
    address of row 0 in the result | stride of rows in the result

``edges[r]`` is the first row of request ``r``. Each request is read into a slot, from which its
rows are copied. *state* is shared with the caller; its words are named below. *log* may be empty;
else it takes samples of time and queue depth. Structures of ``linux/aio_abi.h`` are arrays of
words.
"""

import numpy as np
from numba import types

from ..._jit import add_atomic, allocating_kernel, int32_at, kernel

_ARGUMENTS = (
    types.intp,
    types.uintp,
    types.uintp,
    types.uintp,
    types.uintp,
    types.uintp,
    types.uintp,
)
# Functions of the process's C library. `syscall` is variadic, but x86-64 and ARM pass its arguments
# as they do for a function of seven.
syscall = types.ExternalFunction("syscall", types.intp(*_ARGUMENTS))
pread = types.ExternalFunction(
    "pread", types.intp(types.intc, types.uintp, types.uintp, types.int64)
)
fadvise = types.ExternalFunction(
    "posix_fadvise", types.intc(types.intc, types.int64, types.int64, types.intc)
)
errno_place = types.ExternalFunction("__errno_location", types.uintp())
clock_gettime = types.ExternalFunction("clock_gettime", types.intc(types.intc, types.uintp))
memcpy = types.ExternalFunction("memcpy", types.uintp(types.uintp, types.uintp, types.uintp))

_MONOTONIC = 1  # CLOCK_MONOTONIC, the clock of time.perf_counter_ns
_INTERVAL = 500_000  # ns between samples
_WILL_NEED = 3  # POSIX_FADV_WILLNEED
_EINTR = 4
_EAGAIN = 11
_BLOCK = 8  # words of a control block of AIO
_EVENT = 4  # words of an event of AIO

# Words of `state`.
ERROR = 0  # errno of the first failed read, or SHORT if the file ended
PLACE = 1  # byte of the file at which it failed
IN_FLIGHT = 2  # requests that the disk has now
STOP = 3  # if not 0, begin no further request
CURSOR = 4  # next request, for threads that share a job
BYTES = 5  # bytes read
LAST = 6  # time of the last sample
SAMPLES = 7  # number of samples in the log
CLOCK = 8  # two words for clock_gettime
WORDS = 10
SHORT = -1


@kernel
def check_rows(rows, num_rows):
    """Index of the first row that is out of range or not above the one before; -1 if none."""
    before = np.int64(-1)
    for i in range(len(rows)):
        if rows[i] <= before or rows[i] >= num_rows:
            return i
        before = rows[i]
    return -1


@kernel
def check_places(places, num_places):
    """Index of the first place that is out of range; -1 if none."""
    for i in range(len(places)):
        if places[i] < 0 or places[i] >= num_places:
            return i
    return -1


@kernel
def span(rows, first, behind, job):
    """First byte and number of bytes, in whole blocks, of a request for ``rows[first:behind]``."""
    _, base, stride, row_bytes, align, _, _, _ = job
    low = (base + rows[first] * stride) // align * align
    high = -(-(base + rows[behind - 1] * stride + row_bytes) // align) * align
    return low, high - low


@kernel
def count_gaps(rows, job, counts):
    """Count in ``counts[b]`` the neighbouring rows with ``b`` unread blocks between them.

    ``counts[0]`` includes neighbours that share a block. Returns the number of blocks with rows.
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
def make_requests(rows, job, gap, most, edges):
    """Merge rows into requests of at most ``most`` bytes, over gaps of at most ``gap`` blocks.

    Returns the number of requests, and the bytes of the largest.
    """
    _, base, stride, row_bytes, align, _, _, _ = job
    requests = 0
    largest = np.int64(0)
    low = np.int64(0)
    high = np.int64(0)  # end of the current request
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
def deliver(rows, places, first, behind, job, slot, low):
    """Copy the rows of a request from its slot to their places.

    The request begins at byte ``low`` of the file.
    """
    _, base, stride, row_bytes, _, _, out, out_stride = job
    for i in range(first, behind):
        place = places[i] if len(places) else i
        source = np.uint64(slot + base + rows[i] * stride - low)
        memcpy(np.uint64(out + place * out_stride), source, np.uint64(row_bytes))


@kernel
def needed(rows, behind, job, low):
    """Bytes that a request must return, up to the end of its last row."""
    _, base, stride, row_bytes, _, _, _, _ = job
    return base + rows[behind - 1] * stride + row_bytes - low


@kernel
def note_depth(state, log, in_flight):
    """Store the number of requests that the disk has, and log it twice a millisecond."""
    state[IN_FLIGHT] = in_flight
    if state[SAMPLES] < len(log) - (in_flight > 0):  # the last row is for the final 0
        clock_gettime(np.int32(_MONOTONIC), np.uint64(state.ctypes.data + 8 * CLOCK))
        now = state[CLOCK] * 1_000_000_000 + state[CLOCK + 1]
        if now - state[LAST] >= _INTERVAL or in_flight == 0:
            log[state[SAMPLES], 0] = now
            log[state[SAMPLES], 1] = in_flight
            state[SAMPLES] += 1
            state[LAST] = now


@kernel
def fail(state, error, place):
    """Store the first error, and let no further request begin."""
    if add_atomic(state, STOP, 1) == 0:
        state[PLACE] = place
        state[ERROR] = error


@kernel
def read_whole(job, slot, low, nbytes, got, need, state):
    """Read the rest of a request that has ``got`` bytes; returns whether ``need`` bytes came."""
    descriptor, _, _, _, _, block, _, _ = job
    while got < need:
        got = got // block * block
        more = pread(
            np.int32(descriptor), np.uint64(slot + got), np.uint64(nbytes - got), low + got
        )
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
def read_by_pread(rows, places, edges, requests, job, slot, state, log):
    """Read requests in turn, as one of several threads that share the cursor but not the slot."""
    while state[STOP] == 0:
        request = add_atomic(state, CURSOR, 1)
        if request >= requests:
            return
        first = edges[request]
        behind = edges[request + 1]
        low, nbytes = span(rows, first, behind, job)
        flying = add_atomic(state, IN_FLIGHT, 1) + 1
        if len(log):
            note_depth(state, log, flying)
        whole = read_whole(job, slot, low, nbytes, 0, needed(rows, behind, job, low), state)
        add_atomic(state, IN_FLIGHT, -1)
        if whole:
            deliver(rows, places, first, behind, job, slot, low)


@kernel
def read_behind_advice(rows, places, edges, requests, job, slot, depth, state, log):
    """Read requests in turn, each advised to the system ``depth`` requests ahead."""
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
        first = edges[request]
        behind = edges[request + 1]
        low, nbytes = span(rows, first, behind, job)
        if read_whole(job, slot, low, nbytes, 0, needed(rows, behind, job, low), state):
            deliver(rows, places, first, behind, job, slot, low)
    note_depth(state, log, 0)


@kernel
def finish(rows, places, edges, request, job, slot, result, state):
    """Deliver the rows of a completed request; ``result`` is its bytes, or minus an errno."""
    first = edges[request]
    behind = edges[request + 1]
    low, nbytes = span(rows, first, behind, job)
    if result < 0 and result != -_EINTR and result != -_EAGAIN:
        fail(state, -result, low)
        return
    got = max(result, 0)
    add_atomic(state, BYTES, got)
    if state[STOP] == 0 and read_whole(
        job, slot, low, nbytes, got, needed(rows, behind, job, low), state
    ):
        deliver(rows, places, first, behind, job, slot, low)


@kernel
def write_block(blocks, slot, job, address, low, nbytes):
    """Write the control block (iocb) of a slot: read ``nbytes`` at byte ``low`` to ``address``."""
    block = slot * _BLOCK
    blocks[block : block + _BLOCK] = 0
    blocks[block] = slot  # aio_data, which the event returns
    # aio_fildes, above an aio_lio_opcode of 0 (IOCB_CMD_PREAD).
    blocks[block + 2] = job[0] << 32
    blocks[block + 3] = address
    blocks[block + 4] = nbytes
    blocks[block + 5] = low


@kernel
def submit_blocks(submit, context, pointers, count, in_flight, state):
    """Submit control blocks; returns the number that the system has taken, -1 after an error.

    Args:
        submit: Number of the system call io_submit.
        context: The AIO context.
        pointers: Address of the pointers to the blocks.
        count: Number of blocks.
        in_flight: Number of reads under way.
        state: Gets the error.
    """
    taken = syscall(submit, context, count, pointers, 0, 0, 0)
    if taken >= 0:
        return taken
    error = int32_at(errno_place())
    # EAGAIN is an error only if no read is under way, whose end to wait for.
    if error == _EAGAIN and in_flight > 0:
        return 0
    fail(state, error, 0)
    return -1


@allocating_kernel
def read_by_aio(
    rows,
    places,
    edges,
    requests,
    job,
    slots,
    slot_bytes,
    depth,
    wait,
    submit,
    get_events,
    context,
    blocks,
    state,
    log,
):
    """Read requests through a context of Linux AIO.

    Returns False if it failed while reads may still be under way.

    Args:
        slots: Address of the first slot.
        slot_bytes: Bytes of a slot.
        depth: Number of slots.
        wait: Reads to wait for in a system call.
        submit: Number of the system call io_submit.
        get_events: Number of the system call io_getevents.
        context: The AIO context.
        blocks: Scratch of uint64: a control block (iocb) for each slot, then a pointer for each,
            then an event for each.
    """
    free = np.arange(depth)
    request_of = np.zeros(depth, dtype=np.int64)
    pointers = depth * _BLOCK
    events = pointers + depth
    address = np.int64(blocks.ctypes.data)
    num_free = depth
    coming = 0
    # Of the pointers, those up to `filled` were written, and those up to `sent` were submitted.
    sent = 0
    filled = 0
    while True:
        if sent == filled:
            sent = 0
            filled = 0
        while coming < requests and num_free > 0 and filled < depth and state[STOP] == 0:
            num_free -= 1
            slot = free[num_free]
            request_of[slot] = coming
            low, nbytes = span(rows, edges[coming], edges[coming + 1], job)
            write_block(blocks, slot, job, slots + slot * slot_bytes, low, nbytes)
            blocks[pointers + filled] = address + 8 * slot * _BLOCK
            filled += 1
            coming += 1
        note_depth(state, log, depth - num_free)
        if num_free == depth:
            return True
        if sent < filled:
            flying = depth - num_free - (filled - sent)
            place = address + 8 * (pointers + sent)
            taken = submit_blocks(submit, context, place, filled - sent, flying, state)
            if taken < 0:
                for i in range(sent, filled):  # never submitted
                    block = np.int64(blocks[pointers + i]) - address
                    free[num_free] = block // (8 * _BLOCK)
                    num_free += 1
                taken = filled - sent
            sent += taken
        flying = depth - num_free - (filled - sent)
        if flying == 0:
            continue
        place = address + 8 * events
        found = syscall(get_events, context, min(wait, flying), depth, place, 0, 0)
        if found < 0 and int32_at(errno_place()) != _EINTR:
            fail(state, int32_at(errno_place()), 0)
            return False
        for i in range(found):
            event = events + i * _EVENT
            slot = np.int64(blocks[event])
            result = np.int64(blocks[event + 2])
            request = request_of[slot]
            finish(rows, places, edges, request, job, slots + slot * slot_bytes, result, state)
            free[num_free] = slot
            num_free += 1
