"""What ``pagraph partition`` refuses."""

import re
import sys

import pytest
import torch
from partition_runs import HASH, QUICK, fails, first_ones, run

from pagraph.datasets import citation, rmat, write_graph
from pagraph.partition import METHODS


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["-k", "0"], "--parts must be at least 1, got 0"),
            (["-k", "361"], "--parts must be at most the number of training vertices 360, got 361"),
            (["-k", "two"], "'two' is not a valid integer"),
            (["--hops", "0"], "--hops must be from 1 to 253, got 0"),
            (["--hops", "-1"], "--hops must be from 1 to 253, got -1"),
            (["--seed", "-1"], "--seed must be in"),
            (["--method", "best"], "method must be one of .*hash.*, got 'best'"),
            (
                ["--method", "hash", "--method", "hash"],
                "--method must name each method once, got hash, hash",
            ),
            (["--train-fraction", "0"], r"--train-fraction must be in \(0, 1\], got 0"),
            (["--train-fraction", "nan"], r"--train-fraction must be in \(0, 1\], got nan"),
            (["--split", "pub_"], "split must be one of"),
            (["--cache", "some"], "cache must be .*, got 'some'"),
            (["--cache", "150%"], "cache must be a share in"),
            (["--cache", "auto"], "cache must be bytes .* to try it out, got 'auto'"),
            (["--cache-policy", "best"], "cache_policy must be one of"),
            (["--fanout", "ten"], "fanout must be integers with commas between, got 'ten'"),
            (["--fanout", "0,5"], "fanouts must be positive or -1"),
            (["--fanout", "5,5,5"], "fanout must have at most 2 entries for 2 hops"),
            (["--batch-size", "0"], "--batch-size must be an integer of at least 1, got 0"),
            (["--features", "link"], "'link' is not one of 'copy', 'reference'"),
            (
                ["--format", "dgl", "--features", "reference"],
                "--features must be copy with --format dgl",
            ),
            (
                ["--format", "dgl", "--max-replication", "2"],
                "--max-replication must not be given with --format dgl",
            ),
            (
                ["--format", "dgl", "--plot", "p.svg"],
                "--plot must not be given with --format dgl",
            ),
            (["--minimize", "vol"], "'vol' is not one of 'rows', 'cut'"),
            (["--minimize", "cut"], "--minimize must be rows with --format native, got cut"),
            (
                ["--format", "pagraph", "--evaluation", "parts"],
                "--evaluation must be source with --format pagraph",
            ),
            (["--max-replication", "0"], "--max-replication must be positive and finite, got 0"),
            (
                ["--max-replication", "nan"],
                "--max-replication must be positive and finite, got nan",
            ),
            (
                ["--max-replication", "0.5"],
                "--max-replication must be at least 0.6, the share of training vertices",
            ),
            (
                ["--max-replication", "2", "--fanout", "5"],
                "--fanout must have 2 entries with --max-replication, got 5",
            ),
            (["--json", "no/p.json"], "--json must be in a folder that exists, got 'no/p.json'"),
            (["--json", "."], "--json must be a file, got the folder"),
            (["--plot", "p.gif"], r"plot must end in \.png or \.svg or \.pdf, got 'p.gif'"),
            (["--plot", "p.svg", "--json", "p.svg"], "--plot must be another file than --json"),
        ],
    )
    def test_is_one_line_and_nothing_is_written(
        self, blocks, tmp_path, monkeypatch, arguments, message
    ):
        monkeypatch.chdir(tmp_path)
        given = [] if "--method" in arguments else [*HASH]
        given += [] if "-k" in arguments else ["-k", "2"]
        assert re.search(message, fails(blocks, "out", *given, *arguments))
        assert re.search(message, fails(blocks, "--compare", *given, *arguments))
        assert list(tmp_path.iterdir()) == []

    def test_where_parts_cannot_go(self, blocks, tmp_path):
        (tmp_path / "there").mkdir()
        (tmp_path / "file").touch()
        (tmp_path / "link").symlink_to(blocks)
        for out, message in {
            "there": "OUT must not exist yet",
            "file": "OUT must not exist yet",
            "file/parts": "OUT must be in a folder",
            "link/parts": "must not be inside",
            "/proc/deep/parts": "OUT must be",
        }.items():
            assert message in fails(blocks, tmp_path / out, "-k", 2, *QUICK)
        assert "must not be inside" in fails(blocks, blocks / "deep" / "parts", "-k", 2, *QUICK)
        assert "OUT must not exist yet" in fails(blocks, blocks, "-k", 2, *QUICK)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "there"]

    def test_out_and_compare_exclude_each_other(self, blocks, tmp_path, monkeypatch):
        assert "OUT must not be given with --compare" in fails(
            blocks, tmp_path / "out", "--compare", "-k", 2
        )
        assert "Missing argument 'OUT'" in fails(blocks, "-k", 2)
        monkeypatch.setitem(METHODS, "halo", first_ones)
        several = ["--method", "hash", "--method", "halo"]
        assert "--method must be given once" in fails(blocks, tmp_path / "out", "-k", 2, *several)
        assert "Missing option '-k'" in fails(blocks, tmp_path / "out")

    def test_what_the_graph_lacks(self, bare, tmp_path):
        message = (
            "--train-fraction must be given for a graph without train_mask, such as 0.1; got none"
        )
        assert message in fails(bare, tmp_path / "out", "-k", 2, *QUICK)
        graph = rmat(6, num_classes=2)
        graph.ndata["train_mask"] = graph.ndata["train_mask"] & False
        write_graph(graph, tmp_path / "empty")
        drawn = ["--train-fraction", "0.5"]
        message = (
            "--evaluation must be source for a graph without val_mask and test_mask, got parts"
        )
        assert message in fails(
            bare, tmp_path / "out", "-k", 2, *QUICK, *drawn, "--evaluation", "parts"
        )
        message = "--format must not be pagraph for a graph without labels"
        assert message in fails(
            bare, tmp_path / "out", "-k", 2, *QUICK, *drawn, "--format", "pagraph"
        )
        assert "at least 1 vertex, got 0" in fails(
            tmp_path / "empty", tmp_path / "out", "-k", 1, *QUICK
        )
        assert not (tmp_path / "out").exists()

    def test_bytes_say_nothing_without_features(self, bare, tmp_path):
        settings = ["-k", 2, *HASH, "--train-fraction", "0.5", "--cache", "1MB"]
        assert "cache must be a share if the graph has no field feat" in fails(
            bare, tmp_path / "out", *settings
        )
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("form", "name", "message"),
        [
            (
                "native",
                "global_ids",
                "graph must not have a field with a name that parts use, got 'global_ids'",
            ),
            (
                "dgl",
                "a/b",
                "names of fields must not be 'orig_id' or contain '/' or ':', got 'a/b'",
            ),
        ],
    )
    def test_fields_that_the_form_cannot_hold(self, tmp_path, monkeypatch, form, name, message):
        """Told before anything is divided."""
        graph = rmat(6, num_classes=2)
        graph.set_field(name, torch.arange(64))
        write_graph(graph, tmp_path / "graph")
        begun = []
        monkeypatch.setitem(METHODS, "halo", lambda *given, **_: begun.append(given))
        settings = ["-k", 2, "--method", "halo", "--cache", "0", "--format", form]
        assert message in fails(tmp_path / "graph", tmp_path / "out", *settings)
        assert not begun and not (tmp_path / "out").exists()

    def test_no_graph_and_several_types(self, tmp_path):
        assert "nowhere" in fails(tmp_path / "nowhere", tmp_path / "out", "-k", 2, *QUICK)
        write_graph(citation(100, num_features=2, num_author_features=2), tmp_path / "papers")
        for options, message in (
            (
                ("--format", "pagraph"),
                "--format must not be pagraph for a graph with several types, got pagraph and",
            ),
            (
                ("--node-type", "book"),
                "--node-type must be one of paper, author, institution, got 'book'",
            ),
            (
                ("--node-type", "author"),
                "--train-fraction must be given for a graph without train_mask",
            ),
        ):
            assert message in fails(
                tmp_path / "papers", tmp_path / "out", "-k", 2, *options, *QUICK
            )

    def test_missing_matplotlib(self, blocks, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        result = run(blocks, tmp_path / "out", "-k", 2, *QUICK, "--plot", tmp_path / "p.png")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "a plot needs matplotlib" in result.stderr
        assert list(tmp_path.iterdir()) == []


def test_too_little_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("pagraph.system.budget.held_by_process", lambda: 0)
    write_graph(rmat(16, num_classes=2, edge_factor=32), tmp_path / "rmat")
    out, rest = (
        tmp_path / "out",
        r"and the 0MiB that the process holds \(one eighth of memory is reserved for it\)",
    )
    for method, given, message in (
        (QUICK, ("1MiB",), f"must be at least 131MiB for 2 parts of this graph {rest}; got 1 MiB"),
        (
            QUICK,
            ("132MiB", "--hops", "2"),
            rf"must be at least \d+MiB for a part within 2 hops, .* {rest}; got .*",
        ),
        (QUICK, ("10%",), "must be bytes .*, not a share, got '10%'"),
        (
            ("--method", "metis"),
            ("132MiB",),
            rf"must be at least 619MiB for .* by metis \(by halo 480MiB less\) {rest}; .*",
        ),
    ):
        said = fails(tmp_path / "rmat", out, "-k", "2", *method, "--memory", *given)
        assert re.fullmatch(f"Error: --memory {message}", said), said
    assert [path.name for path in tmp_path.iterdir()] == ["rmat"]
    assert run(tmp_path / "rmat", out, "-k", "2", *QUICK, "--memory", "1GiB").exit_code == 0
