"""Every example runs and learns, those for DGL with pagraph's import line and with DGL's."""

import importlib
import importlib.util
import os
import re
import runpy
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from fresh_processes import forked_python

from pagraph.datasets import citation, sbm, write_graph

pytestmark = pytest.mark.pages

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
OURS = "from pagraph.dgl import DataLoader"
# The first half makes DGL importable.
DGLS = "import pagraph.dgl; from dgl.dataloading import DataLoader"
OUR_WALKS, DGLS_WALKS = "from pagraph.dgl import sampling", "from dgl import sampling"


@dataclass(frozen=True)
class Example:
    """A script, and what it must reach on the graph that it generates.

    Attributes:
        name: The file's name.
        arguments: Of the command line.
        metric: What stands before the figure in the last lines of the output.
        least: What the figure must be above: what no model can reach without the neighbours, and
            more.
        within: How far the figures with the two import lines may lie apart.
        says: What the output must contain with pagraph's line.
        spawns: Whether it starts processes of its own, or imports a script beside it.
        needs: A package without which the example is skipped.
        compared: Whether it runs with DGL's import line as well. Four do, one for each kind of
            batch: blocks, pairs, subgraphs, walks.
    """

    name: str
    arguments: tuple[str, ...] = ()
    metric: str = "test accuracy"
    least: float = 0.7
    within: float = 0.03
    says: str = "hit rate"
    spawns: bool = False
    needs: str = ""
    compared: bool = False


# Features alone cannot be right more often than 0.595 on the generated graphs (see
# pagraph.datasets.sbm). Epochs are as few as reach it well: without its neighbours a model stays
# below however long it is trained.
CASES = [
    Example("node_classification.py", ("--epochs", "4"), least=0.8, compared=True),
    Example(
        "preaggregate.py", ("--epochs", "4"), metric="test accuracy, pre-aggregated", least=0.8
    ),
    Example("link_prediction.py", ("--epochs", "8"), metric="test AUC", least=0.8, compared=True),
    Example("rgcn_hetero.py", ("--epochs", "3"), least=0.75),
    Example("layerwise_gcn.py", ("--epochs", "8"), least=0.75, within=0.05),
    Example("dgl_subgraphs.py", ("--sampler", "saint"), least=0.75, within=0.05, compared=True),
    Example("dgl_subgraphs.py", ("--sampler", "cluster", "--epochs", "12"), least=0.7, within=0.07),
    Example(
        "layerwise_inference.py",
        ("--epochs", "8"),
        least=0.75,
        within=0.04,
        says="equal to the whole graph at once: True",
    ),
    Example("pinsage.py", ("--epochs", "5"), "test AUC", least=0.8, within=0.05, compared=True),
    Example(
        "shared_batches.py", ("--epochs", "2"), least=0.75, within=0.04, says="batch_dependency 64"
    ),
    Example("multiprocess_training.py", least=0.7, within=0.05, says="", spawns=True),
]

# With PyG's: its own loader cannot run beside ours, for want of a binary.
PYG = [
    Example("pyg_node_classification.py", ("--epochs", "3"), least=0.8),
    Example("pyg_hetero.py", ("--epochs", "4"), least=0.75),
    Example("partition_heterograph.py", says="replication factor", spawns=True),
    Example(
        "pyg_inference.py",
        ("--epochs", "3"),
        least=0.8,
        says="equal to the whole graph at once: True",
    ),
    Example("pyg_link_prediction.py", metric="test AUC", least=0.8),
    Example("pyg_node2vec.py", ("--epochs", "8"), least=0.8, says="loss"),
    Example("pyg_saint.py", ("--epochs", "6"), least=0.75),
    Example("pyg_temporal.py", least=0.8, says="hit rate"),
    Example("pyg_shadow.py", ("--epochs", "3"), least=0.7),
    Example("pyg_hgt.py", ("--epochs", "4"), least=0.62),
    Example("pyg_cluster.py", least=0.75),
    Example(
        "pyg_hard_negatives.py",
        ("--epochs", "4"),
        "test AUC",
        0.85,
        says="negatives that are edges: 0.0%",
    ),
    Example("pyg_blocks.py", ("--epochs", "3"), least=0.8),
    Example("hetero_loader.py", ("--epochs", "3"), least=0.75, says="author/feat"),
    Example(
        "hetero_links.py",
        ("--epochs", "3", "--hidden", "32"),
        "test AUC",
        0.66,
        says="author/feat",
        spawns=True,
    ),
    Example("pyg_relational.py", least=0.81),
    Example("database.py", says="orders / user_id / users", needs="adbc_driver_sqlite"),
    Example("gpu_sage.py", ("--epochs", "3"), least=0.8, says="the graph is sampled from: "),
    Example("gpu_ddp.py", says="hit rate", spawns=True),
    Example("gpu_whole_step.py", ("--epochs", "3"), least=0.8, says="padding so far"),
    Example("jax_sage.py", least=0.8, says="compilations of the step: 1", needs="jax"),
    Example("lightning_sage.py", least=0.8, needs="lightning"),
]

