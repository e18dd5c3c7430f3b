"""``pagraph partition``: parts, reports, comparisons, and what is refused."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from pagraph import Graph, MissingDependencyError
from pagraph.cli import main
from pagraph.datasets import citation, rmat, sbm, write_graph
from pagraph.partition import METHODS, describe, draw_train, partition_graph

HASH = ["--method", "hash"]
QUICK = [*HASH, "--cache", "0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("partition") / "graph"
    write_graph(sbm(600, num_features=8), path)
    return path


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """No features, no labels, no masks."""
    path = tmp_path_factory.mktemp("partition") / "bare"
    graph = rmat(8)
    for name in list(graph.ndata):
        del graph.ndata[name]
    write_graph(graph, path)
    return path


def run(*arguments, columns=80):
    result = CliRunner().invoke(main, ["partition", *map(str, arguments)], env={"COLUMNS": str(columns)})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def fails(*arguments):
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


class TestDividing:
    def test_parts_are_written_and_reported(self, folder, tmp_path):
        out, file = tmp_path / "parts", tmp_path / "p.json"
        result = run(folder, out, "-k", 3, *HASH, "--json", file, "--cache", "20%", "--cache-policy", "degree")
        assert (result.exit_code, result.stderr) == (0, "")
        want = describe(partition_graph(Graph.open(folder), 3, hops=2, method="hash"), cache=None)
        report = json.loads(file.read_text())
        assert {"method", "parts", "hops", "seconds", "peak_bytes"} <= set(report)
        assert report["train_per_part"] == [120, 120, 120]
        assert report["vertices_per_part"] == [part.vertices for part in want.parts]
        assert report["replication_factor"] == want.replication_factor
        assert report["seconds"] > 0 and report["peak_bytes"] > 2**20
        assert set(report["seconds_by_step"]) == {"compiling", "dividing", "measuring", "writing"}
        assert (report["folder"], report["out"], report["format"]) == (str(folder), str(out), "native")
        assert [Graph.open(out / f"part-{part}").num_nodes for part in range(3)] == report["vertices_per_part"]
        text = result.stdout
        assert f"{folder}: 600 vertices" in text and "3 parts of 2 hops by hash" in text
        for part in want.parts:
            assert re.search(rf"^ +\d +120 +{part.halo[0]:,} +{part.halo[1]:,} +{part.vertices:,} ", text, re.MULTILINE)
        assert f"replication factor  {want.replication_factor:.3f}" in text
        rate = report["cache"]["hit_rate"]
        assert f"{rate:.1%} with a cache of 20% of the rows (3.84 kB) for each part" in " ".join(text.split())
        assert f"written to {out}: " in text
        table = text.splitlines()[1:-1]
        assert all(len(line) <= 80 for line in table) and "\x1b" not in text and "…" not in text

    def test_the_default_method_is_auto(self, folder, tmp_path):
        file = tmp_path / "p.json"
        trial = ["--cache", "4KiB", "--cache-policy", "degree"]
        result = run(folder, tmp_path / "parts", "-k", 2, "--hops", 1, *trial, "--json", file)
        assert result.exit_code == 0
        report = json.loads(file.read_text())
        assert report["method"] == "auto" and sum(report["train_per_part"]) == 360
        assert report["cache"]["budget_bytes"] == 4096
        assert "with a cache of 4.10 kB for each part" in " ".join(result.stdout.split())

    def test_quiet_prints_nothing(self, folder, tmp_path):
        result = run(folder, tmp_path / "parts", "-k", 2, *QUICK, "--quiet")
        assert (result.exit_code, result.output) == (0, "")
        assert (tmp_path / "parts" / "part-1").is_dir()

    def test_a_share_is_drawn_where_there_is_no_mask(self, bare, tmp_path):
        drawn = ["--train-fraction", "0.25", "--seed", "3", "--json", tmp_path / "p.json"]
        assert run(bare, tmp_path / "parts", "-k", 4, *QUICK, *drawn).exit_code == 0
        report = json.loads((tmp_path / "p.json").read_text())
        assert sum(report["train_per_part"]) == len(draw_train(Graph.open(bare), 0.25, seed=3)) == 64
        assert report["train_fraction"] == 0.25 and report["cache"] is None

    def test_another_split(self, tmp_path):
        graph = rmat(8, num_features=2, num_classes=2)
        graph.ndata["pub_train_mask"] = torch.arange(256) < 10
        write_graph(graph, tmp_path / "two")
        settings = ["-k", 2, *QUICK, "--split", "pub_", "--json", tmp_path / "p.json"]
        assert run(tmp_path / "two", tmp_path / "parts", *settings).exit_code == 0
        assert json.loads((tmp_path / "p.json").read_text())["train_per_part"] == [5, 5]

    def test_features_may_stay_where_they_are(self, folder, tmp_path):
        for features in ("copy", "reference"):
            assert run(folder, tmp_path / features, "-k", 2, *QUICK, "--features", features).exit_code == 0
        sizes = {f: sum(p.stat().st_size for p in (tmp_path / f).rglob("*")) for f in ("copy", "reference")}
        assert sizes["reference"] < sizes["copy"] - 600 * 32

    def test_dgl_opens_its_own_format(self, folder, tmp_path):
        from pagraph.dgl.graphbolt import import_dgl

        dgl = import_dgl()
        assert run(folder, tmp_path / "parts", "-k", 2, *QUICK, "--format", "dgl").exit_code == 0
        found = [dgl.distributed.load_partition(str(tmp_path / "parts" / "graph.json"), part) for part in range(2)]
        assert sum(int(graph.ndata["inner_node"].sum()) for graph, *_ in found) == 600

    def test_the_original_s_format(self, folder, tmp_path):
        assert run(folder, tmp_path / "parts", "-k", 2, *QUICK, "--format", "pagraph").exit_code == 0
        assert np.load(tmp_path / "parts" / "sub_trainid_1.npy").shape == (180,)

    def test_parts_may_hold_what_evaluation_takes(self, folder, tmp_path):
        reports = {}
        for where in ("source", "parts"):
            file = tmp_path / f"{where}.json"
            settings = ["-k", 2, *QUICK, "--hops", 1, "--evaluation", where, "--json", file]
            result = run(folder, tmp_path / where, *settings)
            assert result.exit_code == 0, result.output
            reports[where] = json.loads(file.read_text())
        assert reports["source"]["evaluated_per_part"] == [0, 0]
        assert sum(reports["parts"]["evaluated_per_part"]) == 240  # all that are not trained on
        assert "val, test" in result.stdout
        assert reports["parts"]["replication_factor"] > reports["source"]["replication_factor"]

    def test_a_limit_on_replication_is_kept_and_its_price_told(self, folder, tmp_path):
        file = tmp_path / "p.json"
        limit = ["--max-replication", 1.5, "--fanout", "5,5"]
        result = run(folder, tmp_path / "parts", "-k", 3, *QUICK, *limit, "--json", file)
        assert result.exit_code == 0, result.output
        report = json.loads(file.read_text())
        assert 1.4 < report["replication_factor"] <= 1.5
        assert sum(report["dropped_per_part"]) > 0 and sum(report["missing_edges_per_part"]) > 0
        assert 0 < report["lost_neighbours"] < 1
        lost = f"{report['lost_neighbours']:.1%} of the neighbours that training draws are lost"
        assert lost in " ".join(result.stdout.split())
        assert run("verify", tmp_path / "parts").exit_code == 0
        compared = run(folder, "--compare", "-k", 3, *QUICK, *limit)
        assert f"{report['lost_neighbours']:.1%}" in compared.stdout and "lost: of" in compared.stdout

    def test_many_parts_are_summed_up(self, folder, tmp_path):
        text = run(folder, tmp_path / "parts", "-k", 20, *QUICK, "--hops", 5).stdout
        assert re.search(r"^ *most +18 ", text, re.MULTILINE) and re.search(r"^ *least +18 ", text, re.MULTILINE)
        assert "+ hops 3-5" in text

    def test_plot(self, folder, tmp_path):
        pytest.importorskip("matplotlib")
        settings = ["-k", 2, *QUICK, "--plot"]
        assert run(folder, tmp_path / "parts", *settings, tmp_path / "p.pdf").exit_code == 0
        assert (tmp_path / "p.pdf").read_bytes().startswith(b"%PDF")


class TestComparing:
    def test_one_table_and_no_parts(self, folder, tmp_path, monkeypatch):
        monkeypatch.setitem(METHODS, "first", first_ones)
        file, plot = tmp_path / "p.json", tmp_path / "p.svg"
        methods = ["--method", "hash", "--method", "first"]
        trial = ["--cache", "20%", "--cache-policy", "degree"]
        result = run(folder, "--compare", "-k", 3, "--hops", 1, *methods, *trial, "--json", file, "--plot", plot)
        assert (result.exit_code, result.stderr) == (0, "")
        reports = json.loads(file.read_text())["comparison"]
        assert [report["method"] for report in reports] == ["hash", "first"]
        best = min(report["replication_factor"] for report in reports)
        for report in reports:
            factor = report["replication_factor"]
            mark = r"\*" if factor == best else " "
            found = rf"^ *{report['method']} +{factor:.3f}{mark} +{report['train_balance']:.3f} "
            assert re.search(found, result.stdout, re.MULTILINE), result.stdout
            assert f"{report['cache']['hit_rate']:.1%}" in result.stdout
        # The whole graph is sampled once, for all methods.
        assert len({report["cache"]["unpartitioned_reads"] for report in reports}) == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == ["p.json", "p.svg"]
        assert all(len(line) <= 80 for line in result.stdout.splitlines()[1:])

    def test_all_methods_that_can_run(self, folder, tmp_path, monkeypatch):
        def missing(*_arguments, **_settings):
            raise MissingDependencyError("needs a package, which is not installed")

        for name in list(METHODS):
            monkeypatch.delitem(METHODS, name)
        monkeypatch.setitem(METHODS, "first", first_ones)
        monkeypatch.setitem(METHODS, "absent", missing)
        result = run(folder, "--compare", "-k", 2, "--cache", "0", "--json", tmp_path / "p.json")
        assert result.exit_code == 0
        assert "absent was left out: needs a package, which is not installed" in result.stdout
        report = json.loads((tmp_path / "p.json").read_text())
        assert [r["method"] for r in report["comparison"]] == ["first"] and list(report["skipped"]) == ["absent"]
        named = run(folder, "--compare", "-k", 2, "--cache", "0", "--method", "absent")
        assert (named.exit_code, named.stdout) == (1, "")

    def test_without_caches_there_is_no_hit_rate(self, folder):
        text = run(folder, "--compare", "-k", 2, *QUICK).stdout
        assert "hash" in text and "hit rate" not in text


def first_ones(graph, train, num_parts, hops, *, seed=0, progress=None):
    """The training vertices in the order of their ids, cut into pieces."""
    return (torch.arange(len(train)) * num_parts // len(train)).int()


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
            (["--method", "hash", "--method", "hash"], "--method must name each method once, got hash, hash"),
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
            (["--batch-size", "0"], "batch_size must be an integer of at least 1, got 0"),
            (["--features", "link"], "'link' is not one of 'copy', 'reference'"),
            (["--format", "dgl", "--features", "reference"], "--features must be copy with --format dgl"),
            (["--format", "pagraph", "--evaluation", "parts"], "--evaluation must be source with --format pagraph"),
            (["--max-replication", "0"], "--max-replication must be positive and finite, got 0"),
            (["--max-replication", "nan"], "--max-replication must be positive and finite, got nan"),
            (["--max-replication", "0.5"], "--max-replication must be at least 0.6, the share of training vertices"),
            (["--max-replication", "2", "--fanout", "5"], "--fanout must have 2 entries with --max-replication, got 5"),
            (["--json", "no/p.json"], "--json must be in a folder that exists, got 'no/p.json'"),
            (["--json", "."], "--json must be a file, got the folder"),
            (["--plot", "p.gif"], r"plot must end in \.png or \.svg or \.pdf, got 'p.gif'"),
            (["--plot", "p.svg", "--json", "p.svg"], "--plot must be another file than --json"),
        ],
    )
    def test_is_one_line_and_nothing_is_written(self, folder, tmp_path, monkeypatch, arguments, message):
        monkeypatch.chdir(tmp_path)
        given = [] if "--method" in arguments else HASH
        given += [] if "-k" in arguments else ["-k", "2"]
        assert re.search(message, fails(folder, "out", *given, *arguments))
        assert re.search(message, fails(folder, "--compare", *given, *arguments))
        assert list(tmp_path.iterdir()) == []

    def test_where_parts_cannot_go(self, folder, tmp_path):
        (tmp_path / "there").mkdir()
        (tmp_path / "file").touch()
        (tmp_path / "link").symlink_to(folder)
        for out, message in {
            "there": "must not exist yet",
            "file": "must not exist yet",
            "file/parts": "OUT must be in a folder",
            "link/parts": "must not be inside",
            "/proc/deep/parts": "OUT must be",
        }.items():
            assert message in fails(folder, tmp_path / out, "-k", 2, *QUICK)
        assert "must not be inside" in fails(folder, folder / "deep" / "parts", "-k", 2, *QUICK)
        assert "must not exist yet" in fails(folder, folder, "-k", 2, *QUICK)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "there"]

    def test_out_and_compare_exclude_each_other(self, folder, tmp_path, monkeypatch):
        assert "OUT must not be given with --compare" in fails(folder, tmp_path / "out", "--compare", "-k", 2)
        assert "Missing argument 'OUT'" in fails(folder, "-k", 2)
        monkeypatch.setitem(METHODS, "first", first_ones)
        several = ["--method", "hash", "--method", "first"]
        assert "--method must be given once" in fails(folder, tmp_path / "out", "-k", 2, *several)
        assert "Missing option '-k'" in fails(folder, tmp_path / "out")

    def test_what_the_graph_lacks(self, bare, tmp_path):
        message = "--train-fraction must be given for a graph without train_mask, such as 0.1; got none"
        assert message in fails(bare, tmp_path / "out", "-k", 2, *QUICK)
        graph = rmat(6, num_classes=2)
        graph.ndata["train_mask"] = graph.ndata["train_mask"] & False
        write_graph(graph, tmp_path / "empty")
        drawn = ["--train-fraction", "0.5"]
        message = "--evaluation must be source for a graph without val_mask and test_mask, got parts"
        assert message in fails(bare, tmp_path / "out", "-k", 2, *QUICK, *drawn, "--evaluation", "parts")
        message = "--format must not be pagraph for a graph without labels"
        assert message in fails(bare, tmp_path / "out", "-k", 2, *QUICK, *drawn, "--format", "pagraph")
        assert "at least 1 vertex, got 0" in fails(tmp_path / "empty", tmp_path / "out", "-k", 1, *QUICK)
        assert not (tmp_path / "out").exists()

    def test_bytes_say_nothing_without_features(self, bare, tmp_path):
        settings = ["-k", 2, *HASH, "--train-fraction", "0.5", "--cache", "1MB"]
        assert "cache must be a share where the graph has no field feat" in fails(bare, tmp_path / "out", *settings)
        assert list(tmp_path.iterdir()) == []

    def test_no_graph_and_several_types(self, tmp_path):
        assert "nowhere" in fails(tmp_path / "nowhere", tmp_path / "out", "-k", 2, *QUICK)
        write_graph(citation(100, num_features=2, num_author_features=2), tmp_path / "papers")
        message = "DIR must hold a graph with one vertex type and one edge type"
        assert message in fails(tmp_path / "papers", tmp_path / "out", "-k", 2, *QUICK)

    def test_missing_matplotlib(self, folder, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        result = run(folder, tmp_path / "out", "-k", 2, *QUICK, "--plot", tmp_path / "p.png")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "a plot needs matplotlib" in result.stderr
        assert list(tmp_path.iterdir()) == []


def test_bars_are_drawn_on_a_terminal_and_the_report_is_plain_in_a_pipe(folder, tmp_path):
    command = [sys.executable, "-m", "pagraph", "partition", str(folder), str(tmp_path / "out"), "-k", "2", *HASH]
    terminal, inner = pty.openpty()  # the bars are short enough for the terminal's buffer
    seen = subprocess.run([*command, "--cache-policy", "degree"], stdout=subprocess.PIPE, stderr=inner, timeout=120)
    os.close(inner)
    screen = os.read(terminal, 100_000)
    os.close(terminal)
    assert seen.returncode == 0
    for step in (b"dividing by hash", b"measuring the parts", b"writing out"):
        assert step in screen
    assert b"replication factor" in seen.stdout and b"\x1b" not in seen.stdout


def test_ctrl_c_leaves_nothing(folder, tmp_path):
    """An endless epoch of one-seed batches: the signal comes while it is measured."""
    write_graph(rmat(15, num_classes=2), tmp_path / "graph")
    command = [sys.executable, "-m", "pagraph", "partition", tmp_path / "graph", tmp_path / "out", "-k", "2", *HASH]
    command += ["--batch-size", "1", "--fanout", "500,500", "--cache-policy", "degree", "--json", tmp_path / "p.json"]
    terminal, inner = pty.openpty()
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=inner, text=True) as process:
        os.close(inner)
        screen = b""
        while b"measuring" not in screen:
            screen += os.read(terminal, 10_000)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # how a terminal ends
            while chunk := os.read(terminal, 10_000):
                screen += chunk
        output, _ = process.communicate(timeout=60)
    os.close(terminal)
    assert (process.returncode, output) == (130, "")
    assert screen.endswith(b"Error: interrupted\r\n")
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]
