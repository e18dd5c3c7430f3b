"""ShownFile: the file that a range of addresses is mapped from."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..memory import is_disk_file

_SMAPS = Path("/proc/self/smaps")
# Pages of a private mapping that were written, in memory or swapped out.
_WRITTEN = ("Anonymous:", "Swap:")


@dataclass(frozen=True)
class ShownFile:
    """A file that is mapped at an address, opened once more, and the address's place in it.

    Attributes:
        path: Path of the file.
        offset: Byte of the file at ``address``.
        descriptor: Open for reading; the owner closes it.
        address: Begin of the range of addresses.
        nbytes: Size of the range.
    """

    path: str
    offset: int
    descriptor: int
    address: int
    nbytes: int

    @classmethod
    def open(cls, address: int, nbytes: int) -> ShownFile | None:
        """Open the file on disk that a range of addresses is mapped from, shared or private.

        None if there is no such file, pages of a private mapping were written and so are not in the
        file, the path now leads to another file, it may not be opened, or the system does not show
        its mappings.
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
        """Whether the file is still mapped there with no page written; takes 10 to 200 ms."""
        first = _file_of(self.address, self.nbytes)
        if first is None or first.offset + self.address - first.begin != self.offset:
            return False
        return _shown_as(self.descriptor) == (first.device, first.inode)


def _file_of(address: int, nbytes: int) -> _Mapping | None:
    """The first mapping of a range of addresses.

    None unless all mappings of the range are of one file on disk, in order, with no page written.
    """
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
    """An entry of ``/proc/self/smaps``; ``written`` is the KiB of its private pages."""

    begin: int
    end: int
    offset: int
    device: str
    inode: str
    path: str
    written: int = 0


def _mappings() -> Iterator[_Mapping]:
    """All mappings of this process by address; none if the system does not show them."""
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
    """Device and inode that smaps shows for a file; ``fstat`` differs on btrfs and overlays."""
    try:
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as memory:
            address = np.frombuffer(memory, dtype=np.uint8).ctypes.data
            shown = _mappings_of(address, address + 1)
    except (OSError, ValueError):  # the file is now empty, or address space ran out
        return None
    return (shown[0].device, shown[0].inode) if shown else None
