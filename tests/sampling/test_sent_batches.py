"""Batches that the CPU samples and a device makes in one recorded launch: the CPU's bits, whatever
does not fit, changes or is dropped on the way."""

import gc

import numpy as np
import pytest
import torch
from device_batches import graphs
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_races import RaceDetector, RacingEvent, Watch
from test_calls import calls_of
from test_device_program import (
    LazyAccelerator,
    Skipping,
    assert_all_same,
    fields_of_all_kinds,
    made_of,
    make_graph,
    read,
)

from pagraph import Loader, NeighborSampler
from pagraph.accelerator import HostAccelerator, OutOfMemory
from pagraph.accelerator.triton_kernels import launch
from pagraph.engine import program
from pagraph.features.gpu import reachable
from pagraph.sampling import LaborSampler, LayerSampler
from pagraph.sampling.gpu import run

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.usefixtures("no_threads_left", "soon"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled, not interpreted"),
]


@pytest.fixture
def soon(monkeypatch):
    """Few batches are made kernel by kernel first."""
    monkeypatch.setattr(program, "_LEARNED", 2)
    monkeypatch.setattr(program, "_SETTLING", 2)


def make_loader(graph, device="cpu", fanouts=(3, 2), sampler=None, **options):
    place = {"device": device, "cache": 0}
    if device != "cpu":
        place |= {"transfer": "zero-copy", "cache": 0.3, "cache_policy": "degree"}
    defaults = {"fields": ["x"], "labels": ["y"], "batch_size": 8, "shuffle": True, "seed": 5}
    seeds = options.pop("seeds", torch.arange(0, graph.num_nodes, 2))
    sampler = sampler or NeighborSampler(list(fanouts))
    return Loader(graph, seeds, sampler, **(defaults | place | options))


def lanes_of(loader):
    made, _ = made_of(loader)
    return len(made._recording.free), made._lanes


@pytest.mark.compilers
@settings(max_examples=10)
@given(
    graph=graphs(),
    fanouts=st.lists(st.sampled_from([-1, 1, 2, 7]), min_size=1, max_size=3),
    replace=st.booleans(),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    cache=st.sampled_from([0, 0.3, 1.0]),
    workers=st.sampled_from([0, 2]),
    prefetch=st.integers(0, 2),
    room=st.sampled_from([-0.6, 0.0, 0.02]),
    data=st.data(),
)
def test_equals_the_cpu(graph, fanouts, replace, dtype, cache, workers, prefetch, room, data):
    """All batches are kept: none is changed by those after it. Some do not fit."""
    n = graph.num_nodes
    graph.ndata["x"] = torch.randn(n, 3)
    graph.ndata["y"] = torch.arange(n)
    ids = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=12))
    options = {
        "seeds": torch.tensor(ids, dtype=dtype),
        "sampler": NeighborSampler(fanouts, replace=replace),
        "batch_size": 3,
        "prefetch": prefetch,
        "num_workers": workers,
    }
    expected = read(make_loader(graph, **options), 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "_LEAST_MARGIN", room)
        patch.setattr(program, "_SIGMAS", 0)
        loader = make_loader(graph, HostAccelerator(), **(options | {"cache": cache}))
        assert_all_same(read(loader, 4), expected)
        made, number = made_of(loader)
        # Where the first batches are whole, those of the third epoch are the program's.
        # Those of many that did not fit are not counted any more.
        overflows = loader.stats.total.counts.get("overflows", 0)
        assert number or len(ids) < 3 or made.reason or overflows
    loader.close()


@pytest.mark.compilers
@pytest.mark.parametrize("cache", [0, 0.4])
def test_fields_of_all_kinds(cache):
    graph = make_graph()
    for name, rows in fields_of_all_kinds(60).items():
        graph.ndata[name] = rows
    names = [*fields_of_all_kinds(1), "x"]
    options = {"fields": names, "fanouts": [3], "prefetch": 0}
    expected = read(make_loader(graph, **options), 3)
    loader = make_loader(graph, HostAccelerator(), **(options | {"cache": cache}))
    assert_all_same(read(loader, 3), expected)
    made, number = made_of(loader)
    assert made.reason == "" and number >= 4
    assert loader.sampling_placement.startswith("host; batches are one launch, each in ")


