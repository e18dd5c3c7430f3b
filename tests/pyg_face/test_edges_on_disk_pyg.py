"""Edges on disk in the PyG face: a pair of stores whose edges are compressed in mapped files; the
same batches."""

import copy
import pickle

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from pagraph import CSC, Graph
from pagraph.datasets import rmat
from pagraph.datasets.native import write_graph
from pagraph.graph import csc_pages
from pagraph.pyg import LinkNeighborLoader, NeighborLoader, to_pyg


def stores(csc):
    """A pair of stores of one edge type, compressed by destination."""
    features, edges = MyFeatureStore(), MyGraphStore()
    features.put_tensor(
        torch.arange(csc.num_src).float()[:, None], group_name="v", attr_name="x", index=None
    )
    size = csc.num_src, csc.num_dst
    edges.put_edge_index(
        (csc.indices, csc.indptr), edge_type=("v", "to", "v"), layout="csc", size=size
    )
    return features, edges


@pytest.fixture
def csc(tmp_path, monkeypatch):
    monkeypatch.setattr(csc_pages, "LEAST_BYTES", 1)
    write_graph(rmat(10), tmp_path / "graph")
    csc = Graph.open(tmp_path / "graph").csc
    if csc.disk_pages is None:
        pytest.skip("needs temporary files on a disk")
    return csc


def batches(loader):
    found = []
    for batch in loader:
        vertices, edges = (
            (batch["v"], batch["v", "to", "v"]) if isinstance(batch, HeteroData) else (batch, batch)
        )
        found.append([vertices.n_id, vertices.x, edges.edge_index, edges.e_id])
    return found


@pytest.mark.parametrize("directed", [True, False])
def test_batches_of_stores_equal_those_from_memory(csc, directed):
    copied = plain(csc)
    found = []
    for edges in (copied, csc):
        loader = NeighborLoader(
            stores(edges),
            num_neighbors=[5, 3],
            input_nodes=("v", torch.arange(200)),
            batch_size=50,
            subgraph_type="directional" if directed else "induced",
        )
        pages = loader.node_sampler.graph.csc.disk_pages
        assert (pages is None) == (edges is copied)
        torch.manual_seed(0)
        found.append(batches(loader))
    for one, other in zip(*found, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_batches_of_links_equal_those_from_memory(csc):
    copied = plain(csc)
    pairs, found = torch.randint(0, 1024, (2, 100), generator=torch.Generator().manual_seed(0)), []
    for edges in (copied, csc):
        loader = LinkNeighborLoader(
            stores(edges),
            num_neighbors=[5, 3],
            edge_label_index=(("v", "to", "v"), pairs),
            neg_sampling_ratio=1.0,
            batch_size=50,
        )
        torch.manual_seed(0)
        found.append(batches(loader))
    for one, other in zip(*found, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def plain(csc):
    return CSC(csc.indptr.clone(), csc.indices.clone(), csc.num_src)


@pytest.fixture
def data(csc):
    return to_pyg(Graph(csc, ndata={"feat": torch.arange(1024).float()[:, None]}))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["directional", "induced"])
def test_batches_of_a_data_equal_those_from_memory_without_an_edge_index(csc, data, kind, workers):
    memory, found = to_pyg(Graph(plain(csc), ndata={"feat": data.x})), []
    assert type(memory.edge_index) is torch.Tensor
    for each in (memory, data):
        more = {"subgraph_type": kind, "num_workers": workers, "shuffle": True, "batch_size": 50}
        torch.manual_seed(0)
        found.append(
            batches(
                NeighborLoader(each, num_neighbors=[5, 3], input_nodes=torch.arange(200), **more)
            )
        )
    assert len(found[0]) == 4
    for one, other in zip(*found, strict=True):
        assert all(
            torch.equal(a, b) and type(b) is torch.Tensor for a, b in zip(one, other, strict=True)
        )
    assert (data.num_edges, data.num_nodes) == (csc.num_edges, 1024)
    assert "edge_index=[2, 16384]" in repr(data)
    assert data.edge_index._made is None


def test_whatever_reads_the_edge_index_makes_it(csc, data):
    expected = to_pyg(Graph(plain(csc))).edge_index
    assert torch.equal(data.edge_index, expected)
    assert data.edge_index.csc is csc
    assert data.validate()
    for other in (data.clone(), copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
        assert type(other.edge_index) is torch.Tensor
        assert torch.equal(other.edge_index, expected)
    assert torch.equal(data.edge_index[:, :7], expected[:, :7])


def test_an_edge_index_that_is_written_is_compressed_anew(data):
    vertex = int(data.edge_index[1, 0])
    data.edge_index[0] = 5
    assert data.edge_index.csc is None
    batch = next(iter(NeighborLoader(data, num_neighbors=[-1], input_nodes=torch.tensor([vertex]))))
    assert set(batch.n_id.tolist()) == {vertex, 5}


def test_an_edge_index_is_compressed_in_memory(csc):
    data = Data(
        x=torch.zeros(1024, 1),
        edge_index=torch.stack([csc.indices.long(), csc.destinations().long()]),
    )
    loader = NeighborLoader(data, num_neighbors=[2], batch_size=50)
    assert loader.node_sampler.graph.csc.disk_pages is None
