"""Files out of the page cache, and what a process reads from disks; imports nothing of pagraph, so
that peers can."""

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np

LIBC = ctypes.CDLL(None, use_errno=True)
MADV_DONTNEED = 4


def resident_share(path):
    """The share of a file's pages that are in memory, by mincore on a mapping of its own."""
    size = os.path.getsize(path)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        view = np.frombuffer(memory, dtype=np.uint8)
        pages = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
        address, length = ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(size)
        if LIBC.mincore(address, length, pages) != 0:
            raise OSError(ctypes.get_errno(), "mincore failed")
        del view
        return float(np.mean(np.frombuffer(pages, dtype=np.uint8) & 1))


def make_cold(path, tensor=None):
    """Drop a file from the page cache; pages that ``tensor`` (never written) has mapped are
    unmapped first."""
    if tensor is not None:
        start = tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
        length = tensor.data_ptr() + tensor.nbytes - start
        if LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), MADV_DONTNEED) != 0:
            raise OSError(ctypes.get_errno(), "madvise failed")
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    share = resident_share(path)
    if share >= 0.01 and os.path.getsize(path) >= 100 * mmap.PAGESIZE:
        raise RuntimeError(f"{path} must be out of the page cache, got {share:.1%} of it in memory")


def make_folder_cold(folder):
    """Drop all files below a folder from the page cache."""
    for path in Path(folder).rglob("*"):
        if path.is_file() and path.stat().st_size:
            make_cold(path)


def disk_bytes():
    """Bytes that this process had read from disks."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    return 0
