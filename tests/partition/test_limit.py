"""A limit on replication drops what is drawn least, and says truly what is lost; evaluation on
parts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_methods import graphs, reach, rows_of, train_sets
from tiers import examples

from pagraph import Graph
from pagraph.datasets import rmat, sbm
from pagraph.partition import draw_train, limit_replication, partition_graph
from pagraph.partition.extract import extract_structure


def size(partition):
    return sum(len(partition.vertices(part).ids) for part in range(partition.num_parts))


def plain_draws(rows, seeds, fanout, inside):
    """Expected draws when only vertices that are ``inside`` are drawn from in turn, walking the
    seeds' tree."""
    drawn = 0.0
    layer = dict.fromkeys(seeds, 1.0)
    for number in reversed(fanout):
        following = {}
        for v, often in layer.items():
            if not rows[v]:
                continue
            share = often * min(1, number / len(rows[v])) if number >= 0 else often
            for u in filter(inside, rows[v]):
                drawn += share
                following[u] = following.get(u, 0) + share
        layer = following
    return drawn


@settings(max_examples=examples(80))
@given(st.data(), graphs())
def test_any_small_graph(data, graph):
    train = data.draw(train_sets(graph))
    num_parts, hops = data.draw(st.integers(1, min(4, len(train)))), data.draw(st.integers(1, 3))
    fanout = data.draw(st.lists(st.sampled_from([-1, 1, 2, 5]), min_size=hops, max_size=hops))
    whole = partition_graph(graph, num_parts, hops=hops, method="hash", train=train)
    least = len(train) / graph.num_nodes
    factor = data.draw(st.floats(least + 1e-9, max(least, size(whole) / graph.num_nodes) + 0.5))
    limited = limit_replication(whole, factor, fanout=fanout)
    assert size(limited) <= factor * graph.num_nodes
    rows, inner, total = rows_of(graph), 0.0, 0.0
    for part in range(num_parts):
        held = limited.vertices(part)
        assert torch.equal(held.ids[: held.num_seeds], whole.train_of(part))
        left_out = set() if limited.dropped is None else set(limited.dropped[part].tolist())
        assert set(held.ids.tolist()) | left_out == set(
            reach(rows, whole.train_of(part).tolist(), hops)
        )
        assert not set(held.ids.tolist()) & left_out
        seeds = whole.train_of(part).tolist()
        inner += plain_draws(rows, seeds, fanout, lambda u, out=left_out: u not in out)
        total += plain_draws(rows, seeds, fanout, lambda u: True)
    assert limited.lost == pytest.approx(1 - inner / total if total else 0.0, abs=1e-9)
    if size(whole) <= factor * graph.num_nodes:
        assert limited.dropped is None and limited.lost == 0


def test_little_is_lost_where_draws_are_skewed():
    graph = rmat(12, edge_factor=12, undirected=True, simple=True, seed=0)
    whole = partition_graph(graph, 4, hops=2, method="halo", train=draw_train(graph, 0.3))
    factor = 0.8 * size(whole) / graph.num_nodes
    limited = limit_replication(whole, factor, fanout=[10, 10])
    assert factor * graph.num_nodes * 0.98 < size(limited) <= factor * graph.num_nodes
    assert limited.lost < 0.06
    missing = sum(extract_structure(graph, limited.vertices(part)).missing for part in range(4))
    assert missing > 0
    assert limit_replication(limited, 100.0).dropped is None


@pytest.mark.parametrize("factor", [0.0, -1.0, 0.5, float("nan")])
def test_parts_need_room_for_what_they_train_on(factor):
    graph = sbm(400, seed=0)
    with pytest.raises(ValueError, match=r"max_replication must be at least 0\.\d+"):
        partition_graph(graph, 2, hops=1, method="hash", max_replication=factor)


def test_one_fan_out_for_each_hop():
    with pytest.raises(ValueError, match="fanout must have one number for each of 2 hops, got 1"):
        partition_graph(sbm(400, seed=0), 2, hops=2, method="hash", max_replication=1.2, fanout=[5])


@pytest.mark.parametrize("num_parts", [1, 3])
def test_parts_hold_what_they_evaluate(num_parts):
    graph = sbm(900, seed=0)
    partition = partition_graph(graph, num_parts, hops=2, evaluation="parts")
    wanted = (graph.ndata["val_mask"] | graph.ndata["test_mask"]).nonzero().squeeze(1)
    assert torch.equal(partition.evaluated, wanted)
    sizes = torch.bincount(partition.evaluation, minlength=num_parts)
    assert int(sizes.max() - sizes.min()) <= 1
    rows = rows_of(graph)
    for part in range(num_parts):
        seeds = torch.cat([partition.train_of(part), wanted[partition.evaluation == part]])
        assert set(partition.vertices(part).ids.tolist()) == set(reach(rows, seeds.tolist(), 2))


def test_what_is_trained_on_is_evaluated_where_it_is_trained_on():
    graph = sbm(300, seed=0)
    everything = torch.ones(300, dtype=torch.bool)
    graph.set_field("val_mask", everything)
    partition = partition_graph(graph, 3, hops=1, evaluation="parts")
    assert torch.equal(partition.evaluation[partition.train], partition.parts)


def test_nothing_to_evaluate():
    graph = Graph.from_coo([0, 1], [1, 2])
    for masks in ({}, {"val_mask": torch.zeros(3, dtype=torch.bool)}):
        for name, mask in masks.items():
            graph.set_field(name, mask)
        with pytest.raises(
            ValueError,
            match="evaluation must be source for a graph without val_mask and test_mask, got parts",
        ):
            partition_graph(graph, 1, hops=1, train=torch.tensor([1]), evaluation="parts")
    with pytest.raises(ValueError, match="evaluation must be one of source, parts, got 'both'"):
        partition_graph(graph, 1, hops=1, train=torch.tensor([1]), evaluation="both")