@pytest.mark.parametrize("sampler", [LaborSampler([3, 2]), NeighborSampler([3, 2], prob="w")])
def test_other_samplers(sampler):
    graph = make_graph()
    # Seeded, as the sizes of a dozen batches say little of the next: by other weights one in five
    # did not fit.
    generator = torch.Generator().manual_seed(1)
    graph.edata["w"] = torch.rand(graph.num_edges, generator=generator) + 0.1
    options = {"sampler": sampler}
    loader = make_loader(graph, HostAccelerator(), **options)
    assert_all_same(read(loader, 3), read(make_loader(graph, **options), 3))
    assert made_of(loader)[1] >= 4


def test_edges_with_weights_go_kernel_by_kernel():
    graph = make_graph()
    options = {"sampler": LayerSampler([10, 10])}
    loader = make_loader(graph, HostAccelerator(), **options)
    assert_all_same(read(loader, 3), read(make_loader(graph, **options), 3))
    assert not made_of(loader)[0].is_possible
    assert "they have several types, or more than" in loader.sampling_placement


def test_counts_are_those_of_kernel_by_kernel(monkeypatch):
    graph = make_graph()

    def figures():
        loader = make_loader(graph, HostAccelerator(), prefetch=0, fanouts=[3])
        read(loader, 3)
        total = loader.stats.total
        reads = {
            name: (f.rows, f.nbytes, f.cacheable, f.asked_by_hop, f.hits_by_hop)
            for name, f in total.reads.fields.items()
        }
        counts = {name: count for name, count in total.counts.items() if name != "overflows"}
        return made_of(loader)[1], (reads, counts, total.batches)

    made, ours = figures()
    assert made >= 6
    monkeypatch.setattr(program, "_LEARNED", 1000)
    made, expected = figures()
    assert made == 0 and ours == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_do_not_fit_are_counted_and_learned_from(monkeypatch, workers):
    graph = make_graph()
    monkeypatch.setattr(program, "_LEAST_MARGIN", -0.5)
    monkeypatch.setattr(program, "_SIGMAS", 0)
    monkeypatch.setattr(program, "_OFTEN", 1)
    expected = read(make_loader(graph), 5)
    loader = make_loader(graph, HostAccelerator(), num_workers=workers)
    assert_all_same(read(loader, 5), expected)
    assert 2 <= loader.stats.total.counts["overflows"] < 20 - 2
    assert loader.stats.total.batches == 20


@pytest.mark.parametrize("workers", [0, 2])
def test_fields_that_are_replaced_or_written_are_read_again(workers):
    graph = make_graph()
    loader = make_loader(graph, HostAccelerator(), num_workers=workers, cache=0)
    read(loader, 3)
    _, before = made_of(loader)
    kept = []
    for number in range(2):
        for batch in loader:
            assert torch.equal(batch.features["x"], graph.ndata["x"][batch.input_nodes])
            assert torch.equal(batch.labels["y"], graph.ndata["y"][batch.output_nodes])
            kept.append((batch, batch.features["x"].clone()))
            if number:
                graph.ndata["x"].add_(1)
            else:
                graph.ndata["x"] = graph.ndata["x"] * 2
    assert made_of(loader)[1] > before
    assert all(torch.equal(batch.features["x"], rows) for batch, rows in kept)


@pytest.mark.every
@pytest.mark.parametrize("end", ["close", "drop", "error"])
@pytest.mark.parametrize("workers", [0, 2])
def test_lanes_of_batches_that_nobody_wants_come_back(end, workers):
    graph, device = make_graph(), LazyAccelerator()
    loader = make_loader(graph, device, prefetch=2, num_workers=workers)
    read(loader, 2)
    device.is_lazy = True
    expected = read(make_loader(graph), 4)[-4:]
    reading = iter(loader)
    next(reading)
    if end == "close":
        reading.close()
    elif end == "error":
        with pytest.raises(ZeroDivisionError):
            for _ in reading:
                _ = 1 // 0
    del reading
    gc.collect()
    free, lanes = lanes_of(loader)
    assert free == lanes
    assert len(device.later) == device.done
    _, before = made_of(loader)
    assert_all_same(read(loader, 1), expected)
    assert made_of(loader)[1] == before + 4


@pytest.mark.compilers
@pytest.mark.parametrize("workers", [0, 2])
def test_a_device_that_is_late_reads_what_its_batch_was_given(workers):
    graph, device = make_graph(), LazyAccelerator()
    expected = read(make_loader(graph), 4)
    loader = make_loader(graph, device, num_workers=workers)
    batches = read(loader, 2)
    device.is_lazy = True
    batches += read(loader, 2)
    assert_all_same(batches, expected)
    assert made_of(loader)[1] >= 8


