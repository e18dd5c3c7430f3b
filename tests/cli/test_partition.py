"""``pagraph partition``: parts and reports."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess

import numpy as np
import pytest
import torch
from fresh_processes import HANGING, forked_python
from partition_runs import HASH, QUICK, run
from runs import on_terminal

from pagraph import Graph, open_partition
from pagraph.datasets import citation, rmat, write_graph
from pagraph.partition import METHODS, describe, draw_train, partition_graph
from pagraph.ranking.policies import POLICIES


class TestDividing:
    def test_parts_are_written_and_reported(self, blocks, tmp_path):
        out, file = tmp_path / "parts", tmp_path / "p.json"
        result = run(
            blocks,
            out,
            "-k",
            3,
            *HASH,
            "--json",
            file,
            "--cache",
            "20%",
            "--cache-policy",
            "degree",
            columns=80,
        )
        want = describe(partition_graph(Graph.open(blocks), 3, hops=2, method="hash"), cache=None)
        assert (result.exit_code, result.stderr) == (0, want.advice + "\n")
        assert "largest holds 100% of the graph" in want.advice
        report = json.loads(file.read_text())
        assert {"method", "parts", "hops", "seconds", "peak_bytes"} <= set(report)
        assert report["train_per_part"] == [120, 120, 120]
        assert report["vertices_per_part"] == [part.vertices for part in want.parts]
        assert report["replication_factor"] == want.replication_factor
        assert report["seconds"] > 0 and report["peak_bytes"] > 2**20
        assert set(report["seconds_by_step"]) == {"kernels", "dividing", "measuring", "writing"}
        assert (report["folder"], report["out"], report["format"]) == (
            str(blocks),
            str(out),
            "native",
        )
        assert [Graph.open(out / f"part-{part}").num_nodes for part in range(3)] == report[
            "vertices_per_part"
        ]
        text = result.stdout
        assert f"{blocks}: 600 vertices" in text and "3 parts of 2 hops by hash" in text
        for part in want.parts:
            assert re.search(
                rf"^ +\d +120 +{part.halo[0]:,} +{part.halo[1]:,} +{part.vertices:,} ",
                text,
                re.MULTILINE,
            )
        assert f"largest part        {want.largest_share:.3f} of the graph" in text
        assert f"replication factor  {want.replication_factor:.3f}" in text
        rate = report["cache"]["hit_rate"]
        assert f"{rate:.1%} with a cache of 20% of the rows (3.75 KiB) for each part" in " ".join(
            text.split()
        )
        assert f"written to {out}: " in " ".join(text.split())
        table = [
            line for line in text.splitlines() if "/graph: " not in line and "/parts:" not in line
        ]
        assert all(len(line) <= 80 for line in table) and "\x1b" not in text and "…" not in text

    def test_several_types(self, tmp_path):
        graph, file = citation(300, num_features=4, num_author_features=2), tmp_path / "p.json"
        write_graph(graph, tmp_path / "papers")
        out, limit = (
            tmp_path / "parts",
            ["--max-replication", 1.5, "--fanout", "3,3", "--evaluation", "parts"],
        )
        result = run(
            tmp_path / "papers",
            out,
            "-k",
            2,
            *QUICK,
            *limit,
            "--json",
            file,
            "--node-type",
            "paper",
        )
        assert (result.exit_code, result.stderr) == (0, "")
        report = json.loads(file.read_text())
        parts = [Graph.open(out / f"part-{part}") for part in range(2)]
        assert report["vertices_by_type_per_part"] == [part.num_nodes_by_type for part in parts]
        assert report["num_nodes_by_type"] == graph.num_nodes_by_type
        for name, factor in report["replication_by_type"].items():
            assert re.search(
                rf"^{name} +[\d,]+ +[\d,]+ +{factor:.3f}$", result.stdout, re.MULTILINE
            )
        assert "= vertices" in result.stdout and report["replication_factor"] <= 1.5
        assert run("verify", out).exit_code == 0

    def test_a_share_of_a_type(self, tmp_path):
        write_graph(citation(300, num_features=4, num_author_features=2), tmp_path / "papers")
        settings = ("-k", 2, *QUICK, "--node-type", "author", "--train-fraction", 0.5)
        assert run(tmp_path / "papers", tmp_path / "parts", *settings).exit_code == 0
        part = open_partition(tmp_path / "parts", 0)
        assert (part.train_type, sum(part.manifest.train_per_part)) == ("author", 225)

    def test_the_default_method_is_auto(self, blocks, tmp_path):
        file = tmp_path / "p.json"
        trial = ["--cache", "4KiB", "--cache-policy", "degree"]
        result = run(blocks, tmp_path / "parts", "-k", 2, "--hops", 1, *trial, "--json", file)
        assert result.exit_code == 0
        report = json.loads(file.read_text())
        assert report["method"] == "auto" and sum(report["train_per_part"]) == 360
        assert report["cache"]["budget_bytes"] == 4096
        assert "with a cache of 4 KiB for each part" in " ".join(result.stdout.split())

    def test_quiet_prints_nothing(self, blocks, tmp_path):
        result = run(blocks, tmp_path / "parts", "-k", 2, *QUICK, "--quiet")
        assert (result.exit_code, result.output) == (0, "")
        assert (tmp_path / "parts" / "part-1").is_dir()

    def test_a_share_is_drawn_where_there_is_no_mask(self, bare, tmp_path):
        drawn = ["--train-fraction", "0.25", "--seed", "3", "--json", tmp_path / "p.json"]
        assert run(bare, tmp_path / "parts", "-k", 4, *QUICK, *drawn).exit_code == 0
        report = json.loads((tmp_path / "p.json").read_text())
        assert (
            sum(report["train_per_part"]) == len(draw_train(Graph.open(bare), 0.25, seed=3)) == 64
        )
        assert report["train_fraction"] == 0.25 and report["cache"] is None

    def test_another_split(self, tmp_path):
        graph = rmat(8, num_features=2, num_classes=2)
        graph.ndata["pub_train_mask"] = torch.arange(256) < 10
        write_graph(graph, tmp_path / "two")
        settings = ["-k", 2, *QUICK, "--split", "pub_", "--json", tmp_path / "p.json"]
        assert run(tmp_path / "two", tmp_path / "parts", *settings).exit_code == 0
        assert json.loads((tmp_path / "p.json").read_text())["train_per_part"] == [5, 5]

    def test_features_may_stay_where_they_are(self, blocks, tmp_path):
        for features in ("copy", "reference"):
            assert (
                run(blocks, tmp_path / features, "-k", 2, *QUICK, "--features", features).exit_code
                == 0
            )
        sizes = {
            f: sum(p.stat().st_size for p in (tmp_path / f).rglob("*"))
            for f in ("copy", "reference")
        }
        assert sizes["reference"] < sizes["copy"] - 600 * 32

    def test_vertices_are_placed_for_dgl_reported_and_verified(self, blocks, tmp_path):
        pytest.importorskip("pagraph.dgl")
        out, file = tmp_path / "parts", tmp_path / "p.json"
        settings = ("-k", 3, "--fanout", "5,5", "--batch-size", 50, "--format", "dgl", *QUICK)
        result = run(blocks, out, *settings, "--json", file, columns=80)
        assert (result.exit_code, result.stderr) == (0, "")
        report = json.loads(file.read_text())
        assert sum(report["vertices_per_part"]) == 600 and report["fanout"] == [5, 5]
        assert {"placing", "dividing", "measuring", "writing"} <= set(report["seconds_by_step"])
        for name in ("vertices", "edges", "train"):
            assert 1 <= report[f"{name}_balance"] <= 1.05
            assert f"{name} {report[f'{name}_balance']:.3f}" in result.stdout
        share = report["train_share_from_others"]
        assert 0 < share < 2 / 3
        text = " ".join(result.stdout.split())
        assert f"rows from others {share:.1%} of an epoch of training" in text
        assert "(fan-out 5,5, batches of 50); at random 66.7%" in text
        assert all(len(line) <= 80 for line in result.stdout.splitlines()[1:-1])
        verified = run("verify", out)
        assert verified.exit_code == 0 and f"{out} is right: 360 training" in verified.stdout
        field = out / "part1" / "node_feat.dgl"
        field.write_bytes(field.read_bytes()[:-1])
        verified = run("verify", out)
        assert verified.exit_code == 1 and "it ends too early" in verified.stdout

    def test_placements_are_compared(self, blocks, tmp_path):
        file = tmp_path / "c.json"
        methods = ("--method", "hash", "--method", "halo")
        settings = ("-k", 2, "--format", "dgl", "--hops", 2, *methods)
        result = run(blocks, "--compare", *settings, "--json", file)
        assert result.exit_code == 0
        rows = json.loads(file.read_text())["comparison"]
        assert [row["method"] for row in rows] == ["hash", "halo"]
        shown = re.findall(r"^ *(hash|halo) +([\d.]+%)", result.stdout, re.MULTILINE)
        want = {row["method"]: f"{row['train_share_from_others']:.1%}" for row in rows}
        assert dict(shown) == want

    def test_dgl_opens_its_own_format(self, blocks, tmp_path):
        from pagraph.dgl.graphbolt import import_dgl

        dgl = import_dgl()
        assert run(blocks, tmp_path / "parts", "-k", 2, *QUICK, "--format", "dgl").exit_code == 0
        found = [
            dgl.distributed.load_partition(str(tmp_path / "parts" / "graph.json"), part)
            for part in range(2)
        ]
        assert sum(int(graph.ndata["inner_node"].sum()) for graph, *_ in found) == 600

    def test_the_original_s_format(self, blocks, tmp_path):
        assert (
            run(blocks, tmp_path / "parts", "-k", 2, *QUICK, "--format", "pagraph").exit_code == 0
        )
        assert np.load(tmp_path / "parts" / "sub_trainid_1.npy").shape == (180,)

    def test_parts_may_hold_what_evaluation_takes(self, blocks, tmp_path):
        reports = {}
        for where in ("source", "parts"):
            file = tmp_path / f"{where}.json"
            settings = ["-k", 2, *QUICK, "--hops", 1, "--evaluation", where, "--json", file]
            result = run(blocks, tmp_path / where, *settings)
            assert result.exit_code == 0, result.output
            reports[where] = json.loads(file.read_text())
        assert reports["source"]["evaluated_per_part"] == [0, 0]
        assert sum(reports["parts"]["evaluated_per_part"]) == 240  # all that are not trained on
        assert "val, test" in result.stdout
        assert reports["parts"]["replication_factor"] > reports["source"]["replication_factor"]

    def test_a_limit_on_replication_is_kept_and_its_price_told(self, blocks, tmp_path):
        file = tmp_path / "p.json"
        limit = ["--max-replication", 1.5, "--fanout", "5,5"]
        result = run(blocks, tmp_path / "parts", "-k", 3, *QUICK, *limit, "--json", file)
        assert result.exit_code == 0, result.output
        report = json.loads(file.read_text())
        assert 1.4 < report["replication_factor"] <= 1.5
        assert sum(report["dropped_per_part"]) > 0 and sum(report["missing_edges_per_part"]) > 0
        assert 0 < report["lost_neighbours"] < 1
        lost = f"{report['lost_neighbours']:.1%} of the neighbours that training draws are lost"
        assert lost in " ".join(result.stdout.split())
        assert run("verify", tmp_path / "parts").exit_code == 0
        compared = run(blocks, "--compare", "-k", 3, *QUICK, *limit)
        assert (
            f"{report['lost_neighbours']:.1%}" in compared.stdout
            and "lost: share" in compared.stdout
        )

    def test_many_parts_are_summed_up(self, blocks, tmp_path):
        text = run(blocks, tmp_path / "parts", "-k", 20, *QUICK, "--hops", 5).stdout
        assert re.search(r"^ *most +18 ", text, re.MULTILINE) and re.search(
            r"^ *least +18 ", text, re.MULTILINE
        )
        assert "+ hops 3-5" in text

    def test_many_hops_are_told_in_few_words(self, blocks, tmp_path):
        settings = ["--hops", 6, "--cache", "50%", "--cache-policy", "degree"]
        text = run(blocks, tmp_path / "parts", "-k", 2, *HASH, *settings, columns=80).stdout
        assert "fan-out 10 in each of 6 hops, batches" in " ".join(text.split())
        assert max(map(len, text.splitlines()[1:-1])) <= 80  # the first and the last name folders

    def test_help_names_what_can_be_chosen(self):
        text = " ".join(run("--help").stdout.split())
        # Of policies, those are yardsticks.
        for name in {*METHODS, *POLICIES} - {"ideal", "oracle"}:
            assert re.search(rf"\b{name}\b", text.partition("Options:")[2]), name

    def test_plot(self, blocks, tmp_path):
        pytest.importorskip("matplotlib")
        settings = ["-k", 2, *QUICK, "--plot"]
        assert run(blocks, tmp_path / "parts", *settings, tmp_path / "p.pdf").exit_code == 0
        assert (tmp_path / "p.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.processes
def test_bars_are_drawn_on_a_terminal_and_the_report_is_plain_in_a_pipe(blocks, tmp_path):
    command = [
        forked_python(),
        "-m",
        "pagraph",
        "partition",
        str(blocks),
        str(tmp_path / "out"),
        "-k",
        "2",
        *HASH,
    ]
    seen, screen = on_terminal([*command, "--cache-policy", "degree"])
    assert seen.returncode == 0
    for step in (b"dividing by hash", b"measuring the parts", b"writing out"):
        assert step in screen
    assert b"replication factor" in seen.stdout and b"\x1b" not in seen.stdout


@pytest.mark.processes
def test_ctrl_c_leaves_nothing(blocks, tmp_path):
    """An endless epoch of one-seed batches: the signal comes while it is measured."""
    write_graph(rmat(15, num_classes=2), tmp_path / "graph")
    command = [
        forked_python(),
        "-m",
        "pagraph",
        "partition",
        tmp_path / "graph",
        tmp_path / "out",
        "-k",
        "2",
        *HASH,
    ]
    command += [
        "--batch-size",
        "1",
        "--fanout",
        "500,500",
        "--cache-policy",
        "degree",
        "--json",
        tmp_path / "p.json",
    ]
    terminal, inner = pty.openpty()
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=inner, text=True
    ) as process:
        os.close(inner)
        screen = b""
        while b"measuring" not in screen:
            screen += os.read(terminal, 10_000)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # how a terminal ends
            while chunk := os.read(terminal, 10_000):
                screen += chunk
        output, _ = process.communicate(timeout=HANGING)
    os.close(terminal)
    assert (process.returncode, output) == (130, "")
    assert screen.endswith(b"Error: interrupted\r\n")
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]
