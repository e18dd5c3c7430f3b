"""A ``pagraph.Graph`` in the DGL face: converted once, shared by its loaders, with its fields as
they are."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
import torch
from cases import dgl, ours

from pagraph import CSC, Graph
from pagraph.dgl.convert import core_graph, dgl_graph, to_dgl
from pagraph.features import IndexedRows
from pagraph.graph.mapped import map_npy

pytestmark = pytest.mark.usefixtures("no_threads_left")

NeighborSampler = dgl.dataloading.NeighborSampler
N, M, SOURCE_ROWS = 300, 4000, 1000
SAMPLER = NeighborSampler([4, 3], prefetch_node_feats=["feat"], prefetch_labels=["label"])


def random_graph(seed=0):
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, N, (2, M), generator=generator)
    graph = Graph.from_coo(*ends, N)
    graph.set_field("label", torch.randint(0, 5, (N,), generator=generator))
    graph.set_field("w", torch.rand(M, generator=generator), edge_type=graph.edge_types[0])
    return graph


@pytest.fixture
def part(tmp_path):
    """A graph like the part of a partition: wide features in a mapped file, by reference."""
    np.save(
        tmp_path / "feat.npy", np.random.default_rng(0).random((SOURCE_ROWS, 24), dtype=np.float32)
    )
    graph = random_graph()
    ids = torch.randperm(SOURCE_ROWS, generator=torch.Generator().manual_seed(1))[:N]
    graph.set_field("feat", IndexedRows(map_npy(tmp_path / "feat.npy"), ids))
    return graph


def column_of(graph, name="feat"):
    return dgl_graph(graph)._node_frames[0]._columns[name]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cache", [0, "20%", "auto"])
def test_a_part_is_loaded_with_the_right_rows(part, workers, cache):
    loader = ours(
        part, torch.arange(N), SAMPLER, batch_size=50, num_workers=workers, cache=cache, seed=0
    )
    for _ in range(2):
        for input_nodes, output_nodes, blocks in loader:
            assert input_nodes.dtype == torch.int64
            assert torch.equal(blocks[0].srcdata["feat"], part.ndata["feat"][input_nodes])
            assert torch.equal(blocks[-1].dstdata["label"], part.ndata["label"][output_nodes])
            assert torch.equal(blocks[0].edata["w"], part.edata["w"][blocks[0].edata[dgl.EID]])
    assert column_of(part).index is not None


def test_batches_are_those_of_the_converted_graph(part):
    converted = to_dgl(part)
    converted.ndata["feat"] = part.ndata["feat"].materialize()
    loaders = [
        ours(g, torch.arange(N), SAMPLER, batch_size=50, shuffle=True, seed=0)
        for g in (part, converted)
    ]
    for mine, other in zip(*loaders, strict=True):
        assert torch.equal(mine[0], other[0]) and torch.equal(mine[1], other[1])
        assert torch.equal(mine[2][0].srcdata["feat"], other[2][0].srcdata["feat"])
        assert torch.equal(mine[2][0].edata[dgl.EID], other[2][0].edata[dgl.EID])


def test_loaders_of_a_graph_share_one_dgl_graph_and_its_structure(part):
    train, val = (ours(part, torch.arange(k, 150 + k), SAMPLER, batch_size=50) for k in (0, 150))
    assert isinstance(train.graph, dgl.DGLGraph) and train.graph is val.graph is dgl_graph(part)
    assert core_graph(train.graph).csc is part.csc
    assert train.graph.num_nodes() == N and train.graph.idtype == torch.int64


@pytest.mark.many
def test_the_conversion_dies_with_the_graph_and_its_loaders():
    graph = random_graph()
    loader = ours(graph, torch.arange(N), NeighborSampler([2]), batch_size=50)
    converted, csc = weakref.ref(loader.graph), weakref.ref(graph)
    del graph
    gc.collect()
    assert csc() is not None and len(list(loader)) == 6  # the loader keeps it
    del loader
    gc.collect()
    assert converted() is None and csc() is None


def test_fields_set_later_count_from_the_next_epoch_on(part):
    loader = ours(part, torch.arange(N), SAMPLER, batch_size=50)
    list(loader)
    loader.graph.ndata["own"] = torch.ones(N)
    for values in (torch.randn(N, 3), IndexedRows(torch.randn(40, 2), torch.arange(N) % 40)):
        part.set_field("feat", values)
        for input_nodes, _, blocks in loader:
            assert torch.equal(blocks[0].srcdata["feat"], values[input_nodes])
    assert "own" in loader.graph.ndata


def test_what_the_user_sets_on_the_dgl_graph_stays(part):
    loader = ours(part, torch.arange(N), SAMPLER, batch_size=50)
    new = torch.randn(N, 2)
    loader.graph.ndata["feat"] = new
    for input_nodes, _, blocks in loader:
        assert torch.equal(blocks[0].srcdata["feat"], new[input_nodes])


def test_written_fields_are_seen_at_once(part):
    loader = ours(part, torch.arange(N), SAMPLER, batch_size=50, prefetch=4)
    for input_nodes, _, blocks in loader:
        assert torch.equal(blocks[0].srcdata["feat"], part.ndata["feat"][input_nodes])
        part.ndata["feat"].source.add_(1)
        assert torch.equal(
            blocks[-1].dstdata["label"], part.ndata["label"][blocks[-1].dstdata[dgl.NID]]
        )


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_both_directions_and_reversed_graphs(part, edge_dir):
    sampler = NeighborSampler([3], edge_dir=edge_dir, prefetch_node_feats=["feat"])
    for graph in (part, part.reverse()):
        for input_nodes, _, blocks in ours(graph, torch.arange(N), sampler, batch_size=60):
            assert torch.equal(blocks[0].srcdata["feat"], part.ndata["feat"][input_nodes])


def test_graphs_of_several_types():
    csc = CSC(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 2]), num_src=3)
    graph = Graph({("a", "r", "b"): csc}, {"a": 3, "b": 2})
    graph.set_field(
        "x", IndexedRows(torch.arange(8.0).view(4, 2), torch.tensor([3, 0, 1])), node_type="a"
    )
    sampler = NeighborSampler([-1], prefetch_node_feats={"a": ["x"]})
    for input_nodes, _, blocks in ours(graph, {"b": torch.arange(2)}, sampler, batch_size=2):
        assert torch.equal(
            blocks[0].srcnodes["a"].data["x"], graph.node_fields("a")["x"][input_nodes["a"]]
        )


def test_dgls_own_reads_of_a_converted_part(part):
    converted = to_dgl(part)
    assert converted._node_frames[0]._columns["feat"].index is not None
    whole = part.ndata["feat"].materialize()
    assert torch.equal(
        dgl.node_subgraph(converted, torch.tensor([4, 2])).ndata["feat"], whole[[4, 2]]
    )
    assert torch.equal(converted.ndata["feat"], whole)
    assert torch.equal(Graph.from_dgl(converted).ndata["feat"], whole)


def test_dgl_does_not_sort_the_graphs_own_arrays():
    """Ids that are int64 already are copied too."""
    indptr, indices = torch.tensor([0, 3, 3, 4]), torch.tensor([2, 1, 0, 1])
    graph = Graph(CSC(indptr, indices, 3))
    converted = to_dgl(graph)
    dgl.sampling.global_uniform_negative_sampling(converted, 5)
    assert graph.csc.indices.tolist() == [2, 1, 0, 1]


def test_damaged_ids_are_not_handed_to_dgl():
    graph = random_graph()
    graph.csc.indices[7] = N
    with pytest.raises(ValueError, match=r"indices must be in \[0, 300\), got 300"):
        to_dgl(graph)


@pytest.mark.parametrize("value", [-1, 2**31 - 1, "another's"])
def test_damaged_edge_ids_are_not_handed_to_dgl(value):
    graph = random_graph()
    order = torch.randperm(graph.num_edges)
    csc = Graph.from_coo(graph.csc.indices[order], graph.csc.destinations()[order], N).csc
    csc.edge_ids[7] = csc.edge_ids[8] if isinstance(value, str) else value
    with pytest.raises(ValueError, match="edge_ids must be"):
        to_dgl(Graph(csc))


def test_a_loader_of_a_part_can_be_pickled(part):
    loader = ours(part, torch.arange(N), SAMPLER, batch_size=50, seed=0)
    again = pickle.loads(pickle.dumps(loader))
    for input_nodes, _, blocks in again:
        assert torch.equal(blocks[0].srcdata["feat"], part.ndata["feat"][input_nodes])


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda of: pickle.loads(pickle.dumps(of))]
)
@pytest.mark.parametrize("make", [lambda graph: graph, to_dgl])
def test_copies_draw_the_same_whatever_order_the_rows_have(part, duplicate, make):
    """DGL orders the rows of a graph's copy anew, and draws are places in rows."""
    loader = ours(make(part), torch.arange(N), SAMPLER, batch_size=50, seed=0)
    again = duplicate(loader)
    for (input_nodes, _, blocks), (inputs, _, copied) in zip(loader, again, strict=True):
        assert torch.equal(input_nodes, inputs)
        assert all(
            torch.equal(a.edata[dgl.EID], b.edata[dgl.EID])
            for a, b in zip(blocks, copied, strict=True)
        )


def test_seeds_outside_the_graph_are_refused():
    with pytest.raises(IndexError, match=r"indices must be in \[0, 300\), got 300"):
        ours(random_graph(), torch.tensor([N]), NeighborSampler([2]))
