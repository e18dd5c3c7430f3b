"""Faults of scattered reads: broken disks, systems that refuse, forks, interrupts; each in a
process that has it."""

import errno
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from fresh_processes import HANGING, forked_python

from pagraph.system.disk import ways
from pagraph.system.disk.queues import Threads
from pagraph.system.disk.ways import WAYS, queue, usable_way
from pagraph.system.disk_reads import FileReader, in_flight

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's reads")

KINDS = [
    (way, direct)
    for way in WAYS
    for direct in (False, True)
    if WAYS[way].direct in (None, direct) and ways.refusal(way) is None
]


@pytest.fixture
def rows_file(tmp_path):
    path = tmp_path / "rows"
    np.random.default_rng(0).integers(0, 256, 4_000_000, dtype=np.uint8).tofile(path)
    return path


@pytest.fixture
def broken_disk(tmp_path):
    """A block device of 1 MiB of which the second half cannot be read: its backing file was cut."""
    path = tmp_path / "disk"
    np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8).tofile(path)
    try:
        made = subprocess.run(
            ["losetup", "-f", "-r", "--show", path], capture_output=True, text=True
        )
    except FileNotFoundError:
        pytest.skip("needs losetup")
    if made.returncode:
        pytest.skip(f"needs a loop device: {made.stderr.strip()}")
    device = made.stdout.strip()
    os.truncate(path, 1 << 19)
    yield device
    subprocess.run(["losetup", "-d", device], check=True)


@pytest.mark.parametrize(("way", "direct"), KINDS)
def test_a_read_error_in_the_middle(broken_disk, tmp_path, way, direct):
    reader = FileReader(
        broken_disk, stride=1024, row_bytes=1000, num_rows=1024, offset=7, direct=direct, way=way
    )
    out = np.empty((1024, 1000), dtype=np.uint8)
    with pytest.raises(OSError, match="reading at byte") as caught:
        reader.read(np.arange(0, 1024, 3), out)
    assert caught.value.errno == errno.EIO and caught.value.filename == broken_disk
    assert in_flight() == 0
    rows = np.arange(0, 400, 3)
    reader.read(rows, out)
    good = np.fromfile(tmp_path / "disk", dtype=np.uint8)
    assert all((out[i] == good[7 + row * 1024 :][:1000]).all() for i, row in enumerate(rows))
    reader.close()


def test_nothing_is_left(rows_file):
    """No descriptor, no thread, no queue more than the idle ones."""

    def run():
        for way, direct in KINDS:
            reader = FileReader(
                rows_file, stride=1000, row_bytes=1000, num_rows=4000, direct=direct, way=way
            )
            reader.read(np.arange(0, 4000, 2), np.empty((2000, 1000), dtype=np.uint8))
            del reader

    run()
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(5):
        run()
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_a_closed_file_stays_open_for_the_reads_under_way(rows_file):
    reader = FileReader(rows_file, stride=10, row_bytes=10, num_rows=400_000, direct=True)
    expected = np.fromfile(rows_file, dtype=np.uint8).reshape(-1, 10)
    out = np.empty((400_000, 10), dtype=np.uint8)
    thread = threading.Thread(target=reader.read, args=(np.arange(400_000), out))
    thread.start()
    while reader._readers == 0 and thread.is_alive():
        pass
    reader.close()
    thread.join()
    assert (out == expected).all() and not reader._close.alive


