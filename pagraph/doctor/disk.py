"""A short measurement of how fast a folder's disk reads, in order and at random."""

from __future__ import annotations

import mmap
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DiskRates", "measure_disk"]

_FILE_BYTES = 64 << 20
_PAGE, _BLOCK = 4096, 1 << 20
_AT_ONCE = 16
_SECONDS = 0.5  # of each measurement, at most


@dataclass(frozen=True)
class DiskRates:
    """Rates of a disk.

    Attributes:
        in_order: Bytes/s of reading in blocks of 1 MiB, one after the other.
        random: Reads/s of 4 KiB at random places, 16 at a time.
        bypassed: Whether the reads went past the system's page cache (``O_DIRECT``). Else the file's pages were dropped
            from it before, as far as the system did so, and the figures may be those of memory.
    """

    in_order: float
    random: float
    bypassed: bool


def measure_disk(folder: Path) -> DiskRates:
    """Write 64 MiB into a file without a name in a folder and read them for a second; OSError where it cannot be."""
    with tempfile.TemporaryFile(dir=folder) as file:
        block = os.urandom(_BLOCK)
        for _ in range(_FILE_BYTES // _BLOCK):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        path = f"/proc/self/fd/{file.fileno()}"
        try:
            reader, bypassed = os.open(path, os.O_RDONLY | os.O_DIRECT), True
        except OSError:  # a file system without it
            reader, bypassed = os.open(path, os.O_RDONLY), False
        try:
            return DiskRates(_bytes_in_order(reader), _random_reads(reader), bypassed)
        finally:
            os.close(reader)


def _bytes_in_order(reader: int) -> float:
    buffer = mmap.mmap(-1, _BLOCK)  # begins at a page, as O_DIRECT asks
    blocks = iter(range(0, _FILE_BYTES, _BLOCK))
    return _per_second(blocks, lambda place: os.preadv(reader, [buffer], place)) * _BLOCK


def _random_reads(reader: int) -> float:
    """Reads/s of several threads, each with pages of its own, so that no page is read twice."""
    places = list(range(0, _FILE_BYTES, _PAGE))
    random.Random(0).shuffle(places)

    def read(thread: int) -> float:
        buffer = mmap.mmap(-1, _PAGE)
        return _per_second(iter(places[thread::_AT_ONCE]), lambda place: os.preadv(reader, [buffer], place))

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pagraph-doctor") as pool:
        return sum(pool.map(read, range(_AT_ONCE)))


def _per_second(places: Iterator[int], read: Callable[[int], object]) -> float:
    begin, count = time.perf_counter(), 0
    for place in places:
        read(place)
        count += 1
        if time.perf_counter() - begin > _SECONDS:
            break
    return count / (time.perf_counter() - begin)
