"""Several types sampled on a device: the CPU's batches bit for bit."""

import pytest
import torch
from device_batches import (
    assert_drawn_alike,
    assert_same_typed,
    assert_same_typed_subgraph,
    typed_graphs,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import FormatError, NeighborSampler
from pagraph.accelerator import HostAccelerator
from pagraph.datasets import citation
from pagraph.sampling import SubgraphSampler
from pagraph.sampling.gpu.sampler import DeviceSampler
from pagraph.system.budget import Budget

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled here, not interpreted"
)
AUTO = Budget.parse("auto")
KINDS = [(NeighborSampler, assert_same_typed), (SubgraphSampler, assert_same_typed_subgraph)]


def fanouts_of(data, graph, least, sizes):
    """A hop's picks: one number for all edge types, or one for each."""
    sizes = st.sampled_from([size for size in sizes if size == -1 or size >= least])
    by_type = st.fixed_dictionaries(dict.fromkeys(graph.edge_types, sizes | st.just(0)))
    return data.draw(st.lists(sizes | by_type, min_size=1, max_size=3))


def seeds_of(data, graph, dtype, counts=None):
    """Seeds of some types; repeated ones, and types without any, too."""
    names = [name for name in graph.node_types if graph.num_nodes_of(name)]
    if counts is None:
        names = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
        counts = {name: data.draw(st.integers(0, 6)) for name in names}
    return {
        name: torch.tensor(
            data.draw(
                st.lists(
                    st.integers(0, graph.num_nodes_of(name) - 1), min_size=count, max_size=count
                )
            ),
            dtype=dtype,
        )
        for name, count in counts.items()
    }


@pytest.mark.compilers
@pytest.mark.parametrize("kind", KINDS, ids=["blocks", "subgraph"])
@settings(max_examples=examples(60))
@given(
    graph=typed_graphs(),
    replace=st.booleans(),
    keys=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=2),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    size_first=st.sampled_from([0, 20, 1 << 22]),
    budget=st.sampled_from([None, AUTO]),
    data=st.data(),
)
def test_equals_the_cpu(kind, graph, replace, keys, dtype, size_first, budget, data):
    assume(not graph.is_homogeneous)
    sampler_of, same = kind
    least = 0 if sampler_of is SubgraphSampler else 1
    sampler = sampler_of(fanouts_of(data, graph, least, [-1, 1, 2, 3, 16]), replace=replace)
    batches = [(seeds_of(data, graph, dtype), key, {}) for key in keys]
    assert_drawn_alike(graph, sampler, batches, same, budget=budget, size_first=size_first)


@pytest.mark.compilers
@pytest.mark.parametrize("kind", KINDS, ids=["blocks", "subgraph"])
@settings(max_examples=examples(30))
@given(
    graph=typed_graphs(),
    replace=st.booleans(),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    count=st.integers(1, 6),
    data=st.data(),
)
def test_recorded_batches_equal_the_cpus(kind, graph, replace, dtype, count, data):
    """Batches of the usual size share buffers: one must not be changed by those after it."""
    assume(not graph.is_homogeneous)
    sampler_of, same = kind
    sampler = sampler_of(fanouts_of(data, graph, 1, [1, 2, 7]), replace=replace)
    usual = {graph.node_types[0]: count}
    on_device = DeviceSampler(graph, sampler, HostAccelerator(), AUTO, (usual, dtype))
    assert on_device.is_recorded
    batches = []
    for key, more in enumerate([0, 0, 1, 0]):
        seeds = seeds_of(data, graph, dtype, {graph.node_types[0]: count + more})
        batches.append((on_device.sample(seeds, key).batch, sampler.sample(graph, seeds, key)))
    for batch, expected in batches:
        same(batch, expected)


def test_what_nobody_reaches_is_not_launched(monkeypatch):
    """Papers are cited by papers and written by authors; from authors nothing leads on."""
    from pagraph.sampling.gpu import run

    graph = citation(300, num_features=2, num_author_features=2)
    launched = []
    launch = run.launch
    monkeypatch.setattr(
        run,
        "launch",
        lambda kernel, *args, **kwargs: launched.append(kernel) or launch(kernel, *args, **kwargs),
    )
    sampler = NeighborSampler([2, 2])
    on_device = DeviceSampler(graph, sampler, HostAccelerator(), AUTO)
    seeds = {"paper": torch.arange(20)}
    assert_same_typed(on_device.sample(seeds, 1).batch, sampler.sample(graph, seeds, 1))
    reached = {"paper"}
    steps = 0
    for _ in range(2):
        drawn = [etype for etype in graph.edge_types if etype[2] in reached]
        steps += len(drawn)
        reached |= {etype[0] for etype in drawn}
    names = [kernel.__name__ for kernel in launched]
    assert names.count("measure") == steps < 2 * len(graph.edge_types)


def test_a_damaged_graph_is_found():
    graph = citation(300, num_features=2, num_author_features=2)
    sampler = NeighborSampler([2, 2])
    on_device = DeviceSampler(graph, sampler, HostAccelerator(), AUTO)
    on_device.topology.relations[-1].indices.fill_(-1)
    with pytest.raises(FormatError, match="point outside the graph on the device only"):
        on_device.sample({"paper": torch.arange(50), "author": torch.arange(50)}, 1)
    assert not on_device.topology.first.any()


def test_bad_seeds():
    graph = citation(300, num_features=2, num_author_features=2)
    on_device = DeviceSampler(graph, NeighborSampler([2]), HostAccelerator(), None)
    with pytest.raises(IndexError, match="seeds.'paper'. must be in"):
        on_device.sample({"paper": torch.tensor([300])}, 0)
    with pytest.raises(KeyError, match="venue"):
        on_device.sample({"venue": torch.tensor([0])}, 0)
