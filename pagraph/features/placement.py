"""Whether a tensor's memory is a file on disk."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

import torch

from ..indexed_rows import FieldValue, IndexedRows

__all__ = ["on_disk"]

_MAPS = Path("/proc/self/maps")
_MOUNTS = Path("/proc/self/mountinfo")
_MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}
_MEMORY_PATHS = ("/memfd:", "/dev/shm/", "/dev/zero", "/SYSV", "/anon_hugepage")

# A storage is never moved from memory to disk, so one look is enough; the entry dies with the storage.
_known: weakref.WeakKeyDictionary[torch.UntypedStorage, bool] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def on_disk(values: FieldValue) -> bool:
    """Whether the memory of a CPU tensor is a mapped file (``numpy.memmap``, ``torch.from_file``).

    Of rows by reference their source's counts.

    Files in memory (``/dev/shm``, any tmpfs, memfd) do not count. False where the system does not tell.
    """
    tensor = values.source if isinstance(values, IndexedRows) else values
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.numel() == 0:
        return False
    storage = tensor.untyped_storage()
    with _lock:
        known = _known.get(storage)
    if known is None:
        known = address_on_disk(tensor.data_ptr())
        with _lock:
            _known[storage] = known
    return known


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
