"""How much of the system's memory is available to this process."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["host_available"]


def host_available(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process could take without swapping, as the system and its control groups report."""
    limits = _cgroup_room(proc, cgroups)
    system = _meminfo_available(proc)
    if system is None:
        system = _sysconf_available()
    return max(0, min([system, *limits]))


def _meminfo_available(proc: Path) -> int | None:
    text = _read(proc / "meminfo")
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _sysconf_available() -> int:
    """Half of the physical memory where the system does not report what is available."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (ValueError, OSError):
        return 0


def _cgroup_room(proc: Path, cgroups: Path) -> list[int]:
    """Limit minus use of every control group above this process, for both versions of the interface."""
    room: list[int] = []
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            roots = [(cgroups, "memory.max", "memory.current", "inactive_file")]
            roots.append((cgroups / "unified", *roots[0][1:]))
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            roots = [(cgroups / "memory", *names)]
        else:
            continue
        for root, limit, usage, reclaimable in roots:
            # Inside a container the path may be that of the host: the mount itself is then the group.
            folder = root / path.strip("/")
            for group in [folder, *folder.parents]:
                left = _group_room(group, limit, usage, reclaimable)
                if left is not None:
                    room.append(left)
                if group == root:
                    break
    return room


def _group_room(group: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    most, used = _read(group / limit).strip(), _read(group / usage).strip()
    if not most.isdigit() or not used.isdigit():
        return None
    # Pages of files that were read once go before anything fails; the others may be in use.
    cold = 0
    for line in _read(group / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == reclaimable:
            cold = int(value)
    return max(0, int(most) - (int(used) - cold))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