def test_no_more_descriptors(rows_file, monkeypatch):
    """A queue that cannot be made is replaced by threads."""
    way = usable_way(direct=True)
    monkeypatch.setattr(ways, "_idle", {name: [] for name in WAYS})

    def refuse(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setitem(WAYS, way, refuse)
    with queue(way) as taken:
        assert isinstance(taken, Threads)


def run_python(code, *arguments, python=None):
    """Run code in a process of its own; its output."""
    command = [python or forked_python(), "-c", textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGING)
    assert done.returncode == 0, done.stderr
    return done.stdout


FILTER = """
import ctypes, struct, sys
import numpy as np

def forbid(*numbers, error=1):
    # A seccomp filter, as containers have it: these system calls fail, all others go on. The error
    # is EPERM.
    steps = [(0x20, 0, 0, 0)]
    steps += [(0x15, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
    steps += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050000 | error)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    head = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.create_string_buffer(head), 0, 0) == 0
"""
IO_SETUP = 206
IO_SUBMIT = 209


@pytest.mark.many
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls of x86-64")
@pytest.mark.parametrize(
    ("forbidden", "expected"), [((), "aio readahead"), ((IO_SETUP,), "threads readahead")]
)
def test_a_system_that_refuses(rows_file, forbidden, expected):
    code = """
    from pagraph.system.disk_reads import FileReader
    from pagraph.system.disk.ways import refusal
    forbid(*map(int, sys.argv[2:]))
    values = np.fromfile(sys.argv[1], dtype=np.uint8).reshape(-1, 1000)
    ways, rows = [], np.arange(0, 4000, 7)
    for direct in (True, False):
        reader = FileReader(sys.argv[1], stride=1000, row_bytes=1000, num_rows=4000, direct=direct)
        out = np.empty((len(rows), 1000), dtype=np.uint8)
        reader.read(rows, out)
        assert (out == values[rows]).all()
        ways.append(reader.way)
    print(*ways)
    """
    if ways.refusal("aio"):
        pytest.skip("this system refuses AIO itself")
    assert (
        run_python(FILTER + textwrap.dedent(code), rows_file, *forbidden).split()
        == expected.split()
    )


@pytest.mark.many
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls of x86-64")
@pytest.mark.parametrize("error", [errno.EPERM, errno.EAGAIN])
def test_a_system_that_takes_no_reads(rows_file, error):
    """EAGAIN too is an error where no read is under way, whose end could be waited for."""
    code = """
    from pagraph.system.disk_reads import FileReader
    path, number, error = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    reader = FileReader(path, stride=1000, row_bytes=1000, num_rows=4000, direct=True, way="aio")
    out = np.empty((4000, 1000), dtype=np.uint8)
    reader.read(np.arange(4000), out)
    forbid(number, error=error)
    for _ in range(2):
        try:
            reader.read(np.arange(0, 4000, 9), out[:445])
        except OSError as refused:
            print(refused.errno)
    """
    if ways.refusal("aio"):
        pytest.skip("this system refuses AIO itself")
    printed = run_python(FILTER + textwrap.dedent(code), rows_file, IO_SUBMIT, error)
    assert printed.split() == [str(int(error))] * 2


@pytest.mark.every
@pytest.mark.parametrize(("way", "direct"), KINDS)
def test_a_forked_child_reads_too(rows_file, way, direct):
    code = """
    import os, sys, threading
    import numpy as np
    from pagraph.system.disk_reads import FileReader
    path, way, direct = sys.argv[1], sys.argv[2], sys.argv[3] == "True"
    values = np.fromfile(path, dtype=np.uint8).reshape(-1, 1000)
    reader = FileReader(path, stride=1000, row_bytes=1000, num_rows=4000, direct=direct, way=way)
    def right():
        out = np.empty((2000, 1000), dtype=np.uint8)
        reader.read(np.arange(0, 4000, 2), out)
        return (out == values[::2]).all()
    assert right()
    done = []
    def work():
        while not done:
            assert right()
    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(5):
        child = os.fork()
        if child == 0:
            os._exit(0 if right() and right() else 1)
        assert os.waitpid(child, 0)[1] == 0
    done.append(1)
    thread.join()
    assert right()
    """
    run_python(code, rows_file, way, direct)


@pytest.mark.attack
def test_an_interrupt_and_the_end_of_the_interpreter(rows_file):
    """Ctrl-C ends a read, the reader goes on to work, and a thread that still reads does not keep
    the process."""
    code = """
    import os, signal, sys, threading, time
    import numpy as np
    from pagraph.system.disk_reads import FileReader
    # A shell's background job ignores it, and so would this process for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    path = sys.argv[1]
    values = np.fromfile(path, dtype=np.uint8).reshape(-1, 1000)
    rows = np.arange(0, 4000, 3)
    readers = []
    for kind in sys.argv[2:]:
        way, direct = kind.split(",")
        reader = FileReader(
            path, stride=1000, row_bytes=1000, num_rows=4000, direct=direct == "True", way=way
        )
        readers.append(reader)
        out = np.empty((1334, 1000), dtype=np.uint8)
        reader.read(rows, out)
        for delay in (0.02, 0.031, 0.05):
            timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
            try:
                timer.start()
                while True:
                    reader.read(rows, out)
            except KeyboardInterrupt:
                pass
            timer.join()
            assert threading.enumerate() == [threading.main_thread()], kind
            out[:] = 0
            reader.read(rows, out)
            assert (out == values[rows]).all(), kind
    def work(reader):
        out = np.empty((1334, 1000), dtype=np.uint8)
        while True:
            reader.read(rows, out)
    for reader in readers:
        threading.Thread(target=work, args=(reader,), daemon=True).start()
    time.sleep(0.2)
    print("end")
    """
    kinds = [f"{way},{direct}" for way, direct in KINDS]
    assert run_python(code, rows_file, *kinds, python=sys.executable) == "end\n"


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs a file system in memory")
@pytest.mark.parametrize(("way", "direct"), KINDS)
def test_a_file_in_memory(way, direct):
    path = f"/dev/shm/pagraph-test-{os.getpid()}"
    values = np.random.default_rng(0).integers(0, 256, (500, 333), dtype=np.uint8)
    values.tofile(path)
    try:
        reader = FileReader(path, stride=333, row_bytes=333, num_rows=500, direct=direct)
        out = np.empty((250, 333), dtype=np.uint8)
        reader.read(np.arange(0, 500, 2), out)
        assert (out == values[::2]).all()
        reader.close()
    finally:
        os.remove(path)
