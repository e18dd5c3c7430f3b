"""Trees, times and weights sampled on a device: the CPU's batches bit for bit."""

import threading

import numpy as np
import pytest
import torch
from device_batches import (
    assert_drawn_alike,
    assert_equal_by_key,
    assert_same,
    assert_same_typed,
    assert_same_typed_subgraph,
    typed_graphs,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from test_device_types import fanouts_of, seeds_of
from tiers import examples

from pagraph import FormatError, Graph, NeighborSampler
from pagraph.accelerator import HostAccelerator, accelerator_for
from pagraph.sampling import SubgraphSampler
from pagraph.sampling.gpu.sampler import DeviceSampler
from pagraph.system.budget import Budget

pytest.importorskip("triton")
interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled here, not interpreted"
)
AUTO = Budget.parse("auto")
SIZES = [-1, 1, 2, 3, 16]


def assert_same_trees(batch, expected):
    assert_same_typed_subgraph(batch, expected)
    assert_equal_by_key(batch.trees, expected.trees)


@pytest.mark.compilers
@interpreted
@settings(max_examples=examples(30))
@given(
    graph=typed_graphs(),
    replace=st.booleans(),
    keys=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=2),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    size_first=st.sampled_from([0, 20, 1 << 22]),
    budget=st.sampled_from([None, AUTO]),
    data=st.data(),
)
def test_trees(graph, replace, keys, dtype, size_first, budget, data):
    sampler = SubgraphSampler(fanouts_of(data, graph, 0, SIZES), replace=replace, disjoint=True)
    batches = [(seeds_of(data, graph, dtype), key, {}) for key in keys]
    where = {"budget": budget, "size_first": size_first}
    assert_drawn_alike(graph, sampler, batches, assert_same_trees, **where)


KINDS = {"int64": torch.int64, "int32": torch.int32, "float64": torch.float64}


@st.composite
def timed_graphs(draw):
    """Times of some vertex types and some edge types: in order or not, of few values, with gaps."""
    graph = draw(typed_graphs())
    kind = KINDS[draw(st.sampled_from(list(KINDS)))]
    wide = draw(st.booleans())

    def times(count):
        values = st.integers(-3, 6)
        ticks = draw(st.lists(values, min_size=count, max_size=count))
        found = torch.tensor(ticks, dtype=torch.int64)
        if wide and kind is not torch.int32:
            found = found * 2**40
        found = found.to(kind)
        if kind.is_floating_point and count and draw(st.booleans()):
            found[0] = float("nan")
        return found

    has_times = False
    for name in graph.node_types:
        if draw(st.booleans()):
            graph.node_fields(name)["t"] = times(graph.num_nodes_of(name))
            has_times = True
    for edge_type in graph.edge_types:
        if draw(st.booleans()) or not has_times:
            graph.edge_fields(edge_type)["t"] = times(graph.csc_of(edge_type).num_edges)
            has_times = True
    return graph, kind, wide


@pytest.mark.compilers
@interpreted
@settings(max_examples=examples(40))
@given(
    timed=timed_graphs(),
    replace=st.booleans(),
    latest=st.booleans(),
    share=st.booleans(),
    window=st.sampled_from([None, 1, 3, 2**41]),
    keys=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=2),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    size_first=st.sampled_from([0, 20, 1 << 22]),
    budget=st.sampled_from([None, AUTO]),
    data=st.data(),
)
def test_times(timed, replace, latest, share, window, keys, dtype, size_first, budget, data):
    graph, kind, wide = timed
    sampler = SubgraphSampler(
        fanouts_of(data, graph, 0, SIZES),
        replace=replace,
        time="t",
        latest=latest,
        time_window=window,
        share_trees=share,
    )
    unit = 2**40 if wide and kind is not torch.int32 else 1
    batches = []
    for key in keys:
        seeds = seeds_of(data, graph, dtype)
        times = {}
        for name, ids in seeds.items():
            ticks = st.lists(st.integers(-4, 7), min_size=len(ids), max_size=len(ids))
            times[name] = torch.tensor(data.draw(ticks), dtype=torch.int64).to(kind) * unit
        batches.append((seeds, key, {"seed_times": times}))
    where = {"budget": budget, "size_first": size_first}
    assert_drawn_alike(graph, sampler, batches, assert_same_trees, **where)


