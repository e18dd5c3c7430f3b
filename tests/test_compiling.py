"""Kernels are compiled once on a machine, and loaded once in a process: what is said of it, where
its time goes, and that it can be done ahead."""

import gc
import multiprocessing.spawn
import os
import subprocess
import threading
import time

import numpy as np
import pytest
import torch
from fresh_processes import bare_python, forked_python
from hypothesis import given
from hypothesis import strategies as st
from numba.core.compiler import Flags
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import TypingError

from pagraph import (
    Loader,
    MissingDependencyError,
    NeighborSampler,
    PaGraphError,
    _compiling,
    warmup,
)
from pagraph._jit import (
    _QuickFlags,
    allocating_kernel,
    array_at,
    as_rows,
    inlined,
    kernel,
    stack_int64,
)
from pagraph.cache import fields
from pagraph.datasets import sbm
from pagraph.partition.steps import Steps
from pagraph.sampling.kernels.hgt import _in_order
from pagraph.stats.reads import CacheStats
from pagraph.stats.stats import LoaderStats

FIRST = """
import logging, sys, time
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="log: %(message)s")
import torch
from pagraph import Loader, NeighborSampler
from pagraph.datasets import sbm

graph = sbm(300)
for workers in (0, 0, 2):
    options = dict(batch_size=100, fields=["feat"], num_workers=workers, prefetch=workers)
    loader = Loader(graph, torch.arange(300), NeighborSampler([5]), **options)
    begin = time.perf_counter()
    batches = sum(1 for _ in loader)
    wall = time.perf_counter() - begin
    stats = loader.stats.total
    seconds = stats.seconds
    of_reader = seconds["waiting"]
    work = seconds["sampling"] + max(seconds["fetching"], stats.reads.total.seconds)
    print(batches, seconds.get("kernels", 0.0), of_reader, work, wall)
"""


