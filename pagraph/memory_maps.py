"""What the system's map of this process says of its memory."""

from __future__ import annotations

from pathlib import Path

__all__ = ["address_on_disk", "may_write"]

_MAPS = Path("/proc/self/maps")
_MOUNTS = Path("/proc/self/mountinfo")
_MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}
_MEMORY_PATHS = ("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV", "/anon_hugepage")


def may_write(begin: int, end: int) -> bool:
    """Whether all pages between two addresses may be written; True where the system does not tell."""
    try:
        maps = _MAPS.read_text(errors="surrogateescape")
    except OSError:
        return True
    for line in maps.splitlines():
        span, rights = line.split(maxsplit=2)[:2]
        first, last = (int(part, 16) for part in span.split("-"))
        if first < end and begin < last and "w" not in rights:
            return False
    return True


def address_on_disk(address: int) -> bool:
    """Whether the page at ``address`` of this process is backed by a file on disk."""
    try:
        maps = _MAPS.read_text(errors="surrogateescape")
    except OSError:
        return False
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        low, high = (int(number, 16) for number in fields[0].split("-"))
        if low <= address < high:
            return len(fields) == 6 and _is_disk_file(fields[5], fields[3])
    return False


def _is_disk_file(path: str, device: str) -> bool:
    if not path.startswith("/") or path.startswith(_MEMORY_PATHS):
        return False
    return _file_system(device) not in _MEMORY_FILE_SYSTEMS


def _file_system(device: str) -> str | None:
    """Type of the mounted file system with this device number ("fd:01" as in maps, hexadecimal)."""
    major, minor = (int(number, 16) for number in device.split(":"))
    try:
        mounts = _MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return None
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[2] == f"{major}:{minor}":
            return right.split()[0]
    return None
