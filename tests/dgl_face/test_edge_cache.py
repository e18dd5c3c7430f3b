"""Columns of edges and labels through the cache: right values, honest expectations, one budget."""

import numpy as np
import pytest
import torch
from cases import dgl, ours
from dgl.dataloading import (
    MultiLayerFullNeighborSampler,
    NeighborSampler,
    as_edge_prediction_sampler,
    negative_sampler,
)

from pagraph.graph.mapped import map_npy
from pagraph.system.budget import SLOT_BYTES

pytestmark = pytest.mark.usefixtures("no_threads_left")

N, E = 300, 3000
WIDTHS = {"feat": 24, "label": 8, "edge:w": 16, "edge:y": 8}


@pytest.fixture
def mapped(tmp_path):
    """Makes memory-mapped columns."""

    def make(name, values):
        np.save(tmp_path / f"{name}.npy", values)
        return map_npy(tmp_path / f"{name}.npy")

    return make


@pytest.fixture
def graph(mapped):
    rng = np.random.default_rng(0)
    ends = torch.from_numpy(rng.zipf(1.4, E) % N), torch.from_numpy(rng.integers(0, N, E))
    graph = dgl.graph(ends, num_nodes=N)
    graph.ndata["feat"] = mapped("feat", rng.random((N, 6), dtype=np.float32))
    graph.ndata["label"] = mapped("label", rng.integers(0, 2**40, N))
    graph.edata["w"] = mapped("w", rng.random((E, 2)))
    graph.edata["y"] = mapped("y", rng.random(E))
    return graph


PREFETCH = {
    "prefetch_node_feats": ["feat"],
    "prefetch_labels": ["label"],
    "prefetch_edge_feats": ["w"],
}


def load(graph, sampler=None, seeds=None, **options):
    sampler = sampler or NeighborSampler([5, 3], **PREFETCH)
    seeds = torch.arange(0, N, 5) if seeds is None else seeds
    return ours(
        graph,
        seeds,
        sampler,
        **(dict(batch_size=10, shuffle=True, seed=0, cache_policy="vip") | options),
    )


def check(graph, blocks):
    assert torch.equal(blocks[0].srcdata["feat"], graph.ndata["feat"][blocks[0].srcdata[dgl.NID]])
    assert torch.equal(
        blocks[-1].dstdata["label"], graph.ndata["label"][blocks[-1].dstdata[dgl.NID]]
    )
    for block in blocks:
        assert torch.equal(block.edata["w"], graph.edata["w"][block.edata[dgl.EID]])


def run(graph, loader, epochs=1):
    for _ in range(epochs):
        for _, _, blocks in loader:
            check(graph, blocks)
    return loader


def parts(loader):
    return {part.key: part for plan in loader.cache_plan for part in plan}


def reads(loader):
    return loader.stats.total.reads.fields


@pytest.mark.every
@pytest.mark.parametrize("cache", [0, 3000, "5%", "40%", 1.0, "auto"], ids=str)
@pytest.mark.parametrize(("prefetch", "workers"), [(0, 0), (3, 2)])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_values_are_the_graphs_with_any_budget(graph, cache, prefetch, workers, edge_dir):
    sampler = NeighborSampler([5, 3], edge_dir=edge_dir, **PREFETCH)
    loader = run(
        graph, load(graph, sampler, cache=cache, prefetch=prefetch, num_workers=workers), epochs=2
    )
    assert sum(plan.nbytes for plan in loader.cache_plan) <= max(
        [plan.budget_bytes for plan in loader.cache_plan]
    )
    if cache in ("40%", 1.0, "auto"):
        assert reads(loader)["edge:w"].hits > 0


@pytest.mark.every
@pytest.mark.parametrize("policy", ["vip", "presample:5"])
@pytest.mark.parametrize("cache", [9000, 20000, "20%"])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_what_is_expected_is_what_happens(graph, cache, policy, edge_dir):
    sampler = NeighborSampler([5, 3], edge_dir=edge_dir, **PREFETCH)
    loader = run(graph, load(graph, sampler, cache=cache, cache_policy=policy), epochs=20)
    assert parts(loader)
    for key, part in parts(loader).items():
        happened = reads(loader)[key]
        assert part.row_bytes == WIDTHS[key] and part.nbytes == part.rows * WIDTHS[key]
        if key == "label":  # nothing random about seeds
            assert (
                part.expected_reads == happened.asked / 20 == 60
                and part.expected_hits == happened.hits / 20
            )
        assert part.expected_reads == pytest.approx(happened.asked / 20, rel=0.1)
        assert part.expected_hit_rate == pytest.approx(happened.hit_rate, abs=0.04)
        assert part.expected_bytes_saved == part.expected_hits * WIDTHS[key]


def test_the_plan_prints_vertices_and_edges_as_one_table(graph):
    loader = run(graph, load(graph, cache=1.0))
    plans = loader.cache_plan
    assert [plan.node_type for plan in plans] == [None, ("_N", "_E", "_N")]
    assert plans[1].num_nodes == E and plans[1].table_bytes == SLOT_BYTES * E
    lines = str(plans).splitlines()
    assert [line.split()[0] for line in lines] == [
        "cache",
        "field",
        "feat",
        "label",
        "edge:w",
        "tables",
        "total",
    ]
    assert "100.0 %" in lines[-1] and "edges on cpu" in repr(plans[1])


