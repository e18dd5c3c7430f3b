"""HaloSearch: its counts are the truth after any change, and what it saves is saved."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_methods import graphs, reach, rows_of, train_sets
from tiers import examples

from pagraph import Graph
from pagraph.datasets import rmat, sbm
from pagraph.partition import METHODS, Partition, draw_train, partition_graph
from pagraph.partition.methods.auto import cluster, grown_parts
from pagraph.partition.methods.halo import SQUARINGS, HaloSearch, by_in_degree, equal_sizes

pytestmark = pytest.mark.kernels


def held(graph, train, parts, num_parts, hops):
    rows = rows_of(graph)
    return [len(reach(rows, train[parts == part].tolist(), hops)) for part in range(num_parts)]


def load(sizes):
    """What is made small, in whole numbers."""
    return sum(int(size) ** 2**SQUARINGS for size in sizes)


@st.composite
def searches(draw):
    graph = draw(graphs())
    train = draw(train_sets(graph))
    num_parts, hops = draw(st.integers(1, len(train))), draw(st.integers(1, 3))
    return graph, train, num_parts, hops, HaloSearch(graph.csc, train, num_parts, hops)


def check(search, graph, train, num_parts, hops):
    parts = torch.from_numpy(search.parts)
    sizes = held(graph, train, parts, num_parts, hops)
    assert search.held.tolist() == sizes and search.score == (max(sizes), sum(sizes))
    sizes = torch.bincount(parts, minlength=num_parts)
    assert int(sizes.min()) >= 1
    assert int(sizes.max()) <= max(-(-len(train) // num_parts), 1.01 * len(train) / num_parts)


@pytest.mark.many
@settings(max_examples=examples(150))
@given(searches(), st.randoms(use_true_random=False))
def test_counts_stay_true_and_passes_never_add(searched, random):
    graph, train, num_parts, hops, search = searched
    order = list(range(len(train)))
    random.shuffle(order)
    search.place(np.array(order))
    check(search, graph, train, num_parts, hops)
    rng = np.random.default_rng(0)
    groups = np.array([random.randrange(3) for _ in order]) * num_parts + search.parts
    before = load(search.held)
    search.improve_groups(groups, rng)
    check(search, graph, train, num_parts, hops)
    assert load(search.held) <= before
    before = load(search.held)
    search.improve_groups(np.arange(len(train)), rng)
    check(search, graph, train, num_parts, hops)
    assert load(search.held) <= before
    search.improve(rng)
    check(search, graph, train, num_parts, hops)
    search.adopt(search.parts)  # counted anew
    check(search, graph, train, num_parts, hops)


@settings(max_examples=examples(50))
@given(searches(), st.sampled_from([0, 1, SQUARINGS]))
def test_the_first_is_put_where_the_load_grows_least(searched, squarings):
    """Placing one at a time, every choice is among the cheapest: recomputed by plain search."""
    graph, train, num_parts, hops, search = searched
    order = by_in_degree(graph.csc, train)
    assert sorted(order.tolist()) == list(range(len(train)))
    degrees = graph.in_degrees()[train][torch.from_numpy(order)]
    assert bool((degrees.diff() <= 0).all())
    search.place(order, squarings=squarings)
    rows, room = rows_of(graph), equal_sizes(len(train), num_parts).tolist()
    inside = [set() for _ in range(num_parts)]
    members = [[] for _ in range(num_parts)]
    for place in order.tolist():
        vertex, got = int(train[place]), int(search.parts[place])
        after = [set(reach(rows, [*members[part], vertex], hops)) for part in range(num_parts)]
        more = [len(after[part]) - len(inside[part]) for part in range(num_parts)]
        if hops == 1:  # a vertex counts as often as edges lead to it
            more = [
                sum(u not in inside[p] for u in [vertex, *rows[vertex]]) for p in range(num_parts)
            ]
        loads = [len(inside[part]) for part in range(num_parts)]
        power = 2**squarings
        costs = [(n + m) ** power - n**power for n, m in zip(loads, more, strict=True)]
        assert costs[got] == min(cost for part, cost in enumerate(costs) if room[part])
        members[got].append(vertex)
        inside[got] = after[got]
        room[got] -= 1


def test_counts_that_are_full_keep_a_vertex_and_harm_nothing():
    """More than 255 training vertices around one hub in a part."""
    n = 1500
    graph = Graph.from_coo(torch.zeros(n, dtype=torch.int64), torch.arange(n) + 1, n + 1)
    train = torch.arange(n) + 1
    search = HaloSearch(graph.csc, train, 2, 1)
    search.place(np.arange(n))
    for _ in range(3):
        search.improve(np.random.default_rng(0))
    assert search.held.tolist() == [n // 2 + 1] * 2


@settings(max_examples=examples(60))
@given(st.data(), graphs())
def test_parts_grow_by_what_brings_least_within_one_hop(data, graph):
    train = data.draw(train_sets(graph))
    num_parts = data.draw(st.integers(1, len(train)))
    sizes = equal_sizes(len(train), num_parts)
    parts = grown_parts(graph.csc, train, sizes)
    assert np.bincount(parts, minlength=num_parts).tolist() == sizes.tolist()


@settings(max_examples=examples(60))
@given(graphs(), st.integers(1, 6))
def test_clusters_keep_within_the_limit(graph, limit):
    weights = np.ones(graph.num_nodes, np.int64)
    labels = cluster(graph.csc, weights, limit, np.random.default_rng(0))
    assert (
        labels.shape == (graph.num_nodes,)
        and (labels >= 0).all()
        and (labels < graph.num_nodes).all()
    )
    assert np.bincount(labels).max() <= limit


def test_clusters_find_cliques():
    """20 cliques of 12 vertices in a ring: hardly any vertex ends up with those of another."""
    own, other = np.divmod(np.arange(20 * 12 * 12), 12)
    src = np.concatenate([own // 12 * 12 + other, np.arange(20) * 12])
    dst = np.concatenate([own, (np.arange(20) * 12 + 13) % 240])
    labels = cluster(
        Graph.from_coo(src, dst, 240).csc, np.ones(240, np.int64), 12, np.random.default_rng(0)
    )
    most = sum(np.bincount(labels[c * 12 : c * 12 + 12]).max() for c in range(20))
    assert most > 200


def test_the_best_of_all_methods_is_auto():
    for graph in (sbm(3000, seed=0), rmat(11, edge_factor=8, undirected=True, simple=True, seed=0)):
        train = draw_train(graph, 0.65)
        for hops in (1, 2):
            found = {
                method: partition_graph(graph, 4, hops=hops, method=method, train=train)
                for method in ("auto", "halo", "pagraph", "metis", "hash")
            }
            size = {
                name: max(len(p.vertices(i).ids) for i in range(4)) for name, p in found.items()
            }
            assert size["auto"] <= min(size.values()) * 1.02
            assert size["auto"] <= size["halo"] <= size["hash"]


@pytest.mark.parametrize("method", ["halo", "auto"])
@pytest.mark.parametrize("hops", [1, 2])
def test_progress_is_told_within_a_pass_and_changes_nothing(method, hops, monkeypatch):
    graph = rmat(10, seed=1)
    train = draw_train(graph, 0.65)
    want = METHODS[method](graph, train, 4, hops)
    monkeypatch.setattr("pagraph.partition.methods.halo._PIECE", 50)
    told = []
    parts = METHODS[method](
        graph, train, 4, hops, progress=lambda done, whole: told.append((done, whole))
    )
    assert torch.equal(parts, want)
    assert len({whole for _, whole in told}) == 1
    steps = [done for done, _ in told]
    assert steps == sorted(steps) and told[-1][0] == told[-1][1]
    assert max(b - a for a, b in itertools.pairwise(steps[:14])) == 50  # of the stream's 666


@pytest.mark.parametrize("hops", [1, 2])
def test_large_graphs_get_streams_alone(monkeypatch, hops):
    monkeypatch.setattr("pagraph.partition.methods.auto.MOST_METIS_EDGES", 0)
    skewed = rmat(11, edge_factor=8, undirected=True, simple=True, seed=0)
    told = []
    n = 4000  # a chain of vertices that each have the ten before them
    ends = torch.arange(10, n).repeat_interleave(10)
    chain = Graph.from_coo(ends - 1 - torch.arange(10).repeat(n - 10), ends, n)
    cases = ((skewed, draw_train(skewed, 0.65), 0.95), (chain, torch.arange(n), 0.35))
    for graph, train, most in cases:
        largest = []
        for method in ("auto", "hash"):
            parts = METHODS[method](graph, train, 4, hops, progress=lambda *now: told.append(now))
            partition = Partition(graph, train, parts, 4, hops, method)
            largest.append(max(len(partition.vertices(part).ids) for part in range(4)))
        assert largest[0] < most * largest[1]
        assert told[-1][0] == told[-1][1]
