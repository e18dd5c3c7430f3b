"""How much of this process's processors other programs have."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .memory import control_groups

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
# Processor time is counted in hundredths of seconds, so that a shorter span tells little.
_TOO_SHORT = 0.5
# A sample looks at all processes of the machine. Sampling may take this share of the time.
_MOST_TIME = 1 / 500


@dataclass(frozen=True)
class _Sample:
    """Counters at one moment, in seconds.

    Attributes:
        time: The clock.
        busy: Processor time of all programs, and of virtual machines beside this one; 0 if unknown.
        own: Processor time of the watched processes.
        groups: For each control group with a limit, its processor time; 0 if unknown.
        load: Mean number of running threads in the last minute.
    """

    time: float
    busy: float
    own: float
    groups: dict[Path, float]
    load: float


class OtherPrograms:
    """Measures which share of the processors others than some processes had.

    Of what the affinity and the control groups of this process allow: others may have the rest of a
    machine.

    Args:
        root: A process, which is watched with its descendants.
        proc, cgroups: Where the system shows its counters.
    """

    def __init__(self, root: int, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> None:
        self._root = root
        self._proc = proc
        self._cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        self._cgroups = cgroups
        self._limits: dict[Path, float] = {}
        self._first: _Sample | None = None
        self._last: _Sample | None = None
        self._next = 0.0

    def see(self, *, at_once: bool = False) -> None:
        """Take a sample, with which the measured span ends; may wait for a later call."""
        now = time.monotonic()
        if now < self._next and not at_once:
            return
        begin = time.thread_time()
        if self._first is None:
            self._limits = dict(_limits(self._proc, self._cgroups))
        sample = _Sample(
            now,
            _busy(self._proc, self._cpus),
            _of_tree(self._proc, self._root),
            {group: _group_seconds(group) for group in self._limits},
            _load(),
        )
        if self._first is None:
            self._first = sample
        self._last = sample
        self._next = now + (time.thread_time() - begin) / _MOST_TIME

    @property
    def seconds(self) -> float:
        """Length of the span."""
        if self._first is None or self._last is None:
            return 0.0
        return self._last.time - self._first.time

    @property
    def share(self) -> float:
        """Share that others had, of 1; 0 if the span is too short to tell."""
        first, last = self._first, self._last
        if first is None or last is None or self.seconds < _TOO_SHORT:
            return 0.0
        count = len(self._cpus) or os.cpu_count() or 1
        allowed = min([count, *self._limits.values()])
        own = last.own - first.own
        others = (last.busy - first.busy - own) / self.seconds
        if last.busy == first.busy:
            # No counters here. The load has this program's threads, too, but not of before.
            others = min(first.load, last.load)
        # Others first take the processors that this process may not use.
        taken = [(others - (count - allowed)) / allowed]
        for group, limit in self._limits.items():
            used = last.groups[group] - first.groups[group]
            taken.append((used - own) / self.seconds / limit)
        return min(1.0, max(0.0, *taken))


def _load() -> float:
    """Mean number of running threads in the last minute; 0 if unknown."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0


def _busy(proc: Path, cpus: set[int]) -> float:
    """Seconds that processors have worked; 0 if unknown."""
    ticks = {}
    for line in _read(proc / "stat").splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, _idle, _iowait, *interrupts_and_stolen = map(int, fields[:8])
            ticks[int(name[3:])] = user + nice + system + sum(interrupts_and_stolen)
    # A container may number its processors anew.
    known = [ticks[cpu] for cpu in cpus if cpu in ticks] or ticks.values()
    return sum(known) / os.sysconf("SC_CLK_TCK")


def _of_tree(proc: Path, root: int) -> float:
    """Processor seconds of a process, its descendants, and those of them that it has waited for."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for pid in [int(name) for name in _names(proc) if name.isdigit()]:
        # The program's name in parentheses may have any characters.
        fields = _read(f"{proc}/{pid}/stat").rpartition(")")[2].split()
        if fields:  # else it has just ended
            ticks[pid] = sum(map(int, fields[11:15]))
            children.setdefault(int(fields[1]), []).append(pid)
    tree = [root]
    for pid in tree:
        tree += children.get(pid, [])
    return sum(ticks.get(pid, 0) for pid in tree) / os.sysconf("SC_CLK_TCK")


def _limits(proc: Path, cgroups: Path) -> Iterator[tuple[Path, float]]:
    """Control groups that contain this process, and the processors that each allows."""
    for group, version in control_groups("cpu", proc, cgroups):
        if version == 2:
            quota, _, period = _read(group / "cpu.max").partition(" ")
        else:
            quota, period = (_read(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota.strip().isdigit() and period.strip().isdigit():
            yield group, int(quota) / int(period)


def _group_seconds(group: Path) -> float:
    """Processor seconds of a control group; 0 if unknown."""
    nanoseconds = _read(group / "cpuacct.usage")
    if nanoseconds:
        return int(nanoseconds) / 1e9
    name, _, microseconds = _read(group / "cpu.stat").partition("\n")[0].partition(" ")
    return int(microseconds) / 1e6 if name == "usage_usec" else 0.0


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read(path: Path | str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""