# Of these, those that need more than another import line: the core's loader, or a database first.
OWN_SCRIPTS = {
    "database.py",
    "gpu_ddp.py",
    "gpu_sage.py",
    "gpu_whole_step.py",
    "hetero_links.py",
    "hetero_loader.py",
    "jax_sage.py",
    "pyg_blocks.py",
}

# Those that load by no loader of pagraph's: tested with what they show.
OTHERS = {"distdgl.py", "relbench_recommendation.py", "serve.py"}


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a script as ``python SCRIPT ARGUMENTS`` would, here if it can be; gives its output."""

    def in_a_process(script, arguments):
        done = subprocess.run(
            [forked_python(), "-W", "ignore", script, *arguments],
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},  # as below
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def here(script, arguments):
        monkeypatch.setattr(sys, "argv", [str(script), *arguments])
        capsys.readouterr()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # DGL's advice on CPU affinity, each epoch
            runpy.run_path(str(script), run_name="__main__")
        return capsys.readouterr().out

    before = torch.get_num_threads()
    # Waiting OpenMP threads spin: on busy cores two are far slower than one.
    torch.set_num_threads(1)
    yield lambda script, arguments=(), spawns=False: (in_a_process if spawns else here)(
        script, arguments
    )
    torch.set_num_threads(before)


def with_dgls_loader(name: str, folder: Path) -> Path:
    """The example as a script for DGL: the line that imports the loader differs, and that of the
    walks if any."""
    before = (EXAMPLES / name).read_text().splitlines()
    after = [
        DGLS if line.startswith(OURS) else DGLS_WALKS if line == OUR_WALKS else line
        for line in before
    ]
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1 + (OUR_WALKS in before)
    script = folder / name
    script.write_text("\n".join(after))
    return script


def figure(metric: str, output: str) -> float:
    return float(re.search(rf"^{metric} ([\d.]+)$", output, re.MULTILINE)[1])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.removesuffix(".py"))
def test_learns_with_dgls_layers(case, run, tmp_path):
    pytest.importorskip("pagraph.dgl")  # before an example with DGL's line imports dgl
    ours = run(EXAMPLES / case.name, case.arguments, case.spawns)
    assert case.says in ours
    reached = figure(case.metric, ours)
    assert reached > case.least
    with_dgls = with_dgls_loader(case.name, tmp_path)  # every example differs by the import alone
    if not case.compared:
        return
    theirs = run(with_dgls, case.arguments, case.spawns)
    assert "hit rate" not in theirs
    assert figure(case.metric, theirs) > case.least
    assert reached == pytest.approx(figure(case.metric, theirs), abs=case.within)


@pytest.mark.parametrize("case", PYG, ids=lambda case: case.name.removesuffix(".py"))
def test_learns_with_pygs_layers(case, run):
    pytest.importorskip("pagraph.pyg")
    if case.needs and importlib.util.find_spec(case.needs) is None:
        pytest.skip(f"needs {case.needs} (pip install {case.needs})")
    output = run(EXAMPLES / case.name, case.arguments, case.spawns)
    assert case.says in output and figure(case.metric, output) > case.least


def held_out_links(name):
    """The edges and links that an example trains on, and those that it holds out."""
    split = runpy.run_path(str(EXAMPLES / name))["split"]
    if name == "link_prediction.py":
        graph, *held_out = split(1000, 0.1)
        return torch.stack(graph.edges()), torch.stack(held_out)
    if name == "pyg_link_prediction.py":
        train, test = split(1000)
        held_out = test.edge_label_index[:, test.edge_label == 1]
        return torch.cat([train.edge_index, train.edge_label_index], dim=1), held_out
    data = importlib.import_module("pagraph.pyg").to_pyg(sbm(1000))
    links, held_out = split(data, None)
    return torch.cat([data.edge_index, links], dim=1), held_out


@pytest.mark.parametrize(
    "name", ["link_prediction.py", "pyg_link_prediction.py", "pyg_hard_negatives.py"]
)
def test_nothing_tells_of_a_held_out_link(name):
    """Neither itself nor its reverse, which an undirected graph has as well."""
    pytest.importorskip("pagraph.pyg" if name.startswith("pyg_") else "pagraph.dgl")
    known, held_out = held_out_links(name)
    known = {*map(tuple, torch.cat([known, known.flip(0)], dim=1).T.tolist())}
    assert held_out.shape[1] > 100
    assert known.isdisjoint(map(tuple, held_out.T.tolist()))


def test_a_leak_is_seen(run):
    pytest.importorskip("pagraph.pyg")
    output = run(EXAMPLES / "pyg_relational.py", ("--leak", "--epochs", "1"))
    assert figure("test accuracy", output) > 0.95


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("pyg_node_classification.py", lambda: sbm(2000, num_features=16, seed=1)),
        ("pyg_inference.py", lambda: sbm(2000, num_features=16, seed=1)),
        ("pyg_blocks.py", lambda: sbm(2000, num_features=16, seed=1)),
        ("gpu_sage.py", lambda: sbm(2000, num_features=16, seed=1)),
        ("pyg_hetero.py", lambda: citation(1000, num_features=16, num_author_features=8, seed=1)),
        ("node_classification.py", lambda: sbm(2000, num_features=16, seed=1)),
        ("layerwise_inference.py", lambda: sbm(2000, num_features=16, seed=1)),
        ("dgl_subgraphs.py", lambda: sbm(2000, num_features=16, seed=1)),
        ("rgcn_hetero.py", lambda: citation(1000, num_features=16, num_author_features=8, seed=1)),
        (
            "hetero_loader.py",
            lambda: citation(1000, num_features=16, num_author_features=8, seed=1),
        ),
    ],
)
def test_on_a_folder(name, make, run, tmp_path):
    pytest.importorskip("pagraph.pyg" if name.startswith(("pyg_", "gpu_")) else "pagraph.dgl")
    write_graph(make(), tmp_path / "graph")
    output = run(EXAMPLES / name, (str(tmp_path / "graph"), "--epochs", "2", "--hidden", "16"))
    assert len(re.findall(r"^epoch \d  loss [\d.]+ .* [\d.]+ s$", output, re.MULTILINE)) == 2
    assert 0.0 < figure("test accuracy", output) <= 1.0


def test_every_example_is_tested_and_shows_the_diff():
    tested = {case.name for case in [*CASES, *PYG]} | OTHERS
    assert {path.name for path in EXAMPLES.glob("*.py")} == tested
    for case in CASES:
        text = (EXAMPLES / case.name).read_text()
        docstring = text.split('"""')[1]
        assert f"    -from dgl.dataloading import DataLoader\n    +{OURS}\n" in docstring
        assert f"python examples/{case.name}" in docstring
        assert re.search(r"DGL's\s+examples/", docstring)
    for case in PYG:
        docstring = (EXAMPLES / case.name).read_text().split('"""')[1]
        assert f"python examples/{case.name}" in docstring
        line = re.search(
            r"^    -from torch_geometric\.(?:loader|nn) import ([\w, ]+)\n    \+(.*)$",
            docstring,
            re.MULTILINE,
        )
        assert (
            line is None
            if case.name in OWN_SCRIPTS
            else line[2] == f"from pagraph.pyg import {line[1]}"
        )
