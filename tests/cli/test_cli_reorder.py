"""``pagraph reorder``, and the other verbs on what it writes."""

import json
import subprocess

import pytest
import torch
from fresh_processes import HANGING, forked_python
from runs import fails, run

from pagraph import Graph
from pagraph.datasets import citation, new_ids, sbm, write_graph

TASK = ["--fanout", "4,3", "--batch-size", "64"]
QUICK = ["--epochs", "2", "--hidden", "8", "--device", "cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("reorder") / "graph"
    write_graph(sbm(1500, num_features=64, num_classes=4, seed=2), path)
    return path


@pytest.fixture(scope="module")
def ordered(folder):
    out, report = folder.with_name("ordered"), folder.with_name("report.json")
    done = run("reorder", folder, out, *TASK, "--json", report)
    assert (done.exit_code, done.stderr) == (0, "")
    return out, done.stdout, json.loads(report.read_text())


@pytest.mark.many
def test_what_it_says(ordered):
    out, said, report = ordered
    assert said.startswith(f"{out}: 1,500 vertices, ")
    assert "8 batches of 64 seeds, by both" in said and "features (feat)" in said
    assert report["fields"] == {"_N": "feat"} and report["batches"] == 8
    for what in ("features", "topology"):
        assert f"{report['after'][what]['pages']:,.0f}" in said
        assert report["after"][what]["batch_ratio"] >= report["after"][what]["window_ratio"] > 0


def test_other_verbs_take_it(ordered, folder, tmp_path):
    out, _, _ = ordered
    assert run("info", out, "--verify").exit_code == 0
    assert "To set: cache=" in run("profile", out, *TASK).stdout
    assert (
        run(
            "partition", out, tmp_path / "parts", "-k", "2", "--hops", "1", "--cache", "0"
        ).exit_code
        == 0
    )
    assert "got a part of a partition" in fails(
        "reorder", tmp_path / "parts" / "part-0", tmp_path / "no", *TASK
    )


@pytest.mark.many
def test_a_copy_trains_as_well(data_folder, tmp_path):
    """On cora, over two seeds each, within 4 points (2 standard deviations of a run are about
    3)."""
    run(
        "reorder", data_folder / "cora", tmp_path / "cora", "--fanout", "10,5", "--batch-size", "64"
    )
    best = {}
    for name, folder in (("original", data_folder / "cora"), ("copy", tmp_path / "cora")):
        found = []
        for seed in (1, 2):
            report = tmp_path / "report.json"
            task = [
                "--fanout",
                "10,5",
                "--batch-size",
                "64",
                "--epochs",
                "12",
                "--hidden",
                "32",
                "--seed",
                seed,
            ]
            assert run("train", folder, *task, "--device", "cpu", "--json", report).exit_code == 0
            found.append(json.loads(report.read_text())["test_accuracy"])
        best[name] = sum(found) / len(found)
    assert best["original"] > 0.7
    assert abs(best["copy"] - best["original"]) < 0.04, best


def test_heterographs(tmp_path):
    graph = citation(300, seed=1)
    write_graph(graph, tmp_path / "papers")
    done = run("reorder", tmp_path / "papers", tmp_path / "out", *TASK, "--by", "reads")
    assert done.exit_code == 0, done.output
    new = Graph.open(tmp_path / "out", verify=True)
    for ntype in graph.node_types:
        ids = torch.arange(graph.num_nodes_of(ntype))
        same = new_ids(new, ids, node_type=ntype)
        for name, values in graph.node_fields(ntype).items():
            assert new.node_fields(ntype)[name][same].equal(values)


def test_links(folder, tmp_path):
    done = run("reorder", folder, tmp_path / "out", *TASK, "--task", "links")
    assert done.exit_code == 0, done.output
    line = fails("reorder", folder, tmp_path / "no", "--task", "links", "--node-type", "_N")
    assert "--node-type and --split need --task nodes" in line


def test_wrong_arguments(folder, tmp_path):
    assert "OUT must not exist yet" in fails("reorder", folder, tmp_path, *TASK)
    assert "--memory must be at least" in fails(
        "reorder", folder, tmp_path / "out", *TASK, "--memory", "1MiB"
    )
    assert "--memory must be bytes" in fails(
        "reorder", folder, tmp_path / "out", *TASK, "--memory", "10%"
    )
    assert not [*tmp_path.iterdir()]


@pytest.mark.processes
def test_no_room_for_the_arrays(folder, tmp_path):
    """A system that takes no more bytes: one line that names the folder, and nothing is left."""

    code = """
import resource
from pagraph.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
main()
"""
    command = [forked_python(), "-c", code, "reorder", folder, tmp_path / "out", *TASK]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=HANGING)
    assert (done.returncode, done.stderr) == (
        1,
        f"Error: [Errno 27] File too large: '{tmp_path / 'out'}'\n",
    )
    assert not [*tmp_path.iterdir()]
