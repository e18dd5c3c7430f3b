"""A disk's own rate at random reads, and what it does while others use it: yardsticks that share no
code with pagraph.

The rate is that of Linux AIO with ``O_DIRECT``: one thread keeps a fixed number of aligned reads in
flight, so that neither the page cache nor a thread for each read is measured.
"""

import argparse
import ctypes
import mmap
import os
import platform
import threading
import time
from pathlib import Path

import numpy as np

LIBC = ctypes.CDLL(None, use_errno=True)
SETUP, DESTROY, GETEVENTS, SUBMIT = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}.get(
    platform.machine(), (None,) * 4
)
IOCB = np.dtype(
    [
        ("slot", "u8"),
        ("key", "u4"),
        ("rw_flags", "u4"),
        ("opcode", "u2"),
        ("priority", "i2"),
        ("fd", "u4"),
    ]
    + [
        ("buffer", "u8"),
        ("nbytes", "u8"),
        ("offset", "i8"),
        ("unused", "u8"),
        ("flags", "u4"),
        ("resfd", "u4"),
    ]
)
EVENT = np.dtype([("slot", "u8"), ("iocb", "u8"), ("result", "i8"), ("result2", "i8")])
ALIGNMENT = 512  # bytes of a sector: what most disks can read directly


def _call(number, *arguments):
    result = LIBC.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "Linux AIO: " + os.strerror(ctypes.get_errno()))
    return result


def random_reads(path, request_bytes, depth=64, seconds=2.0):
    """Reads and bytes a second of random aligned reads of one size, with ``depth`` in flight.

    Raises:
        OSError: The system or the file system has no asynchronous direct reads.
        ValueError: The file is not at least 100 times as long as a read.
    """
    if SETUP is None:
        raise OSError(f"no numbers of system calls for {platform.machine()}")
    size = -(-request_bytes // ALIGNMENT) * ALIGNMENT
    places = os.path.getsize(path) // size
    if places < 100:
        raise ValueError(f"{path} must be at least 100 times as long as a read, got {places} times")
    generator = np.random.default_rng()
    buffers = mmap.mmap(-1, size * depth)
    address = np.frombuffer(buffers, np.uint8).ctypes.data
    blocks, events = np.zeros(depth, IOCB), np.zeros(depth, EVENT)
    blocks["slot"] = np.arange(depth)
    blocks["buffer"], blocks["nbytes"] = address + np.arange(depth) * size, size
    context = ctypes.c_ulong(0)
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    blocks["fd"] = file

    def submit(slots):
        blocks["offset"][slots] = generator.integers(0, places, len(slots)) * size
        pointers = (blocks.ctypes.data + slots * IOCB.itemsize).astype(np.uint64)
        done = 0
        while done < len(slots):
            rest = ctypes.c_void_p(pointers.ctypes.data + 8 * done)
            done += _call(SUBMIT, context, ctypes.c_long(len(slots) - done), rest)

    def wait(least):
        found = ctypes.c_void_p(events.ctypes.data)
        count = _call(GETEVENTS, context, ctypes.c_long(least), ctypes.c_long(depth), found, None)
        if (events["result"][:count] != size).any():
            raise OSError(f"{path} was not read: {events['result'][:count].min()}")
        return events["slot"][:count].astype(np.int64)

    try:
        _call(SETUP, ctypes.c_uint(depth), ctypes.byref(context))
        try:
            submit(np.arange(depth))
            reads, begin = 0, time.perf_counter()
            while time.perf_counter() - begin < seconds:
                slots = wait(max(1, depth // 8))
                reads += len(slots)
                submit(slots)
            took = time.perf_counter() - begin
            left = depth
            while left:
                left -= len(wait(left))
        finally:
            _call(DESTROY, context)
    finally:
        os.close(file)
    return {
        "request_bytes": size,
        "depth": depth,
        "reads": reads / took,
        "bytes": reads * size / took,
    }


class DiskWatch:
    """What the disk under a path does, of all processes: sampled from ``/sys/dev/block/*/stat`` as
    time goes.

    Attributes:
        samples: ``time.perf_counter()``, reads and bytes read so far, seconds with anything in
            flight, and the queue's depth times seconds, all of the whole disk.
    """

    def __init__(self, path, interval=0.05):
        device = os.stat(path).st_dev
        folder = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
        self._file = (folder.parent if (folder / "partition").exists() else folder) / "stat"
        self._interval, self._over = interval, threading.Event()
        self.samples = []

    def __enter__(self):
        self._sample()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
        self._sample()

    def _watch(self):
        while not self._over.wait(self._interval):
            self._sample()

    def _sample(self):
        fields = [int(field) for field in self._file.read_text().split()]
        reads, sectors, ticks, busy = fields[0], fields[2], fields[3], fields[9]
        self.samples.append((time.perf_counter(), reads, sectors * 512, busy / 1000, ticks / 1000))

    def total(self, begin, end):
        """What was done between two times of ``time.perf_counter()``, in seconds, reads and
        bytes."""
        inside = [sample for sample in self.samples if begin <= sample[0] <= end] or self.samples[
            -1:
        ]
        return _difference(inside[0], inside[-1])

    def timeline(self, begin, end, points=120):
        """The same for ``points`` stretches of equal length, each with its ``at``, seconds since
        ``begin``."""
        inside = [sample for sample in self.samples if begin <= sample[0] <= end]
        chosen = inside[:: max(1, len(inside) // points)]
        return [
            {"at": b[0] - begin} | _difference(a, b)
            for a, b in zip(chosen, chosen[1:], strict=False)
        ]


def _difference(first, last):
    seconds, reads, nbytes, busy, depth = (b - a for a, b in zip(first, last, strict=True))
    return {
        "seconds": round(seconds, 4),
        "reads": reads,
        "bytes": nbytes,
        "request_bytes": round(nbytes / reads) if reads else 0,
        "busy_seconds": round(busy, 3),
        "depth": round(depth / busy, 1) if busy else 0,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096, 16384, 65536])
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 32, 64])
    options = parser.parse_args()
    for size in options.sizes:
        for depth in options.depths:
            rate = random_reads(options.file, size, depth)
            print(
                f"{size:7d} bytes, depth {depth:3d}: {rate['reads']:9,.0f} reads/s "
                f"{rate['bytes'] / 1e6:8.1f} MB/s"
            )


if __name__ == "__main__":
    main()
