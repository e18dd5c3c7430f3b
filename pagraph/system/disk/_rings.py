"""Kernels that keep the queues of io_uring and of Linux AIO full; arguments as in ``_reads``.

Structures are those of ``linux/io_uring.h`` and ``linux/aio_abi.h``, as arrays of words.
"""

import numpy as np
from numba import types

from ..._jit import add_atomic, int32_at, kernel, load_acquire, store_release
from ._reads import BYTES, STOP, deliver, errno_place, fail, needed, note_depth, read_whole, span

_ARGUMENTS = (types.intp, types.uintp, types.uintp, types.uintp, types.uintp, types.uintp, types.uintp)
# Takes any number of arguments; x86-64 and ARM pass them where a function of seven expects them.
syscall = types.ExternalFunction("syscall", types.intp(*_ARGUMENTS))

_EINTR, _EAGAIN, _EBUSY = 4, 11, 16
_OP_READ = 22
_GET_EVENTS = 1


@kernel
def finish(rows, places, edges, request, job, slot, result, state):  # type: ignore[no-untyped-def]
    """Deliver the rows of a request that ended with ``result``: a number of bytes, or minus an errno."""
    first, behind = edges[request], edges[request + 1]
    low, nbytes = span(rows, first, behind, job)
    if result < 0 and result != -_EINTR and result != -_EAGAIN:
        fail(state, -result, low)
        return
    got = max(result, 0)
    add_atomic(state, BYTES, got)
    if state[STOP] == 0 and read_whole(job, slot, low, nbytes, got, needed(rows, behind, job, low), state):
        deliver(rows, places, first, behind, job, slot, low)


@kernel
def read_by_ring(  # type: ignore[no-untyped-def]
    rows,
    places,
    edges,
    requests,
    job,
    slots,
    slot_bytes,
    depth,
    wait,
    enter,
    descriptor,
    words,
    ring,
    entries,
    state,
    log,
):
    """Read requests through a ring of io_uring; False if it failed so that reads may still be under way.

    Args:
        slots: Address of ``depth`` slots of ``slot_bytes``.
        wait: Reads to wait for at a time.
        enter: Number of the system call.
        descriptor: The ring's.
        words: Where in ``ring`` are: tail and mask of the submissions; head, tail, mask and first of the completions.
        ring: The shared memory, uint32.
        entries: Submissions, eight uint64 each.
    """
    sq_tail, sq_mask, cq_head, cq_tail, cq_mask, completions = words
    free = np.arange(depth)
    request_of = np.zeros(depth, dtype=np.int64)
    num_free, coming, unsent = depth, 0, 0
    tail, head = ring[sq_tail], ring[cq_head]
    while True:
        while coming < requests and num_free > 0 and state[STOP] == 0:
            num_free -= 1
            slot = free[num_free]
            request_of[slot] = coming
            low, nbytes = span(rows, edges[coming], edges[coming + 1], job)
            entry = np.int64(tail & ring[sq_mask]) * 8
            entries[entry : entry + 8] = 0
            entries[entry] = _OP_READ | job[0] << 32
            entries[entry + 1] = low
            entries[entry + 2] = slots + slot * slot_bytes
            entries[entry + 3] = nbytes
            entries[entry + 4] = slot
            tail = np.uint32(tail + np.uint32(1))
            unsent += 1
            coming += 1
        flying = depth - num_free
        note_depth(state, log, flying)
        if flying == 0:
            return True
        store_release(ring, sq_tail, tail)
        sent = syscall(enter, descriptor, unsent, min(wait, flying), _GET_EVENTS, 0, 0)
        if sent >= 0:
            unsent -= sent
        else:
            error = int32_at(errno_place())
            waits = error == _EINTR or (flying > unsent and error in (_EAGAIN, _EBUSY))
            if not waits:
                fail(state, error, 0)
                return False
        ready = load_acquire(ring, cq_tail)
        while head != ready:
            entry = np.int64(completions) + np.int64(head & ring[cq_mask]) * 4
            slot = np.int64(ring[entry])
            result = np.int64(np.int32(ring[entry + 2]))
            finish(rows, places, edges, request_of[slot], job, slots + slot * slot_bytes, result, state)
            free[num_free] = slot
            num_free += 1
            head = np.uint32(head + np.uint32(1))
        store_release(ring, cq_head, head)


@kernel
def read_by_aio(  # type: ignore[no-untyped-def]
    rows, places, edges, requests, job, slots, slot_bytes, depth, wait, submit, get_events, context, blocks, state, log
):
    """Read requests through a context of Linux AIO; False if it failed so that reads may still be under way.

    Args:
        slots, slot_bytes, wait: As of a ring.
        submit, get_events: Numbers of the system calls.
        context: The queue.
        blocks: Scratch of uint64: for each slot eight words of its control block, one of a pointer, four of an event.
    """
    free = np.arange(depth)
    request_of = np.zeros(depth, dtype=np.int64)
    pointers, events = depth * 8, depth * 9
    num_free, coming, sent, filled = depth, 0, 0, 0
    while True:
        if sent == filled:
            sent = filled = 0
        while coming < requests and num_free > 0 and filled < depth and state[STOP] == 0:
            num_free -= 1
            slot = free[num_free]
            request_of[slot] = coming
            low, nbytes = span(rows, edges[coming], edges[coming + 1], job)
            block = slot * 8
            blocks[block : block + 8] = 0
            blocks[block] = slot
            blocks[block + 2] = job[0] << 32
            blocks[block + 3] = slots + slot * slot_bytes
            blocks[block + 4] = nbytes
            blocks[block + 5] = low
            blocks[pointers + filled] = blocks.ctypes.data + block * 8
            filled += 1
            coming += 1
        note_depth(state, log, depth - num_free)
        if num_free == depth:
            return True
        if sent < filled:
            place = blocks.ctypes.data + (pointers + sent) * 8
            done = syscall(submit, context, filled - sent, place, 0, 0, 0)
            if done >= 0:
                sent += done
            elif (
                int32_at(errno_place()) != _EAGAIN or depth - num_free == filled - sent
            ):  # or none is there to wait for
                fail(state, int32_at(errno_place()), 0)
                for i in range(sent, filled):  # these never went
                    free[num_free] = (np.int64(blocks[pointers + i]) - np.int64(blocks.ctypes.data)) // 64
                    num_free += 1
                sent = filled
        flying = depth - num_free - (filled - sent)
        if flying == 0:
            continue
        place = blocks.ctypes.data + events * 8
        found = syscall(get_events, context, min(wait, flying), depth, place, 0, 0)
        if found < 0 and int32_at(errno_place()) != _EINTR:
            fail(state, int32_at(errno_place()), 0)
            return False
        for i in range(found):
            event = events + i * 4
            slot = np.int64(blocks[event])
            result = np.int64(blocks[event + 2])
            finish(rows, places, edges, request_of[slot], job, slots + slot * slot_bytes, result, state)
            free[num_free] = slot
            num_free += 1
