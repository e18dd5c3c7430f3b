"""Trees, times and weights sampled on a device: the CPU's batches bit for bit."""

import pytest
import torch
from device_batches import (
    assert_equal_by_key,
    assert_same,
    assert_same_typed,
    assert_same_typed_subgraph,
    typed_graphs,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from test_device_types import fanouts_of, seeds_of

from pagraph import NeighborSampler
from pagraph.accelerator import HostAccelerator
from pagraph.sampling import SubgraphSampler
from pagraph.sampling.gpu import state
from pagraph.sampling.gpu.sampler import DeviceSampler
from pagraph.system.budget import Budget

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled here, not interpreted"
)
AUTO = Budget.parse("auto")
SIZES = [-1, 1, 2, 3, 16]


def assert_same_trees(batch, expected):
    assert_same_typed_subgraph(batch, expected)
    assert_equal_by_key(batch.trees, expected.trees)


@settings(max_examples=30)
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
    on_device = DeviceSampler(graph, sampler, HostAccelerator(), budget)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "_SIZE_FIRST", size_first)
        for key in keys:
            seeds = seeds_of(data, graph, dtype)
            expected = sampler.sample(graph, seeds, key)
            assert_same_trees(on_device.sample(seeds, key).batch, expected)
    on_device.close()


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


@settings(max_examples=40)
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
    on_device = DeviceSampler(graph, sampler, HostAccelerator(), budget)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "_SIZE_FIRST", size_first)
        for key in keys:
            seeds = seeds_of(data, graph, dtype)
            times = {
                name: torch.tensor(
                    data.draw(st.lists(st.integers(-4, 7), min_size=len(ids), max_size=len(ids))),
                    dtype=torch.int64,
                ).to(kind)
                * (2**40 if wide and kind is not torch.int32 else 1)
                for name, ids in seeds.items()
            }
            expected = sampler.sample(graph, seeds, key, seed_times=times)
            there = on_device.sample(seeds, key, seed_times=times)
            assert_same_trees(there.batch, expected)
    on_device.close()


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


@pytest.mark.parametrize("kind", ["blocks", "subgraph", "trees"])
@settings(max_examples=15)
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
    on_device = DeviceSampler(graph, sampler, HostAccelerator(), budget)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "_SIZE_FIRST", size_first)
        for key in keys:
            seeds = seeds_of(data, graph, dtype)
            if graph.is_homogeneous and kind == "blocks":
                seeds = next(iter(seeds.values()))
            same(on_device.sample(seeds, key).batch, sampler.sample(graph, seeds, key))
            assert not on_device._topology.first.any()
    on_device.close()
