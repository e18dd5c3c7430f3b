"""What an editor shows: the types of loaders, graphs, batches and their fields, by mypy and, where
it is installed, by pyright, which reads DGL's and PyG's sources as an editor does."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pagraph

mypy = pytest.importorskip("mypy.api")
SITE = Path(pagraph.__file__).parent.parent

CORE = """
import torch
from pagraph import Graph, Loader, NeighborSampler
from pagraph.datasets import sbm

graph = sbm(10)
reveal_type(graph)  # Graph
reveal_type(graph.ndata["feat"])  # Tensor
loader = Loader(graph, torch.arange(3), NeighborSampler([3]), fields=["feat"], cache="2GiB")
reveal_type(loader.stats)  # LoaderStats
for batch in loader:
    reveal_type(batch)  # MiniBatch
    reveal_type(batch.blocks)  # list[Block]
    reveal_type(batch.input_nodes)  # Tensor
    reveal_type(batch.features["feat"])  # Tensor
reveal_type(next(iter(Loader(graph, [1, 2], NeighborSampler([3])))))  # MiniBatch
for typed in Loader(graph, {"paper": [1, 2]}, NeighborSampler([3]), fields={"paper": ["feat"]}):
    reveal_type(typed)  # HeteroMiniBatch
    reveal_type(typed.features["paper"]["feat"])  # Tensor
    reveal_type(typed.blocks[0].relations)  # dict[tuple[str, str, str], Relation]
"""

DGL = """
from pagraph.dgl import DataLoader, as_edge_prediction_sampler, negative_sampler, to_dgl
from pagraph.datasets import sbm
import dgl, torch

graph = to_dgl(sbm(10))
reveal_type(graph)  # NodeGraph
reveal_type(graph.ndata["train_mask"].nonzero())  # Tensor
sampler = dgl.dataloading.NeighborSampler([3])
loader = DataLoader(graph, torch.arange(3), sampler, batch_size=3, num_workers=2, cache=0)
reveal_type(loader)  # DataLoader[NeighborSampler]
for inputs, outputs, blocks in loader:
    reveal_type(inputs)  # Tensor
    reveal_type(blocks)  # list[Block]
    reveal_type(blocks[0].srcdata["feat"])  # Column
    reveal_type(blocks[0].srcdata["feat"].relu())  # Tensor
negatives = negative_sampler.Uniform(2)
edges = as_edge_prediction_sampler(sampler, negative_sampler=negatives)
for pairs in DataLoader(graph, torch.arange(3), edges):
    reveal_type(pairs)  # tuple[Tensor, NodeGraph, NodeGraph, list[Block]]
for pairs in DataLoader(graph, torch.arange(3), as_edge_prediction_sampler(sampler)):
    reveal_type(pairs)  # tuple[Tensor, NodeGraph, list[Block]]
for subgraph in DataLoader(graph, torch.arange(3), dgl.dataloading.SAINTSampler("node", 3)):
    reveal_type(subgraph)  # NodeGraph
"""

PYG = """
import torch
from pagraph.datasets import sbm
from pagraph.pyg import HGTLoader, LinkNeighborLoader, NeighborLoader, ShaDowKHopSampler, to_pyg
from torch_geometric.data import HeteroData

data = to_pyg(sbm(10))
reveal_type(data.train_mask)  # Tensor
loader = NeighborLoader(data, [2], input_nodes=data.train_mask, batch_size=3, memory="1GiB")
reveal_type(loader)  # NeighborLoader[GraphData]
reveal_type(loader.stats)  # LoaderStats
for batch in loader:
    reveal_type(batch)  # NodeBatch
    reveal_type(batch.x)  # Tensor
    reveal_type(batch.to("cpu").y[: batch.batch_size])  # Tensor
for links in LinkNeighborLoader(data, [2], neg_sampling="binary"):
    reveal_type(links.edge_label)  # Tensor
for subgraph in ShaDowKHopSampler(data, 2, 5, batch_size=2, cache=0):
    reveal_type(subgraph.root_n_id)  # Tensor
typed: HeteroData = to_pyg(sbm(10))
for hetero in NeighborLoader(typed, {("a", "to", "b"): [1]}, input_nodes=("a", None)):
    reveal_type(hetero["a"].x)  # Tensor
    reveal_type(hetero["a", "to", "b"].edge_index)  # Tensor
    reveal_type(hetero.edge_index_dict)  # dict[tuple[str, str, str], Tensor]
