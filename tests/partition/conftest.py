"""A small graph with fields of all kinds in a folder, and partitions of it."""

import pytest
import torch

from pagraph import Graph
from pagraph.datasets import sbm, write_graph
from pagraph.graph.graph import EDGE_TYPE
from pagraph.partition import partition_graph, write_partition


def small_graph():
    graph = sbm(300, seed=3)
    noise = torch.Generator().manual_seed(5)
    graph.set_field("half", torch.randn(300, 3, 2, generator=noise).bfloat16())
    graph.set_field("words", torch.randint(0, 99, (300, 4), generator=noise))
    graph.set_field("w", torch.rand(graph.num_edges, generator=noise), edge_type=EDGE_TYPE)
    graph.ndata["feat"][7, 0] = float("nan")
    return graph


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source") / "graph"
    write_graph(small_graph(), folder)
    return folder


@pytest.fixture(scope="session")
def whole(source):
    return Graph.open(source)


@pytest.fixture(scope="session")
def divided(whole):
    return partition_graph(whole, 3, hops=1, method="hash", seed=4)


@pytest.fixture
def out(divided, source, tmp_path):
    """A partition folder of the test's own."""
    write_partition(divided, tmp_path / "out", source=source, seed=4)
    return tmp_path / "out"


@pytest.fixture(scope="module", autouse=True)
def _unsynced(unsynced):
    """All of these tests write folders."""
