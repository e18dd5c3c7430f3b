"""Timelines of the DGL face: every kind of batch, columns by their names, the cache's hit rate."""

import copy

import pytest
import torch
from cases import dgl, make_graph, ours
from test_cache_and_staleness import on_disk
from timelines import checked, counters, spans, stages_by_batch
from worlds import make_world

pytestmark = pytest.mark.usefixtures("no_threads_left")

d = dgl.dataloading
WORK = {"ticket", "preparing", "sampling", "building", "waiting", "computing"}


def traced(loader, path, epochs=1):
    with loader.trace(path):
        for _ in range(epochs):
            for _ in loader:
                pass
    return checked(path)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_blocks_and_the_hit_rate_of_each_batch(tmp_path, prefetch):
    graph = make_graph()
    graph.ndata["disk"] = on_disk(graph.ndata["feat"], tmp_path)
    sampler = d.NeighborSampler(
        [4, 3], prefetch_node_feats=["disk", "wide"], prefetch_labels=["label"]
    )
    loader = ours(
        graph, torch.arange(200), sampler, batch_size=20, cache="25%", prefetch=prefetch, seed=0
    )
    events = traced(loader, tmp_path / "t.json")
    for found in stages_by_batch(events).values():
        assert set(found) == WORK | {"fetching", "reading disk", "reading wide", "reading label"}
    reads = spans(events, "reading disk")
    expected = sorted(round(read["args"]["hits"] / read["args"]["rows"], 6) for read in reads)
    assert sorted(c["hit rate"] for c in counters(events, "loader cache")) == expected
    assert 0 < min(expected) < max(expected) < 1
    assert len(spans(events, "filling")) == 2  # before the first batch, and after it
    reads_of = loader.stats.total.reads
    assert sum(read["args"]["hits"] for read in reads) == reads_of.fields["disk"].hits
    assert counters(events, "loader bytes read")[-1] == reads_of.total.nbytes


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "negatives", [None, d.negative_sampler.Uniform(2), lambda graph, eids: graph.find_edges(eids)]
)
def test_edge_batches(tmp_path, workers, negatives):
    graph = make_graph()
    inner = d.NeighborSampler([3, 2], prefetch_node_feats=["feat"])
    sampler = d.as_edge_prediction_sampler(
        inner, exclude="self", negative_sampler=negatives, prefetch_labels=["w"]
    )
    loader = ours(graph, torch.arange(90), sampler, batch_size=20, num_workers=workers)
    events = traced(loader, tmp_path / "t.json")
    stages = stages_by_batch(events)
    assert sorted(stages) == [0, 1, 2, 3, 4]
    for found in stages.values():
        assert set(found) == WORK | {"fetching", "reading feat", "reading edge:w"}
    assert sum(s["args"]["seeds"] for s in spans(events, "preparing")) == 90


@pytest.mark.parametrize("workers", [0, 2])
def test_a_foreign_sampler(tmp_path, workers):
    graph = make_graph()

    class Own(d.ShaDowKHopSampler):
        def sample(self, g, seed_nodes, exclude_eids=None):
            return super().sample(g, seed_nodes, exclude_eids)

    sampler = Own([3, 2], prefetch_node_feats=["feat"])
    loader = ours(graph, torch.arange(50), sampler, batch_size=20, num_workers=workers)
    events = traced(loader, tmp_path / "t.json", epochs=2)
    for epoch in range(2):
        stages = stages_by_batch(events, epoch)
        assert sorted(stages) == [0, 1, 2]
        assert all(set(found) == WORK | {"fetching", "reading feat"} for found in stages.values())
    assert bool(counters(events, "loader batches")) == (workers > 0)


def test_types_in_the_names(tmp_path):
    world = make_world("heterograph")
    ntype = "user"
    (name, *_) = world.graph.nodes[ntype].data
    sampler = d.NeighborSampler([2], prefetch_node_feats={ntype: [name]})
    loader = ours(world.graph, {ntype: torch.arange(6)}, sampler, batch_size=3)
    events = traced(loader, tmp_path / "t.json")
    assert spans(events, f"reading {ntype}/{name}")


def test_a_loader_inside_a_loop_over_another(tmp_path):
    """The reader is with whichever it asked last."""
    graph = make_graph()
    train = ours(graph, torch.arange(40), d.NeighborSampler([3]), batch_size=20)
    val = ours(graph, torch.arange(60), d.NeighborSampler([3]), batch_size=20)
    with train.trace(tmp_path / "t.json", label="train") as tracer:
        val.trace(tracer, label="val")
        for _ in train:
            list(val)
    events = checked(tmp_path / "t.json")
    computing = [(s["args"]["loader"], s["args"]["batch"]) for s in spans(events, "computing")]
    once = [("val", 0), ("val", 1), ("val", 2)]
    assert computing == [("train", 0), *once, ("train", 1), *once]


def test_a_copy_is_not_traced(tmp_path):
    loader = ours(make_graph(), torch.arange(40), d.NeighborSampler([3]), batch_size=20)
    with loader.trace(tmp_path / "t.json"):
        other = copy.copy(loader)
        with other.trace(tmp_path / "other.json"):
            list(other)
        list(loader)
    assert len(spans(checked(tmp_path / "other.json"), "epoch 0")) == 1
