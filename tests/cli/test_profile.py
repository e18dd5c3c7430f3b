import html.parser
import json
import re
import shlex
import shutil
import sys
from collections import Counter
from functools import partial

import numpy as np
import pytest
import runs
from click.testing import CliRunner

from pagraph.cli import main
from pagraph.datasets import citation, rmat, sbm, write_graph

QUICK = [
    "--fanout",
    "5,5",
    "--batch-size",
    "100",
    "--num-workers",
    "2",
    "--policies",
    "degree,oracle",
    "--device",
    "cpu",
]
BUDGETS = ["--budgets", "10%,50%,100%"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "graph"
    write_graph(rmat(9, num_features=8, num_classes=4), path)
    return path


run, fails = partial(runs.run, "profile"), partial(runs.fails, "profile")


def test_prints_tables_and_a_recommendation(folder):
    result = run(folder, *QUICK, *BUDGETS, columns=80)
    assert (result.exit_code, result.stderr) == (0, "")
    text = result.stdout
    sentences = " ".join(text.split())
    assert "512 vertices; an epoch has 4 batches and reads" in sentences
    assert re.search(r"^ *> \d+\.\d%  ", text, re.MULTILINE)
    # Degree is the best that can be used with every budget.
    assert len(re.findall(r"\d\*", text)) == 4
    for words in ("training vertices", "hop 1", "hop 2", "oracle", "Give the cache", "To save"):
        assert words in sentences
    assert re.search(r'^To set: cache="\d+%", cache_policy="degree"$', text, re.MULTILINE)
    assert all(
        len(line) <= 80
        for line in text.splitlines()[1:]
        if not line.startswith(("To set: ", "To train: "))
    )
    assert "\x1b" not in text


def test_json(folder, tmp_path):
    file = tmp_path / "p.json"
    assert (
        run(
            folder, *QUICK, *BUDGETS, "--epochs", "2", "--labels", "label", "--json", file
        ).exit_code
        == 0
    )
    report = json.loads(file.read_text())
    assert [(r["policy"], r["budget_rows"]) for r in report["curve"]] == [
        *(("degree", rows) for rows in (51, 256, 512)),
        *(("oracle", rows) for rows in (51, 256, 512)),
    ]
    keys = {
        "policy",
        "budget_fraction",
        "budget_rows",
        "hit_rate",
        "predicted_hit_rate",
        "oracle_hit_rate",
    }
    for record in report["curve"]:
        assert keys <= set(record)
        assert 0 < record["hit_rate"] <= record["oracle_hit_rate"] <= 1
        assert len(record["hit_rate_by_epoch"]) == 2 and len(record["hit_rate_by_hop"]) == 3
        assert set(record["hit_rate_by_field"]) == {"feat", "label"}
    assert report["recommendation"]["policy"] == "degree"
    assert re.fullmatch(r"[\d.]+%", report["recommendation"]["cache"])
    assert set(report["recommendation"]["smallest_for"]) == {"0.90", "0.95", "0.99"}
    assert report["folder"] == str(folder)
    assert report["bytes_read"] == pytest.approx(
        report["reads"] * 32 + report["rows_by_hop"][0] * 8
    )
    assert "loading" not in report


def test_no_cache_is_advised_everywhere(tmp_path):
    graph, file = tmp_path / "small", tmp_path / "p.json"
    write_graph(sbm(300), graph)
    text = " ".join(run(graph, "--json", file, "--measure").stdout.split())
    assert (
        "No cache is advised" in text
        and "Give the cache" not in text
        and 'To set: cache="0" To train' in text
    )
    assert "> a small cache, though none is advised" in text and "the advised budget" not in text
    assert (
        "where the time goes, without a cache, as advised: 2 epochs" in text
        and "recommended" not in text
    )
    advice = json.loads(file.read_text())["recommendation"]
    assert advice["cache"] == "0" and advice["worth_it"] is False


def test_a_seed_repeats_it(folder, tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        assert run(folder, *QUICK, "--seed", seed, "--json", tmp_path / name).exit_code == 0
    a, b, c = (json.loads((tmp_path / name).read_text())["curve"] for name in "abc")
    assert a == b != c


@pytest.mark.many
def test_measured_with_all_outputs(folder, tmp_path):
    pytest.importorskip("matplotlib")
    outputs = {name: tmp_path / f"p.{name}" for name in ("json", "html", "svg", "trace")}
    files = [
        "--json",
        outputs["json"],
        "--html",
        outputs["html"],
        "--plot",
        outputs["svg"],
        "--trace",
        outputs["trace"],
    ]
    result = run(folder, *QUICK, *BUDGETS, "--measure", *files)
    assert result.exit_code == 0, result.output
    assert "where the time goes, with the recommended cache: 2 epochs" in result.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(p.name for p in outputs.values())
    loading = json.loads(outputs["json"].read_text())["loading"]
    assert len(loading["epochs"]) == 2
    assert loading["medians"]["computing"] > 0 and loading["medians"]["sampling"] > 0
    page = outputs["html"].read_text()
    html.parser.HTMLParser().feed(page)
    assert 'id="timeline"' in page and "<title>sampling" in page
    assert "http:" not in page and "https:" not in page
    assert json.loads(outputs["trace"].read_text())["traceEvents"]


def test_neither_features_nor_masks_are_needed(bare, tmp_path):
    file = tmp_path / "p.json"
    result = run(
        bare, *QUICK, "--train-fraction", "0.5", "--json", file, "--html", tmp_path / "p.html"
    )
    assert result.exit_code == 0, result.output
    assert "bytes" not in result.stdout
    report = json.loads(file.read_text())
    assert report["rows_by_hop"][0] == 128
    assert (
        {r["budget_bytes"] for r in report["curve"]}
        == {None}
        == {r["bytes_moved"] for r in report["curve"]}
    )


def test_measures_without_features(bare):
    result = run(bare, *QUICK, "--train-fraction", "0.5", "--measure")
    assert result.exit_code == 0, result.output
    assert "nothing was computed" in result.stdout


def test_budgets_in_rows_shares_and_bytes(folder):
    text = run(folder, *QUICK, "--budgets", "100, 25%, 0.5, 10KB").stdout
    for rows in (100, 128, 256):
        assert re.search(rf"^[ >]+\d+\.\d% +{rows} ", text, re.MULTILINE), text
    assert "9.766 KiB" in text


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "papers"
    write_graph(citation(300, num_features=4, num_author_features=2), path)
    return path


def test_several_vertex_types(papers, tmp_path):
    file = tmp_path / "p.json"
    result = run(papers, *QUICK, *BUDGETS, "--json", file, "--html", tmp_path / "p.html")
    assert result.exit_code == 0, result.output
    report = json.loads(file.read_text())
    assert set(report["row_bytes"]) == {"paper/feat", "author/feat"}
    assert report["curve"][-1]["hit_rate"] == 1.0
    assert (
        run(
            papers, *QUICK, "--fields", "author/feat", "--labels", "paper/label", "--json", file
        ).exit_code
        == 0
    )
    assert set(json.loads(file.read_text())["row_bytes"]) == {"author/feat", "paper/label"}
    drawn = ["--node-type", "author", "--train-fraction", "0.5"]
    assert run(papers, *QUICK, *drawn, "--json", file).exit_code == 0
    assert json.loads(file.read_text())["settings"]["seeds"] == 225


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--node-type", "editor"],
            "--node-type must be one of paper, author, institution, got 'editor'",
        ),
        (
            ["--node-type", "author"],
            "--train-fraction must be given if 'author' vertices have no train_mask",
        ),
        (["--fields", "colour"], "--fields must be among paper/.*author/feat.*, got 'colour'"),
        (["--measure"], "--measure needs a graph with one vertex type and one edge type"),
    ],
)
def test_bad_input_for_several_types(papers, tmp_path, arguments, message):
    assert re.search(message, fails(papers, *QUICK, *arguments, "--json", tmp_path / "p.json"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--policies", "degree,best"],
            r"policies must be among \[.*degree.*oracle.*\] or functions, got 'best'",
        ),
        (["--policies", "oracle"], "--policies must name one that training can use, got oracle"),
        (["--policies", ""], "policies must hold at least 1 policy, got none"),
        (["--fields", "colour"], "feat"),
        (["--labels", "colour"], "labels must be among .*label"),
        (["--budgets", "150%"], "budgets must be .*, got '150%'"),
        (["--budgets", "-5"], "budgets must be .*, got '-5'"),
        (["--budgets", "513"], "budgets must be from 0 to 512 rows .*, got '513'"),
        (["--budgets", "nan"], "budgets must be .*, got 'nan'"),
        (["--budgets", ""], "budgets must hold at least 1 budget, got none"),
        (["--train-fraction", "0"], r"--train-fraction must be in \(0, 1\], got 0"),
        (["--train-fraction", "1.5"], r"--train-fraction must be in \(0, 1\], got 1.5"),
        (["--train-fraction", "nan"], r"--train-fraction must be in \(0, 1\], got nan"),
        (["--split", "pub_"], "split must be one of"),
        (["--fanout", "ten"], "fanout must be integers with commas between, got 'ten'"),
        (["--fanout", "0"], "fanout must have at least 1 entry, each -1 or at least 1"),
        (["--epochs", "0"], "epochs must be at least 1, got 0"),
        (["--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["--seed", "-1"], "seed must be in"),
        (["--device", "abacus"], "device must be auto, cpu or cuda"),
        (["--num-workers", "-1"], "--num-workers must be at least 0, got -1"),
        (["--plot", "p.pdf"], r"plot must end in \.png or \.svg, got 'p.pdf'"),
        (["--trace", "t.json"], "--trace needs --measure"),
        (
            ["--json", "no/such/p.json"],
            "--json must be in a folder that exists, got 'no/such/p.json'",
        ),
        (["--measure", "--trace", "no/t.json"], "--trace must be in a folder that exists"),
        (["--html", "."], "--html must be a file, got the folder"),
        (["--html", "p.x", "--json", "p.x"], "--html must be another file than --json"),
    ],
)
def test_bad_input_is_one_line_and_no_file(folder, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    given = [*QUICK, "--json", "p.json"] if "--json" not in arguments else QUICK
    assert re.search(message, fails(folder, *given, *arguments))
    assert list(tmp_path.iterdir()) == []


def test_no_train_vertices(bare, tmp_path):
    assert "--train-fraction must be given for a graph without train_mask" in fails(bare, *QUICK)
    graph = rmat(8, num_classes=2)
    graph.ndata["train_mask"] = graph.ndata["train_mask"] & False
    write_graph(graph, tmp_path / "empty")
    assert "train_mask must select at least 1 vertex, got 0" in fails(tmp_path / "empty", *QUICK)


def test_no_graph(tmp_path):
    assert "nowhere" in fails(tmp_path / "nowhere", *QUICK)


def test_another_split(folder, tmp_path):
    copy = tmp_path / "two"
    graph = rmat(8, num_features=2, num_classes=2)
    graph.ndata["pub_train_mask"] = ~graph.ndata["train_mask"]
    write_graph(graph, copy)
    counts = []
    for split in ("", "pub_"):
        assert run(copy, *QUICK, "--split", split, "--json", tmp_path / "p.json").exit_code == 0
        counts.append(json.loads((tmp_path / "p.json").read_text())["rows_by_hop"][0])
    assert np.isclose(sum(counts), 256) and counts[0] != counts[1]


def test_missing_matplotlib(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run(folder, *QUICK, "--plot", tmp_path / "p.png")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert (
        result.stderr
        == "Error: a plot needs matplotlib, which is not installed: pip install 'pagraph[plot]'\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_an_old_file_stays_whole_where_the_run_fails(folder, tmp_path):
    old = tmp_path / "p.html"
    old.write_text("old")
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "manifest.json").write_text("{}")
    assert run(broken, *QUICK, "--html", old).exit_code == 2
    assert old.read_text() == "old"


def test_says_how_to_train_as_was_profiled(folder, bare, tmp_path):
    file = tmp_path / "p.html"
    command = (
        rf"pagraph train {re.escape(str(folder))} --fanout=5,5 --batch-size=100 --cache=\d+% "
        r"--cache-policy=degree"
    )
    assert re.search(
        f"^To train: {command}$", run(folder, *QUICK, *BUDGETS, "--html", file).stdout, re.MULTILINE
    )
    assert re.search(command, file.read_text())
    # Nothing can be trained without masks.
    assert run(bare, *QUICK, *BUDGETS, "--train-fraction", "0.5", "--html", file).exit_code == 0
    assert "pagraph train" not in file.read_text()


def test_what_it_says_can_be_run(tmp_path):
    write_graph(rmat(8, num_features=4, num_classes=2), tmp_path / "a graph")
    text = run(tmp_path / "a graph", *QUICK, *BUDGETS).stdout
    (command,) = re.findall(r"^To train: pagraph (.*)$", text, re.MULTILINE)
    result = CliRunner().invoke(main, [*shlex.split(command), "--epochs", "1"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("columns", [40, 80])
def test_no_digit_is_cut_off(folder, columns):
    policies = "auto,adaptive,degree,presample,presample:2,vip,random,oracle,ideal:2"
    result = run(folder, *QUICK, *BUDGETS, "--epochs", "2", "--policies", policies, columns=columns)
    assert result.exit_code == 0, result.output
    rates = [line for line in result.output.splitlines() if re.match(r"[ >]*\d+\.0% ", line)]
    assert len(rates) >= 3 and "…" not in "".join(rates)
    assert max(map(len, rates)) <= columns
    # In several blocks of columns if they do not fit beside each other.
    by_budget = Counter()
    for line in rates:
        by_budget[line.split("%")[0]] += len(re.findall(r"\d+\.\d\*?(?!%)", line))
    assert min(by_budget.values()) >= 9
