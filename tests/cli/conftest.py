"""Graph folders to divide."""

import pytest

from pagraph.datasets import rmat, sbm, write_graph


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    path = tmp_path_factory.mktemp("partition") / "graph"
    write_graph(sbm(600, num_features=8), path)
    return path


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """No features, no labels, no masks."""
    path = tmp_path_factory.mktemp("partition") / "bare"
    graph = rmat(8)
    for name in list(graph.ndata):
        del graph.ndata[name]
    write_graph(graph, path)
    return path


@pytest.fixture(scope="module", autouse=True)
def _unsynced(unsynced):
    """All of these tests write folders."""
