"""DistDGL with real servers and trainers on two machines (namespaces of this one): our loaders'
batches are DGL's, with their rows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fresh_processes import HANGING, forked_python

from pagraph.datasets import citation, sbm
from pagraph.partition import partition_graph, write_dgl

pytest.importorskip("pagraph.dgl")  # it makes any DGL importable
pytest.importorskip("dgl")
pytestmark = pytest.mark.clients

HERE = Path(__file__)
MACHINES = HERE.parents[2] / "benchmarks" / "machines.py"


def run_trainers(folder, graph, samplers):
    """What each of two trainers saw; skips where this host cannot have two machines."""
    write_dgl(partition_graph(graph, 2, method="halo"), folder / "parts")
    script = HERE.with_name("dist_trainers.py")
    command = [sys.executable, MACHINES, folder / "parts" / "graph.json", script, folder]
    command += ["--samplers", str(samplers), "--timeout", "200", "--python", forked_python()]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=HANGING)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module", params=[0, 1], ids=["no sampler process", "a sampler process"])
def trainers(request, tmp_path_factory):
    graph = sbm(2000, num_edges=20_000, num_features=8)
    graph.edata["weight"] = torch.rand(graph.num_edges)
    return run_trainers(tmp_path_factory.mktemp("machines"), graph, request.param)


def test_batches_are_dgls_with_their_rows(trainers):
    for seen in trainers:
        batches = -(-seen["seeds"] // 64)
        for name in ("plain", "serial", "few", "degree", "bytes", "whole"):
            assert seen[name]["batches"] == batches
        assert seen["drop"]["batches"] == seen["seeds"] // 64
        assert seen["auto"]["batches"] == 3 * batches
        assert seen["edges of 3"] == seen["edges of 4"] == 6


def test_the_cache_serves_other_machines_rows(trainers):
    for seen in trainers:
        assert seen["plain"]["rates"] == [0.0] and set(seen["plain"]["rows"]) == {"remote"}
        assert seen["whole"]["rates"] == [1.0]
        assert 0.05 < seen["few"]["rates"][0] < 0.2 < seen["degree"]["rates"][0]
        assert seen["vip"] > 0.2 and seen["edges' rate"] > 0.2
        first, second, third = seen["auto"]["rates"]
        # Vertices of this graph are read alike: those that were read most are hardly better.
        assert second > first - 0.01 and third > second - 0.01
        assert "400 rows of feat cached" in seen["auto"]["text"]
        # 20 KiB less the table of 2,000 rows, in rows of 32 bytes.
        assert f"{(20 * 1024 - 4 * 2000) // 32} rows of feat cached" in seen["bytes"]["text"]


def test_passes_that_are_left(trainers):
    for seen in trainers:
        assert seen["again"] and seen["after close"] == 3
        assert seen["left"] == []


def test_rows_that_are_read_ahead_must_not_be_written(trainers):
    for seen in trainers:
        for name, what in {"write in a pass": "reads ahead", "write of cached": "caches"}.items():
            assert seen[name].startswith(
                f"RuntimeError: 'feat' must not be written while a loader {what} its rows"
            )
        assert seen["write after it"] is seen["write of closed"] is None


def test_errors(trainers):
    for seen in trainers:
        assert "prefetch_node_feats must name fields of '_N', which has" in seen["field"]
        assert "g must be a DistGraph, got DGLGraph: pagraph.dgl.DataLoader" in seen["graph"]
        assert "cache_policy must be one of ['auto', 'degree', 'vip']" in seen["policy"]
        assert "cache_policy must be 'auto' or 'degree' unless" in seen["vip of others"]
        assert "device must be the CPU" in seen["device"]
        assert "prefetch must be at least 0, got -1" in seen["prefetch"]
        assert "cache must be a share in (0, 1], got 1.5" in seen["cache"]


def test_a_samplers_exception_comes_at_its_place(trainers):
    for seen in trainers:
        for count, text in seen["broken"]:
            assert count == 2
            if "killed" in seen:  # with a sampler process
                assert text.startswith("PipelineError: a DGL sampler process failed")
            assert text.endswith("ValueError: broken sampler") or "broken sampler\n" in text


def test_a_killed_sampler_process_ends_the_pass(trainers):
    for seen in trainers:
        if "killed" in seen:
            assert "got one with exit code -9" in seen["killed"]


def test_several_types(tmp_path):
    graph = citation(2000, num_features=4, num_author_features=3)
    for seen in run_trainers(tmp_path, graph, 0):
        assert seen["types"]["batches"] > 1 and seen["types"]["rate"] > 0.3
        own = ["author/feat, own part", "paper/feat, own part", "paper/label, own part"]
        fields = ["author/feat", "paper/feat", "paper/label"]
        assert seen["types"]["fields"] == sorted(fields + own)
        assert seen["untyped"].startswith(
            "ValueError: prefetch_node_feats must be a dict for a graph of the types"
        )