def run_first(folder):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder)}
    environment.pop("PAGRAPH_QUIET", None)
    done = subprocess.run(
        [bare_python(), "-c", FIRST], env=environment, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    numbers = [tuple(map(float, line.split())) for line in lines if not line.startswith("log:")]
    return numbers, [line for line in lines if line.startswith("log:")], done.stderr


@pytest.mark.many
def test_it_is_said_once_and_booked_apart(tmp_path):
    folder = tmp_path / "fresh"
    folder.mkdir(mode=0o700)
    numbers, logged, said = run_first(folder)
    (batches, kernels, waiting, work, wall), *later = numbers
    assert batches == 3 and kernels > 1
    # Not a matter of speed: what was compiled would count twice.
    assert waiting + kernels <= wall and work + kernels <= wall
    assert [of_loader[1] for of_loader in later] == [0, 0]
    assert said == f"pagraph: {_compiling.ONE_TIME}\n"
    assert logged == [f"log: {_compiling.ONE_TIME}"]
    # The next process loads what this one compiled, which it books, too, and says nothing of.
    numbers, logged, said = run_first(folder)
    (_, kernels, waiting, work, wall), *later = numbers
    assert kernels > 0 and waiting + kernels <= wall and work + kernels <= wall
    assert [of_loader[1] for of_loader in later] == [0, 0]
    assert said == "" and logged == []


class Clock:
    """Time that passes where a test says so."""

    def __init__(self):
        self.now = 10**12

    def works(self, seconds):
        self.now += seconds * 10**9

    def loads(self, seconds):
        with _compiling.loading():
            self.works(seconds)


@pytest.fixture
def spans(monkeypatch):
    found = []
    monkeypatch.setattr(_compiling, "spans", found)
    return found


@pytest.fixture
def clock(monkeypatch, spans):
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter_ns", lambda: clock.now)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now * 1e-9)
    return clock


def new_recorder():
    return LoaderStats(lambda: CacheStats({})).begin(0)


def test_no_stage_and_no_read_has_the_kernels(clock, monkeypatch):
    """Also of those that load a kernel in the middle of their work, and one that another calls."""
    sample, read = NeighborSampler.sample, fields.read_each

    def sampling(*args, **kwargs):
        clock.works(3)
        clock.loads(5)
        return sample(*args, **kwargs)

    def reading(*args):
        with _compiling.loading():
            clock.loads(7)
        clock.works(2)
        return read(*args)

    monkeypatch.setattr(NeighborSampler, "sample", sampling)
    monkeypatch.setattr(fields, "read_each", reading)
    options = {"batch_size": 10, "fields": ["feat"], "num_workers": 0, "prefetch": 0}
    loader = Loader(sbm(20), torch.arange(20), NeighborSampler([2]), **options)
    begin = clock.now
    assert len(list(loader)) == 2
    whole = loader.stats.total
    assert whole.reads.fields["feat"].seconds == pytest.approx(4)
    expected = {"sampling": 6, "fetching": 4, "waiting": 10, "kernels": 24}
    assert {stage: whole.seconds[stage] for stage in expected} == pytest.approx(expected)
    assert whole.to_dict()["seconds/kernels"] == pytest.approx(24)
    assert clock.now - begin == 34 * 10**9
    head, *_, total = str(loader.stats).split("\n\n")[0].splitlines()
    assert "kernels s" in head and "24.000" in total


def test_waiting_for_a_thread_that_compiles_is_no_work(clock):
    """A thread waits for numba's lock, which another holds, and the reader for both."""

    @kernel
    def first_of(values):
        return values[0]

    recorder = new_recorder()
    begin = clock.now

    def work():
        with recorder.time("sampling"):
            assert first_of(np.arange(3)) == 0

    thread = threading.Thread(target=work)
    with global_compiler_lock:
        thread.start()
        while thread.ident not in _compiling.loads:
            time.sleep(0.001)
        clock.works(4)
        recorder.waited(begin, delivered=True)  # for another thread's batch
        clock.works(3)
        with recorder.time("fetching"):  # in a thread that waits for nobody
            clock.works(2)
    thread.join()
    booked = recorder.snapshot().seconds
    expected = {"sampling": 0, "waiting": 0, "fetching": 2, "kernels": 9}
    assert booked == pytest.approx(expected)


def test_a_module_of_kernels_holds_up_everyone(clock):
    recorder = new_recorder()
    begin = clock.now

    def load():
        with _compiling.loading(everyone=True):
            clock.works(3)

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    clock.works(1)
    recorder.spent("sampling", begin)
    assert recorder.snapshot().seconds == pytest.approx({"sampling": 1, "kernels": 3})


def test_a_forked_process_has_no_loads_of_other_threads(clock):
    with _compiling.loading():
        child = os.fork()
        if not child:
            os._exit(len(_compiling.loads))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(_compiling.loads) == 1


def test_time_within(spans):
    spans += [(10, 20, 1), (30, 50, 1), (40, 55, 2), (60, 70, 2)]
    within = _compiling.kernels_within
    assert within(0, 5) == within(20, 30) == within(70, 80) == []
    assert within(15, 35) == [(15, 20), (30, 35)]
    assert within(0, 100) == [(10, 20), (30, 50), (50, 55), (60, 70)]
    assert within(0, 100, 1) == [(10, 20), (30, 50)]
    assert within(45, 1000, 2) == [(45, 55), (60, 70)]
    assert _compiling.kernels_seconds(15e-9, 35e-9) == pytest.approx(10e-9)


def test_a_training_loop(clock):
    times = _compiling.LoopTimes(clock.now * 1e-9)
    clock.works(1)
    thread = threading.Thread(target=clock.loads, args=(4,))
    thread.start()
    thread.join()
    times.waited(clock.now * 1e-9)
    clock.works(2)
    clock.loads(3)
    times.computed(clock.now * 1e-9)
    assert (times.loading, times.computing, times.kernels) == pytest.approx((1, 2, 7))


def test_steps_of_partitioning(clock):
    steps = Steps()
    with steps("dividing"):
        clock.loads(5)
        clock.works(1)
    assert steps.seconds == pytest.approx({"dividing": 1, "kernels": 5})
    assert list(steps.memory) == ["dividing"]


def test_each_load_is_booked_once_however_many_waited(clock):
    recorder = new_recorder()
    begin = clock.now
    clock.loads(1)
    threads = [
        threading.Thread(target=recorder.waited, args=(begin,), kwargs={"delivered": True})
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.spent("sampling", begin)
    assert recorder.snapshot().seconds == pytest.approx({"waiting": 0, "sampling": 0, "kernels": 1})


def test_collection_of_garbage_is_as_before():
    @kernel
    def once(values):
        return values[0]

    @kernel
    def twice(values):
        return values[0] + 1

    assert gc.isenabled()
    assert once(np.arange(3)) == 0 and gc.isenabled()
    gc.disable()
    try:
        assert twice(np.arange(3)) == 1 and not gc.isenabled()
    finally:
        gc.enable()


@inlined
def _upper(values, half):
    return values[half:]


@kernel
def _first(values):
    return values[0]


@kernel
def _first_of_upper(values):
    return _first(_upper(values, len(values) // 2))


@allocating_kernel
def _squares(values):
    room = np.empty(len(values), np.int64)
    for i in range(len(values)):
        room[i] = values[i] * values[i]
    return room.sum()


@kernel
def _sum_of_squares(values):
    return _squares(values) + 1


def test_kernels_call_kernels():
    assert _first_of_upper(np.arange(10)) == 5
    assert _first(np.arange(4)) == 0  # also from Python, apart from what the other was linked with
    assert _sum_of_squares(np.arange(5)) == 31


def test_a_kernel_that_allocates_is_refused():
    @kernel
    def room(n):
        return np.empty(n, np.int64).sum()

    with pytest.raises(TypingError, match="Only accept returning of array"):
        room(3)


@kernel
def _at(like, address, length):
    values = array_at(like, address, length)
    for i in range(len(values)):
        values[i] += 1
    return values[-1]


@kernel
def _on_the_stack(values):
    room = stack_int64(8)
    for i in range(8):
        room[i] = values[7 - i]
    for i in range(8):
        values[i] = room[i]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_arrays_at_addresses(dtype):
    values = np.arange(5).astype(dtype)
    assert _at(values[:0], values.ctypes.data + values.itemsize, 3) == 4
    assert values.tolist() == [0, 2, 3, 4, 4]


@kernel
def _as_rows(values, begin, count, width):
    rows = as_rows(values[begin:], count, width)
    for row in range(count):
        for column in range(width):
            rows[row, column] = 10 * row + column
    return rows.shape[0] * 100 + rows.shape[1]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(2, 3), (3, 1), (0, 2), (1, 0)])
def test_an_array_as_rows(dtype, shape):
    values = np.full(8, -1, dtype)
    assert _as_rows(values, 1, *shape) == shape[0] * 100 + shape[1]
    expected = 10 * np.arange(shape[0])[:, None] + np.arange(shape[1])
    assert values.tolist() == [-1, *expected.ravel().tolist(), *[-1] * (7 - expected.size)]


def test_flags_are_numbas():
    theirs = Flags()
    theirs.release_gil = True
    ours = _QuickFlags(theirs)
    assert ours.values() == theirs.values() and list(ours.values()) == list(theirs.values())
    assert ours == theirs and hash(ours) == hash(theirs) and type(ours.copy()) is _QuickFlags
    ours.nrt = not ours.nrt
    assert ours != theirs


def test_arrays_on_the_stack():
    values = np.arange(8)
    _on_the_stack(values)
    assert values.tolist() == list(range(7, -1, -1))


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.5, np.inf]) | st.floats(0, 9), min_size=1))
def test_the_value_at_a_place_in_order(values):
    room = np.empty(len(values))
    for place, value in enumerate(sorted(values)):
        assert _in_order(np.array(values), len(values), place, room) == value


