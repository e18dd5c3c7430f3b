"""What all tests share: where real graphs lie, and that nothing is left behind."""

import collections
import contextlib
import gc
import importlib.util
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import uuid
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import quick_interpreter
import torch
from fresh_processes import HANGING, OF_CUDA, cpu_seconds
from tiers import EVERY, SECOND_TIER, in_second_tier, is_all_second_tier


def has_interpreter():
    """Whether Triton can interpret our kernels: 3.0 and 3.1 with numpy 2 write zeros."""
    try:
        return tuple(map(int, version("triton").split(".")[:2])) >= (3, 2)
    except PackageNotFoundError:
        return False


if not torch.cuda.is_available():
    if has_interpreter():
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is first imported
        quick_interpreter.quicken()
    else:
        sys.modules.setdefault("triton", None)  # as if there were none

# Without it a first `import dgl` prints a line to stdout, and writes to the home.
os.environ.setdefault("DGLBACKEND", "pytorch")

# xdist sets it in its processes; without it tables are as wide as they are.
os.environ.pop("COLUMNS", None)

# A shell that starts the tests in the background has them ignore Ctrl-C, which tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# On a fresh machine any test may be the first to compile; what stderr holds is tested elsewhere.
os.environ.setdefault("PAGRAPH_QUIET", "1")

pytest.register_assert_rewrite("timelines")
NO_DGL = (
    "pagraph.dgl needs DGL, which is not installed"
    if importlib.util.find_spec("dgl") is None
    else None
)


def pytest_collection_finish():
    """What is imported stays: without half a million objects a collection takes no time."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    """Or what Triton's bindings hold would be reported as leaked."""
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Note what took long. Skip, where DGL is not installed, what finds out that it needs DGL; no
    Python from 3.13 on has a build of it."""
    report = yield
    if call.when == "teardown" and item.stash[_IS_FIRST]:
        seconds = _cpu_seconds_of(item)
        if seconds > _LONG:
            report.user_properties.append(("cpu", seconds))
    if call.excinfo is not None and NO_DGL is not None and NO_DGL in str(call.excinfo.value):
        report.outcome, report.longrepr = (
            "skipped",
            (str(item.path), item.location[1], f"Skipped: {NO_DGL}"),
        )
    return report


_LONG = 3.0  # seconds of CPU


def pytest_addoption(parser):
    parser.addoption(
        "--tier", choices=("first", "all"), default="all", help="first: what `make test` runs"
    )


def pytest_configure(config):
    for name, need in SECOND_TIER.items():
        config.addinivalue_line("markers", f"{name}: needs {need}; in the second tier")
    config.addinivalue_line("markers", f"{EVERY}: cases after the first are in the second tier")
    hypothesis.settings.load_profile(config.getoption("--tier"))


_BEGUN = pytest.StashKey[tuple[float, int]]()
_IS_FIRST = pytest.StashKey[bool]()


def pytest_ignore_collect(collection_path, config):
    """In the first tier, do not import files that are in the second as a whole."""
    if config.getoption("--tier") == "first" and collection_path.match("test_*.py"):
        return is_all_second_tier(collection_path.read_text()) or None
    return None


def pytest_collection_modifyitems(config, items):
    second = in_second_tier(items)
    left_out = {id(item) for item in second}
    for item in items:
        item.stash[_IS_FIRST] = id(item) not in left_out
    if config.getoption("--tier") == "first":
        config.hook.pytest_deselected(items=second)
        items[:] = [item for item in items if item.stash[_IS_FIRST]]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.stash[_BEGUN] = cpu_seconds(), time.perf_counter_ns()


def _cpu_seconds_of(item):
    """Seconds of CPU that a test took, without those of compiling kernels, which any may be the
    first to need."""
    from pagraph._compiling import kernels_ns

    cpu, since = item.stash[_BEGUN]
    return cpu_seconds() - cpu - kernels_ns(since, time.perf_counter_ns()) * 1e-9


def pytest_terminal_summary(terminalreporter, config):
    """List the tests of the first tier that take long."""
    long = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "cpu":
                    long[report.nodeid] = value
    if long:
        terminalreporter.section("tests of the first tier that took over 3 s of CPU")
        for name, seconds in sorted(long.items(), key=lambda item: -item[1]):
            terminalreporter.write_line(f"{seconds:6.1f} s  {name}")


@pytest.fixture(scope="session")
def tmp_path_factory(tmp_path_factory):
    """Counts the folders of each name: pytest reads the names of all folders that there are, which
    in thousands takes milliseconds for each test and each example."""
    made = collections.Counter()
    make = tmp_path_factory.mktemp

    def mktemp(basename, numbered=True):
        while numbered:
            made[basename] += 1
            try:
                return make(f"{basename}{made[basename] - 1}", numbered=False)
            except FileExistsError:  # of another name that ends with digits
                continue
        return make(basename, numbered=False)

    tmp_path_factory.mktemp = mktemp
    return tmp_path_factory


@pytest.fixture(scope="session")
def data_folder():
    """The folder of real graphs; tests that need it are skipped where it is missing."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("PAGRAPH_TEST_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"needs the real graphs; no folder {folder} (set PAGRAPH_TEST_DATA)")
    return folder


