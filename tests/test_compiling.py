"""Kernels are compiled once on a machine: what is said of it, where its time goes, and that it can
be done ahead."""

import gc
import multiprocessing.spawn
import os
import subprocess
import threading
import time

import numpy as np
import pytest
from fresh_processes import bare_python, forked_python
from hypothesis import given
from hypothesis import strategies as st
from numba.core.compiler import Flags
from numba.core.errors import TypingError

from pagraph import MissingDependencyError, PaGraphError, _compiling, warmup
from pagraph._jit import (
    _QuickFlags,
    allocating_kernel,
    array_at,
    as_rows,
    inlined,
    kernel,
    stack_int64,
)
from pagraph.sampling.kernels.hgt import _in_order
from pagraph.stats.stats import LoaderStats

FIRST = """
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="log: %(message)s")
import torch
from pagraph import Loader, NeighborSampler
from pagraph.datasets import sbm

graph = sbm(300)
for _ in range(2):
    loader = Loader(graph, torch.arange(300), NeighborSampler([5]), batch_size=100, fields=["feat"])
    batches = sum(1 for _ in loader)
    seconds = loader.stats.total.seconds
    print(batches, seconds.get("compiling", 0.0), seconds["waiting"], seconds["sampling"])
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
    (batches, compiling, waiting, sampling), second = numbers
    assert batches == 3 and compiling > 1
    # Not a matter of speed: what was compiled would be nearly all of either.
    assert waiting < compiling and sampling < compiling
    assert second[1] == 0
    assert said == f"pagraph: {_compiling.ONE_TIME}\n"
    assert logged == [f"log: {_compiling.ONE_TIME}"]
    # The next process loads what this one compiled.
    numbers, logged, said = run_first(folder)
    assert [of_loader[1] for of_loader in numbers] == [0, 0]
    assert said == "" and logged == []


@pytest.fixture
def spans(monkeypatch):
    found = []
    monkeypatch.setattr(_compiling, "spans", found)
    return found


def test_time_within(spans):
    spans += [(10, 20), (30, 50), (60, 70)]
    assert _compiling.compiled_within(0, 5) == set()
    assert _compiling.compiled_within(20, 30) == set()
    assert _compiling.compiled_within(15, 35) == {(10, 20), (30, 50)}
    assert _compiling.compiled_within(69, 1000) == {(60, 70)}
    assert _compiling.compiled_seconds(15e-9, 35e-9) == pytest.approx(10e-9)


def test_each_compilation_is_booked_once_however_many_waited(spans):
    from pagraph.stats.reads import CacheStats

    recorder = LoaderStats(lambda: CacheStats({})).begin(0)
    begin = time.perf_counter_ns()
    end = begin + 1_000_000
    spans.append((begin, end))
    while time.perf_counter_ns() < end:
        pass
    threads = [threading.Thread(target=recorder.spent, args=("sampling", begin)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.waited(begin, delivered=True)
    booked = recorder.snapshot().seconds
    assert booked["compiling"] == pytest.approx(1e-3)
    # What is left of each is the time since, which the threads took to begin.
    since = (time.perf_counter_ns() - end) * 1e-9
    assert 0 <= booked["waiting"] < since and 0 <= booked["sampling"] < 3 * since


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
from pagraph.sampling.kernels.tree_batch import put_trees, sample_trees

for kind in warmup.kinds_of(["pyg"]):
    if kind.name.startswith("times"):
        list(kind.batches(warmup._tiny_graph()))
known = [len(kernel.signatures) for kernel in (sample_trees, put_trees)]
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
print(known, [len(kernel.signatures) for kernel in (sample_trees, put_trees)])
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