TREES = """
import torch
from pagraph import CSC, Graph, warmup
from pagraph.sampling import SubgraphSampler
from pagraph.sampling.kernels.batch import advance, put_subgraph

for kind in warmup.kinds_of(["pyg"]):
    if kind.name.startswith("times"):
        list(kind.batches(warmup._tiny_graph()))
known = [len(kernel.signatures) for kernel in (advance, put_subgraph)]
edges = CSC.from_coo([0, 1, 2], [1, 2, 0], (3, 3))
graph = Graph({("a", "to", "b"): edges, ("b", "to", "a"): edges}, {"a": 3, "b": 3})
seeds = {"a": torch.tensor([0, 1])}
SubgraphSampler([2, 2], disjoint=True).sample(graph, seeds)
for unit in 1, 10**9:
    graph.set_field("time", torch.arange(3) * unit, node_type="b")
    graph.set_field("time", torch.arange(3) * unit, edge_type=("a", "to", "b"))
    late = {"a": torch.tensor([2, 2]) * unit}
    for more in {}, {"latest": True}, {"share_trees": True}, {"time_window": 1}:
        SubgraphSampler([2, -1], time="time", **more).sample(graph, seeds, seed_times=late)
print(known, [len(kernel.signatures) for kernel in (advance, put_subgraph)])
"""


class TestWarmUp:
    def test_trees_of_any_kind_need_the_kernels_of_times(self):
        """Of several types or one, with times of 32 or 64 bits or none, shared or in windows."""
        pytest.importorskip("pagraph.pyg")
        program = [forked_python(), "-c", TREES]
        done = subprocess.run(program, capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["[2,", "1]", "[2,", "1]"]

    @pytest.mark.many
    def test_every_kind_reads_batches(self):
        """Each as its process does; those of missing packages are left out."""
        for kind in warmup.kinds_of():
            assert sum(1 for _ in kind.batches(warmup._tiny_graph())) > 0, kind.title

    @pytest.mark.processes
    def test_progress(self, monkeypatch):
        # Whose processes need not import torch; how they do is tested by one that fails.
        monkeypatch.setattr(multiprocessing.spawn, "_python_exe", os.fsencode(forked_python()))
        told = []
        warmup.warm_up(["core"], jobs=1, progress=lambda done, whole: told.append((done, whole)))
        count = len(warmup.kinds_of(["core"]))
        assert told == [(done, count) for done in range(count + 1)]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"faces": ["tf"]}, "faces must be of core, dgl, pyg, got 'tf'"),
            ({"jobs": 0}, "jobs must be at least 1, got 0"),
        ],
    )
    def test_bad_input(self, options, message):
        with pytest.raises(ValueError, match=f"^{message}$"):
            warmup.warm_up(**options)

    def test_a_face_without_its_package(self, monkeypatch):
        monkeypatch.setitem(warmup.FACES, "pyg", "no_such_package")
        with pytest.raises(MissingDependencyError, match="face 'pyg' needs no_such_package"):
            warmup.kinds_of(["pyg"])
        assert {kind.face for kind in warmup.kinds_of()} <= {"core", "dgl"}

    def test_a_kind_that_fails_is_named(self, monkeypatch, tmp_path):
        # In a cache folder that is a file: warnings, not failures; so break what all need.
        (tmp_path / "torch.py").write_text("raise RuntimeError('no torch today')\n")
        monkeypatch.syspath_prepend(tmp_path)  # a fresh process begins with this one's path
        with pytest.raises(PaGraphError, match="^core: .*: "):
            warmup.warm_up(["core"], jobs=1)
