"""Loaders of a folder larger than memory, in a control group a quarter above ``memory``, which
would end them."""

import importlib.util
import subprocess
import sys

import pytest
from fresh_processes import OF_CUDA, forked_python

BATCHES = """
import hashlib, sys
import torch, pagraph

folder, *memory = sys.argv[1:]
graph = pagraph.Graph.open(folder)
options = {"memory": memory[1]} if memory else {"cache": 0, "lookahead": 0}
sampler, digest = pagraph.NeighborSampler([5, 5]), hashlib.sha256()
seeds = graph.ndata["train_mask"].nonzero().squeeze(1)
loader = pagraph.Loader(graph, seeds, sampler, fields=["feat"], batch_size=100, shuffle=True, seed=1, **options)
for batch in loader:
    digest.update(batch.features["feat"].numpy().data)
plan = loader.memory_plan
assert plan.process + plan.taken <= plan.total
print(digest.hexdigest())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An RMAT graph with 576 MiB of features."""
    out = tmp_path_factory.mktemp("limit") / "rmat"
    size = [
        "--scale",
        "17",
        "--features",
        "1152",
        "--classes",
        "4",
        "--fractions",
        "0.02,0.01,0.01",
    ]
    subprocess.run(
        [forked_python(), "-m", "pagraph", "generate", "rmat", *size, out],
        check=True,
        capture_output=True,
    )
    return out


@pytest.mark.memory
def test_an_epoch_keeps_to_a_quarter_more_than_memory(folder, in_group):
    limited = in_group(320, sys.executable, "-c", BATCHES, folder)
    run = [forked_python(), "-c", BATCHES, folder]
    free = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    assert limited == free


@pytest.mark.memory
def test_training_keeps_to_a_quarter_more_than_memory(folder, in_group):
    if not any(importlib.util.find_spec(name) for name in ("dgl", "torch_geometric")):
        pytest.skip("needs the layers of DGL or PyG")
    options = ["--epochs", "2", "--fanout", "5,5", "--batch-size", "100", "--hidden", "16"]
    command = [sys.executable, "-m", "pagraph", "train", folder, *options]
    said = in_group(560, *command)
    assert f"memory: {(560 + OF_CUDA) * 3 // 4} MiB" in said and "epoch 2/2" in said


@pytest.mark.memory
@pytest.mark.parametrize(
    "verb",
    [
        ["generate", "rmat", "OUT", "--scale", "18", "--features", "512"],
        ["reorder", "FOLDER", "OUT", "--fanout", "5,5", "--batch-size", "100"],
        ["preaggregate", "FOLDER", "OUT"],
        [
            "partition",
            "FOLDER",
            "OUT",
            "-k",
            "2",
            "--hops",
            "1",
            "--method",
            "halo",
            "--cache",
            "0",
        ],
    ],
    ids=lambda verb: verb[0],
)
def test_verbs_keep_to_a_quarter_more_than_memory(folder, in_group, tmp_path, verb):
    places = {"FOLDER": folder, "OUT": tmp_path / "out"}
    command = [sys.executable, "-m", "pagraph", *(places.get(word, word) for word in verb)]
    in_group(384, *command)
    assert (tmp_path / "out").is_dir()


@pytest.mark.memory
def test_a_profile_keeps_to_a_quarter_more_than_memory(tmp_path, in_group):
    """2 M vertices: what all policies take, 400 MiB and the interpreter, would end it."""
    folder = tmp_path / "rmat"
    size = ["--scale", "21", "--edge-factor", "4", "--features", "1", "--classes", "2"]
    size += ["--fractions", "0.01,0.01,0.01"]
    subprocess.run(
        [forked_python(), "-m", "pagraph", "generate", "rmat", *size, folder],
        check=True,
        capture_output=True,
    )
    command = [sys.executable, "-m", "pagraph", "profile", folder, "--fanout", "10,5"]
    said = " ".join(in_group(320, *command).split())
    assert "auto ranks by a few batches" in said and "presample and vip are left out" in said
