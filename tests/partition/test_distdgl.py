"""DistDGL, DGL's own distributed engine, trains on the parts that are written for it."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from fresh_processes import HANGING, ended, forked_python
from machines import two_machines

from pagraph.datasets import citation, sbm, write_graph
from pagraph.partition import partition_graph, write_dgl

pytestmark = pytest.mark.clients

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "distdgl.py"
COMMAND = ("-W", "ignore", "-u", str(SCRIPT))
OPTIONS = ("--epochs", "12", "--batch-size", "64")
# Features alone cannot be right more often than 0.595 on this graph (see pagraph.datasets.sbm).
LEAST = 0.7


def write_parts(folder, num_parts):
    graph = sbm(3000, num_features=32, seed=1)
    partition = partition_graph(graph, num_parts, hops=2, method="hash")
    write_dgl(partition, folder)
    return partition


def environment(**more):
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", **more}


def accuracy(output):
    return float(re.search(r"^test accuracy ([\d.]+)$", output, re.MULTILINE)[1])


def test_one_part_without_servers(tmp_path):
    write_parts(tmp_path / "parts", 1)
    command = [forked_python(), *COMMAND, str(tmp_path / "parts" / "graph.json"), *OPTIONS]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=HANGING, env=environment()
    )
    assert done.returncode == 0, done.stderr
    assert accuracy(done.stdout) > LEAST


def test_sampling_over_several_types(tmp_path):
    graph = citation(150, num_features=4, num_author_features=3)
    write_graph(graph, tmp_path / "graph")
    partition = partition_graph(graph, 1, method="halo")
    write_dgl(partition, tmp_path / "parts")
    script = Path(__file__).with_name("distdgl_types.py")
    command = [
        forked_python(),
        *COMMAND[:-1],
        str(script),
        str(tmp_path / "parts" / "graph.json"),
        str(tmp_path / "graph"),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=HANGING, env=environment()
    )
    assert done.returncode == 0, done.stderr
    assert f"{len(partition.train)} seeds" in done.stdout


@pytest.fixture
def machines():
    try:
        with two_machines() as made:
            yield made
    except OSError as error:
        pytest.skip(f"needs the right to make network namespaces: {error}")


def test_two_machines_with_a_part_each(machines, tmp_path):
    partition = write_parts(tmp_path / "parts", 2)
    config = str(tmp_path / "parts" / "graph.json")
    (tmp_path / "ip_config.txt").write_text("10.77.0.1 30050\n10.77.0.2 30050\n")
    dist = {
        "DGL_DIST_MODE": "distributed",
        "DGL_NUM_SERVER": "1",
        "DGL_NUM_CLIENT": "2",
        "DGL_NUM_SAMPLER": "0",
    }
    dist |= {"DGL_IP_CONFIG": str(tmp_path / "ip_config.txt"), "DGL_CONF_PATH": config}
    dist |= {"WORLD_SIZE": "2", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "30099"}
    arguments = (forked_python(), *COMMAND, config, "--ip-config", dist["DGL_IP_CONFIG"], *OPTIONS)
    roles = [{"DGL_ROLE": "server", "DGL_SERVER_ID": str(i)} for i in range(2)]
    roles += [
        {"DGL_ROLE": "client", "RANK": str(i), "GLOO_SOCKET_IFNAME": f"cable{i}"} for i in range(2)
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    processes = [
        machines[i % 2].start(*arguments, env=environment(**dist, **role), **pipes)
        for i, role in enumerate(roles)
    ]
    found = ended(processes, 200)
    assert [code for _, _, code in found] == [0] * 4, found
    output = "".join(text for text, _, _ in found)
    assert accuracy(output) > LEAST
    for part in range(2):  # each trains on its own part's training vertices, and on all of them
        batches = -(-len(partition.train_of(part)) // 64)
        assert (
            len(
                re.findall(
                    rf"^rank {part}  epoch \d+  loss [\d.]+  {batches} batches$",
                    output,
                    re.MULTILINE,
                )
            )
            == 12
        )
