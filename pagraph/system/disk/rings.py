"""Queues that the system keeps: io_uring and Linux AIO, through plain system calls."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import weakref
from typing import Any

import numpy as np

from .queues import DEPTH, Queue, Requests

__all__ = ["Aio", "Ring"]

Array = Any  # a NumPy array; its element type is a matter of the kernels

# Reads to wait for at a time, so that one system call serves several: with 32 a queue of 128 ran dry (65,700 requests/s
# of 4 KiB, with 8 105,800; of 64 KiB 11,200 and 14,300).
WAIT = 8
_URING_SETUP, _URING_ENTER, _URING_REGISTER = 425, 426, 427  # on every processor
_AIO = {  # io_setup, io_destroy, io_getevents, io_submit
    "x86_64": (206, 207, 208, 209),
    "aarch64": (0, 1, 4, 2),
}
_SUBMISSIONS_AT = 0x10000000  # IORING_OFF_SQES
_FEATURES = 3  # one mapping for both rings, and no completion is dropped: Linux 5.5
_PROBE, _OP_READ = 8, 22


def system_call(number: int, *arguments: int) -> int:
    """Result of a system call; OSError where it failed."""
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    result: int = function(*(ctypes.c_long(each) for each in (number, *arguments)))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


class Ring(Queue):
    """A ring of io_uring, Linux 5.6 or newer; many systems forbid it in containers.

    For direct reads: through the page cache, beside other work, it was slower than ``Advice`` at every size (16 KiB:
    382 and 655 MB/s; in order: 68 and 1513), and took more of the processor.
    """

    way, direct = "io_uring", True

    def __init__(self, depth: int = DEPTH) -> None:
        super().__init__(depth)
        settings = np.zeros(30, dtype=np.uint32)  # struct io_uring_params
        # None of its options: with IORING_SETUP_COOP_TASKRUN a request took 2.6 us of the processor, without 2.0.
        self._descriptor = descriptor = system_call(_URING_SETUP, depth, settings.ctypes.data)
        self._close = weakref.finalize(self, os.close, descriptor)
        self._close.atexit = False  # threads may be at work to the end
        submissions, completions = int(settings[0]), int(settings[1])
        if settings[5] & _FEATURES != _FEATURES:
            raise OSError(errno.ENOSYS, "io_uring of this system is too old")
        _, sq_tail, sq_mask, _, _, _, array = (int(at) // 4 for at in settings[10:17])
        cq_head, cq_tail, cq_mask, _, _, first = (int(at) // 4 for at in settings[20:26])
        nbytes = 4 * max(array + submissions, first + 4 * completions)
        self._ring: Array = np.frombuffer(mmap.mmap(descriptor, nbytes), dtype=np.uint32)
        self._ring[array : array + submissions] = np.arange(submissions)
        entries = mmap.mmap(descriptor, submissions * 64, offset=_SUBMISSIONS_AT)
        self._entries: Array = np.frombuffer(entries, dtype=np.uint64)
        self._words = (sq_tail, sq_mask, cq_head, cq_tail, cq_mask, first)

    @classmethod
    def check(cls) -> None:
        """Raise OSError where the system refuses io_uring, or does not know its plain reads."""
        ring = cls()
        operations = np.zeros(2 + 64, dtype=np.uint64)  # struct io_uring_probe: 16 bytes, then 8 for each operation
        system_call(_URING_REGISTER, ring._descriptor, _PROBE, operations.ctypes.data, 64)
        if not int(operations[2 + _OP_READ]) >> 16 & 1:
            raise OSError(errno.ENOSYS, "io_uring of this system has no plain reads")
        system_call(_URING_ENTER, ring._descriptor, 0, 0, 0, 0, 0)

    def read(self, requests: Requests) -> None:
        """Read, see :meth:`Queue.read`."""
        rows, places, edges, number, _, job, state, log, _ = requests
        from . import _rings

        slots = *self.slots(requests), WAIT
        shared = self._descriptor, self._words, self._ring, self._entries
        if not _rings.read_by_ring(rows, places, edges, number, job, *slots, _URING_ENTER, *shared, state, log):
            self.is_lost = True
            _lost.append(self)


class Aio(Queue):
    """A context of Linux AIO: truly asynchronous past the page cache only."""

    way, direct = "aio", True

    def __init__(self, depth: int = DEPTH) -> None:
        super().__init__(depth)
        numbers = _AIO.get(platform.machine())
        if numbers is None:
            raise OSError(errno.ENOSYS, f"AIO is not known on {platform.machine()}")
        setup, destroy, self._get_events, self._submit = numbers
        context = np.zeros(1, dtype=np.uint64)
        system_call(setup, depth, context.ctypes.data)
        self._context = int(context[0])
        self._close = weakref.finalize(self, _destroy, destroy, self._context, os.getpid())
        self._close.atexit = False
        self._blocks: Array = np.zeros(depth * 13, dtype=np.uint64)

    @classmethod
    def check(cls) -> None:
        """Raise OSError where the system refuses AIO, or has no more."""
        cls()

    def read(self, requests: Requests) -> None:
        """Read, see :meth:`Queue.read`."""
        rows, places, edges, number, _, job, state, log, _ = requests
        from . import _rings

        slots = *self.slots(requests), WAIT
        own = self._submit, self._get_events, self._context, self._blocks
        if not _rings.read_by_aio(rows, places, edges, number, job, *slots, *own, state, log):
            self.is_lost = True
            _lost.append(self)


_lost: list[Queue] = []
"""Queues that failed with reads under way: their memory must stay."""


def _destroy(number: int, context: int, process: int) -> None:
    if os.getpid() == process:  # a forked child has none of its parent's contexts
        system_call(number, context)
