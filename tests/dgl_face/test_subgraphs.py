"""Subgraphs as DGL's, of any sampler; samplers that run their own ``sample``, and LazyFeatures in
what they return."""

import numpy as np
import pytest
import torch
from cases import collect, dgl, make_graph, ours, theirs
from comparing import assert_parents_rows, assert_same_columns
from pairwise import pairwise
from worlds import BUYS, make_world, mapped

pytestmark = pytest.mark.usefixtures("no_threads_left", "one_dgl_thread", "fresh_worlds")

d = dgl.dataloading


class Induced(d.Sampler):
    """A sampler of the user's own: the subgraph of the batch's vertices."""

    def __init__(self, columns=None):
        self.columns = columns

    def sample(self, g, indices):
        sub = g.subgraph(indices)
        if self.columns:
            d.set_node_lazy_features(sub, self.columns)
        return sub


class Subclass(d.NeighborSampler):
    """A neighbour sampler that the user has changed."""

    def sample_blocks(self, g, seeds, exclude_eids=None):
        return super().sample_blocks(g, seeds.flip(0), exclude_eids)


class OwnShaDow(d.ShaDowKHopSampler):
    """A sampler that the user has changed: to DGL's own code."""

    def sample(self, g, seed_nodes, exclude_eids=None):
        return super().sample(g, seed_nodes, exclude_eids)


class OwnSAINT(d.SAINTSampler):
    """Like the one above."""

    def sample(self, g, indices):
        return super().sample(g, indices)


CHANGED = {
    "own saint": lambda graph, names, path: OwnSAINT("node", 40, prefetch_ndata=names),
    "own shadow": lambda graph, names, path: OwnShaDow([3, 2], prefetch_node_feats=names),
    "user's": lambda graph, names, path: Induced(names),
    "subclass": lambda graph, names, path: Subclass([2, 3], fused=False, prefetch_node_feats=names),
}
SAMPLERS = CHANGED | {
    "cluster": lambda graph, names, path: d.ClusterGCNSampler(
        graph, 6, str(path / "parts"), prefetch_ndata=names
    ),
    "saint node": lambda graph, names, path: d.SAINTSampler("node", 40, prefetch_ndata=names),
    "saint edge": lambda graph, names, path: d.SAINTSampler("edge", 40, prefetch_ndata=names),
    "saint walk": lambda graph, names, path: d.SAINTSampler("walk", (10, 3), prefetch_ndata=names),
    "shadow": lambda graph, names, path: d.ShaDowKHopSampler([3, 2], prefetch_node_feats=names),
    "shadow, all": lambda graph, names, path: d.ShaDowKHopSampler(
        [-1], replace=False, prefetch_node_feats=names
    ),
}
# ClusterGCNSampler hands tensors to NumPy and leaves a file open.
noisy = [
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    ),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
]


def by_sampler(names):
    return pytest.mark.parametrize(
        "name", [pytest.param(n, marks=noisy if n == "cluster" else []) for n in names]
    )


def graph_and_sampler(name, folder, prefetch=("feat",)):
    graph = dgl.to_bidirected(make_graph(), copy_ndata=True)
    graph.edata["w"] = torch.randn(graph.num_edges())
    graph.ndata["feat"] = mapped(graph.ndata["feat"])
    return (
        graph,
        SAMPLERS[name](graph, list(prefetch), folder),
        torch.arange(6 if name == "cluster" else 60),
    )


def graphs_in(item):
    parts = item if isinstance(item, tuple | list) else [item]
    return [
        g
        for part in parts
        for g in (part if isinstance(part, list) else [part])
        if isinstance(g, dgl.DGLGraph)
    ]


