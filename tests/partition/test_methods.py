"""What every method promises, whichever it is: new ones join by being in the registry."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_methods import graphs, reach, rows_of, train_sets, wide
from tiers import examples

from pagraph import Graph
from pagraph.datasets import rmat, write_graph
from pagraph.partition import METHODS, Partition, draw_train, partition_graph

every_method = pytest.mark.parametrize("method", METHODS)


def check(parts, train, num_parts):
    assert parts.dtype == torch.int32 and parts.shape == train.shape
    sizes = torch.bincount(parts, minlength=num_parts)
    assert int(parts.min()) >= 0 and len(sizes) == num_parts
    assert int(sizes.min()) >= 1
    assert int(sizes.max()) <= max(-(-len(train) // num_parts), 1.01 * len(train) / num_parts)


def ring(n):
    return Graph.from_coo(torch.arange(n), (torch.arange(n) + 1) % n, n)


def loops(n):
    return Graph.from_coo(torch.arange(n), torch.arange(n), n)


def star(n):
    return Graph.from_coo(torch.arange(1, n), torch.zeros(n - 1, dtype=torch.int64), n)


def repeated(n):
    """Every edge of a ring five times, beside as many isolated vertices."""
    ends = torch.arange(n).repeat(5)
    return Graph.from_coo(ends, (ends + 1) % n, 2 * n)


SHAPES = {
    "no edges": lambda: Graph.from_coo([], [], 50),
    "one vertex": lambda: Graph.from_coo([], [], 1),
    "one edge among isolated vertices": lambda: Graph.from_coo([3], [7], 60),
    "self-loops": lambda: loops(40),
    "a ring": lambda: ring(70),
    "a star": lambda: star(90),
    "parallel edges": lambda: repeated(30),
    "skewed": lambda: rmat(9, edge_factor=8, seed=0),
    "skewed, int64": lambda: wide(rmat(9, edge_factor=8, seed=0)),
}


@pytest.mark.every
@every_method
@pytest.mark.parametrize("shape", SHAPES)
def test_every_training_vertex_is_in_one_part_and_parts_are_even(method, shape):
    graph = SHAPES[shape]()
    everything = torch.arange(graph.num_nodes)
    for train in (everything, everything[::3], everything[-5:]):
        for num_parts in {1, min(3, len(train)), min(40, len(train)), min(200, len(train))}:
            for hops in (1, 2, 3):
                check(METHODS[method](graph, train, num_parts, hops), train, num_parts)


@every_method
@settings(max_examples=examples(40))
@given(st.data(), graphs())
def test_any_small_graph(method, data, graph):
    train = data.draw(train_sets(graph))
    num_parts = data.draw(st.integers(1, len(train)))
    check(METHODS[method](graph, train, num_parts, data.draw(st.integers(1, 3))), train, num_parts)


@every_method
def test_more_parts_than_a_byte_counts(method):
    graph = rmat(12, edge_factor=4, seed=1)
    train = draw_train(graph, 0.65)
    parts = METHODS[method](graph, train, 300, 1)
    check(parts, train, 300)


@every_method
@pytest.mark.parametrize("hops", [1, 2])
def test_the_same_arguments_give_the_same_parts(method, hops):
    graph = rmat(11, edge_factor=4, seed=1)
    train = draw_train(graph, 0.5)
    first = METHODS[method](graph, train, 5, hops, seed=7)
    state, numpy_state, torch_state = (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_rng_state(),
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        again = METHODS[method](graph, train, 5, hops, seed=7)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(first, again)
    assert random.getstate() == state and np.random.get_state()[1].tolist() == numpy_state
    assert torch.equal(torch.get_rng_state(), torch_state)


@every_method
def test_seeds_of_any_size_are_taken(method):
    graph = ring(40)
    train = torch.arange(40)
    for seed in (0, 1, 2**31, 2**62):
        check(METHODS[method](graph, train, 4, 1, seed=seed), train, 4)


@every_method
@pytest.mark.parametrize("hops", [1, 2])
def test_mapped_graphs_are_read_and_not_written(method, hops, tmp_path):
    graph = rmat(9, edge_factor=8, seed=3)
    write_graph(graph, tmp_path / "graph")
    files = {path: path.read_bytes() for path in (tmp_path / "graph").iterdir()}
    train = torch.arange(0, 512, 3)
    mapped = METHODS[method](Graph.open(tmp_path / "graph"), train, 4, hops)
    assert torch.equal(mapped, METHODS[method](graph, train, 4, hops))
    assert {path: path.read_bytes() for path in (tmp_path / "graph").iterdir()} == files


@every_method
def test_arguments_stay_as_they_were(method):
    graph = rmat(8, edge_factor=8, seed=3)
    train = torch.arange(0, 256, 3)
    before = [t.clone() for t in (graph.csc.indptr, graph.csc.indices, train)]
    METHODS[method](graph, train, 4, 2)
    assert all(
        torch.equal(a, b)
        for a, b in zip(before, (graph.csc.indptr, graph.csc.indices, train), strict=True)
    )


@every_method
@pytest.mark.parametrize("hops", [1, 2])
def test_progress_grows_to_the_whole(method, hops):
    told = []
    train = torch.arange(512)
    METHODS[method](
        rmat(9, seed=0), train, 4, hops, progress=lambda done, whole: told.append((done, whole))
    )
    assert all(0 <= done <= whole for done, whole in told)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert method == "hash" or told[-1][0] == told[-1][1]


@every_method
@pytest.mark.parametrize("hops", [1, 2, 3])
def test_parts_hold_what_their_training_vertices_reach(method, hops):
    graph = rmat(8, edge_factor=2, seed=5)
    partition = partition_graph(
        graph, 3, hops=hops, method=method, train=draw_train(graph, 0.4), seed=1
    )
    assert isinstance(partition, Partition)
    assert (partition.method, partition.hops, partition.num_parts) == (method, hops, 3)
    rows = rows_of(graph)
    owned = torch.cat([partition.train_of(part) for part in range(3)])
    assert torch.equal(owned.sort().values, partition.train)
    for part in range(3):
        held = set(partition.vertices(part).ids.tolist())
        assert held >= set(reach(rows, partition.train_of(part).tolist(), hops))