def test_several_readers_at_once():
    graph = make_graph()
    loader = make_loader(graph, HostAccelerator(), prefetch=1)
    read(loader, 2)
    expected = read(make_loader(graph), 4)[-8:]
    one, other = iter(loader), iter(loader)
    batches = [(next(one), next(other)) for _ in range(4)]
    assert_all_same([b for b, _ in batches] + [b for _, b in batches], expected)


def test_a_batch_makes_few_calls_and_launches_nothing_by_itself():
    """See ``benchmarks/gpu_host.py``."""
    device = Skipping()
    loader = make_loader(
        make_graph(), device, fanouts=[4, 3, 2], prefetch=0, num_workers=0, cache_policy="degree"
    )
    read(loader, 4)
    device.skips = True
    reading = iter(loader)
    next(reading)
    counts = calls_of(lambda: next(reading))
    assert made_of(loader)[1] >= 4 and counts["program.py:send"] == 1
    assert counts["triton_kernels.py:launch"] == 0
    assert counts.total() <= 106, counts.most_common()


@pytest.mark.compilers
@pytest.mark.parametrize("shapes", ["sampled", "fixed"])
def test_a_graph_that_grows_between_epochs(monkeypatch, shapes):
    """Batches outgrow what the first ones took: they are made kernel by kernel until more is known."""
    monkeypatch.setattr(program, "_OFTEN", 2)
    graph = make_graph()
    graph.edata["w"] = torch.arange(graph.num_edges) % 8 == 0
    loaders = [
        make_loader(graph, device, sampler=NeighborSampler([3, 2], prob="w"), shapes=shapes)
        for device in (HostAccelerator(), "cpu")
    ]
    assert_all_same(*[read(loader, 3) for loader in loaders])
    graph.edata["w"] = torch.ones(graph.num_edges, dtype=torch.bool)
    assert_all_same(*[read(loader, 6) for loader in loaders])
    if shapes == "sampled":
        made, number = made_of(loaders[0])
        assert number and made.reason == ""
        # Larger sizes were learned, so that the last of the 24 batches fit.
        assert 0 < loaders[0].stats.total.counts["overflows"] < 24


def test_where_it_cannot_be(monkeypatch):
    graph = make_graph()
    monkeypatch.setattr(program, "_MOST_PINNED", 1000)
    loader = make_loader(graph, HostAccelerator())
    assert_all_same(read(loader, 2), read(make_loader(graph), 2))
    assert "batches in flight are more than 1000" in loader.sampling_placement


def test_batches_are_read_kernel_by_kernel_where_memory_is_short(monkeypatch):
    graph, device = make_graph(), HostAccelerator()
    loader = make_loader(graph, device, prefetch=0, num_workers=0)
    read(loader, 2)
    expected = read(make_loader(graph), 3)[-4:]
    _, before = made_of(loader)
    made = made_of(loader)[0]
    empty = device.empty

    def short(shape, dtype):
        if shape == (made._recording.nbytes,):
            raise OutOfMemory("no room")
        return empty(shape, dtype)

    monkeypatch.setattr(device, "empty", short)
    assert_all_same(read(loader, 1), expected)
    assert made_of(loader)[1] == before
    free, lanes = lanes_of(loader)
    assert free == lanes


@pytest.mark.every
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("waits", [True, False])
def test_there_are_no_races(monkeypatch, waits, workers):
    device = RaceDetector()

    def launch_and_tell(kernel, programs, *arguments, **constants):
        if programs > 0:
            device.launched(kernel, arguments, constants)
        launch(kernel, programs, *arguments, **constants)

    for module in (reachable, run):
        monkeypatch.setattr(module, "launch", launch_and_tell)
    loader = make_loader(make_graph(), device, prefetch=2, num_workers=workers)
    read(loader, 2)
    # Threads that made batches before handed their buffers on by queues, which it does not know.
    device.races.clear()
    if not waits:
        monkeypatch.setattr(RacingEvent, "wait", lambda event: None)
    with Watch(device):
        for _ in range(2):
            for batch in loader:
                batch.features["x"].sum()
                batch.features["x"].add_(1)
                del batch
    assert made_of(loader)[1] >= 4
    assert (device.races == []) is waits


def test_what_is_sent_is_what_was_sampled_last(monkeypatch):
    """Pools give the memory of a sampled batch to the next one."""
    graph = make_graph()
    loader = make_loader(graph, HostAccelerator(), prefetch=2, num_workers=2)
    batches = read(loader, 6)
    assert_all_same(batches, read(make_loader(graph), 6))
    assert np.unique([batch.input_nodes.data_ptr() for batch in batches]).size == len(batches)
