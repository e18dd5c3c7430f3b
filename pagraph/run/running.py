"""RunningNumbers: numbers of passes in a mapped file, which outlive a process however it ends."""

from __future__ import annotations

import functools
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K")
SUFFIX = ".running"
"""Of the file, beside the process's other numbers."""
_MOST = 1024
"""Records of a file: as many passes at once are counted to the last batch."""


class Passes(NamedTuple):
    """Numbers of a record's passes; times are in nanoseconds."""

    epochs: int = 0
    batches: int = 0
    waited: int = 0
    kernels: int = 0
    first: int = 0

    def with_pass(self, batches: int, waited: int, kernels: int, *, is_first: bool) -> Passes:
        """These and those of one more pass."""
        return Passes(
            self.epochs + 1,
            self.batches + batches,
            self.waited + waited,
            self.kernels + kernels,
            self.first + waited * is_first,
        )


class Record(NamedTuple):
    """One record.

    Attributes:
        passes: Numbers of all passes that have had it.
        begin, end, waited, kernels: The process's, at the last batch.
    """

    passes: Passes
    begin: int
    end: int
    waited: int
    kernels: int


# The passes before, whether one has it, whether that is a loader's first one; then what each batch
# replaces: the pass's batches and waits, and the process's numbers.
_BEFORE = struct.Struct("=7q")
_NOW = struct.Struct("=7q")
_WHOLE = struct.Struct("=14q")
_SIZE = _WHOLE.size


class RunningNumbers(Generic[K]):
    """Records in a mapped file, each lent to one pass at a time, and always for the same key.

    A record adds up all passes that have had it. So the other file, which says whose records these
    are, is only written when a pass gets one that nobody had before.

    Args:
        path: The file, which must not exist.

    Raises:
        OSError: The file cannot be written, or has no room.

    Attributes:
        keys: The key of each record.
    """

    def __init__(self, path: Path) -> None:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # Room on the disk now, as a write that finds none would end the process.
            os.posix_fallocate(file, 0, _SIZE * _MOST)
            self._map = mmap.mmap(file, _SIZE * _MOST)
        finally:
            os.close(file)
        self.keys: list[K] = []
        self._free: dict[K, list[int]] = {}

    def lend(self, key: K, *, is_first: bool) -> tuple[int, Callable[..., None]] | None:
        """A record for a pass: its place, and what each batch calls with seven numbers.

        These are the pass's batches, waits and kernels, and the process's begin, end, waits and
        kernels. None if all records are lent.
        """
        free = self._free.setdefault(key, [])
        if not free:
            if len(self.keys) == _MOST:
                return None
            free.append(len(self.keys))
            self.keys.append(key)
        at = free[-1] * _SIZE
        before, *of_process = _record(self._map[at : at + _SIZE])
        whole = *before, 1, is_first, 0, 0, 0, *of_process
        _WHOLE.pack_into(self._map, at, *whole)
        return free.pop(), functools.partial(_NOW.pack_into, self._map, at + _BEFORE.size)

    def take_back(self, place: int, *, forget: bool = False) -> None:
        """The pass is over; its numbers stay, unless they are to be forgotten."""
        if forget:
            at = place * _SIZE
            *before, _, _ = _BEFORE.unpack_from(self._map, at)
            _BEFORE.pack_into(self._map, at, *before, 0, 0)
        self._free[self.keys[place]].append(place)


def records_of(path: Path, count: int) -> Iterator[Record]:
    """The first records of a file."""
    content = path.read_bytes()
    for at in range(0, count * _SIZE, _SIZE):
        yield _record(content[at : at + _SIZE])


def _record(content: bytes) -> Record:
    *before, is_lent, is_first = _BEFORE.unpack_from(content)
    batches, waited, kernels, *of_process = _NOW.unpack_from(content, _BEFORE.size)
    passes = Passes(*before)
    if is_lent:
        passes = passes.with_pass(batches, waited, kernels, is_first=bool(is_first))
    return Record(passes, *of_process)
