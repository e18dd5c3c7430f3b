"""METIS: its two bindings, input it cannot take, and the moves that make parts even."""

import importlib.util

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagraph import Graph
from pagraph.datasets import rmat, sbm
from pagraph.errors import MissingDependencyError
from pagraph.partition import METHODS, draw_train
from pagraph.partition.methods import metis
from pagraph.partition.methods.balancing import balance_parts, deal_out, largest_size

# DGL's function leaves /proc/self/status open.
leaves_files_open = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


def without(monkeypatch, *missing):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        metis.importlib.util, "find_spec", lambda name: None if name in missing else real(name)
    )


def edges_between(graph, train, parts):
    part_of = torch.full((graph.num_nodes,), -1, dtype=torch.int32)
    part_of[train] = parts
    return int(
        (part_of[graph.csc.indices.long()] != part_of[graph.csc.destinations().long()]).sum()
    )


@leaves_files_open
@pytest.mark.parametrize("package", ["pymetis", "dgl"])
def test_cuts_far_fewer_edges_than_dealing_out(monkeypatch, package):
    pytest.importorskip(package if package == "pymetis" else "pagraph.dgl")
    without(monkeypatch, *({"pymetis", "dgl"} - {package}))
    graph = sbm(2000, num_edges=6000, num_classes=4, homophily=0.95, num_features=1, seed=0)
    train = torch.arange(2000)
    parts = METHODS["metis"](graph, train, 4, 1, seed=3)
    assert int(torch.bincount(parts).max()) <= largest_size(2000, 4)
    assert edges_between(graph, train, parts) < 0.5 * edges_between(
        graph, train, METHODS["hash"](graph, train, 4, 1)
    )


@leaves_files_open
@pytest.mark.parametrize("shape", ["no edges", "tiny", "mostly isolated", "skewed"])
def test_what_dgl_would_stumble_over(monkeypatch, shape, capfd):
    pytest.importorskip("pagraph.dgl")
    without(monkeypatch, "pymetis")
    graph = {
        "no edges": lambda: Graph.from_coo([], [], 20),
        "tiny": lambda: Graph.from_coo([0, 1, 2], [1, 2, 3], 12),
        "mostly isolated": lambda: Graph.from_coo(torch.arange(20), torch.arange(1, 21), 900),
        "skewed": lambda: rmat(8, seed=0),
    }[shape]()
    train = torch.arange(0, graph.num_nodes, 2)
    sizes = torch.bincount(METHODS["metis"](graph, train, 4, 1), minlength=4)
    assert int(sizes.min()) >= 1 and int(sizes.max()) <= largest_size(len(train), 4)
    assert capfd.readouterr().out == ""


def test_training_vertices_without_edges_among_others_with_edges():
    graph = Graph.from_coo(torch.arange(50), torch.arange(1, 51), 80)
    parts = METHODS["metis"](graph, torch.arange(60, 80), 3, 1)
    assert sorted(torch.bincount(parts).tolist()) == [6, 7, 7]


def test_few_training_vertices_are_spread_evenly():
    graph = rmat(10, edge_factor=8, undirected=True, seed=0)
    train = draw_train(graph, 0.03)
    sizes = torch.bincount(METHODS["metis"](graph, train, 6, 1), minlength=6)
    assert int(sizes.max()) <= largest_size(len(train), 6)


def test_other_seeds_give_other_parts():
    pytest.importorskip("pymetis")
    graph = rmat(10, edge_factor=8, seed=0)
    train = torch.arange(1024)
    assert not torch.equal(
        METHODS["metis"](graph, train, 4, 1, seed=1), METHODS["metis"](graph, train, 4, 1, seed=2)
    )


def test_says_what_to_install_when_neither_binding_is_there(monkeypatch):
    without(monkeypatch, "pymetis", "dgl")
    with pytest.raises(MissingDependencyError, match=NEITHER):
        METHODS["metis"](Graph.from_coo([0], [1]), torch.arange(2), 2, 1)


NEITHER = (
    r"needs pymetis 2025\.2 or newer, or DGL, and neither is installed: pip install "
    r"'pagraph\[metis\]'"
)


@leaves_files_open
def test_a_pymetis_that_is_too_old(monkeypatch):
    monkeypatch.delattr(pytest.importorskip("pymetis"), "CSRAdjacency")
    graph = Graph.from_coo(torch.arange(50), torch.arange(1, 51))
    with monkeypatch.context() as no_dgl:
        without(no_dgl, "dgl")
        with pytest.raises(MissingDependencyError, match=NEITHER):
            METHODS["metis"](graph, torch.arange(51), 2, 1)
    pytest.importorskip("pagraph.dgl")
    assert METHODS["metis"](graph, torch.arange(51), 2, 1).bincount().tolist() in (
        [25, 26],
        [26, 25],
    )


@given(st.data(), st.integers(1, 8), st.integers(1, 300))
def test_balancing_leaves_no_part_too_large_or_empty(data, num_parts, count):
    count = max(count, num_parts)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    skew = rng.dirichlet(np.full(num_parts, data.draw(st.sampled_from([0.1, 1.0, 10.0]))))
    parts = rng.choice(num_parts, count, p=skew).astype(np.int32)
    before = parts.copy()
    table = rng.integers(0, 5, (count, num_parts)).astype(float)
    balance_parts(parts, num_parts, lambda places: table[places])
    sizes, limit = np.bincount(parts, minlength=num_parts), largest_size(count, num_parts)
    assert sizes.min() >= 1 and sizes.max() <= limit
    excess = np.maximum(np.bincount(before, minlength=num_parts) - limit, 0).sum()
    assert (parts != before).sum() <= excess + (np.bincount(before, minlength=num_parts) == 0).sum()


def test_balancing_moves_those_with_the_least_to_lose():
    parts = np.zeros(10, dtype=np.int32)
    parts[8:] = 1
    table = np.zeros((10, 2))
    table[:, 0] = [9, 1, 9, 2, 9, 9, 3, 9, 0, 0]
    balance_parts(parts, 2, lambda places: table[places])
    assert np.flatnonzero(parts).tolist() == [1, 3, 6, 8, 9]


@pytest.mark.parametrize(
    "sizes, missing, expected",
    [
        ([0, 0, 0], 7, [2, 2, 3]),
        ([5, 0, 1], 4, [5, 2, 3]),
        ([3, 3, 3], 2, [3, 4, 4]),
        ([4, 4], 0, [4, 4]),
    ],
)
def test_vertices_without_a_part_go_to_the_smallest(sizes, missing, expected):
    parts = np.concatenate([np.repeat(np.arange(len(sizes)), sizes), np.full(missing, -1)]).astype(
        np.int32
    )
    deal_out(parts, len(sizes))
    assert np.bincount(parts).tolist() == expected