@st.composite
def weighted_graphs(draw):
    """Weights of some edge types: zeros, equal ones, few large ones, rows of many edges."""
    graph = draw(typed_graphs(max_edges=200))
    for edge_type in graph.edge_types:
        if draw(st.integers(0, 3)):
            count = graph.csc_of(edge_type).num_edges
            few = draw(st.sampled_from([[0.0, 1.0], [0.5, 1.0, 2.0, 1000.0], [0.0, 0.3, 7.0]]))
            weights = draw(st.lists(st.sampled_from(few), min_size=count, max_size=count))
            dtype = draw(st.sampled_from([torch.float32, torch.float64]))
            graph.edge_fields(edge_type)["w"] = torch.tensor(weights, dtype=dtype)
    return graph


@pytest.mark.compilers
@interpreted
@pytest.mark.parametrize("kind", ["blocks", "subgraph", "trees"])
@settings(max_examples=examples(15))
@given(
    graph=weighted_graphs(),
    replace=st.booleans(),
    keys=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=2),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    size_first=st.sampled_from([0, 1 << 22]),
    budget=st.sampled_from([None, AUTO]),
    data=st.data(),
)
def test_weights(kind, graph, replace, keys, dtype, size_first, budget, data):
    if kind == "blocks":
        same = assert_same if graph.is_homogeneous else assert_same_typed
        sampler = NeighborSampler(fanouts_of(data, graph, 1, SIZES), replace=replace, prob="w")
    else:
        same = assert_same_trees if kind == "trees" else assert_same_typed_subgraph
        fanouts = fanouts_of(data, graph, 0, SIZES)
        sampler = SubgraphSampler(fanouts, replace=replace, prob="w", disjoint=kind == "trees")
    batches = []
    for key in keys:
        seeds = seeds_of(data, graph, dtype)
        if graph.is_homogeneous and kind == "blocks":
            seeds = next(iter(seeds.values()))
        batches.append((seeds, key, {}))
    assert_drawn_alike(graph, sampler, batches, same, budget=budget, size_first=size_first)


def timed_graph(n=60, m=700):
    rng = np.random.default_rng(5)
    graph = Graph.from_coo(rng.integers(0, n, m), rng.integers(0, n, m), n)
    graph.ndata["t"] = torch.from_numpy(rng.integers(0, 9, n))
    graph.edata["w"] = torch.from_numpy(rng.random(m)) + 0.5
    return graph


@interpreted
@pytest.mark.parametrize("share", [False, True])
def test_recorded_batches(share):
    """Batches of the usual size share buffers: one must not be changed by those after it."""
    graph = timed_graph()
    sampler = SubgraphSampler([4, 3], time="t", time_window=5, share_trees=share)
    usual = 5, torch.int64
    on_device = DeviceSampler(graph, sampler, HostAccelerator(), AUTO, usual)
    assert on_device._placed.recorded is not None
    batches = []
    for key, count in enumerate([5, 5, 7, 5]):
        seeds = {"_N": (torch.arange(count) * 11 + key) % 60}
        times = torch.arange(count) * 3 % 10
        arguments = {"seed_times": {"_N": times}}
        expected = sampler.sample(graph, seeds, key, **arguments)
        batches.append((on_device.sample(seeds, key, **arguments).batch, expected))
    for batch, expected in batches:
        assert_same_trees(batch, expected)
    on_device.close()


@pytest.mark.every
@interpreted
@pytest.mark.parametrize("budget", [None, AUTO])
@pytest.mark.parametrize("settings", [{"time": "t"}, {"prob": "w"}], ids=str)
def test_fields_that_are_written_or_replaced(settings, budget):
    graph = timed_graph()
    sampler = SubgraphSampler([3], **settings)
    on_device = DeviceSampler(graph, sampler, HostAccelerator(), budget, (4, torch.int64))
    seeds = {"_N": torch.tensor([3, 17, 3, 40])}
    fields = graph.ndata if "time" in settings else graph.edata
    name = "t" if "time" in settings else "w"
    placed = []
    for number in range(3):
        for key in range(2):
            expected = sampler.sample(graph, seeds, key)
            assert_same_typed_subgraph(on_device.sample(seeds, key).batch, expected)
        placed.append(on_device.topology)
        if number == 0:
            fields[name].mul_(torch.arange(len(fields[name])) % 2)
        else:
            fields[name] = torch.arange(len(fields[name])) % 7
    assert len(set(map(id, placed))) == 3
    # Nobody holds what is drawn from no more.
    assert [topology.users for topology in placed] == [0, 0, 1]
    on_device.close()
    assert placed[-1].users == 0


