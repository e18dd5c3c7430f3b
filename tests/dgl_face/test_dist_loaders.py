"""DistDGL with real servers and trainers on two machines (namespaces of this one): our loaders'
batches are DGL's, with their rows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pagraph.datasets import sbm
from pagraph.partition import partition_graph, write_dgl

pytest.importorskip("pagraph.dgl")  # it makes any DGL importable
pytest.importorskip("dgl")
pytestmark = pytest.mark.slow

HERE = Path(__file__)
MACHINES = HERE.parents[2] / "benchmarks" / "machines.py"


@pytest.fixture(scope="module", params=[0, 1], ids=["no sampler process", "a sampler process"])
def trainers(request, tmp_path_factory):
    """What each trainer saw."""
    folder = tmp_path_factory.mktemp("machines")
    graph = sbm(2000, num_edges=20_000, num_features=8)
    write_dgl(partition_graph(graph, 2, method="halo"), folder / "parts")
    script = HERE.with_name("dist_trainers.py")
    command = [sys.executable, MACHINES, folder / "parts" / "graph.json", script, folder]
    command += ["--samplers", str(request.param), "--timeout", "200"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_batches_are_dgls_with_their_rows(trainers):
    for seen in trainers:
        batches = -(-seen["seeds"] // 64)
        for name in ("plain", "serial", "degree", "bytes"):
            assert seen[name]["batches"] == batches
        assert seen["drop"]["batches"] == seen["seeds"] // 64
        assert seen["auto"]["batches"] == 3 * batches
        assert seen["edges of 3"] == seen["edges of 4"] == 6


def test_the_cache_serves_other_machines_rows(trainers):
    for seen in trainers:
        assert seen["plain"]["rates"] == [0.0] and set(seen["plain"]["rows"]) == {"remote"}
        assert seen["degree"]["rates"][0] > 0.2
        first, second, third = seen["auto"]["rates"]
        # Vertices of this graph are read alike: those that were read most are hardly better.
        assert second > first - 0.01 and third > second - 0.01
        assert "400 rows of feat cached" in seen["auto"]["text"]
        # 20 KiB less the table of 2,000 rows, in rows of 32 bytes.
        assert f"{(20 * 1024 - 4 * 2000) // 32} rows of feat cached" in seen["bytes"]["text"]


def test_passes_that_are_left(trainers):
    for seen in trainers:
        assert seen["again"] and seen["ended"]


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
        assert "cache_policy must be one of ['auto', 'adaptive', 'degree']" in seen["policy"]
        assert "device must be the CPU" in seen["device"]
        assert "prefetch must be at least 0, got -1" in seen["prefetch"]
        assert seen.get("broken", "RuntimeError: broken sampler") == "RuntimeError: broken sampler"
