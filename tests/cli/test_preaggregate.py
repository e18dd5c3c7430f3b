"""``pagraph preaggregate`` and training on what it writes."""

import json

import pytest
from runs import fails, run

from pagraph import Graph
from pagraph.cli.preaggregate import command
from pagraph.datasets import sbm, write_graph
from pagraph.train import TrainOptions

QUICK = ["--epochs", "2", "--hidden", "8", "--batch-size", "200", "--device", "cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("preaggregate") / "graph"
    write_graph(sbm(1500, num_features=16, num_classes=4, seed=2), path)
    return path


@pytest.mark.parametrize(("model", "field"), [("sage", "feat_mean"), ("gcn", "feat_gcn")])
def test_writes_what_training_takes(folder, tmp_path, model, field):
    out, report = tmp_path / "out", tmp_path / "report.json"
    done = run("preaggregate", folder, out, "--model", model)
    assert (done.exit_code, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first.startswith(f"{out}: 1,500 vertices, ")
    assert second == f"{field}: for pagraph train --model {model}, with one entry of --fanout less"
    assert Graph.open(out, verify=True).ndata[field].shape == (1500, 16)
    trained = run("train", out, "--model", model, *QUICK, "--fanout", "5", "--json", report)
    assert trained.exit_code == 0 and "16 pre-aggregated features" in trained.stdout
    assert json.loads(report.read_text())["settings"]["fanout"] == [5]
    assert f"preaggregated_for={model}" in run("info", out).stdout


def test_the_default_model_is_that_of_training():
    assert (
        command.make_context("preaggregate", ["IN", "OUT"]).params["model"] == TrainOptions().model
    )


def test_compare_with_the_other_loader(folder, tmp_path):
    assert run("preaggregate", folder, tmp_path / "out", "--row-normalize").exit_code == 0
    done = run("train", tmp_path / "out", *QUICK, "--fanout", "5", "--compare", "dgl")
    assert done.exit_code == 0 and "validation accuracy" in done.stdout


def test_bad_input(folder, tmp_path):
    out = tmp_path / "out"
    assert run("preaggregate", folder, out, "--model", "gcn").exit_code == 0
    assert "OUT must not exist yet" in fails("preaggregate", folder, out)
    assert "graph must not be pre-aggregated already" in fails(
        "preaggregate", out, tmp_path / "twice"
    )
    assert "folder must exist" in fails("preaggregate", tmp_path / "none", tmp_path / "two")
    assert "'gat'" in fails("preaggregate", folder, tmp_path / "two", "--model", "gat")
    assert "model must be 'gcn', for which the features are pre-aggregated, got 'sage'" in fails(
        "train", out
    )
    assert "--row-normalize must be False for pre-aggregated features" in fails(
        "train", out, "--model", "gcn", "--row-normalize"
    )
    write_graph(Graph.from_coo([0], [1]), tmp_path / "bare")
    assert "graph must have the field feat" in fails(
        "preaggregate", tmp_path / "bare", tmp_path / "two"
    )
    assert {path.name for path in tmp_path.iterdir()} == {"out", "bare"}