class _Unsynced:
    """The module ``os``, but a file is only asked whether it is open."""

    fsync = staticmethod(os.fstat)

    def __getattr__(self, name):
        return getattr(os, name)


@pytest.fixture(scope="module")
def unsynced():
    """What pagraph writes is not waited for until it is on the disk, 4 ms for each file: those that
    read it are on this machine, which goes on."""
    from pagraph.system import atomic

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atomic, "os", _Unsynced())
        yield


@pytest.fixture(autouse=True)
def forget_written_files():
    """Forgets which open files a test has written to: from then on a process makes more calls a
    batch, which other tests count."""
    yield
    watched = sys.modules.get("pagraph.graph.watched")
    if watched is not None:
        watched.written_files.clear()


@pytest.fixture
def no_threads_left():
    """Fails if the test leaves a thread of a loader behind."""
    yield
    deadline = time.monotonic() + HANGING
    while time.monotonic() < deadline:
        left = [t.name for t in threading.enumerate() if t.name.startswith("pagraph")]
        if not left:
            return
        time.sleep(0.01)
    pytest.fail(f"threads left behind: {left}")


@pytest.fixture
def disk_folder(tmp_path):
    """A folder on a real file system; skipped where temporary files live in memory."""
    with open("/proc/self/mountinfo") as mounts:
        table = [(line.split()[2], line.partition(" - ")[2].split()[0]) for line in mounts]
    device = os.stat(tmp_path).st_dev
    kind = dict(table).get(f"{os.major(device)}:{os.minor(device)}")
    if kind in ("tmpfs", "ramfs"):
        pytest.skip(f"needs temporary files on a disk, they are on {kind}")
    return tmp_path


@pytest.fixture
def files_of_at_most():
    """A disk on which every file may have so many bytes."""

    @contextlib.contextmanager
    def limited(count):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited


@pytest.fixture
def cold_file(disk_folder):
    """Writes an array to a ``.npy`` file that is then out of the page cache; returns its path."""

    def write(name, array):
        path = disk_folder / f"{name}.npy"
        np.save(path, array)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return path

    return write


_GROUPS = Path("/sys/fs/cgroup/memory")


@pytest.fixture
def in_group():
    """Runs a command with ``--memory`` of so many MiB in a control group a quarter above it, which
    would end it; returns what it wrote. Skips where no group can be made."""
    group = _GROUPS / f"pagraph-{uuid.uuid4().hex}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(2**20))
    except OSError as error:
        pytest.skip(f"needs a memory control group of version 1: {error}")

    def run(mebibytes, *command):
        mebibytes += OF_CUDA
        limit = mebibytes * 2**20 * 5 // 4
        command = [*command, "--memory", f"{mebibytes}MiB"]
        (group / "memory.limit_in_bytes").write_text(str(limit))
        enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        done = subprocess.run(
            ["sh", "-c", enter, "sh", *map(str, command)], capture_output=True, text=True
        )
        counts = dict(
            line.split() for line in (group / "memory.oom_control").read_text().splitlines()
        )
        assert done.returncode == 0 and counts["oom_kill"] == "0", (
            f"{done.returncode}: {done.stderr[-2000:]}"
        )
        assert int((group / "memory.max_usage_in_bytes").read_text()) <= limit
        return done.stdout

    yield run
    group.rmdir()
