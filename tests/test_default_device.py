"""``torch.set_default_device``: what is the CPU's stays there."""

import ast
import os
import subprocess
from pathlib import Path

import pytest
from fresh_processes import HANGING, forked_python

import pagraph

FACTORIES = {
    *(
        "arange",
        "as_tensor",
        "asarray",
        "empty",
        "eye",
        "full",
        "linspace",
        "ones",
        "rand",
        "randint",
        "randn",
    ),
    *("randperm", "scalar_tensor", "tensor", "zeros"),
}
ROOT = Path(pagraph.__file__).parent


def library_files():
    """All files of the library, those behind the links of a checkout too."""
    return [
        Path(folder) / name
        for folder, _, names in os.walk(ROOT, followlinks=True)
        for name in names
        if name.endswith(".py")
    ]


@pytest.mark.many
def test_every_tensor_is_made_on_a_device():
    """Or where another one says, by ``out`` or options."""
    files = library_files()
    assert len(files) > 100
    missing = []
    for file in files:
        for call in ast.walk(ast.parse(file.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            if getattr(call.func.value, "id", "") != "torch" or call.func.attr not in FACTORIES:
                continue
            if not {word.arg for word in call.keywords} & {"device", "out", None}:
                missing.append(f"{file.relative_to(ROOT)}:{call.lineno}")
    assert missing == []


CODE = """
import sys, torch
from pagraph import Loader, NeighborSampler, open_partition
from pagraph.datasets import sbm, write_graph, open_graph
from pagraph.partition import partition_graph, write_partition
from pagraph.profile import hit_rate_curve

torch.set_default_device("meta")
graph = sbm(500, num_features=4, seed=1)
write_graph(graph, sys.argv[1] + "/g")
graph = open_graph(sys.argv[1] + "/g", verify=True)
seeds = graph.ndata["train_mask"].nonzero().squeeze(1)
for prefetch in (0, 2):
    options = dict(fields=["feat"], labels=["label"], batch_size=64, shuffle=True, cache=0.5, prefetch=prefetch)
    for batch in Loader(graph, seeds, NeighborSampler([3, 3]), **options):
        assert batch.features["feat"].equal(graph.ndata["feat"][batch.input_nodes])
write_partition(partition_graph(graph, 2, hops=1), sys.argv[1] + "/p")
assert hit_rate_curve(graph, seeds, NeighborSampler([3]), batch_size=64).reads > 0
"""
PYG = """
import pagraph.pyg
data = pagraph.pyg.to_pyg(graph)
for batch in pagraph.pyg.NeighborLoader(data, [3], input_nodes=seeds, batch_size=64):
    assert batch.x.equal(graph.ndata["feat"][batch.n_id])
"""


# DGL makes no graph under another default.
@pytest.mark.processes
@pytest.mark.parametrize("more", ["", PYG], ids=["core", "pyg"])
def test_loaders_under_another_default(tmp_path, more):
    command = [forked_python(), "-W", "ignore", "-c", CODE + more, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGING)
    assert (done.returncode, done.stderr) == (0, "")
