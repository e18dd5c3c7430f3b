"""Our outputs for links against those of PyG's own ``edge_sample`` around the same sampling of
vertices."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling
from torch_geometric.sampler.neighbor_sampler import edge_sample

from pagraph.graph.graph import NODE_TYPE
from pagraph.pyg import NeighborSampler

TYPES = {"two types": ("u", "r", "v"), "one type": ("v", "t", "v"), "homogeneous": None}
SIZES = {"u": 9, "v": 7}


@st.composite
def worlds(draw, kind):
    """A graph with times, links, and negatives that leave no choice: all weight is on one
    vertex."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def numbers(limit, count):
        return torch.randint(limit, (count,), generator=generator)

    input_type, edges = TYPES[kind], draw(st.integers(0, 30))
    if input_type is None:
        data = Data(
            num_nodes=9,
            edge_index=torch.stack([numbers(9, edges), numbers(9, edges)]),
            time=numbers(20, 9),
        )
        sizes = (9, 9)
    else:
        data = HeteroData()
        for ntype, count in SIZES.items():
            data[ntype].num_nodes, data[ntype].time = count, numbers(20, count)
        for etype in [("u", "r", "v"), ("v", "t", "v"), ("v", "s", "u")]:
            data[etype].edge_index = torch.stack(
                [numbers(SIZES[etype[0]], edges), numbers(SIZES[etype[2]], edges)]
            )
        sizes = SIZES[input_type[0]], SIZES[input_type[2]]
    p = draw(st.integers(1, 6))
    label = draw(st.sampled_from([None, torch.arange(1, p + 1), torch.rand(p, 2)]))
    negatives = None
    mode = draw(st.sampled_from([None, "binary", "triplet"]))
    if mode is not None:
        one = [torch.zeros(size) for size in sizes]
        for weight, store in zip(
            one,
            (data, data) if input_type is None else (data[t] for t in input_type[::2]),
            strict=True,
        ):
            vertex = draw(st.integers(0, len(weight) - 1))
            weight[vertex], store.time[vertex] = 1.0, 0  # early enough for any link
        negatives = NegativeSampling(mode, draw(st.sampled_from([1, 2])), *one)
        label = None if mode == "triplet" else label
    inputs = EdgeSamplerInput(
        input_id=numbers(100, p),
        row=numbers(sizes[0], p),
        col=numbers(sizes[1], p),
        label=label,
        time=None,
        input_type=input_type,
    )
    return data, inputs, negatives


def same(ours, pygs):
    if isinstance(pygs, dict):
        return list(ours) == list(pygs) and all(
            same(ours[key], value) for key, value in pygs.items()
        )
    if isinstance(pygs, torch.Tensor):
        return ours.dtype == pygs.dtype and torch.equal(ours, pygs)
    if isinstance(pygs, tuple):
        return len(ours) == len(pygs) and all(map(same, ours, pygs))
    return ours == pygs


def compare(sampler, inputs, negatives, node_time=None):
    def sample_vertices(seed, seed_time):
        seeds = seed if isinstance(seed, dict) else {NODE_TYPE: seed}
        times = (
            seed_time
            if isinstance(seed_time, dict) or seed_time is None
            else {NODE_TYPE: seed_time}
        )
        return sampler._output(
            sampler.core.sample(sampler.graph, seeds, 0, dtype=torch.int64, seed_times=times)
        )

    ours = sampler.sample_from_edges(inputs, negatives)
    pygs = edge_sample(
        inputs, sample_vertices, sampler.num_nodes, sampler.disjoint, node_time, negatives
    )
    assert type(ours) is type(pygs)
    for name in (
        "node",
        "row",
        "col",
        "edge",
        "batch",
        "num_sampled_nodes",
        "num_sampled_edges",
        "metadata",
    ):
        assert same(getattr(ours, name), getattr(pygs, name)), name


@pytest.mark.every
@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("kind", TYPES)
def test_the_same_as_pygs(kind, disjoint):
    @settings(max_examples=examples(40))
    @given(world=worlds(kind))
    def check(world):
        data, inputs, negatives = world
        compare(NeighborSampler(data, [-1, -1], disjoint=disjoint), inputs, negatives)

    check()


@pytest.mark.every
@pytest.mark.parametrize("kind", TYPES)
def test_the_same_as_pygs_with_times(kind):
    @settings(max_examples=examples(40))
    @given(world=worlds(kind))
    def check(world):
        data, inputs, negatives = world
        inputs.time = inputs.input_id % 20
        sampler = NeighborSampler(data, [-1, -1], time_attr="time")
        compare(sampler, inputs, negatives, sampler.node_time)

    check()
