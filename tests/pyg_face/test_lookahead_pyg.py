"""PyG's loaders look ahead over attributes in files, with the batches of attributes in memory."""

import numpy as np
import pytest
import torch

import pagraph.engine.engine as engine
from pagraph.graph.mapped import map_npy

pytest.importorskip("torch_geometric")
from torch_geometric.data import Data, HeteroData

from pagraph.pyg import LinkNeighborLoader, NeighborLoader

NUM_NODES, NUM_EDGES = 3000, 20_000
RELATION = ("a", "to", "a")


def edges():
    return torch.from_numpy(np.random.default_rng(0).integers(0, NUM_NODES, (2, NUM_EDGES)))


def nodes(x, **options):
    data = Data(x=x, edge_index=edges(), y=torch.arange(NUM_NODES))
    seeds = torch.arange(0, NUM_NODES, 3)
    return NeighborLoader(data, [4, 3], input_nodes=seeds, batch_size=100, shuffle=True, **options)


def links(x, **options):
    data = Data(x=x, edge_index=edges())
    ends = edges()[:, ::11]
    return LinkNeighborLoader(
        data, [4, 3], edge_label_index=ends, neg_sampling_ratio=1.0, batch_size=200, **options
    )


def types(x, **options):
    data = HeteroData()
    data["a"].x, data[RELATION].edge_index = x, edges()
    return NeighborLoader(
        data, [4, 3], input_nodes=("a", torch.arange(0, NUM_NODES, 5)), batch_size=100, **options
    )


@pytest.mark.every
@pytest.mark.parametrize("make", [nodes, links, types])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_batches_are_those_of_memory(cold_file, monkeypatch, make, share):
    monkeypatch.setattr(engine, "MAPPED_SHARE", share)
    x = np.random.default_rng(1).random((NUM_NODES, 64), dtype=np.float32)

    def bits(loader):
        stores = [batch["a"] if make is types else batch for batch in loader]
        return [(store.n_id.tolist(), store.x.numpy().tobytes()) for store in stores]

    expected = bits(make(torch.from_numpy(x), seed=1, lookahead=0))
    loader = make(map_npy(cold_file("x", x)), seed=1, lookahead=4, cache=0)
    assert bits(loader) == expected
    assert loader.stats.total.counts["window_rows"] > 0
