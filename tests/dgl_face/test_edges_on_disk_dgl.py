"""A graph whose edges are on disk in the DGL face: the same batches, and no structure of DGL's
own."""

import copy
import pickle

import pytest
import torch
from cases import dgl, ours

from pagraph import CSC, Graph
from pagraph.datasets import rmat
from pagraph.datasets.native import write_graph
from pagraph.dgl.convert import dgl_graph
from pagraph.graph import csc_pages

pytestmark = pytest.mark.usefixtures("no_threads_left")

SAMPLERS = {
    "neighbours": dgl.dataloading.NeighborSampler(
        [4, 3], prefetch_node_feats=["feat"], prefetch_labels=["label"]
    ),
    "labor": dgl.dataloading.LaborSampler([4, 3]),
    "all": dgl.dataloading.MultiLayerFullNeighborSampler(1),
    "weighted": dgl.dataloading.NeighborSampler([4, 3], prob="w", prefetch_edge_feats=["w"]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    graph = rmat(10, num_features=8, num_classes=3)
    graph.set_field("w", torch.rand(graph.num_edges), edge_type=graph.edge_types[0])
    path = tmp_path_factory.mktemp("dgl") / "graph"
    write_graph(graph, path)
    return path


@pytest.fixture
def on_disk(folder, monkeypatch):
    monkeypatch.setattr(csc_pages, "LEAST_BYTES", 1)
    graph = Graph.open(folder)
    if graph.csc.disk_pages is None:
        pytest.skip("needs temporary files on a disk")
    return graph


def in_memory(graph):
    csc = graph.csc
    copied = CSC(csc.indptr.clone(), csc.indices.clone(), csc.num_src)
    assert copied.disk_pages is None
    return Graph(copied, ndata=graph.ndata, edata=graph.edata)


def batches(loader):
    found = []
    for *ends, blocks in loader:
        columns = [
            blocks[0].srcdata.get("feat"),
            blocks[-1].dstdata.get("label"),
            blocks[0].edata.get("w"),
        ]
        edges = [torch.stack(block.edges()) for block in blocks]
        found.append([*[e for e in ends if isinstance(e, torch.Tensor)], *edges, *columns])
        found[-1] += [block.edata[dgl.EID] for block in blocks if dgl.EID in block.edata]
    return found


def same(one, other):
    assert len(one) == len(other) > 0
    for batch, twin in zip(one, other, strict=True):
        for a, b in zip(batch, twin, strict=True):
            assert (a is None and b is None) or torch.equal(a, b)


@pytest.mark.every
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", SAMPLERS)
def test_batches_equal_those_from_memory_without_a_structure(on_disk, name, workers):
    arguments = {"batch_size": 50, "num_workers": workers, "seed": 0, "shuffle": True}
    expected = batches(ours(in_memory(on_disk), torch.arange(400), SAMPLERS[name], **arguments))
    loader = ours(on_disk, torch.arange(400), SAMPLERS[name], **arguments)
    same(batches(loader), expected)
    assert loader.graph._structure is None


def test_edge_wise_batches_equal_those_from_memory(on_disk):
    sampler = dgl.dataloading.as_edge_prediction_sampler(
        SAMPLERS["neighbours"],
        exclude="self",
        negative_sampler=dgl.dataloading.negative_sampler.Uniform(2),
    )
    arguments = {"batch_size": 50, "num_workers": 1, "seed": 0, "shuffle": True}
    graphs = in_memory(on_disk), on_disk
    expected, got = (batches(ours(g, torch.arange(400), sampler, **arguments)) for g in graphs)
    same(got, expected)
    assert dgl_graph(on_disk)._structure is None


def test_whatever_else_is_asked_for_makes_the_structure(on_disk):
    graph, memory = dgl_graph(on_disk), dgl_graph(in_memory(on_disk))
    assert (graph.num_nodes(), graph.num_nodes("_N"), graph.num_edges(), graph.num_edges("_E")) == (
        *(memory.num_nodes(), memory.num_nodes()),
        *(memory.num_edges(), memory.num_edges()),
    )
    assert (graph.idtype, graph.device, graph.is_pinned()) == (
        torch.int64,
        torch.device("cpu"),
        False,
    )
    assert graph._structure is None
    assert torch.equal(graph.in_degrees(), memory.in_degrees())
    assert graph._structure is not None
    assert graph.num_edges() == memory.num_edges()


def test_copies_are_plain_graphs(on_disk):
    graph = dgl_graph(on_disk)
    clone = graph.clone()
    for other in (pickle.loads(pickle.dumps(graph)), copy.deepcopy(graph), clone):
        assert type(other) is dgl.DGLGraph or other is clone
        assert torch.equal(other.ndata["feat"], graph.ndata["feat"])
        assert other.num_edges() == graph.num_edges()
        assert torch.equal(other.in_degrees(), graph.in_degrees())


def test_added_edges_are_sampled(on_disk):
    graph = dgl_graph(on_disk)
    lonely = int((graph.in_degrees() == 0).nonzero()[0])
    graph.add_edges(torch.tensor([5]), torch.tensor([lonely]))
    assert graph.num_edges() == on_disk.num_edges + 1
    loader = ours(graph, torch.tensor([lonely]), SAMPLERS["all"], batch_size=1)
    assert next(iter(loader))[0].tolist() == [lonely, 5]


def test_a_sampler_of_the_users_own_gets_dgls_graph(on_disk):
    class Own(dgl.dataloading.Sampler):
        def sample(self, g, ids):
            return g.in_degrees(ids)

    got = next(iter(ours(on_disk, torch.arange(5), Own(), batch_size=5)))
    assert got.tolist() == on_disk.in_degrees()[:5].tolist()