@by_sampler([*CHANGED, "cluster"])
def test_batches_equal_dgls(name, tmp_path):
    """Chance included: without workers a user's sampler runs in the caller's thread and draws the
    same numbers."""
    graph, sampler, ids = graph_and_sampler(name, tmp_path)
    results = []
    for make in (ours, theirs):
        dgl.seed(1), torch.manual_seed(1), np.random.seed(1)
        results.append(collect(make(graph, ids, sampler, batch_size=len(ids) // 3)))
    assert len(results[0]) == len(results[1]) == 3
    for mine, reference in zip(*results, strict=True):
        assert type(mine) is type(reference)
        if isinstance(mine, tuple):
            assert torch.equal(mine[0], reference[0]) and torch.equal(mine[1], reference[1])
        for my_graph, expected in zip(graphs_in(mine), graphs_in(reference), strict=True):
            assert (
                my_graph.num_edges() == expected.num_edges()
                and my_graph.is_block == expected.is_block
            )
            assert all(map(torch.equal, my_graph.edges(order="eid"), expected.edges(order="eid")))
            assert_same_columns(graph.edata, my_graph.edata, expected.edata, dgl.EID)
            assert torch.equal(my_graph.edata[dgl.EID], expected.edata[dgl.EID])
            assert_same_columns(graph.ndata, my_graph.srcdata, expected.srcdata, dgl.NID)
            assert torch.equal(my_graph.srcdata[dgl.NID], expected.srcdata[dgl.NID])


OPTIONS = pairwise(
    cache=[0, "1%", 1.0], prefetch=[0, 1, 4], num_workers=[0, 2], columns=[(), ("feat", "label")]
)


@pytest.mark.many
@by_sampler(SAMPLERS)
def test_values_with_any_cache_depth_and_workers(name, tmp_path):
    for options in OPTIONS:
        columns, only_ours = (
            options["columns"],
            {k: v for k, v in options.items() if k != "columns"},
        )
        graph, sampler, ids = graph_and_sampler(name, tmp_path, columns)
        batches = list(ours(graph, ids, sampler, batch_size=len(ids) // 3, **only_ours))
        assert len(batches) == 3
        for item in batches:
            for sub in graphs_in(item):
                assert_parents_rows(graph.ndata, sub.srcdata, dgl.NID)
                assert_parents_rows(graph.edata, sub.edata, dgl.EID)


def test_saint_keeps_to_its_budget():
    graph = dgl.to_bidirected(make_graph())
    for mode, budget, most in (("node", 40, 40), ("edge", 40, 80), ("walk", (10, 3), 40)):
        for sub in ours(graph, torch.arange(12), d.SAINTSampler(mode, budget), batch_size=3):
            ids = sub.ndata[dgl.NID]
            assert 0 < len(ids) <= most and len(ids.unique()) == len(ids)
            assert sub.num_edges() == graph.subgraph(ids).num_edges()


def test_lazy_features_under_other_names_and_as_leaves():
    graph = make_graph()
    extra = torch.randn(graph.num_nodes(), 2)

    class Lazy(d.Sampler):
        def sample(self, g, indices):
            sub = dgl.node_subgraph(g, indices)
            sub.ndata["x"] = dgl.LazyFeature("feat")
            sub.ndata["y"] = dgl.LazyFeature("label", sub.ndata[dgl.NID].flip(0))
            return sub, dgl.LazyFeature("extra", indices)

    loader = ours(graph, torch.arange(20), Lazy(), batch_size=10)
    loader.attach_data("extra", extra)
    for sub, leaf in loader:
        ids = sub.ndata[dgl.NID]
        assert torch.equal(sub.ndata["x"], graph.ndata["feat"][ids])
        assert torch.equal(sub.ndata["y"], graph.ndata["label"][ids.flip(0)])
        assert torch.equal(leaf, extra[ids])


@pytest.mark.parametrize("future", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_storages_of_the_users_own(future, num_workers):
    """``attach_data`` takes any FeatureStorage; what ``fetch`` returns may be waited for."""

    class Later:
        def __init__(self, rows):
            self.rows = rows

        def wait(self):
            return self.rows

    class Squares(dgl.storages.FeatureStorage):
        def fetch(self, indices, device, pin_memory=False, **kwargs):
            rows = (indices**2).to(device)
            return Later(rows) if future else rows

    class Ids(d.Sampler):
        def sample(self, g, indices):
            return {"ids": indices, "squares": [dgl.LazyFeature("squares", indices)]}

    loader = ours(make_graph(), torch.arange(20), Ids(), batch_size=6, num_workers=num_workers)
    loader.attach_data("squares", Squares())
    assert [item["squares"][0].tolist() for item in loader] == [
        [i * i for i in range(low, min(low + 6, 20))] for low in range(0, 20, 6)
    ]


@pytest.mark.parametrize("prefetch", [0, 4])
@pytest.mark.parametrize("shape", ["homogeneous", "heterograph"])
def test_lazy_features_that_a_sampler_sets_by_place(shape, prefetch):
    """``set_src/dst/node/edge_lazy_features`` on blocks and on subgraphs."""
    graph = make_world(shape).graph
    homogeneous = shape == "homogeneous"
    nodes, edges = (
        (["feat"], ["w"]) if homogeneous else ({"user": ["feat"], "item": ["feat"]}, {BUYS: ["w"]})
    )
    labels = ["label"] if homogeneous else {"user": ["label"]}

    class Both(d.Sampler):
        def sample(self, g, indices):
            block = dgl.to_block(g.in_subgraph(indices), indices)
            frontier = g.in_subgraph(indices)
            for etype in g.canonical_etypes:
                block.edges[etype].data[dgl.EID] = frontier.edges[etype].data[dgl.EID]
            d.set_src_lazy_features(block, nodes)
            d.set_dst_lazy_features(block, labels)
            d.set_edge_lazy_features(block, edges)
            sub = g.subgraph(indices)
            d.set_node_lazy_features(sub, nodes)
            d.set_edge_lazy_features(sub, edges)
            return block, sub

    ids = torch.arange(30) if homogeneous else {"user": torch.arange(20), "item": torch.arange(12)}
    for block, sub in ours(graph, ids, Both(), batch_size=8, prefetch=prefetch, cache=1.0):
        for ntype in ("_N",) if homogeneous else ("user", "item"):
            parent = graph.nodes[ntype].data
            src, dst, all_ = (
                block.srcnodes[ntype].data,
                block.dstnodes[ntype].data,
                sub.nodes[ntype].data,
            )
            assert torch.equal(src["feat"], parent["feat"][src[dgl.NID]])
            assert torch.equal(all_["feat"], parent["feat"][all_[dgl.NID]])
            assert torch.equal(dst["label"], parent["label"][dst[dgl.NID]])
        etype = "_E" if homogeneous else "buys"
        for part in (block.edges[etype].data, sub.edges[etype].data):
            assert torch.equal(part["w"], graph.edges[etype].data["w"][part[dgl.EID]])


def test_lazy_features_without_ids_or_column():
    graph = make_graph()

    class NoIds(d.Sampler):
        def sample(self, g, indices):
            fresh = dgl.graph(([0], [1]))
            fresh.ndata["feat"] = dgl.LazyFeature("feat")
            return fresh

    with pytest.raises(dgl.DGLError, match="must have ids"):
        list(ours(graph, torch.arange(3), NoIds()))
    for sampler in (
        d.NeighborSampler([2], prefetch_node_feats=["nope"]),
        d.LaborSampler([2], prefetch_labels=["nope"]),
        d.ShaDowKHopSampler([2], prefetch_node_feats=["nope"]),
        Induced(["nope"]),
    ):
        with pytest.raises(KeyError, match="nope"):
            list(ours(graph, torch.arange(3), sampler))
