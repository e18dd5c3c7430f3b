"""``pagraph partition verify``: what it says of right, wrong and missing folders."""

import json
import shutil
from functools import partial

import numpy as np
import pytest
import runs

from pagraph import Graph
from pagraph.datasets import sbm, write_graph
from pagraph.partition import partition_graph
from pagraph.partition.writing import write_partition


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A graph folder, and its partition beside it."""
    base = tmp_path_factory.mktemp("verify")
    write_graph(sbm(300, num_features=4), base / "graph")
    partition = partition_graph(Graph.open(base / "graph"), 3, hops=1, method="hash")
    write_partition(partition, base / "parts", source=base / "graph")
    return base


@pytest.fixture
def copy(made, tmp_path):
    """Both, to be damaged."""
    for name in ("graph", "parts"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path


run = partial(runs.run, "partition", "verify")


def test_right(made, tmp_path):
    result = run(made / "parts", "--json", tmp_path / "v.json")
    assert (result.exit_code, result.stderr) == (0, "")
    vertices = sum(Graph.open(made / "parts" / f"part-{part}").num_nodes for part in range(3))
    assert result.stdout.startswith(
        f"{made / 'parts'} is right: 180 training vertices, each in exactly one of 3 parts; "
        f"{vertices:,} vertices and "
    )
    report = json.loads((tmp_path / "v.json").read_text())
    assert report["ok"] and report["findings"] == [] and report["vertices"] == vertices


def test_a_source_that_was_moved(tmp_path):
    write_graph(sbm(100), tmp_path / "graph")
    partition = partition_graph(Graph.open(tmp_path / "graph"), 2, hops=1, method="hash")
    write_partition(partition, tmp_path / "parts", source=tmp_path / "graph")
    (tmp_path / "graph").rename(tmp_path / "moved")
    lost = run(tmp_path / "parts")
    assert lost.exit_code != 0 and str(tmp_path / "graph") in lost.stderr
    assert run(tmp_path / "parts", "--source", tmp_path / "moved").exit_code == 0


def test_damage_is_named_and_exits_1(copy):
    file = copy / "parts" / "part-1" / "feat.npy"
    values = np.load(file)
    values[3, 2] += 1
    np.save(file, values)
    result = run(copy / "parts", "--json", copy / "v.json")
    assert result.exit_code == 1
    assert "part 1: " in result.stdout and "feat.npy" in result.stdout
    assert result.stderr == f"Error: {copy / 'parts'} is wrong: 1 finding\n"
    report = json.loads((copy / "v.json").read_text())
    assert not report["ok"] and [finding["part"] for finding in report["findings"]] == [1]


def test_a_part_that_is_gone(copy):
    shutil.rmtree(copy / "parts" / "part-2")
    result = run(copy / "parts")
    assert result.exit_code == 1
    assert "part-2" in result.stdout + result.stderr


def test_a_damaged_manifest_exits_1(copy):
    (copy / "parts" / "manifest.json").write_text("{")
    result = run(copy / "parts")
    assert (result.exit_code, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1 and "manifest.json" in result.stderr


def test_bad_input(made, tmp_path):
    for arguments, message in (
        ([tmp_path / "none"], "must exist"),
        ([], "Missing argument 'OUT'"),
        ([made / "parts", "--source", tmp_path / "none"], "must exist"),
        (
            [made / "parts", "--json", tmp_path / "no" / "v.json"],
            "--json must be in a folder that exists",
        ),
    ):
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (2, ""), result.output
        assert message in result.stderr and len(result.stderr.splitlines()) == 1


def test_help():
    result = run("--help")
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: main partition verify [OPTIONS] OUT")
