"""Training over a network that breaks: two network namespaces of this machine, joined by a virtual
cable."""

import os
import re
import shutil
import subprocess

import pytest
import torch
from community import community_graph
from fresh_processes import HANGING, ended, forked_python
from processes import environment, program
from test_train_checkpoint import assert_the_same, saved

from pagraph import Graph
from pagraph.datasets import write_graph
from pagraph.partition import partition_graph, write_partition

pytestmark = pytest.mark.processes

SECONDS = 10
SETTINGS = (
    "--epochs",
    "25",
    "--hidden",
    "8",
    "--fanout",
    "4,4",
    "--batch-size",
    "10",
    "--device",
    "cpu",
)


def ip(*arguments):
    return subprocess.run(
        ["ip", *arguments], capture_output=True, text=True, check=True, timeout=HANGING
    )


class Machines:
    """Two namespaces with a cable between them; ``cut`` and ``mend`` are done to it."""

    def __init__(self):
        self.names = [f"pagraph{os.getpid()}{end}" for end in "ab"]
        self.links = [f"pg{os.getpid()}{end}" for end in "ab"]

    def __enter__(self):
        for name in self.names:
            ip("netns", "add", name)
        ip(
            "link",
            "add",
            self.links[0],
            "netns",
            self.names[0],
            "type",
            "veth",
            "peer",
            "name",
            self.links[1],
            "netns",
            self.names[1],
        )
        for number, (name, link) in enumerate(zip(self.names, self.links, strict=True), 1):
            ip("-n", name, "addr", "add", f"10.91.7.{number}/24", "dev", link)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", link, "up")
        return self

    def __exit__(self, *_error):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=HANGING)

    def cut(self):
        ip("-n", self.names[0], "link", "set", self.links[0], "down")

    def mend(self):
        ip("-n", self.names[0], "link", "set", self.links[0], "up")

    def torchrun(self, number, *arguments):
        """Start one process of two there, with its agent."""
        ends = [
            "--nnodes=2",
            "--nproc_per_node=1",
            f"--node_rank={number}",
            "--master_addr=10.91.7.1",
            "--master_port=29517",
        ]
        command = [forked_python(), "-m", "torch.distributed.run", *ends, *program(arguments)]
        env = {**environment(), "GLOO_SOCKET_IFNAME": self.links[number], "PYTHONUNBUFFERED": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[number], *command], env=env, **pipes
        )


@pytest.fixture
def machines():
    if shutil.which("ip") is None:
        pytest.skip("needs ip (iproute2) to make network namespaces")
    made = Machines()
    try:
        made.__enter__()
    except subprocess.CalledProcessError as error:
        made.__exit__()
        pytest.skip(f"cannot make network namespaces: {error.stderr.strip()}")
    yield made
    made.__exit__()


def test_a_link_that_is_cut_ends_both_sides_and_a_restart_goes_on(machines, tmp_path):
    """Each machine has a folder of checkpoints of its own."""
    write_graph(community_graph(600, degree=4), tmp_path / "graph")
    graph = Graph.open(tmp_path / "graph")
    write_partition(
        partition_graph(graph, 2, hops=2, method="hash"),
        tmp_path / "parts",
        source=tmp_path / "graph",
    )

    def both(name):
        more = ("--timeout", SECONDS, "--checkpoint")
        return [
            machines.torchrun(
                number, tmp_path / "parts", *SETTINGS, *more, tmp_path / f"{name}{number}"
            )
            for number in range(2)
        ]

    for _, errors, code in ended(both("whole")):
        assert code == 0, errors
    processes = both("cut")
    for line in processes[0].stdout:
        if line.startswith("epoch  3/"):
            break
    machines.cut()
    for rank, (_, errors, code) in enumerate(ended(processes)):
        assert code == 1  # torchrun's own
        (error,) = re.findall(r"^Error: .*$", errors, re.MULTILINE)
        assert error.startswith(f"Error: rank {rank}: another process ended or did not answer: ")
    machines.mend()
    for (said, errors, code), rank in zip(ended(both("cut")), range(2), strict=True):
        assert code == 0, errors
        assert len(re.findall(r"^resuming after epoch +\d+/25$", said, re.MULTILINE)) == 1 - rank
    for number in range(2):
        assert_the_same(saved(tmp_path / f"cut{number}"), saved(tmp_path / "whole0"))
    assert not torch.equal(*(random["cpu"] for random in saved(tmp_path / "cut0")["random"]))
