"""What loaders, graphs and batches show of themselves, and what errors say of a wrong name or of
another library's graph."""

import networkx
import numpy as np
import pytest
import scipy.sparse
import torch

# First: makes DGL importable whatever torch is installed.
pytest.importorskip("pagraph.dgl")
pytest.importorskip("pagraph.pyg")

import dgl
from torch_geometric.data import Data

import pagraph.dgl
import pagraph.pyg
from pagraph import Graph, Loader, NeighborSampler
from pagraph.graph.fields import Named
from pagraph.pyg import NeighborLoader


@pytest.fixture
def graph():
    fields = {"feat": torch.eye(4), "label": torch.arange(4)}
    return Graph.from_coo([0, 1, 2, 3], [1, 2, 3, 0], ndata=fields)


def test_a_graph_shows_its_fields(graph):
    fields = "feat: float32 [4, 4], label: int64 [4]"
    assert repr(graph) == f"Graph(num_nodes=4, num_edges=4, ids=int32, ndata={{{fields}}})"
    assert repr(graph.ndata) == f"Fields({fields})"
    assert repr(graph.csc) == "CSC(num_src=4, num_dst=4, num_edges=4, ids=int32)"


def test_hundreds_of_fields_are_cut(graph):
    for number in range(500):
        graph.ndata[f"field{number}"] = torch.zeros(4)
    assert len(repr(graph)) < 500 and "characters)" in repr(graph)


def test_loaders_show_batches_fields_and_cache(graph):
    loader = Loader(
        graph, [0, 1, 2], NeighborSampler([1]), fields=["feat"], batch_size=2, cache="1MiB"
    )
    assert repr(loader) == "Loader(2 batches of 2, fields: feat, cache: 1 MiB, device: cpu)"
    assert loader.stats.epochs == []
    batch = next(iter(loader))
    assert repr(batch).endswith(", features={feat: float32 [3, 4]})")
    data = Data(x=torch.eye(4), edge_index=torch.tensor([[0, 1], [1, 2]]))
    theirs = NeighborLoader(data, [1], batch_size=4, shuffle=True, cache=None)
    expected = "NeighborLoader(1 batches of 4, shuffled, fields: x, cache: none, device: cpu)"
    assert repr(theirs) == expected
    # PyG's own, which its users compare.
    assert str(theirs) == "NeighborLoader()"


def test_a_loader_whose_constructor_failed_has_a_repr(graph):
    class Early(NeighborLoader):
        def __init__(self):
            self.shown = repr(self)

    assert Early().shown == "Early()"


def test_a_wrong_name_says_which_there_are(graph):
    with pytest.raises(KeyError, match=r"one of \['feat', 'label'\], got 'fea'; did you mean 'f"):
        graph.ndata["fea"]
    with pytest.raises(KeyError, match=r"fields must be among .*, got 'lable'; did you mean 'lab"):
        Loader(graph, [0], NeighborSampler([1]), fields=["lable"])
    batch = next(iter(Loader(graph, [0], NeighborSampler([1]), fields=["feat"])))
    with pytest.raises(KeyError, match=r"field must be one of \['feat'\], got 'x'\""):
        batch.features["x"]
    assert "x" not in batch.features and batch.features.get("x") is None
    assert isinstance(batch.to("cpu").features, Named)
    with pytest.raises(KeyError, match="node_type must be one of .*, got 'paper'"):
        graph.node_fields("paper")


def test_columns_of_blocks_say_which_there_are(graph):
    sampler = dgl.dataloading.NeighborSampler([1], prefetch_node_feats=["feat"])
    loader = pagraph.dgl.DataLoader(pagraph.dgl.to_dgl(graph), torch.tensor([0]), sampler)
    _, _, (block,) = next(iter(loader))
    with pytest.raises(KeyError, match=r"field must be one of \['feat', 'label', '_ID'\], got 'f"):
        block.srcdata["feats"]


FOREIGN = {
    "from_pyg(data)": Data(x=torch.eye(2), edge_index=torch.tensor([[0], [1]])),
    "from_dgl(graph)": dgl.graph(([0], [1])),
    "from_networkx(graph)": networkx.path_graph(2),
    "from_scipy(matrix)": scipy.sparse.eye(2, format="csr"),
    "from_coo(src, dst) builds": np.zeros((2, 1)),
    "open(folder) opens": "graphs/one",
}


@pytest.mark.parametrize("takes", FOREIGN)
def test_another_librarys_graph_is_told_what_takes_it(takes):
    given = FOREIGN[takes]
    makers = {
        "from_pyg": Graph.from_pyg,
        "from_dgl": Graph.from_dgl,
        "from_networkx": Graph.from_networkx,
        "from_scipy": Graph.from_scipy,
        "Graph": Graph,
        "Loader": lambda graph: Loader(graph, [0], NeighborSampler([1])),
        "to_dgl": pagraph.dgl.to_dgl,
        "to_pyg": pagraph.pyg.to_pyg,
    }
    for name, make in makers.items():
        if takes.startswith(name):
            continue
        with pytest.raises(TypeError) as error:
            make(given)
        assert f"pagraph.Graph.{takes}" in str(error.value), name


def test_dgls_loader_names_pygs_for_a_data():
    sampler = dgl.dataloading.NeighborSampler([1])
    with pytest.raises(AttributeError, match=r"got Data: pagraph.pyg.NeighborLoader takes it"):
        pagraph.dgl.DataLoader(FOREIGN["from_pyg(data)"], [0], sampler)
