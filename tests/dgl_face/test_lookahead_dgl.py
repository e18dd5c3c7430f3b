"""DGL's loader looks ahead over features in files: vertices and edges, with the batches of features
in memory."""

import numpy as np
import pytest
import torch

import pagraph.engine.engine as engine
from pagraph.dgl import DataLoader
from pagraph.graph.mapped import map_npy

dgl = pytest.importorskip("dgl")

NUM_NODES, NUM_EDGES = 3000, 20_000


def make_graph(feat, weight):
    src, dst = np.random.default_rng(0).integers(0, NUM_NODES, (2, NUM_EDGES))
    graph = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=NUM_NODES)
    graph.ndata["feat"], graph.edata["w"] = feat, weight
    return graph


def node_wise(graph, **options):
    sampler = dgl.dataloading.NeighborSampler(
        [4, 3], prefetch_node_feats=["feat"], prefetch_edge_feats=["w"]
    )
    loader = DataLoader(
        graph,
        torch.arange(0, NUM_NODES, 3),
        sampler,
        batch_size=100,
        shuffle=True,
        seed=1,
        **options,
    )
    return loader, [
        (
            ids.tolist(),
            blocks[0].srcdata["feat"].numpy().tobytes(),
            blocks[1].edata["w"].numpy().tobytes(),
        )
        for ids, _, blocks in loader
    ]


def edge_wise(graph, **options):
    inner = dgl.dataloading.NeighborSampler([4, 3], prefetch_node_feats=["feat"])
    negatives = dgl.dataloading.negative_sampler.Uniform(2)
    sampler = dgl.dataloading.as_edge_prediction_sampler(
        inner, negative_sampler=negatives, prefetch_labels=["w"]
    )
    loader = DataLoader(
        graph, torch.arange(0, NUM_EDGES, 9), sampler, batch_size=200, seed=1, **options
    )
    return loader, [
        (
            ids.tolist(),
            blocks[0].srcdata["feat"].numpy().tobytes(),
            positive.edata["w"].numpy().tobytes(),
        )
        for ids, positive, _, blocks in loader
    ]


class Own(dgl.dataloading.ShaDowKHopSampler):
    """A sampler of the user's own."""

    def sample(self, g, seed_nodes, exclude_eids=None):
        return super().sample(g, seed_nodes, exclude_eids)


def subgraphs(graph, **options):
    sampler = dgl.dataloading.ShaDowKHopSampler(
        [3, 2], prefetch_node_feats=["feat"], prefetch_edge_feats=["w"]
    )
    loader = DataLoader(
        graph, torch.arange(0, NUM_NODES, 20), sampler, batch_size=50, seed=1, **options
    )
    return loader, [
        (ids.tolist(), batch.ndata["feat"].numpy().tobytes(), batch.edata["w"].numpy().tobytes())
        for ids, _, batch in loader
    ]


def foreign(graph, **options):
    sampler = Own([3], prefetch_node_feats=["feat"])
    loader = DataLoader(
        graph, torch.arange(0, NUM_NODES, 20), sampler, batch_size=50, seed=1, **options
    )
    return loader, [batch.ndata["feat"].equal(graph.ndata["feat"][ids]) for ids, _, batch in loader]


@pytest.mark.every
@pytest.mark.parametrize("run", [node_wise, edge_wise, subgraphs, foreign])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_batches_are_those_of_memory(cold_file, monkeypatch, run, share):
    monkeypatch.setattr(engine, "MAPPED_SHARE", share)
    rng = np.random.default_rng(1)
    feat, weight = (
        rng.random((NUM_NODES, 64), dtype=np.float32),
        rng.random((NUM_EDGES, 33), dtype=np.float32),
    )
    _, expected = run(make_graph(torch.from_numpy(feat), torch.from_numpy(weight)), lookahead=0)
    graph = make_graph(map_npy(cold_file("feat", feat)), map_npy(cold_file("w", weight)))
    loader, got = run(graph, lookahead=4, cache=0)
    assert got == expected
    if run is not foreign:
        assert loader.stats.total.counts["window_rows"] > 0
