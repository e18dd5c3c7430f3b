"""Means and sums of numbers of 1e15, of a small spread, against NumPy's in higher precision."""

import numpy as np
import pytest

from pagraph import Graph
from pagraph.datasets import open_graph
from pagraph.train.preaggregation import preaggregate


def test_means_of_neighbours(tmp_path):
    draw = np.random.default_rng(0)
    src, dst = draw.integers(0, 50, (2, 4000))
    feat = (1e15 + draw.normal(0, 3e5, (50, 3))).astype(np.float32)
    graph = Graph.from_coo(src, dst, 50, ndata={"feat": feat})
    preaggregate(graph, tmp_path / "sums", model="sage")
    found = open_graph(tmp_path / "sums").ndata["feat_mean"].numpy()
    for vertex in range(50):
        rows = feat[src[dst == vertex]].astype(np.longdouble)
        assert found[vertex] == pytest.approx(rows.mean(0).astype(float), rel=1e-6)
