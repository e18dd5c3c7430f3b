"""How much memory there is: the arithmetic for every case, and the system's reports in all their
forms."""

import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagraph.cache import auto_budget
from pagraph.cache.plan import device_bytes, device_reserve, host_bytes
from pagraph.system.memory import file_system_of, host_available, host_limit, host_total

GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "reserved", "allocated", "peak", "reserve", "expected"),
    [
        # Nothing used yet: all that is free but the reserve.
        (16, 0, 0, 0, 1, 15),
        # The step's temporary memory is in torch's pool already: it is counted once.
        (10, 6, 2, 6, 1, 9),
        # The pool holds more than the peak: what it holds beyond can be used.
        (10, 6, 2, 4, 1, 11),
        # The pool was emptied after the peak: the next step will take it from what is free.
        (14, 2, 2, 6, 1, 9),
        # Another process took the rest.
        (0, 6, 6, 6, 1, 0),
        # Less is free than the reserve.
        (1, 4, 3, 4, 2, 0),
        # The peak was reset while tensors were alive.
        (10, 6, 5, 0, 1, 10),
        # Original PaGraph subtracted allocated and reserved memory and came out below zero here.
        (3, 12, 8, 12, 1, 2),
    ],
)
def test_device_bytes(free, reserved, allocated, peak, reserve, expected):
    got = device_bytes(
        free=(free + reserved - allocated) * GIB,
        allocated=allocated * GIB,
        peak=peak * GIB,
        reserve=reserve * GIB,
    )
    assert got == expected * GIB


numbers = st.integers(0, 1 << 40)


@given(free=numbers, allocated=numbers, pooled=numbers, peak=numbers, reserve=numbers)
def test_a_cache_and_a_step_and_the_reserve_fit_together(free, allocated, pooled, peak, reserve):
    got = device_bytes(free=free + pooled, allocated=allocated, peak=peak, reserve=reserve)
    assert got >= 0
    if got:
        usable = free + pooled + allocated
        assert got + max(peak, allocated) + reserve <= usable


@pytest.mark.parametrize(
    ("total", "reserve"),
    [
        (0, 0),
        (2 * GIB, GIB // 2),
        (8 * GIB, GIB),
        (20 * GIB, GIB),
        (80 * GIB, 4 * GIB),
        (140 * GIB, 7 * GIB),
    ],
)
def test_reserve(total, reserve):
    assert device_reserve(total) == reserve


@pytest.mark.parametrize(("available", "expected"), [(1000, 500), (0, 0), (-10, 0), (3, 1)])
def test_host_bytes(available, expected):
    assert host_bytes(available) == expected


def test_host_share():
    assert host_bytes(1000, share=0.1) == 100


class System:
    """A /proc and a /sys/fs/cgroup in a temporary folder."""

    def __init__(self, folder):
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)

    def meminfo(self, text):
        (self.proc / "meminfo").write_text(text)

    def member(self, text):
        (self.proc / "self" / "cgroup").write_text(text)

    def group(self, path, **files):
        folder = self.cgroups / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text + "\n")

    def available(self):
        return host_available(self.proc, self.cgroups)


@pytest.fixture
def system(tmp_path):
    system = System(tmp_path)
    system.meminfo("MemTotal:       2000 kB\nMemFree:         100 kB\nMemAvailable:   1000 kB\n")
    return system


def test_no_control_groups(system):
    assert system.available() == 1000 * 1024
    system.member("0::/user\n")
    assert system.available() == 1000 * 1024


@pytest.mark.parametrize("prefix", ["", "unified/"])
def test_group_of_version_2(system, prefix):
    system.member("0::/a/b\n")
    system.group(
        f"{prefix}a", memory__max="500000", memory__current="100000", memory__stat="anon 5"
    )
    system.group(f"{prefix}a/b", memory__max="max", memory__current="90000")
    assert system.available() == 400_000


def test_pages_of_files_read_once_count_as_free(system):
    system.member("0::/\n")
    stat = "anon 50000\ninactive_file 300000\nactive_file 20000"
    system.group("", memory__max="500000", memory__current="450000", memory__stat=stat)
    assert system.available() == 350_000


def test_the_tightest_group_decides(system):
    system.member("0::/a/b/c\n")
    system.group("a", memory__max="900000", memory__current="0")
    system.group("a/b", memory__max="300000", memory__current="100000")
    system.group("a/b/c", memory__max="800000", memory__current="50000")
    assert system.available() == 200_000


def test_group_of_version_1(system):
    system.member("3:cpu:/x\n2:cpuset,memory:/docker/1\n0::/\n")
    system.group(
        "memory/docker/1",
        memory__limit_in_bytes="400000",
        memory__usage_in_bytes="350000",
        memory__stat="total_inactive_file 100000",
    )
    system.group(
        "memory", memory__limit_in_bytes="9223372036854771712", memory__usage_in_bytes="123456"
    )
    assert system.available() == 150_000


def test_inside_a_container_the_mount_is_the_group(system):
    system.member("0::/host/path/of/the/container\n")
    system.group("", memory__max="300000", memory__current="100000")
    assert system.available() == 200_000


def test_a_group_over_its_limit_leaves_nothing(system):
    system.member("0::/\n")
    system.group("", memory__max="300000", memory__current="400000")
    assert system.available() == 0


def test_unreadable_numbers_are_no_limit(system):
    system.member("0::/\n")
    system.group("", memory__max="many", memory__current="")
    assert system.available() == 1000 * 1024


def test_without_meminfo_half_of_the_physical_memory(tmp_path):
    assert host_available(tmp_path / "none", tmp_path / "none") > 0


@pytest.mark.parametrize(
    ("limits", "least"), [(("500000", "300000"), 300_000), (("max", "700000"), 700_000)]
)
def test_the_limit_of_control_groups(system, limits, least):
    assert host_limit(system.proc, system.cgroups) is None
    system.member("0::/a/b\n")
    system.group("a", memory__max=limits[0])
    system.group("a/b", memory__max=limits[1])
    assert host_limit(system.proc, system.cgroups) == least


def test_no_limit_of_a_control_group(system):
    system.member("2:memory:/\n")
    system.group("memory", memory__limit_in_bytes="9223372036854771712")
    assert host_limit(system.proc, system.cgroups) is None


def test_file_systems(tmp_path):
    for path in (tmp_path, Path("/dev/shm")):
        said = subprocess.run(
            ["df", "--output=fstype", path], capture_output=True, text=True
        ).stdout.split()
        assert file_system_of(path) in (said[-1], None)
    with pytest.raises(FileNotFoundError):
        file_system_of(tmp_path / "none")


def test_on_this_machine():
    assert host_available() <= host_total()
    assert 0 < auto_budget(torch.device("cpu")) < 1 << 50
    assert auto_budget(torch.device("meta")) == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu():
    device = torch.device("cuda", torch.cuda.current_device())
    free, total = torch.cuda.mem_get_info(device)
    before = auto_budget(device, reserve=0)
    assert 0 < before <= total
    held = torch.empty(1 << 28, dtype=torch.uint8, device=device)
    assert before - auto_budget(device, reserve=0) >= held.nbytes // 2
    assert auto_budget(device, reserve=total) == 0
    del held
