"""Layers on what ``trim_to_layer`` leaves of a batch give what they give on all of it."""

import copy

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GATConv, HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer

from pagraph.pyg import NeighborLoader

ETYPES = [("u", "r", "v"), ("v", "s", "v"), ("v", "t", "u")]


def outputs(layers, batch, x, edge_index, *, trimmed, hetero=False):
    for number, layer in enumerate(layers):
        if trimmed:
            nodes = batch.num_sampled_nodes_dict if hetero else batch.num_sampled_nodes
            edges = batch.num_sampled_edges_dict if hetero else batch.num_sampled_edges
            x, edge_index, _ = trim_to_layer(number, nodes, edges, x, edge_index)
        x = layer(x, edge_index)
    return x


@pytest.mark.every
@pytest.mark.parametrize("options", [{}, {"replace": True}, {"disjoint": True}])
@pytest.mark.parametrize("num_neighbors", [[3, 2, 4], [-1, -1], [2, 0]])
@pytest.mark.parametrize("layer", [SAGEConv, GATConv])
def test_one_type(layer, num_neighbors, options):
    generator = torch.Generator().manual_seed(1)
    x, edge_index = (
        torch.randn(80, 6, generator=generator),
        torch.randint(80, (2, 400), generator=generator),
    )
    torch.manual_seed(0)
    layers = [layer(6, 6) for _ in num_neighbors]
    data = Data(x=x, edge_index=edge_index)
    seeds = torch.tensor([4, 4, *range(30)])  # one of them twice
    for batch in NeighborLoader(data, num_neighbors, input_nodes=seeds, batch_size=8, **options):
        whole = outputs(layers, batch, batch.x, batch.edge_index, trimmed=False)
        trimmed = outputs(layers, batch, batch.x, batch.edge_index, trimmed=True)
        assert torch.allclose(trimmed[: batch.batch_size], whole[: batch.batch_size], atol=1e-5)
        assert len(trimmed) < len(whole) or batch.num_nodes == sum(batch.num_sampled_nodes[:2])


@pytest.mark.parametrize("options", [{}, {"replace": True}, {"disjoint": True}])
def test_several_types(options):
    generator = torch.Generator().manual_seed(2)
    data, counts = HeteroData(), {"u": 40, "v": 60}
    for t, n in counts.items():
        data[t].x = torch.randn(n, 6, generator=generator)
    for s, r, d in ETYPES:
        ends = [torch.randint(counts[t], (250,), generator=generator) for t in (s, d)]
        data[s, r, d].edge_index = torch.stack(ends)
    torch.manual_seed(0)
    first = HeteroConv({etype: SAGEConv(6, 6) for etype in ETYPES})
    layers = [first, copy.deepcopy(first)]
    for batch in NeighborLoader(data, [3, 2], input_nodes="v", batch_size=10, **options):
        whole = outputs(
            layers, batch, batch.x_dict, batch.edge_index_dict, trimmed=False, hetero=True
        )
        trimmed = outputs(
            layers, batch, batch.x_dict, batch.edge_index_dict, trimmed=True, hetero=True
        )
        size = batch["v"].batch_size
        assert torch.allclose(trimmed["v"][:size], whole["v"][:size], atol=1e-5)
        assert len(trimmed["v"]) < len(whole["v"])
