import importlib.util
import json
import re
import shutil
import subprocess
import warnings
from collections import Counter
from functools import partial

import numpy as np
import pytest
import runs
import torch
from fresh_processes import HANGING, bare_python, forked_python
from timelines import checked, spans

from pagraph import Graph
from pagraph.datasets import sbm, write_graph
from pagraph.errors import how_to_install
from pagraph.partition import open_partition, partition_graph, write_partition

QUICK = [
    "--epochs",
    "2",
    "--hidden",
    "8",
    "--fanout",
    "5,5",
    "--batch-size",
    "200",
    "--device",
    "cpu",
]
EPOCH = (
    r"^epoch \d/2  loss [\d.]+  val [\d.]+%  test [\d.]+%  [\d.]+ s: loading [\d.]+, computing "
    r"[\d.]+"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("train") / "graph"
    write_graph(sbm(1500, num_features=16, num_classes=4, seed=2), path)
    return path


run, fails = partial(runs.run, "train"), partial(runs.fails, "train")


@pytest.mark.every
@pytest.mark.parametrize("layers", ["dgl", "pyg"])
@pytest.mark.parametrize("model", ["sage", "gcn", "gat"])
def test_trains_and_reports(folder, model, layers):
    result = run(folder, "--model", model, "--layers", layers, *QUICK)
    assert result.exit_code == 0, result.output
    assert "1,500 vertices" in result.stdout
    assert f"{model} with {layers}'s layers and pagraph's loader on cpu" in result.stdout
    assert (
        len(
            re.findall(
                EPOCH + r"(?:  kernels: [\d.]+ s)?  hit rate [\d.]+% of rows, [\d.]+% of bytes$",
                result.stdout,
                re.MULTILINE,
            )
        )
        == 2
    )
    assert re.search(
        r"^pagraph: test accuracy .* cache hit rate [\d.]+% of rows, [\d.]+% of bytes$",
        result.stdout,
        re.MULTILINE,
    )
    assert "\x1b" not in result.output


@pytest.mark.parametrize("layers", ["dgl", "pyg"])
def test_a_cache_of_half_precision(folder, tmp_path, layers):
    file = tmp_path / "report.json"
    options = [*QUICK, "--layers", layers, "--cache", "20KiB"]
    result = run(folder, *options, "--cache-dtype", "bf16", "--json", file)
    assert result.exit_code == 0, result.output
    whole = tmp_path / "whole.json"
    assert run(folder, *options, "--json", whole).exit_code == 0
    assert json.loads(file.read_text())["hit_rate"] > json.loads(whole.read_text())["hit_rate"]


def test_json(folder, tmp_path):
    file = tmp_path / "report.json"
    assert run(folder, *QUICK, "--seed", "5", "--json", file).exit_code == 0
    report = json.loads(file.read_text())
    assert 0 <= report["hit_rate"] <= 1 and 0 <= report["byte_hit_rate"] <= 1
    assert 0 < report["test_accuracy"] <= 1 and 0 < report["val_accuracy"] <= 1
    for name in ("epoch_seconds", "loading_seconds", "computing_seconds", "loss"):
        assert len(report[name]) == 2 and all(value > 0 for value in report[name])
    assert report["settings"]["seed"] == 5
    assert report["settings"]["layers"] == (
        "pyg" if importlib.util.find_spec("dgl") is None else "dgl"
    )
    assert report["folder"] == str(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_baseline(folder, tmp_path):
    result = run(folder, *QUICK, "--baseline", "dgl", "--json", tmp_path / "report.json")
    assert result.exit_code == 0, result.output
    assert "sage with dgl's layers and dgl's loader on cpu" in result.stdout
    assert "hit rate" not in result.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["hit_rate"] is None
    assert report["settings"]["loader"] == "dgl"


def test_compare_runs_both_and_prints_a_table(folder, tmp_path):
    result = run(folder, *QUICK, "--compare", "dgl", "--json", tmp_path / "report.json")
    assert result.exit_code == 0, result.output
    assert len(re.findall(EPOCH, result.stdout, re.MULTILINE)) == 4
    # In turn, so that a busy machine disturbs both.
    order = re.findall(r"^epoch (\d)/2 .*  with (\w+)'s loader$", result.stdout, re.MULTILINE)
    assert order == [("1", "dgl"), ("1", "pagraph"), ("2", "dgl"), ("2", "pagraph")]
    assert re.search(r"^ +dgl +pagraph +ratio$", result.stdout, re.MULTILINE)
    for row in ("loading", "computing", "epoch"):
        assert re.search(
            rf"^{row}, s per epoch \(median\)( +[\d.]+){{3}}$", result.stdout, re.MULTILINE
        )
    reports = json.loads((tmp_path / "report.json").read_text())
    assert list(reports) == ["dgl", "pagraph"]
    assert reports["dgl"]["settings"]["seed"] == reports["pagraph"]["settings"]["seed"]


@pytest.mark.parametrize("layers", ["dgl", "pyg"])
def test_link_prediction(folder, tmp_path, layers):
    options = [
        *QUICK,
        "--task",
        "links",
        "--model",
        "gcn",
        "--batch-size",
        "5000",
        "--layers",
        layers,
    ]
    result = run(folder, *options, "--json", tmp_path / "report.json")
    assert result.exit_code == 0, result.output
    counts = r"1,500 vertices, [\d,]+ edges to sample, 16 features; "
    counts += r"[\d,]+ links to train on, ([\d,]+) to validate, \1 to test"
    assert re.search(counts, result.stdout)
    metrics = r"val AUC [\d.]+%, MRR [\d.]+%  test AUC [\d.]+%, MRR [\d.]+%"
    assert (
        len(
            re.findall(
                rf"^epoch \d/2  loss [\d.]+  {metrics}  [\d.]+ s: loading",
                result.stdout,
                re.MULTILINE,
            )
        )
        == 2
    )
    summary = (
        r"^pagraph: test AUC [\d.]+%, test MRR [\d.]+% at the best validation AUC [\d.]+% "
        r"\(epoch \d\), cache hit"
    )
    assert re.search(summary, result.stdout, re.MULTILINE)
    report = json.loads((tmp_path / "report.json").read_text())
    assert 0 < report["test_auc"] < 1 and len(report["val_mrr_by_epoch"]) == 2
    assert report["settings"]["task"] == "links"


def test_a_comparison_of_link_prediction(folder):
    result = run(folder, *QUICK, "--task", "links", "--batch-size", "5000", "--compare", "dgl")
    assert result.exit_code == 0, result.output
    for row in ("test AUC", "test MRR", "validation AUC", "validation MRR"):
        assert re.search(rf"^{row}( +[\d.]+%){{2}}$", result.stdout, re.MULTILINE)


def test_a_run_that_goes_on(folder, tmp_path):
    options = [*QUICK, "--checkpoint", tmp_path / "saved"]
    assert "going on" not in run(folder, *options, "--epochs", "1").stdout
    assert re.search(
        r"^resuming after epoch 1/2\nepoch 2/2 ", run(folder, *options).stdout, re.MULTILINE
    )
    other = run(folder, *options, "--hidden", "4")
    message = (
        "Error: --hidden must be 8 as in the checkpoint "
        f"{tmp_path / 'saved' / 'checkpoint.pt'}, got 4\n"
    )
    assert (other.exit_code, other.stderr) == (2, message)


def test_another_split(folder, tmp_path):
    data = tmp_path / "two"
    graph = sbm(500, num_features=8, num_classes=3, seed=1)
    graph.ndata["few_train_mask"] = graph.ndata["train_mask"] & (torch.arange(500) < 100)
    graph.ndata["few_val_mask"], graph.ndata["few_test_mask"] = (
        graph.ndata["val_mask"],
        graph.ndata["test_mask"],
    )
    write_graph(graph, data)
    few = int(graph.ndata["few_train_mask"].sum())
    assert f"{few} vertices to train on" in run(data, *QUICK, "--split", "few_").stdout
    assert "split must be one of ['', 'few_'], got 'many_'" in fails(
        data, *QUICK, "--split", "many_"
    )


def test_pagraphs_folder_form(tmp_path):
    import scipy.sparse as sp

    labels = np.arange(300) % 3
    sp.save_npz(tmp_path / "adj.npz", sp.random(300, 300, 0.03, format="csr", random_state=1))
    np.save(tmp_path / "feat.npy", np.eye(3, dtype=np.float32)[labels])
    np.save(tmp_path / "labels.npy", labels)
    for i, part in enumerate(("train", "val", "test")):
        np.save(tmp_path / f"{part}.npy", np.arange(300) // 100 == i)
    assert "300 vertices, " in run(tmp_path, *QUICK).stdout


@pytest.mark.parametrize(("name", "layers"), [("t.json", "dgl"), ("t.json.gz", "pyg")])
def test_a_timeline_of_training(folder, tmp_path, name, layers):
    assert run(folder, *QUICK, "--layers", layers, "--trace", tmp_path / name).exit_code == 0
    events = checked(tmp_path / name)
    assert len(spans(events, "epoch 1")) == 1
    by_loader = Counter(
        span["args"]["loader"] for span in spans(events) if span["name"].startswith("epoch ")
    )
    assert by_loader == {"train": 2}
    assert len(spans(events, "computing")) == 10


def test_a_comparison_has_a_timeline_of_our_loader(folder, tmp_path):
    assert run(folder, *QUICK, "--compare", "dgl", "--trace", tmp_path / "t.json").exit_code == 0
    assert len(spans(checked(tmp_path / "t.json"), "epoch 1")) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fanout", "10,x"], "fanout must be integers with commas between, got '10,x'"),
        (
            ["--fanout", "10,0"],
            "fanout must have at least 1 entry, each -1 or at least 1, got [10, 0]",
        ),
        (["--epochs", "0"], "epochs must be at least 1, got 0"),
        (["--batch-size", "-5"], "--batch-size must be at least 1, got -5"),
        (["--lr", "nan"], "lr must be positive and finite, got nan"),
        (["--dropout", "1"], "dropout must be in [0, 1), got 1.0"),
        (["--device", "gpu"], "device must be auto, cpu or cuda[:N], got 'gpu'"),
        (["--device", "cuda:77"], "device must be one of "),
        (["--seed", "-1"], "seed must be in [0, 2**32), got -1"),
        (["--cache", "lots"], "'lots'"),
        (["--cache-policy", "magic"], "'magic'"),
        (
            ["--cache-dtype", "int4"],
            "--cache-dtype must be None, torch.float16, torch.bfloat16, torch.int8 or their names, "
            "got 'int4'",
        ),
        (["--model", "gin"], "'gin'"),
        (
            ["--model", "gat", "--hidden", "9"],
            "hidden must be a multiple of heads, 4, for GAT, got 9",
        ),
        (
            ["--json", "/no/such/folder/x.json"],
            "--json must be in a folder that exists, got /no/such/folder/x.json",
        ),
        (
            ["--trace", "/no/such/folder/t.json"],
            "--trace must be in a folder that exists, got '/no/such/folder/t.json'",
        ),
        (["--trace", "/"], "--trace must be a file, got the folder '/'"),
        (
            ["--trace", "/tmp/t.json", "--baseline", "dgl"],
            "--trace must not be given with --baseline dgl",
        ),
        (
            ["--baseline", "dgl", "--compare", "dgl"],
            "--baseline and --compare must not be given together",
        ),
        (
            ["--layers", "pyg", "--compare", "dgl"],
            "layers must be 'dgl' with dgl's loader, got 'pyg'",
        ),
        (["--layers", "jax"], "'jax'"),
        (["--task", "edges"], "'edges'"),
        (["--timeout", "0"], "timeout must be positive and finite, got 0"),
        (
            ["--checkpoint", "/tmp/c", "--compare", "dgl"],
            "checkpoint needs pagraph's loader, got dgl's",
        ),
        (["--checkpoint", "/dev/null"], "checkpoint must be a folder, got '/dev/null'"),
    ],
)
def test_bad_options_give_one_line_before_anything_runs(folder, arguments, message):
    assert message in fails(folder, *arguments)


def test_a_folder_that_is_not_there(tmp_path):
    assert "folder must exist" in fails(tmp_path / "nothing")


def test_a_graph_without_features(tmp_path):
    graph = sbm(300, num_features=4, num_classes=2)
    for name in ("feat", "label"):
        del graph.ndata[name]
    write_graph(graph, tmp_path / "bare")
    assert fails(tmp_path / "bare").endswith(
        "to be trained on, it lacks feat, label and has train_mask, val_mask, test_mask"
    )


def test_the_original_is_not_changed(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
        assert run(folder, *QUICK, "--model", "gcn", "--row-normalize").exit_code == 0
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("where", "words"), [("source", "the whole graph"), ("parts", "the parts")]
)
def test_a_partition_of_one_part(folder, tmp_path, where, words):
    graph = Graph.open(folder)
    partition = partition_graph(graph, 1, hops=1, method="hash", evaluation=where)
    write_partition(partition, tmp_path / "one", source=folder)
    first, second, *_ = run(tmp_path / "one", *QUICK, "--fanout", "5").stdout.splitlines()
    train, val, test = (int(graph.ndata[f"{name}_mask"].sum()) for name in ("train", "val", "test"))
    counts = f"{train} vertices to train on; {val} to validate and {test} to test"
    assert first == f"{tmp_path / 'one'}: 1 part of 1 hop, {counts}, evaluated on {words}"
    part = open_partition(tmp_path / "one", 0).graph
    assert "task must be 'nodes' for several processes and for parts" in fails(
        tmp_path / "one", "--task", "links"
    )
    sizes = f"{part.num_nodes:,} vertices, {part.num_edges:,} edges, 16 features, 4 classes"
    assert second == f"part 0: {sizes}; {train} vertices to train on"


@pytest.mark.skipif(shutil.which("script") is None, reason="needs script(1) to make a terminal")
@pytest.mark.processes
def test_on_a_terminal_there_is_a_bar(folder):
    command = " ".join(
        [
            forked_python(),
            "-c",
            "'from pagraph.cli import main; main()'",
            "train",
            str(folder),
            *QUICK,
        ]
    )
    done = subprocess.run(
        ["script", "-qec", command, "/dev/null"], capture_output=True, text=True, timeout=HANGING
    )
    assert done.returncode == 0, done.stdout
    assert "\x1b[" in done.stdout
    assert "epoch 2/2  loss" in done.stdout


@pytest.mark.skipif(
    importlib.util.find_spec("pyg_lib") is not None
    or importlib.util.find_spec("torch_sparse") is not None,
    reason="PyG's own loader runs here",
)
@pytest.mark.parametrize("option", ["--compare", "--baseline"])
def test_pygs_own_loader_says_what_it_needs(folder, option):
    result = run(folder, *QUICK, option, "pyg")
    (line,) = result.stderr.splitlines()
    assert (result.exit_code, result.stdout) == (1, "")
    assert (
        "needs pyg-lib or torch-sparse, and neither is installed: pip install pyg-lib -f "
        "https://data.pyg.org" in line
    )


def test_compare_with_pygs_loader(folder, tmp_path, monkeypatch):
    """Its batches drawn by our sampler where neither pyg-lib nor torch-sparse is installed."""
    from pagraph.pyg import NeighborSampler, training

    if not (training.pyg_typing.WITH_PYG_LIB or training.pyg_typing.WITH_TORCH_SPARSE):

        class Loader(training._PyGsLoader):
            def __init__(self, data, num_neighbors, input_nodes, **more):
                sampler = NeighborSampler(data, num_neighbors)
                super().__init__(data, num_neighbors, input_nodes, neighbor_sampler=sampler, **more)

        monkeypatch.setattr(training, "_PyGsLoader", Loader)
        monkeypatch.setattr(training._PyG, "check_own_loader", lambda self: None)
    result = run(folder, *QUICK, "--compare", "pyg", "--json", tmp_path / "report.json")
    assert result.exit_code == 0, result.output
    assert "sage with pyg's layers and pyg's loader on cpu" in result.stdout
    assert re.search(r"^ +pyg +pagraph +ratio$", result.stdout, re.MULTILINE)
    reports = json.loads((tmp_path / "report.json").read_text())
    assert [(name, report["settings"]["layers"]) for name, report in reports.items()] == [
        ("pyg", "pyg"),
        ("pagraph", "pyg"),
    ]
    assert reports["pyg"]["hit_rate"] is None and reports["pagraph"]["hit_rate"] > 0


def run_without(packages, *arguments):
    """Run ``pagraph`` in a process in which these packages cannot be imported."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({packages}))\nfrom pagraph.cli import "
        "main; main()"
    )
    return subprocess.run(
        [bare_python(), "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=HANGING,
    )


@pytest.mark.many
@pytest.mark.parametrize(("missing", "layers"), [("dgl", "pyg"), ("torch_geometric", "dgl")])
def test_one_framework_is_enough(folder, missing, layers):
    if missing == "torch_geometric":
        pytest.importorskip("pagraph.dgl")
    done = run_without([missing], "train", folder, *QUICK, "--model", "gcn")
    assert done.returncode == 0, done.stderr
    assert f"gcn with {layers}'s layers and pagraph's loader on cpu" in done.stdout
    done = run_without(
        [missing], "train", folder, *QUICK, "--layers", "dgl" if missing == "dgl" else "pyg"
    )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.endswith(
        f"which is not installed: {how_to_install(EXTRAS[missing])}; or use the layers of {layers}"
    )


EXTRAS = {"dgl": "dgl", "torch_geometric": "pyg"}


@pytest.mark.processes
def test_without_a_framework_one_line_names_both(folder):
    done = run_without(["dgl", "torch_geometric"], "train", folder, *QUICK)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert (
        f"neither is installed: pip install 'pagraph[pyg]'; for DGL's, {how_to_install('dgl')}"
        in line
    )


@pytest.mark.parametrize("layers", ["dgl", "pyg"])
def test_a_graph_of_several_types(tmp_path, layers):
    assert runs.run("generate", "citation", tmp_path / "papers", "--papers", "500").exit_code == 0
    result = run(tmp_path / "papers", *QUICK, "--layers", layers, "--json", tmp_path / "run.json")
    assert result.exit_code == 0, result.output
    assert "500 'paper', 750 'author', 7 'institution'" in result.stdout
    assert (
        "64 features of 'paper', 32 features of 'author', embeddings of 'institution'"
        in result.stdout
    )
    assert 0 < json.loads((tmp_path / "run.json").read_text())["test_accuracy"] <= 1
    for more, text in {
        ("--model", "gcn"): "model must be 'sage'",
        ("--task", "links"): "task must be 'nodes'",
    }.items():
        assert text in fails(tmp_path / "papers", *QUICK, *more)
