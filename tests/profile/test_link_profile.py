"""Profiles of link tasks: batches begin with edges, and the rates are those of the loaders of
links."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from pagraph import Graph, NeighborSampler
from pagraph.cli import main
from pagraph.datasets import citation, rmat, write_graph
from pagraph.graph.mapped import map_npy
from pagraph.profile import hit_rate_curve, training_edges
from pagraph.sampling.edge_batches import EdgeBatches
from pagraph.sampling.negative import UniformNegatives


def links(graph, fanouts=(4, 3)):
    return EdgeBatches(NeighborSampler(list(fanouts)), graph, UniformNegatives(1))


@pytest.mark.every
@pytest.mark.parametrize("policy", ["auto", "degree", "vip", "presample"])
def test_the_loader_of_edges_has_these_hit_rates(tmp_path, policy):
    """Rows on disk are cached in memory, so that the CPU's loader has hits to count."""
    face = pytest.importorskip("pagraph.dgl", reason="needs DGL")
    import dgl

    np.save(tmp_path / "feat.npy", np.zeros((300, 3), np.float32))
    rng = np.random.default_rng(0)
    src = (rng.random(2500) ** 3 * 300).astype(np.int64)
    graph = Graph.from_coo(src, rng.integers(0, 300, 2500), 300)
    graph.set_field("feat", map_npy(tmp_path / "feat.npy"))
    edges = torch.arange(0, 2500, 5)
    (record,) = curve = hit_rate_curve(
        graph,
        edges,
        links(graph),
        fields=["feat"],
        batch_size=32,
        policies=[policy],
        budgets=[0.1],
        seed=5,
    )
    sampler = dgl.dataloading.as_edge_prediction_sampler(
        dgl.dataloading.NeighborSampler([4, 3], prefetch_node_feats=["feat"]),
        negative_sampler=dgl.dataloading.negative_sampler.Uniform(1),
    )
    settings = dict(
        batch_size=32, shuffle=True, seed=5, cache=record.budget_bytes, cache_policy=policy
    )
    loader = face.DataLoader(face.to_dgl(graph), edges, sampler, **settings)
    assert len(list(loader)) == curve.batches == 16
    assert curve.of_links and curve.settings["seeds"] == 500
    total = loader.stats.total
    assert total.reads.total.asked == curve.reads
    assert total.hit_rate == pytest.approx(record.hit_rate, abs=1e-12) and 0.1 < total.hit_rate < 1


def test_training_edges():
    graph = rmat(5, num_features=2)
    assert training_edges(graph).tolist() == list(range(graph.num_edges))
    some = training_edges(graph, fraction=0.1, seed=1)
    assert len(some) == graph.num_edges // 10 and some.tolist() == sorted(set(some.tolist()))
    mask = torch.arange(graph.num_edges) % 3 == 0
    graph.set_field("train_mask", mask, edge_type=graph.edge_types[0])
    assert training_edges(graph).tolist() == mask.nonzero().squeeze(1).tolist()
    with pytest.raises(ValueError, match="graph must have at least 1 edge, got 0"):
        training_edges(Graph.from_coo([], [], 3))
    with pytest.raises(ValueError, match=r"train_fraction must be in \(0, 1\], got 2"):
        training_edges(graph, fraction=2)


def test_edges_of_several_types():
    graph = citation(200)
    every = training_edges(graph)
    assert {etype: len(ids) for etype, ids in every.items()} == {
        etype: graph.csc_of(etype).num_edges for etype in graph.edge_types
    }
    curve = hit_rate_curve(
        graph, every, links(graph, (2,)), batch_size=500, policies=["degree"], budgets=[0.5]
    )
    assert curve.reads > 0
    masked, *_ = graph.edge_types
    graph.set_field(
        "train_mask", torch.ones(len(every[masked]), dtype=torch.bool), edge_type=masked
    )
    assert list(training_edges(graph)) == [masked]


@pytest.mark.parametrize(
    ("seeds", "error", "message"),
    [
        (torch.tensor([0, 99]), IndexError, r"seeds must be in \[0, 3\), got 99"),
        (torch.tensor([], dtype=torch.int64), ValueError, "seeds must hold at least 1 edge, got 0"),
        ({"_N": torch.tensor([0])}, ValueError, "seeds must name edge types among"),
        (torch.tensor([0.5]), TypeError, "seeds must be an int32 or int64 tensor"),
    ],
)
def test_seeds_that_are_no_edges(seeds, error, message):
    graph = Graph.from_coo([0, 1, 2], [1, 2, 0])
    with pytest.raises(error, match=message):
        hit_rate_curve(graph, seeds, links(graph), policies=["degree"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("links") / "graph"
    write_graph(rmat(8, num_features=4, num_classes=2), path)
    return path


def run(*arguments):
    return CliRunner().invoke(main, ["profile", *map(str, arguments)], env={"COLUMNS": "100"})


def test_the_command(folder, tmp_path):
    quick = (
        "--task",
        "links",
        "--policies",
        "degree,oracle",
        "--fanout",
        "3",
        "--batch-size",
        "512",
    )
    done = run(folder, *quick, "--json", tmp_path / "p.json", "--html", tmp_path / "p.html")
    assert done.exit_code == 0, done.output
    assert "ends of links" in done.stdout and "training vertices" not in done.stdout
    assert "To set: " in done.stdout and "To train: " not in done.stdout
    assert "A batch begins with ends of links" in (tmp_path / "p.html").read_text()
    report = json.loads((tmp_path / "p.json").read_text())
    assert report["task"] == "links" and report["settings"]["seeds"] == 4096
    assert (
        run(folder, *quick, "--train-fraction", "0.5", "--json", tmp_path / "p.json").exit_code == 0
    )
    assert json.loads((tmp_path / "p.json").read_text())["settings"]["seeds"] == 2048


@pytest.mark.parametrize("option", [("--measure",), ("--split", "train"), ("--node-type", "_N")])
def test_options_for_vertices_alone(folder, option):
    done = run(folder, "--task", "links", *option)
    assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert f"{option[0]} needs --task nodes" in done.stderr
