"""Columns that DGL has yet to gather: read without gathering them, and never other rows than DGL
would show."""

import threading

import numpy as np
import pytest
import torch
from cases import collect, dgl, make_graph, ours, theirs
from dgl.frame import Column

from pagraph.dgl.deferred import column_values, sub_column, waiting_rows
from pagraph.features import IndexedRows
from pagraph.graph.mapped import map_npy

pytestmark = pytest.mark.usefixtures("no_threads_left")

NeighborSampler = dgl.dataloading.NeighborSampler
FIELDS = {
    "prefetch_node_feats": ["feat"],
    "prefetch_labels": ["label"],
    "prefetch_edge_feats": ["w"],
}


def make_subgraph(depth=1):
    """A subgraph (of a subgraph), none of whose columns has been read, and what they hold."""
    whole = make_graph()
    graph, ids, eids = whole, torch.arange(whole.num_nodes()), torch.arange(whole.num_edges())
    for _ in range(depth):
        keep = torch.randperm(graph.num_nodes())[: 4 * graph.num_nodes() // 5]
        graph = dgl.node_subgraph(graph, keep, store_ids=True)
        ids, eids = ids[keep], eids[graph.edata[dgl.EID]]
    true = {name: whole.ndata[name][ids] for name in ("feat", "label")} | {
        "w": whole.edata["w"][eids]
    }
    return whole, graph, true


def is_waiting(graph, name="feat"):
    return graph._node_frames[0]._columns[name].index is not None


def seeds_of(graph):
    return torch.arange(graph.num_nodes())


def assert_batches(loader, true, eids=dgl.EID):
    count = 0
    for input_nodes, output_nodes, blocks in loader:
        assert torch.equal(blocks[0].srcdata["feat"], true["feat"][input_nodes])
        assert torch.equal(blocks[-1].dstdata["label"], true["label"][output_nodes])
        for block in blocks:
            assert torch.equal(block.edata["w"], true["w"][block.edata[eids]])
        assert torch.equal(blocks[-1].srcdata["feat"], true["feat"][blocks[-1].srcdata[dgl.NID]])
        count += 1
    assert count > 1


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_of_a_subgraph_read_through_its_index(depth, workers, prefetch):
    _, graph, true = make_subgraph(depth)
    sampler = NeighborSampler([4, 3], **FIELDS)
    loader = ours(
        graph, seeds_of(graph), sampler, batch_size=40, num_workers=workers, prefetch=prefetch
    )
    assert_batches(loader, true)
    assert is_waiting(graph) and is_waiting(graph, "label")
    assert graph._edge_frames[0]._columns["w"].index is not None


def test_batches_are_those_of_a_graph_whose_columns_were_read():
    _, graph, true = make_subgraph()
    gathered = graph.clone()
    assert torch.equal(gathered.ndata["feat"], true["feat"])
    sampler = NeighborSampler([4, 3], **FIELDS)
    loaders = [ours(g, seeds_of(g), sampler, batch_size=40, seed=3) for g in (graph, gathered)]
    for mine, other in zip(*loaders, strict=True):
        assert torch.equal(mine[0], other[0])
        assert torch.equal(mine[2][0].srcdata["feat"], other[2][0].srcdata["feat"])


def test_mapped_features_of_a_subgraph_are_cached(tmp_path):
    whole = make_graph()
    np.save(tmp_path / "x.npy", whole.ndata["feat"].numpy())
    whole.ndata["feat"] = map_npy(tmp_path / "x.npy")
    ids = torch.randperm(whole.num_nodes())[:150]
    graph = dgl.node_subgraph(whole, ids)
    true = whole.ndata["feat"][ids]
    loader = ours(
        graph,
        seeds_of(graph),
        NeighborSampler([4], prefetch_node_feats=["feat"]),
        batch_size=30,
        cache="40%",
    )
    for _ in range(2):
        for input_nodes, _, blocks in loader:
            assert torch.equal(blocks[0].srcdata["feat"], true[input_nodes])
    assert 0 < loader.stats.total.hit_rate < 1 and is_waiting(graph)
    assert "disk" in str(loader.cache_plan)


def test_what_the_user_reads_from_the_subgraph_is_dgls_own():
    """DGL gathers a column at the first read, and keeps it: from then on writes to the parent are
    not seen."""
    whole, graph, true = make_subgraph()
    loader = ours(
        graph, seeds_of(graph), NeighborSampler([4, 3], **FIELDS), batch_size=40, num_workers=2
    )
    for step, (input_nodes, _, blocks) in enumerate(loader):
        assert torch.equal(blocks[0].srcdata["feat"], true["feat"][input_nodes])
        if step == 1:
            assert torch.equal(graph.ndata["feat"], true["feat"]) and not is_waiting(graph)
            whole.ndata["feat"].zero_()
    for input_nodes, _, blocks in loader:
        assert torch.equal(blocks[0].srcdata["feat"], graph.ndata["feat"][input_nodes])
    assert torch.equal(graph.ndata["feat"], true["feat"])


@pytest.mark.parametrize("prefetch", [0, 4])
def test_a_write_to_the_parent_is_seen_as_long_as_the_column_waits(prefetch):
    whole, graph, _ = make_subgraph()
    ids = graph.ndata[dgl.NID]
    loader = ours(
        graph, seeds_of(graph), NeighborSampler([4], **FIELDS), batch_size=20, prefetch=prefetch
    )
    for input_nodes, _, blocks in loader:
        assert torch.equal(blocks[0].srcdata["feat"], whole.ndata["feat"][ids[input_nodes]])
        whole.ndata["feat"].add_(1)
    assert torch.equal(graph.ndata["feat"], whole.ndata["feat"][ids])


def test_a_column_replaced_in_the_subgraph_is_the_subgraphs():
    _, graph, _ = make_subgraph()
    loader = ours(graph, seeds_of(graph), NeighborSampler([4], **FIELDS), batch_size=20, prefetch=4)
    new = torch.randn(graph.num_nodes(), 2)
    for step, (input_nodes, _, blocks) in enumerate(loader):
        if step > 0:
            assert torch.equal(blocks[0].srcdata["feat"], new[input_nodes])
        graph.ndata["feat"] = new


@pytest.mark.many
def test_readers_in_other_threads_never_see_half_a_column():
    """While DGL gathers a column here, workers read it there."""
    for _ in range(10):
        _, graph, true = make_subgraph()
        loader = ours(
            graph,
            seeds_of(graph),
            NeighborSampler([2], **FIELDS),
            batch_size=5,
            num_workers=2,
            prefetch=4,
        )
        batches = iter(loader)
        first = next(batches)
        reader = threading.Thread(target=lambda graph=graph: graph.ndata["feat"].sum())
        reader.start()
        for input_nodes, _, blocks in [first, *batches]:
            assert torch.equal(blocks[0].srcdata["feat"], true["feat"][input_nodes])
        reader.join()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_samplers_own_sample_of_a_subgraph(workers):
    _, graph, true = make_subgraph()

    class Induced(dgl.dataloading.Sampler):
        def sample(self, g, indices):
            sub = dgl.node_subgraph(g, indices)
            sub.ndata["label"] = dgl.frame.LazyFeature("label", sub.ndata[dgl.NID])
            return sub

    for sub in ours(graph, seeds_of(graph), Induced(), batch_size=40, num_workers=workers):
        ids = sub.ndata[dgl.NID]
        assert torch.equal(sub.ndata["label"], true["label"][ids])
        assert torch.equal(sub.ndata["feat"], true["feat"][ids])
        assert torch.equal(sub.edata["w"], true["w"][sub.edata[dgl.EID]])
    # DGL's columns cannot be looked at and gathered at once.
    assert is_waiting(graph) == (workers == 0)


def test_a_samplers_own_sample_that_reads_the_column():
    _, graph, true = make_subgraph()

    class Reads(dgl.dataloading.Sampler):
        def sample(self, g, indices):
            before = dgl.node_subgraph(g, indices)
            assert torch.equal(g.ndata["feat"], true["feat"])
            return before, dgl.node_subgraph(g, indices)

    for pair in ours(graph, seeds_of(graph), Reads(), batch_size=40):
        for sub in pair:
            assert torch.equal(sub.ndata["feat"], true["feat"][sub.ndata[dgl.NID]])


def test_weights_of_a_subgraph_are_gathered_for_the_sampler():
    _, graph, true = make_subgraph()
    sampler = NeighborSampler([4, 3], prob="w1", **FIELDS)
    graph.edata["w1"] = torch.rand(graph.num_edges())
    half = dgl.edge_subgraph(graph, torch.arange(graph.num_edges()), relabel_nodes=False)
    waits = half._edge_frames[0]._columns["w1"].index is not None
    loaders = [ours(g, seeds_of(g), sampler, batch_size=40, seed=1) for g in (graph, half)]
    for mine, reference in zip(*loaders, strict=True):
        assert torch.equal(mine[0], reference[0])
    assert waits and half._edge_frames[0]._columns["w1"].index is None


def test_edge_batches_of_a_subgraph():
    _, graph, true = make_subgraph()
    sampler = dgl.dataloading.as_edge_prediction_sampler(
        NeighborSampler([3], prefetch_node_feats=["feat"]), prefetch_labels=["w"]
    )
    for input_nodes, pair_graph, blocks in ours(graph, torch.arange(200), sampler, batch_size=50):
        assert torch.equal(blocks[0].srcdata["feat"], true["feat"][input_nodes])
        assert torch.equal(pair_graph.edata["w"], true["w"][pair_graph.edata[dgl.EID]])
        assert torch.equal(pair_graph.ndata["label"], true["label"][pair_graph.ndata[dgl.NID]])


def test_columns_that_also_wait_to_be_converted_are_gathered():
    _, graph, true = make_subgraph()
    half = dgl.node_subgraph(graph, graph.nodes())
    half._node_frames[0] = half._node_frames[0].half()  # what dgl.to_half does, where DGL has it
    loader = ours(
        half, seeds_of(half), NeighborSampler([3], prefetch_node_feats=["feat"]), batch_size=40
    )
    for input_nodes, _, blocks in loader:
        assert torch.equal(blocks[0].srcdata["feat"], true["feat"].half()[input_nodes])


def test_dgls_loader_gives_the_same_rows():
    _, graph, true = make_subgraph()
    for make in (ours, theirs):
        loader = make(graph, seeds_of(graph), NeighborSampler([3, 3], **FIELDS), batch_size=60)
        for input_nodes, _, blocks in collect(loader):
            assert torch.equal(blocks[0].srcdata["feat"], true["feat"][input_nodes])


# -- one column
# -------------------------------------------------------------------------------------------


def test_a_waiting_column_is_known_until_it_is_gathered():
    source, index = torch.randn(6, 2), torch.tensor([5, 0, 0])
    column = Column(source, None, index)
    rows = waiting_rows(column)
    assert rows.source is source and rows.ids is index and waiting_rows(column) is rows
    assert isinstance(column_values(column), IndexedRows)
    assert torch.equal(column.data, source[index])
    assert waiting_rows(column) is None and column_values(column) is column.data


def test_a_column_of_a_column_reads_through_both():
    source = torch.randn(9, 2)
    column = Column(source, None, torch.tensor([8, 3, 4])).subcolumn(torch.tensor([2, 0]))
    assert waiting_rows(column).ids.tolist() == [4, 8]
    part = sub_column(column, torch.tensor([1, 1, 0]))
    assert column.index is not None and torch.equal(part.data, source[[8, 8, 4]])


@pytest.mark.parametrize("bad", [-1, 6])
def test_an_index_outside_the_storage_is_refused(bad):
    with pytest.raises(ValueError, match=rf"ids must be in \[0, 6\), got {bad}"):
        waiting_rows(Column(torch.randn(6, 2), None, torch.tensor([0, bad])))


def test_sizes_of_dgls_gpu_cache_do_not_gather():
    from pagraph.dgl.arguments import gpu_cache_budget

    _, graph, true = make_subgraph()
    budget = gpu_cache_budget(graph, {"node": {"feat": 10}}, torch.device("cuda"))
    assert budget == 10 * true["feat"][0].nbytes and is_waiting(graph)