for hetero in HGTLoader(typed, [2], "a", batch_size=3):
    reveal_type(hetero)  # HeteroBatch
"""

WRONG = """
import torch
from pagraph import Graph, Loader, NeighborSampler

def wrong(graph: Graph) -> None:
    Loader(graph, 3.5, NeighborSampler([1]))
    Loader(graph, [1], NeighborSampler([1]), cache=[1])
    Loader(graph, [1], NeighborSampler([1]), memory=0.5)
    Loader(graph, [1], NeighborSampler([1]), device=3.5)
    Loader(graph, [1], NeighborSampler([1]), fields=3)
"""

SKIPPED = """
[mypy]
[mypy-sympy.*,torch._decomp.*,torch._dynamo.*,torch._export.*,torch._functorch.*]
follow_imports = skip
[mypy-torch._higher_order_ops.*,torch._inductor.*,torch._prims.*,torch._refs.*]
follow_imports = skip
[mypy-torch._subclasses.*,torch.ao.*,torch.distributed.*,torch.export.*,torch.fx.*]
follow_imports = skip
[mypy-torch.jit.*,torch.nn.*,torch.onnx.*,torch.optim.*,torch.package.*,torch.profiler.*]
follow_imports = skip
[mypy-torch.testing.*]
follow_imports = skip
"""
"""Settings for mypy: parts of torch with no type that a script shows, and which take it long."""


def said(text: str) -> list[str]:
    """The types that a script's comments say, in order."""
    return re.findall(r"^ *reveal_type\(.*\)  # (.*)$", text, re.MULTILINE)


def plain(type_: str) -> str:
    """A type without the modules of its names."""
    return re.sub(r"(?<![\w'])(?:\w+\.)+(\w+)", r"\1", type_)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Of the script and of what mypy has read of torch and the package, once for both."""
    return tmp_path_factory.mktemp("mypy")


def run_mypy(text: str, folder: Path, monkeypatch) -> tuple[str, list[int]]:
    script = folder / "script.py"
    script.write_text(text)
    monkeypatch.setenv("MYPYPATH", str(SITE))
    # Without the checkout's own settings, as in a user's project.
    settings = folder / "settings.ini"
    settings.write_text(SKIPPED)
    options = ["--strict", f"--config-file={settings}", "--ignore-missing-imports"]
    options += ["--follow-imports=silent", f"--cache-dir={folder}", "--no-error-summary"]
    options.append(str(script))
    output, errors, _ = mypy.run(options)
    assert not errors, errors
    lines = [int(line) for line in re.findall(r"script\.py:(\d+): error", output)]
    return output, lines


@pytest.mark.compilers
def test_mypy_knows_the_core(folder, monkeypatch):
    output, errors = run_mypy(CORE, folder, monkeypatch)
    assert [plain(type_) for type_ in re.findall(r'Revealed type is "(.*)"', output)] == said(CORE)
    assert errors == [], output


@pytest.mark.compilers
def test_mypy_refuses_what_the_loader_refuses(folder, monkeypatch):
    first = WRONG[: WRONG.index("    Loader")].count("\n") + 1
    _, errors = run_mypy(WRONG, folder, monkeypatch)
    assert errors == list(range(first, first + 5))


def pyright() -> str:
    found = shutil.which("pyright", path=os.pathsep.join([str(Path(sys.executable).parent)]))
    found = found or shutil.which("pyright")
    if found is None:
        pytest.skip("pyright is not installed: pip install 'pyright[nodejs]'")
    return found


@pytest.mark.compilers
@pytest.mark.parametrize(
    ("text", "needs"), [(CORE, "torch"), (DGL, "dgl"), (PYG, "torch_geometric")]
)
def test_pyright_knows_loaders_and_batches(tmp_path, text, needs):
    command = pyright()
    pytest.importorskip("pagraph.dgl" if needs == "dgl" else needs)
    (tmp_path / "script.py").write_text(text)
    settings = {"extraPaths": [str(SITE)], "typeCheckingMode": "basic"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [command, "--pythonpath", sys.executable, "--outputjson", "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = [each["message"] for each in found if each["severity"] == "error"]
    assert errors == []
    revealed = [re.search(r' is "(.*)"$', each["message"])[1] for each in found]
    assert revealed == said(text)
