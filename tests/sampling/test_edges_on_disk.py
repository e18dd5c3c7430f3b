"""Edges in mapped files: the same batches as in memory, from every sampler, bit by bit."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import CSC, Graph, Loader, NeighborSampler
from pagraph.datasets import rmat
from pagraph.datasets.native import write_graph
from pagraph.graph import csc_pages
from pagraph.graph.mapped import map_npy
from pagraph.graph.minibatch import SampledEdges
from pagraph.sampling import (
    HGTSampler,
    LaborSampler,
    LayerSampler,
    RandomWalks,
    ShaDowSampler,
    SubgraphSampler,
)
from pagraph.sampling.edge_batches import EdgeBatches
from pagraph.sampling.negative import GlobalUniformNegatives, UniformNegatives

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="needs /proc/self/maps"
)

SAMPLERS = {
    "uniform": NeighborSampler([5, 10]),
    "replaced": NeighborSampler([5, 10], replace=True),
    "many": NeighborSampler([80, 3]),
    "all": NeighborSampler([-1, 3]),
    "weighted": NeighborSampler([5, 10], prob="w"),
    "masked": NeighborSampler([5, 10], prob="m"),
    "labor": LaborSampler([5, 10]),
    "labor, importance": LaborSampler([5, 10], importance_sampling=1, layer_dependency=True),
    "labor, weighted": LaborSampler([5, 10], prob="w"),
    "ladies": LayerSampler([64, 64]),
    "fastgcn": LayerSampler([64, 64], method="fastgcn"),
    "out-edges": NeighborSampler([5, 10], edge_dir="out"),
    "subgraph": SubgraphSampler([10, 5]),
    "subgraph, all": SubgraphSampler([10, -1]),
    "induced": SubgraphSampler([10, 5], induced=True),
    "disjoint": SubgraphSampler([10, 5], disjoint=True),
    "times of edges": SubgraphSampler([10, 5], disjoint=True, time="t"),
    "induced trees": SubgraphSampler([10, 5], disjoint=True, induced=True),
    "induced, times": SubgraphSampler([10, 5], induced=True, time="t"),
    "shadow": ShaDowSampler(2, 5),
    "hgt": HGTSampler([40, 40]),
    "weighted subgraph": SubgraphSampler([10, 5], prob="w"),
}


def flat(value):
    """Types, dtypes and values of all that a batch holds."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, dict):
        return [(key, flat(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [flat(item) for item in value]
    if isinstance(value, SampledEdges):  # ids are looked up when they are asked for
        return flat([value.edge_index, value.edge_ids, value.hop_ends])
    if hasattr(value, "__dataclass_fields__"):
        return [
            type(value).__name__,
            *(flat(getattr(value, name)) for name in value.__dataclass_fields__),
        ]
    return value


def with_ids(graph):
    """The same edges under other ids, with weights, a mask and times."""
    order = torch.randperm(graph.num_edges, generator=torch.Generator().manual_seed(0)).to(
        torch.int32
    )
    draws = np.random.default_rng(0)
    fields = {
        "w": torch.from_numpy(draws.random(graph.num_edges, dtype=np.float32)),
        "m": torch.from_numpy(draws.random(graph.num_edges) < 0.5),
        "t": torch.from_numpy(draws.integers(0, 100, graph.num_edges)),
    }
    return Graph(CSC(graph.csc.indptr, graph.csc.indices, graph.num_nodes, order), edata=fields)


@pytest.fixture(scope="module")
def in_memory():
    return with_ids(rmat(12, edge_factor=12))


def know_nothing(monkeypatch):
    """Have every batch look for all of its pages."""

    def look(pages):
        for file in pages.files:
            file.pages.known.fill(0)

    monkeypatch.setattr(csc_pages.CSCPages, "look", look)
    monkeypatch.setattr(csc_pages, "_CALM", 2**60)


@pytest.fixture(params=["known", "unknown"])
def on_disk(in_memory, tmp_path, monkeypatch, request):
    monkeypatch.setattr(csc_pages, "LEAST_BYTES", 1)
    if request.param == "unknown":
        know_nothing(monkeypatch)
    write_graph(in_memory, tmp_path / "graph")
    graph = Graph.open(tmp_path / "graph")
    if graph.csc.disk_pages is None:
        pytest.skip("needs temporary files on a disk")
    assert len(graph.csc.disk_pages.files) == 3
    return graph


@pytest.mark.every
@pytest.mark.parametrize("name", SAMPLERS)
def test_batches_equal_those_from_memory(in_memory, on_disk, name):
    sampler, seeds = SAMPLERS[name], torch.arange(0, 4096, 41)
    more = {"seed_times": torch.arange(len(seeds)) % 100} if getattr(sampler, "time", None) else {}
    for key in (1, 2):
        expected = flat(sampler.sample(in_memory, seeds, key, **more))
        assert flat(sampler.sample(on_disk, seeds, key, **more)) == expected


@pytest.mark.parametrize(
    "options", [{}, {"prob": "w"}, {"prob": "m"}, {"p": 0.5, "q": 2.0}, {"edge_dir": "out"}]
)
def test_walks_equal_those_from_memory(in_memory, on_disk, options):
    walks, starts = RandomWalks(6, **{"edge_dir": "in", **options}), torch.arange(0, 4096, 13)
    expected, got = (
        walks.sample(graph, starts, 5, with_edges=True) for graph in (in_memory, on_disk)
    )
    assert flat(got) == flat(expected)


@pytest.mark.parametrize("negatives", [None, UniformNegatives(2), GlobalUniformNegatives(2)])
def test_batches_of_edges_equal_those_from_memory(in_memory, on_disk, negatives):
    seeds = torch.randperm(in_memory.num_edges, generator=torch.Generator().manual_seed(1))[:300]
    expected, got = (
        EdgeBatches(NeighborSampler([5, 10]), graph, negatives).sample(graph, seeds, 7)
        for graph in (in_memory, on_disk)
    )
    assert flat(got) == flat(expected)


def test_ids_and_ends_of_edges_equal_those_from_memory(in_memory, on_disk):
    positions = torch.randperm(in_memory.num_edges, dtype=torch.int32)
    for one, other in zip(
        in_memory.csc.ends_at(positions), on_disk.csc.ends_at(positions), strict=True
    ):
        assert torch.equal(one, other)
    assert torch.equal(in_memory.csc.ids_at(positions), on_disk.csc.ids_at(positions))
    nothing = positions[:0]
    assert [len(ends) for ends in on_disk.csc.ends_at(nothing)] == [0, 0]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_loaders_batches_equal_those_from_memory(in_memory, on_disk, num_workers):
    def run(graph):
        loader = Loader(
            graph, torch.arange(1000), NeighborSampler([5, 10]), batch_size=100, shuffle=True, seed=3,
            num_workers=num_workers,
        )  # fmt: skip
        return [flat(batch.blocks) for batch in loader]

    assert run(on_disk) == run(in_memory)


@st.composite
def small_graphs(draw):
    """Isolated vertices, self-loops, parallel edges, or no edges at all; both widths of ids."""
    n = draw(st.integers(1, 30))
    edges = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=100))
    csc = CSC.from_coo([e[0] for e in edges], [e[1] for e in edges], n)
    if draw(st.booleans()):
        csc = CSC(csc.indptr.long(), csc.indices.long(), n, csc.edge_ids)
    return csc


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    csc=small_graphs(),
    fanout=st.sampled_from([-1, 1, 3]),
    once=st.booleans(),
    key=st.integers(0, 2**40),
)
def test_small_graphs_equal_those_in_memory(csc, fanout, once, key, tmp_path, monkeypatch):
    monkeypatch.setattr(csc_pages, "LEAST_BYTES", 1)
    know_nothing(monkeypatch)
    arrays = {"indptr": csc.indptr, "indices": csc.indices, "edge_ids": csc.edge_ids}
    for name, array in arrays.items():
        if array is not None:
            np.save(tmp_path / f"{name}.npy", array.numpy())
            arrays[name] = map_npy(tmp_path / f"{name}.npy")
    mapped = CSC(arrays["indptr"], arrays["indices"], csc.num_src, arrays["edge_ids"])
    sampler = SubgraphSampler([fanout] * 2) if once else NeighborSampler([fanout] * 2)
    seeds = torch.arange(csc.num_dst)
    assert flat(sampler.sample(Graph(mapped), seeds, key)) == flat(
        sampler.sample(Graph(csc), seeds, key)
    )
    positions = torch.arange(csc.num_edges)
    assert flat(mapped.ends_at(positions)) == flat(csc.ends_at(positions))


def test_a_graph_in_memory_is_its_own_and_asks_for_nothing(in_memory):
    assert in_memory.csc.scattered is in_memory.csc
    assert in_memory.csc.pages is None
