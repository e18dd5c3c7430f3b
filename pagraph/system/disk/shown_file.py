"""Files behind addresses that are mapped from them, as the system tells."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..memory import is_disk_file

_SMAPS = Path("/proc/self/smaps")
# Pages of a private mapping that are no longer the file's, in memory or swapped out.
_WRITTEN = ("Anonymous:", "Swap:")


@dataclass(frozen=True)
class ShownFile:
    """A file, opened anew, and where in it the bytes lie that an address shows.

    Attributes:
        path: Path of the file.
        offset: Byte of the file that is at the address.
        descriptor: Open for reading; the owner's to close.
        address, nbytes: The range of addresses.
    """

    path: str
    offset: int
    descriptor: int
    address: int
    nbytes: int

    @classmethod
    def open(cls, address: int, nbytes: int) -> ShownFile | None:
        """Open the file on disk that a range of addresses shows, through a shared or a private
        mapping.

        None where there is no such file, where pages of a private mapping were written (what they
        hold is not in the file), where the path leads to another file by now, where it may not be
        opened, or the system does not tell.
        """
        first = _file_of(address, nbytes)
        if first is None:
            return None
        path = first.path.replace("\\012", "\n")
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        if _shown_as(descriptor) != (first.device, first.inode):
            os.close(descriptor)
            return None
        return cls(path, first.offset + address - first.begin, descriptor, address, nbytes)

    def is_current(self) -> bool:
        """Whether the addresses still show the file and none of their pages was written; 10 to 200
        ms."""
        first = _file_of(self.address, self.nbytes)
        if first is None or first.offset + self.address - first.begin != self.offset:
            return False
        return _shown_as(self.descriptor) == (first.device, first.inode)


def _file_of(address: int, nbytes: int) -> _Mapping | None:
    """The first of the mappings of a range of addresses, if all show one file on disk, and no pages
    of their own."""
    parts = _mappings_of(address, address + nbytes)
    if not parts or any(part.written for part in parts):
        return None
    first = parts[0]
    last = parts[-1]
    if (
        first.begin > address
        or last.end < address + nbytes
        or not is_disk_file(first.path, first.device)
    ):
        return None
    for before, part in zip(parts, parts[1:], strict=False):  # madvise and mprotect split a mapping
        same_file = (part.device, part.inode) == (first.device, first.inode)
        if (
            not same_file
            or before.end != part.begin
            or part.offset - before.offset != part.begin - before.begin
        ):
            return None
    return first


@dataclass
class _Mapping:
    """An entry of ``/proc/self/smaps``; ``written`` counts KiB of pages that are copies of this
    process."""

    begin: int
    end: int
    offset: int
    device: str
    inode: str
    path: str
    written: int = 0


def _mappings() -> Iterator[_Mapping]:
    """All mappings of this process, in the order of their addresses; none where the system does not
    tell."""
    try:
        lines = _SMAPS.read_text(errors="surrogateescape").split("\n")
    except OSError:
        return
    mapping: _Mapping | None = None
    for line in lines:
        name, _, rest = line.partition(" ")
        if name in _WRITTEN and mapping is not None:
            mapping.written += int(rest.split()[0])
        elif name and not name.endswith(":"):
            if mapping is not None:
                yield mapping
            _, offset, device, inode, *path = rest.split(maxsplit=4)
            begin, end = (int(number, 16) for number in name.split("-"))
            mapping = _Mapping(begin, end, int(offset, 16), device, inode, path[0] if path else "")
    if mapping is not None:
        yield mapping


def _mappings_of(begin: int, end: int) -> list[_Mapping]:
    return [mapping for mapping in _mappings() if mapping.begin < end and begin < mapping.end]


def _shown_as(descriptor: int) -> tuple[str, str] | None:
    """Device and inode by which a mapping of the file is shown; on btrfs and overlays ``fstat``
    tells others."""
    try:
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as memory:
            address = np.frombuffer(memory, dtype=np.uint8).ctypes.data
            shown = _mappings_of(address, address + 1)
    except (OSError, ValueError):  # empty by now, or no more addresses
        return None
    return (shown[0].device, shown[0].inode) if shown else None