@interpreted
def test_samplers_of_the_same_fields_share_what_is_placed():
    graph = timed_graph()
    of_time = [SubgraphSampler([n], time="t") for n in (2, 3)]
    others = [SubgraphSampler([2]), SubgraphSampler([2], prob="w")]
    device = HostAccelerator()
    samplers = [DeviceSampler(graph, each, device, AUTO) for each in (*of_time, *others)]
    topologies = [each.topology for each in samplers]
    assert topologies[0] is topologies[1]
    assert len(set(map(id, topologies))) == 3
    for each in samplers:
        each.close()


@interpreted
def test_threads_at_once():
    graph = timed_graph()
    sampler = SubgraphSampler([3, 2], time="t")
    on_device = DeviceSampler(graph, sampler, HostAccelerator(), AUTO)
    seeds = {"_N": torch.arange(0, 60, 13)}
    found = {}

    def draw(key):
        found[key] = on_device.sample(seeds, key).batch

    threads = [threading.Thread(target=draw, args=(key,)) for key in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for key, batch in found.items():
        assert_same_trees(batch, sampler.sample(graph, seeds, key))
    on_device.close()


@interpreted
@pytest.mark.parametrize("settings", [{"disjoint": True}, {"time": "t"}, {"prob": "w"}], ids=str)
def test_a_damaged_graph_is_found(settings):
    graph = timed_graph()
    sampler = SubgraphSampler([3, 2], **settings)
    on_device = DeviceSampler(graph, sampler, HostAccelerator(), AUTO)
    on_device.topology.relations[0].indices.fill_(-1)
    seeds = torch.arange(8)
    with pytest.raises(FormatError, match="point outside the graph on the device only"):
        on_device.sample(seeds, 1)
    on_device.topology.relations[0].indices.copy_(on_device.topology.drawn[0].rows()["indices"])
    assert on_device.sample(seeds, 1).batch.num_edges


@interpreted
def test_bad_times():
    graph = timed_graph()
    seeds = torch.arange(4)
    times = torch.arange(4)
    untimed = DeviceSampler(graph, NeighborSampler([2]), HostAccelerator(), AUTO)
    with pytest.raises(ValueError, match="seed_times must be None for a sampler without time"):
        untimed.sample(seeds, 1, seed_times=times)
    timed = DeviceSampler(graph, SubgraphSampler([2], time="t"), HostAccelerator(), AUTO)
    for wrong, error in ((times.double(), TypeError), (times[:3], ValueError)):
        with pytest.raises(error):
            timed.sample(seeds, 1, seed_times=wrong)
    with pytest.raises(ValueError, match="time must be the name of a vertex or edge field"):
        DeviceSampler(graph, SubgraphSampler([2], time="year"), HostAccelerator(), AUTO).sample(
            seeds, 1
        )
    # The next batch works.
    assert timed.sample(seeds, 1, seed_times=times).batch.trees["_N"][:4].tolist() == [0, 1, 2, 3]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("budget", [None, AUTO])
@pytest.mark.parametrize(
    "settings",
    [
        {"disjoint": True},
        {"time": "t"},
        {"time": "t", "latest": True, "time_window": 4},
        {"time": "t", "share_trees": True},
        {"prob": "w"},
        {"prob": "w", "disjoint": True},
    ],
    ids=str,
)
def test_a_gpu_draws_what_the_cpu_draws(settings, budget, replace):
    graph = timed_graph(20_000, 400_000)
    sampler = SubgraphSampler([5, 10], replace=replace, **settings)
    accelerator = accelerator_for(torch.device("cuda", 0))
    on_device = DeviceSampler(graph, sampler, accelerator, budget, (500, torch.int64))
    same = assert_same_trees if sampler.disjoint else assert_same_typed_subgraph
    for key, count in enumerate([500, 700, 500]):
        seeds = {"_N": torch.arange(count) * 23 % 20_000}
        sampled = on_device.sample(seeds, key)
        sampled.ready.wait()
        assert sampled.batch.input_nodes["_N"].is_cuda
        same(sampled.batch, sampler.sample(graph, seeds, key))
    on_device.close()
