"""Memory of the host and the process, and which addresses are mapped from files."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


def host_available(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process can allocate without swapping, within its control groups."""
    return max(0, min([_system_available(proc), *_cgroup_room(proc, cgroups)]))


def held_by_process(proc: Path = Path("/proc")) -> int:
    """Bytes of anonymous memory of this process, which cannot be reclaimed; 0 if unknown."""
    return _proc_bytes(proc / "self" / "status", "RssAnon") or 0


def return_freed() -> None:
    """Return freed memory to the system, if the C library can.

    glibc keeps freed arrays of up to 32 MB for reuse: 100 MB after ranking a million vertices.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def host_total() -> int:
    """Bytes of physical memory; 0 if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def host_limit(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Most bytes that the control groups of this process allow; None if there is no limit."""
    known = []
    for group, limit, _, _ in _groups(proc, cgroups):
        most = _number(group / limit)
        # Version 1 writes about 2**63 for no limit.
        if most is not None and most < host_total():
            known.append(most)
    return min(known, default=None)


def _system_available(proc: Path) -> int:
    """Available memory; half of the physical memory if unknown."""
    known = _proc_bytes(proc / "meminfo", "MemAvailable")
    return host_total() // 2 if known is None else known


def _proc_bytes(path: Path, name: str) -> int | None:
    """A value of a file of ``/proc``, which gives it in KiB, in bytes; None if it is missing."""
    found = re.search(rf"^{name}:\s*(\d+)", _read(path), re.MULTILINE)
    return None if found is None else int(found[1]) * 1024


def _cgroup_room(proc: Path, cgroups: Path) -> list[int]:
    """Limit minus use of every control group that contains this process."""
    room = [_group_room(*group) for group in _groups(proc, cgroups)]
    return [left for left in room if left is not None]


def _groups(proc: Path, cgroups: Path) -> Iterator[tuple[Path, str, str, str]]:
    """Every control group that contains this process, with the names of its files."""
    for group, version in control_groups("memory", proc, cgroups):
        if version == 2:
            yield group, "memory.max", "memory.current", "inactive_file"
        else:
            yield group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"


def control_groups(controller: str, proc: Path, cgroups: Path) -> Iterator[tuple[Path, int]]:
    """Folder of every control group that contains this process, with its version, 1 or 2.

    Args:
        controller: "memory" or "cpu".
        proc, cgroups: Where the system shows them.
    """
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            version = 2
            roots = [cgroups, cgroups / "unified"]
        elif controller in controllers.split(","):
            version = 1
            roots = [cgroups / controller]
        else:
            continue
        for root in roots:
            # Inside a container the path may be the host's. Then the mount itself is the group.
            folder = root / path.strip("/")
            for group in [folder, *folder.parents]:
                yield group, version
                if group == root:
                    break


def _group_room(group: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    """Limit minus use of a control group; None without a limit."""
    most = _number(group / limit)
    used = _number(group / usage)
    if most is None or used is None:
        return None
    # Inactive pages of files are reclaimed before an allocation fails. Active ones may be in use.
    cold = 0
    for line in _read(group / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == reclaimable:
            cold = int(value)
    return max(0, most - (used - cold))


def _number(path: Path) -> int | None:
    """The number that a file holds; None if it is missing or holds a word."""
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="surrogateescape")
    except OSError:
        return ""


_MAPS = Path("/proc/self/maps")
_MOUNTS = Path("/proc/self/mountinfo")
_MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}
_MEMORY_PATHS = ("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV", "/anon_hugepage")


def may_write(begin: int, end: int) -> bool:
    """Whether all pages between two addresses are writable; True if unknown."""
    for first, last, rights, *_ in _mappings():
        overlaps = first < end and begin < last
        if overlaps and "w" not in rights:
            return False
    return True


class ShownFile(NamedTuple):
    """A mapped file as the system shows it: its path, and whether it is on a disk."""

    path: str
    on_disk: bool


def mapped_file(address: int) -> ShownFile | None:
    """The file that the page at ``address`` of this process is mapped from; None for memory."""
    for first, last, _, device, path in _mappings():
        if first <= address < last:
            named = path.startswith("/")
            return ShownFile(path, is_disk_file(path, device)) if named else None
    return None


def address_on_disk(address: int) -> bool:
    """Whether the page at ``address`` of this process is backed by a file on disk."""
    found = mapped_file(address)
    return found is not None and found.on_disk


def _mappings() -> Iterator[tuple[int, int, str, str, str]]:
    """Begin, end, rights, device and path of all mappings of this process; "" for no path."""
    for line in _read(_MAPS).splitlines():
        # addresses, rights, offset, device, inode, and perhaps a path
        span, rights, _, device, _, *path = line.split(maxsplit=5)
        first, last = span.split("-")
        yield int(first, 16), int(last, 16), rights, device, "".join(path)


def is_disk_file(path: str, device: str) -> bool:
    """Whether a path and device number from ``/proc/self/maps`` are those of a file on disk."""
    if not path.startswith("/") or path.startswith(_MEMORY_PATHS):
        return False
    return _file_system(device) not in _MEMORY_FILE_SYSTEMS


def file_system_of(path: Path) -> str | None:
    """Type of the file system that a path is on, such as "ext4"; None if unknown."""
    device = os.stat(path).st_dev
    return _file_system(f"{os.major(device):x}:{os.minor(device):x}")


def _file_system(device: str) -> str | None:
    """Type of the file system with a device number, in hexadecimal as in maps, such as "fd:01"."""
    major, minor = (int(number, 16) for number in device.split(":"))
    for line in _read(_MOUNTS).splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[2] == f"{major}:{minor}":
            return right.split()[0]
    return None