def test_edges_of_a_users_own_sampler_are_not_cached(graph):
    class Own(NeighborSampler):
        def sample_blocks(self, g, seed_nodes, exclude_eids=None):
            return super().sample_blocks(g, seed_nodes, exclude_eids)

    loader = run(graph, load(graph, Own([5, 3], **PREFETCH), cache=1.0, cache_policy="degree"))
    assert set(parts(loader)) == {"feat", "label"}
    assert reads(loader)["edge:w"].hits == 0 and reads(loader)["edge:w"].cacheable is False


def test_with_degrees_edges_get_the_same_share_as_vertices(graph):
    loader = run(graph, load(graph, cache="10%", cache_policy="degree"))
    assert {key: part.rows for key, part in parts(loader).items()} == {
        "feat": 30,
        "label": 30,
        "edge:w": 300,
    }
    assert (
        parts(loader)["feat"].expected_hit_rate is None
        and parts(loader)["label"].expected_hit_rate is not None
    )


def test_edges_that_are_never_drawn_come_last(graph):
    """Full neighbourhoods of one hop: exactly the in-edges of the seeds are read, once each."""
    sampler = MultiLayerFullNeighborSampler(1, **PREFETCH)
    seeds = torch.arange(0, N, 5)
    used = int(graph.in_degrees(seeds).sum())
    loader = run(
        graph, load(graph, sampler, seeds, cache=SLOT_BYTES * (N + E) + 32 * N + 16 * used)
    )
    part = parts(loader)["edge:w"]
    assert (
        part.rows >= used
        and part.expected_reads == pytest.approx(used)
        and part.expected_hit_rate == 1.0
    )
    assert reads(loader)["edge:w"].hit_rate == 1.0


def test_labels_of_seed_edges_are_cached_for_the_seeds(graph):
    sampler = as_edge_prediction_sampler(
        NeighborSampler([4], prefetch_node_feats=["feat"]),
        negative_sampler=negative_sampler.Uniform(1),
        prefetch_labels=["y"],
    )
    seeds = torch.arange(100, 160)
    loader = load(graph, sampler, seeds, cache="100%")
    for _, pairs, _, blocks in loader:
        assert torch.equal(pairs.edata["y"], graph.edata["y"][pairs.edata[dgl.EID]])
        assert torch.equal(
            blocks[0].srcdata["feat"], graph.ndata["feat"][blocks[0].srcdata[dgl.NID]]
        )
    part = parts(loader)["edge:y"]
    assert part.expected_reads == part.expected_hits == 60 == reads(loader)["edge:y"].hits
    assert parts(loader)["feat"].expected_reads == pytest.approx(
        reads(loader)["feat"].asked, rel=0.1
    )
    few = load(graph, sampler, seeds, cache=SLOT_BYTES * E + 8 * 60, cache_policy="vip")
    for _ in few:
        pass
    assert reads(few)["edge:y"].hits <= 60


def test_edge_columns_that_are_written_are_never_stale(graph):
    loader = run(graph, load(graph, cache=1.0))
    graph.edata["w"][7] = -1.0
    run(graph, loader)
    graph.edata["w"] = torch.rand(E, 2)
    run(graph, loader)
    assert "edge:w" not in parts(loader)


def test_edge_types_share_the_budget_of_a_heterograph(mapped):
    rng = np.random.default_rng(1)
    users, items = (
        torch.from_numpy(rng.integers(0, 60, 400)),
        torch.from_numpy(rng.zipf(1.5, 400) % 40),
    )
    graph = dgl.heterograph(
        {("user", "buys", "item"): (users, items), ("item", "bought by", "user"): (items, users)},
        num_nodes_dict={"user": 60, "item": 40},
    )
    for name, etype in (("b", "buys"), ("o", "bought by")):
        graph.edges[etype].data["w"] = mapped(name, rng.random((400, 3)))
    graph.nodes["item"].data["feat"] = mapped("feat", rng.random((40, 2)))
    sampler = NeighborSampler(
        [3, 3],
        prefetch_node_feats={"item": ["feat"]},
        prefetch_edge_feats={"buys": ["w"], "bought by": ["w"]},
    )
    seeds = {"user": torch.arange(20)}
    for cache in ("30%", 1.0):
        loader = load(graph, sampler, seeds, cache=cache)
        for input_nodes, _, blocks in loader:
            assert torch.equal(
                blocks[0].srcnodes["item"].data["feat"],
                graph.nodes["item"].data["feat"][input_nodes["item"]],
            )
            for block in blocks:
                for etype in graph.canonical_etypes:
                    expected = graph.edges[etype].data["w"][block.edges[etype].data[dgl.EID]]
                    assert torch.equal(block.edges[etype].data["w"], expected)
        assert set(parts(loader)) == {
            "item/feat",
            "edge:user-buys-item/w",
            "edge:item-bought by-user/w",
        }
    assert loader.stats.total.hit_rate == 1.0
    assert {plan.node_type: plan.rows for plan in loader.cache_plan} == {
        "item": 40,
        "user": 0,
        ("user", "buys", "item"): 400,
        ("item", "bought by", "user"): 400,
    }
