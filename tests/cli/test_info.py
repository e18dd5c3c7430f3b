"""``pagraph info`` prints what the summary says, and refuses what is no graph."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner
from fresh_processes import HANGING

from pagraph import Graph
from pagraph.cli import main
from pagraph.datasets import citation, open_graph, rmat, write_graph
from pagraph.partition import partition_graph, write_partition


def run(*args, columns="120"):
    return CliRunner().invoke(main, ["info", *map(str, args)], env={"COLUMNS": columns})


@pytest.fixture
def folder(tmp_path):
    graph = rmat(8, num_features=3, num_classes=2)
    write_graph(graph, tmp_path / "g", origin={"generator": "rmat", "size": 8})
    return tmp_path / "g"


def test_tables(folder):
    done = run(folder)
    assert (done.exit_code, done.stderr) == (0, "")
    text = done.stdout
    assert f"{folder} (native): 256 vertices, 4,096 edges, " in text
    assert "from generator=rmat, size=8" in text
    for words in (
        "top 1%",
        "top 20%",
        "in-edges sampled",
        "out-edges sampled",
        "self-loops",
        "isolated",
    ):
        assert words in text
    assert "256 x 3" in text
    assert "float32" in text
    assert "train_mask" in text
    assert "(indptr)" in text
    assert "\x1b" not in text


def test_classes_and_direction(folder, tmp_path):
    text = run(folder).stdout
    assert "2 classes" in text and "not every edge goes both ways" in text
    write_graph(rmat(6, undirected=True), tmp_path / "both")
    assert "\nevery edge goes both ways" in run(tmp_path / "both").stdout


def test_long_names_are_shown_whole(tmp_path):
    graph = citation(30, num_features=2)
    write_graph(graph, tmp_path / "papers")
    text = run(tmp_path / "papers", columns=None).stdout
    for etype in graph.edge_types:
        assert f"\n{'/'.join(etype)}: (indices) " in text
    text = run(tmp_path / "papers", columns="80").stdout
    assert "\nauthor/affiliated_with/ " in text and "\n  institution: (indices)" in text


def test_does_not_wait_for_the_import_of_torch(folder):
    """It takes longer than all the rest."""
    script = (
        "import sys; from pagraph.cli import main; main(sys.argv[1:], standalone_mode=False); "
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "info", folder],
        capture_output=True,
        text=True,
        timeout=HANGING,
    )
    assert "4,096 edges" in done.stdout, done.stderr
    assert not {"torch", "numba", "scipy"} & set(done.stdout.split())


def test_json(folder, tmp_path):
    done = run(folder, "--json", tmp_path / "out.json", "--verify")
    assert done.exit_code == 0
    assert "verified: every checksum and every id" in done.stdout
    value = json.loads((tmp_path / "out.json").read_text())
    assert (value["form"], value["num_nodes"], value["num_edges"]) == ("native", 256, 4096)
    assert value["origin"] == {"generator": "rmat", "size": 8}
    assert value["folder"] == str(folder)
    shares = value["edge_types"][0]["by_out_degree"]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] < 1
    assert {array["name"] for array in value["arrays"]} >= {
        "feat",
        "label",
        "train_mask",
        "indptr",
        "indices",
    }


def test_pagraph_form(data_folder):
    done = run(data_folder / "cora", "--verify")
    assert done.exit_code == 0
    assert "(pagraph): 2,708 vertices, 10,556 edges" in done.stdout
    assert "9.8%" in done.stdout
    assert "32.1%" in done.stdout
    assert "verified: every id" in done.stdout


def test_several_types(tmp_path):
    writes, cites = Graph.from_coo([0, 1], [0, 1]).csc, Graph.from_coo([0], [1]).csc
    graph = Graph({("author", "writes", "paper"): writes, ("paper", "cites", "paper"): cites})
    write_graph(graph, tmp_path / "g")
    text = run(tmp_path / "g").stdout
    assert "2 vertices of author, 2 vertices of paper" in text
    # Each type has two rows of one table; which edges go both ways is known among equal ends.
    assert text.count("max degree") == 1
    assert re.search(r"author/writes/paper +2 +in-edges sampled +1 ", text)
    assert re.search(r"paper/cites/paper +1 +in-edges sampled +1 ", text)
    assert "\npaper/cites/paper: not every edge goes both ways\n" in text
    assert "paper/cites/paper: (indptr)" in text


def test_empty_graph(tmp_path):
    write_graph(Graph.from_coo([], [], 0), tmp_path / "g")
    assert run(tmp_path / "g").exit_code == 0


def test_names_that_look_like_markup(tmp_path):
    write_graph(
        Graph.from_coo([0], [1], ndata={"[bold]x[/bold]": torch.ones(2)}), tmp_path / "[red]"
    )
    assert "[bold]x[/bold]" in run(tmp_path / "[red]").stdout


class TestRefusals:
    def test_no_graph(self, tmp_path):
        done = run(tmp_path)
        assert done.exit_code == 2
        assert done.stderr.startswith(
            "Error: folder must hold manifest.json (native form) or adj.npz"
        )
        assert done.stdout == ""

    def test_a_partition(self, folder, tmp_path):
        write_partition(
            partition_graph(Graph.open(folder), 2, hops=1, method="hash"), tmp_path / "parts"
        )
        done = run(tmp_path / "parts")
        assert (done.exit_code, done.stdout) == (2, "")
        assert (
            f"its parts are graph folders, such as '{tmp_path / 'parts' / 'part-0'}'" in done.stderr
        )
        assert run(tmp_path / "parts" / "part-0").exit_code == 0

    @pytest.mark.parametrize("verify", [False, True])
    def test_truncated(self, folder, verify):
        os.truncate(folder / "node-feat.npy", 100)
        done = run(folder, *(["--verify"] if verify else []))
        assert done.exit_code == 2
        assert "node-feat.npy" in done.stderr
        assert done.stderr.count("\n") == 1

    def test_flipped_bit(self, folder):
        content = bytearray((folder / "node-feat.npy").read_bytes())
        content[-1] ^= 1
        (folder / "node-feat.npy").write_bytes(content)
        assert run(folder).exit_code == 0
        done = run(folder, "--verify")
        assert done.exit_code == 2
        assert "node-feat.npy is corrupt" in done.stderr

    def test_ids_out_of_range_without_verify(self, folder):
        """The summary itself counts by id: it must not read or write outside its arrays."""
        path = folder / "edge-indices.npy"
        content = bytearray(path.read_bytes())
        content[-4:] = (2**30).to_bytes(4, "little")
        path.write_bytes(content)
        done = run(folder)
        assert done.exit_code == 2
        assert "indices must be in [0, 256), got 1073741824" in done.stderr

    def test_json_into_a_folder_that_is_not_there(self, folder, tmp_path):
        done = run(folder, "--json", tmp_path / "no" / "out.json")
        assert done.exit_code == 2


def test_memory(folder):
    for more in ([], ["--verify"]):
        assert run(folder, *more, "--memory", "4GiB").stdout == run(folder, *more).stdout
        done = run(folder, *more, "--memory", "1MiB")
        assert done.exit_code == 2
        assert re.fullmatch(
            r"Error: --memory must be at least .* for 256 vertices and .*; got 1 MiB\n", done.stderr
        )
    assert "--memory must be bytes" in run(folder, "--memory", "10%").stderr


def test_verifying_tells_the_bytes(folder):
    told = []
    open_graph(folder, verify=True, progress=lambda *done: told.append(done))
    assert told == sorted(told) and told[-1][0] == told[-1][1] == sum(
        p.stat().st_size for p in folder.glob("*.npy")
    )
