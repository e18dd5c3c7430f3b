"""A smoke run of each face and of each verb: what has to work wherever pagraph is installed."""

import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from fresh_processes import HANGING

from pagraph import Loader, NeighborSampler
from pagraph.cli import VERBS, main
from pagraph.datasets import sbm

pytestmark = pytest.mark.wheel

NODES = 300
SCRIPT = Path(sys.executable).with_name("pagraph")
INSTALLED = any(d.name == "pagraph" for d in importlib.metadata.distributions())


@pytest.fixture(scope="module")
def graph():
    return sbm(NODES, seed=1)


@pytest.fixture(scope="module")
def seeds(graph):
    return graph.ndata["train_mask"].nonzero().squeeze(1)


def test_core_face(graph, seeds):
    read = []
    for batch in Loader(
        graph, seeds, NeighborSampler([3, 2]), fields=["feat"], labels=["label"], batch_size=64
    ):
        assert batch.features["feat"].equal(graph.ndata["feat"][batch.input_nodes])
        assert batch.labels["label"].equal(graph.ndata["label"][batch.output_nodes])
        read.append(batch.output_nodes)
    assert torch.cat(read).sort().values.equal(seeds)


@pytest.mark.filterwarnings("ignore:Dataloader CPU affinity")
def test_dgl_face(graph, seeds):
    if importlib.util.find_spec("dgl") is None:
        pytest.skip("needs DGL")
    from pagraph.dgl import DataLoader, to_dgl
    import dgl  # isort: skip  (pagraph.dgl makes it importable)

    sampler = dgl.dataloading.NeighborSampler(
        [3, 2], prefetch_node_feats=["feat"], prefetch_labels=["label"]
    )
    read = []
    for input_nodes, output_nodes, blocks in DataLoader(
        to_dgl(graph), seeds, sampler, batch_size=64, shuffle=True
    ):
        assert blocks[0].srcdata["feat"].equal(graph.ndata["feat"][input_nodes])
        assert blocks[-1].dstdata["label"].equal(graph.ndata["label"][output_nodes])
        read.append(output_nodes)
    assert torch.cat(read).sort().values.equal(seeds)


def test_pyg_face(graph, seeds):
    pytest.importorskip("torch_geometric")
    from pagraph.pyg import NeighborLoader, to_pyg

    read = []
    for batch in NeighborLoader(
        to_pyg(graph), [3, 2], input_nodes=seeds, batch_size=64, shuffle=True
    ):
        assert batch.x.equal(graph.ndata["feat"][batch.n_id])
        assert batch.y.equal(graph.ndata["label"][batch.n_id])
        assert int(batch.edge_index.max()) < len(batch.n_id)
        read.append(batch.n_id[: batch.batch_size])
    assert torch.cat(read).sort().values.equal(seeds)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the generated graph ``blocks``."""
    folder = tmp_path_factory.mktemp("verbs")
    run("generate", "sbm", folder / "blocks", "--nodes", NODES)
    return folder


def run(*arguments):
    """What the command writes."""
    result = CliRunner().invoke(main, [*map(str, arguments)], env={"COLUMNS": "120"})
    assert result.exit_code == 0, f"{arguments}\n{result.output}"
    return result.stdout


def test_command_is_a_program(folder):
    """The script that the package installs, else the module."""
    command = [str(SCRIPT)] if INSTALLED else [sys.executable, "-m", "pagraph"]
    done = subprocess.run(
        [*command, "info", folder / "blocks"], capture_output=True, text=True, timeout=HANGING
    )
    assert done.returncode == 0, done.stderr
    assert "train_mask" in done.stdout


class TestVerbs:
    def test_completion(self):
        assert "_PAGRAPH_COMPLETE=bash_complete" in run("completion", "bash")

    def test_doctor(self):
        assert "compiled kernels" in run("doctor")

    def test_generate(self, folder):
        assert (folder / "blocks" / "manifest.json").is_file()

    def test_info(self, folder):
        assert "train_mask" in run("info", folder / "blocks")

    def test_import(self, folder):
        (folder / "edges.txt").write_text("0 1\n1 2\n")
        assert "3 vertices, 2 edges" in run("import", folder / "edges.txt", folder / "imported")

    def test_export(self, folder):
        assert "as ogb reads it" in run(
            "export", folder / "blocks", folder / "tables", "--form", "ogb"
        )

    def test_partition(self, folder):
        options = ["--parts", 2, "--hops", 1, "--method", "hash", "--cache", 0]
        assert "written to" in run("partition", folder / "blocks", folder / "parts", *options)
        run("partition", "verify", folder / "parts")

    def test_preaggregate(self, folder):
        assert "feat_mean" in run("preaggregate", folder / "blocks", folder / "summed")

    def test_profile(self, folder):
        assert "To set: cache=" in run("profile", folder / "blocks", "--batch-size", 32)

    def test_reorder(self, folder):
        assert "pages a batch" in run(
            "reorder", folder / "blocks", folder / "reordered", "--batch-size", 32
        )

    def test_run(self, folder):
        # In a process of its own, which ends with the script.
        (folder / "script.py").write_text("import sys\nsys.exit(len(sys.argv))\n")
        command = [sys.executable, "-m", "pagraph", "run", folder / "script.py", "--theirs"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANGING)
        assert done.returncode == 2 and "pagraph run:" in done.stderr

    def test_train(self, folder):
        if importlib.util.find_spec("dgl") is None:
            pytest.skip("needs DGL")
        assert "test accuracy" in run("train", folder / "blocks", "--epochs", 1, "--hidden", 8)

    @pytest.mark.many
    def test_warmup(self):
        assert "kinds of loaders" in run("warmup", "core", "--jobs", 1)

    def test_none_is_missing(self):
        assert {f"test_{verb}" for verb in VERBS} <= set(vars(TestVerbs))
