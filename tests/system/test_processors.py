"""The share of the processors that other programs have, by the counters of a made-up system."""

import os

import pytest

from pagraph.system import processors
from pagraph.system.processors import OtherPrograms

TICKS = os.sysconf("SC_CLK_TCK")
ROOT = 7


class System:
    """A machine with its counters in files."""

    def __init__(self, folder, monkeypatch, *, cpus, allowed):
        self.proc = folder / "proc"
        self.cgroups = folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.cgroups.mkdir()
        self.cpus = cpus
        self.now = 100.0
        self.busy = dict.fromkeys(range(cpus), 0.0)
        self.load = 0.0
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(allowed))
        monkeypatch.setattr(os, "getloadavg", lambda: (self.load, 0.0, 0.0))
        monkeypatch.setattr(processors.time, "monotonic", lambda: self.now)
        self.process(ROOT, 1, 0)

    def process(self, pid, parent, seconds, waited_for=0):
        (self.proc / str(pid)).mkdir(exist_ok=True)
        times = f"{seconds * TICKS:.0f} 0 {waited_for * TICKS:.0f} 0"
        text = f"{pid} (a (b) c) S {parent} {'0 ' * 9}{times} 20 0"
        (self.proc / str(pid) / "stat").write_text(text)

    def write(self):
        lines = [
            f"cpu{cpu} {seconds * TICKS:.0f} 0 0 5 9 0 0 0 0 0"
            for cpu, seconds in self.busy.items()
        ]
        (self.proc / "stat").write_text(
            "\n".join(["cpu  1 2 3 4 5 6 7 8 0 0", *lines, "intr 5 0", ""])
        )

    def group(self, name, **files):
        (self.proc / "self" / "cgroup").write_text(f"{name}\n")
        for path, text in files.items():
            (self.cgroups / path.replace("__", ".")).write_text(text)


@pytest.fixture
def system(tmp_path, monkeypatch):
    return lambda **more: System(tmp_path, monkeypatch, **more)


def share(system, seconds, later):
    others = OtherPrograms(ROOT, system.proc, system.cgroups)
    system.write()
    others.see(at_once=True)
    assert others.share == 0
    system.now += seconds
    later()
    system.write()
    others.see(at_once=True)
    assert others.seconds == pytest.approx(seconds)
    return others.share


def test_what_is_not_this_familys(system):
    """Its own, a worker's, and those of a worker that it has waited for."""
    machine = system(cpus=4, allowed=range(4))

    def later():
        machine.busy = {0: 10, 1: 10, 2: 10, 3: 0}
        machine.process(ROOT, 1, 8, waited_for=4)
        machine.process(8, ROOT, 3)
        machine.process(9, 8, 3)
        machine.process(10, 1, 12)

    assert share(machine, 10, later) == pytest.approx(0.3)


def test_processors_that_it_may_not_use_do_not_count(system):
    machine = system(cpus=4, allowed=[2, 3])

    def later():
        machine.busy = {0: 10, 1: 10, 2: 10, 3: 5}
        machine.process(ROOT, 1, 10)

    assert share(machine, 10, later) == pytest.approx(0.25)


def test_others_may_have_what_a_limit_leaves(system):
    machine = system(cpus=8, allowed=range(8))
    machine.group("0::/", cpu__max="200000 100000", cpu__stat="usage_usec 0\nuser_usec 0\n")

    def idle():
        machine.busy = dict.fromkeys(range(6), 10)

    def full():
        machine.busy = dict.fromkeys(range(6), 20) | {6: 10}
        # Nor may another program of the same container.
        (machine.cgroups / "cpu.stat").write_text("usage_usec 2000000\n")

    assert share(machine, 10, idle) == 0
    assert share(machine, 10, full) == pytest.approx(0.5, abs=0.01)


def test_another_program_in_a_container_with_a_limit(system):
    machine = system(cpus=8, allowed=range(8))
    machine.group("4:cpu:/")
    folder = machine.cgroups / "cpu"
    folder.mkdir()
    (folder / "cpu.cfs_quota_us").write_text("200000\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    (folder / "cpuacct.usage").write_text("0\n")

    def later():
        machine.busy = {0: 10, 1: 10} | dict.fromkeys(range(2, 8), 0)
        machine.process(ROOT, 1, 5)
        (folder / "cpuacct.usage").write_text(f"{20 * 10**9}\n")

    assert share(machine, 10, later) == pytest.approx(0.75)


def test_without_counters_the_load_of_before_tells(system):
    machine = system(cpus=4, allowed=range(4))
    machine.load = 2.0

    def later():
        machine.load = 6.0  # with this program's threads

    assert share(machine, 10, later) == pytest.approx(0.5)


def test_a_short_span_tells_nothing(system):
    machine = system(cpus=1, allowed=[0])
    assert share(machine, 0.1, lambda: machine.busy.update({0: 0.1})) == 0


def test_looking_takes_little_of_the_time(system):
    machine = system(cpus=1, allowed=[0])
    others = OtherPrograms(ROOT, machine.proc, machine.cgroups)
    machine.write()
    others.see()
    machine.now += 1e-6
    others.see()
    assert others.seconds == 0
    machine.now += 1000
    others.see()
    assert others.seconds > 999


def test_this_system():
    others = OtherPrograms(os.getpid())
    others.see()
    others.see(at_once=True)
    assert others.share == 0
