"""A sampler of another face: one TypeError in the constructor, naming the loader that takes it."""

import pytest
import torch

pytest.importorskip("pagraph.dgl")
pytest.importorskip("pagraph.pyg")

import dgl
import torch_geometric.sampler
from torch_geometric.data import Data

import pagraph
import pagraph.dgl
import pagraph.pyg

ENDS = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3])
DATA = Data(edge_index=torch.stack(ENDS), num_nodes=4)

LOADERS = {
    "pagraph": lambda sampler: pagraph.Loader(pagraph.Graph.from_coo(*ENDS), [3, 1], sampler),
    "dgl": lambda sampler: pagraph.dgl.DataLoader(dgl.graph(ENDS), torch.tensor([2, 1]), sampler),
    "pyg": lambda sampler: pagraph.pyg.NeighborLoader(
        DATA, [2], input_nodes=[3, 1], neighbor_sampler=sampler
    ),
    "pyg links": lambda sampler: pagraph.pyg.LinkNeighborLoader(
        DATA, [2], neighbor_sampler=sampler
    ),
}
SAMPLERS = {
    "pagraph": [
        lambda: pagraph.NeighborSampler([2]),
        lambda: pagraph.sampling.LaborSampler([2]),
        lambda: pagraph.sampling.LayerSampler([2]),
    ],
    "dgl": [
        lambda: dgl.dataloading.NeighborSampler([2]),
        lambda: dgl.dataloading.as_edge_prediction_sampler(dgl.dataloading.NeighborSampler([2])),
        lambda: pagraph.dgl.LayerSampler([2]),
    ],
    "pyg": [lambda: pagraph.pyg.NeighborSampler(DATA, [2])],
}
TAKEN_BY = {
    "pagraph": "pagraph.Loader",
    "dgl": "pagraph.dgl.DataLoader",
    "pyg": "pagraph.pyg.NeighborLoader",
}
RULES = {
    "pagraph": "sampler must be a pagraph sampler of blocks, such as NeighborSampler",
    "dgl": r"graph_sampler must be a DGL sampler or have DGL's sample\(graph, indices\)",
    "pyg": r"neighbor_sampler must be a BaseSampler with sample_from_nodes\(\)",
    "pyg links": r"neighbor_sampler must be a BaseSampler with sample_from_edges\(\)",
}


@pytest.mark.parametrize("samplers", SAMPLERS)
@pytest.mark.parametrize("loader", LOADERS)
def test_sampler_of_another_face(loader, samplers):
    for make in SAMPLERS[samplers]:
        sampler = make()
        if loader.startswith(samplers):
            assert len(list(LOADERS[loader](sampler))) > 0
            continue
        with pytest.raises(
            TypeError,
            match=RULES[loader] + f", got .*{type(sampler).__name__}.*{TAKEN_BY[samplers]}",
        ):
            LOADERS[loader](sampler)


@pytest.mark.parametrize("loader", LOADERS)
def test_sampler_without_blocks(loader):
    with pytest.raises(
        TypeError, match=RULES[loader] + ", got SubgraphSampler: this one makes no blocks"
    ):
        LOADERS[loader](pagraph.sampling.SubgraphSampler([2]))


def test_pygs_own_sampler_in_dgls_loader():
    # Its constructor warns without pyg-lib.
    sampler = object.__new__(torch_geometric.sampler.NeighborSampler)
    with pytest.raises(
        TypeError, match=RULES["dgl"] + ", got NeighborSampler: PyG's samplers are for pagraph.pyg"
    ):
        LOADERS["dgl"](sampler)
    with pytest.raises(
        TypeError,
        match=RULES["pagraph"] + ", got NeighborSampler: PyG's samplers are for pagraph.pyg",
    ):
        LOADERS["pagraph"](sampler)


def test_class_in_place_of_a_sampler():
    with pytest.raises(
        TypeError, match=RULES["dgl"] + ", got NeighborSampler: .* for pagraph.Loader"
    ):
        LOADERS["dgl"](pagraph.NeighborSampler)
    with pytest.raises(
        TypeError, match=RULES["pyg"] + ", got 'NeighborSampler': .* for pagraph.Loader"
    ):
        LOADERS["pyg"](pagraph.NeighborSampler)


def test_subclass_with_dgls_sample():
    class Adapted(pagraph.pyg.NeighborSampler):
        def sample(self, graph, indices):
            return indices

    assert [seeds.tolist() for seeds in LOADERS["dgl"](Adapted(DATA, [2]))] == [[2], [1]]
