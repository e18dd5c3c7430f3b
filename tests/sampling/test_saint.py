"""GraphSAINT's draws: their distributions by fixed seeds, and the batches made of them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tiers import examples

from pagraph import Graph
from pagraph.sampling import SaintSampler
from pagraph.sampling.induced import induced_subgraph

pytestmark = pytest.mark.kernels


# Self-loops, parallel edges, a vertex without edges (5), one with in-edges alone (6), one with
# out-edges alone (7).
SRC = [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 7, 7, 0]
DST = [1, 1, 2, 2, 6, 2, 0, 3, 4, 0, 0, 0, 6, 0]
COUNT = 8
DRAWS = 20_000


def graph_of_all():
    return Graph.from_coo(SRC, DST, COUNT)


def degrees():
    return np.bincount(DST, minlength=COUNT), np.bincount(SRC, minlength=COUNT)


def one_edge(sampler, graph, key):
    """The vertices of one draw."""
    return tuple(sampler.draw(graph, key).tolist())


def chi_square(counts, weights):
    """The p-value of the counts; what has no weight must have no count."""
    counts, weights = np.asarray(counts, dtype=float), np.asarray(weights, dtype=float)
    assert (counts[weights == 0] == 0).all()
    counts, weights = counts[weights > 0], weights[weights > 0]
    return stats.chisquare(counts, counts.sum() * weights / weights.sum()).pvalue


@pytest.mark.parametrize("by_degree", [False, True])
def test_vertices_in_proportion_to_their_out_degree(by_degree):
    graph, (_, out) = graph_of_all(), degrees()
    sampler = SaintSampler("node", DRAWS, by_degree=by_degree)
    drawn = sampler._sources(graph.csc, key=7)
    assert len(drawn) == DRAWS
    counts = np.bincount(drawn, minlength=COUNT)
    assert chi_square(counts, out if by_degree else np.maximum(out, 1)) > 0.01


@pytest.mark.parametrize("by_degree", [False, True])
def test_edges_by_the_degrees_of_their_ends(by_degree):
    """Against the weight of each edge, written out."""
    graph, (into, out) = graph_of_all(), degrees()
    weights = [
        into[u] + out[v] if by_degree else 1 / out[u] + 1 / into[v]
        for u, v in zip(SRC, DST, strict=True)
    ]
    drawn = SaintSampler("edge", DRAWS, by_degree=by_degree)._ends(graph, key=3)
    expected, counts = {}, {}
    for u, v, weight in zip(SRC, DST, weights, strict=True):
        ends = (min(u, v), max(u, v))
        expected[ends] = expected.get(ends, 0) + weight
    assert drawn.shape == (DRAWS, 2)
    for u, v in drawn.tolist():
        ends = (min(u, v), max(u, v))
        counts[ends] = counts.get(ends, 0) + 1
    assert counts.keys() <= expected.keys()
    assert chi_square([counts.get(ends, 0) for ends in expected], list(expected.values())) > 0.01


def test_edges_are_uniform_where_no_vertex_has_both():
    """PyG adds 1e-10 to weights that are all 0 where every edge leads from one half to the
    other."""
    graph = Graph.from_coo([0, 0, 0, 1, 2], [3, 4, 5, 5, 5])
    drawn = SaintSampler("edge", DRAWS, by_degree=True)._ends(graph, key=1)
    keys = np.sort(drawn, axis=1) @ [10, 1]
    assert chi_square(np.bincount(keys, minlength=60)[[3, 4, 5, 15, 25]], [1] * 5) > 0.01
    assert set(keys.tolist()) == {3, 4, 5, 15, 25}


def test_roots_of_walks_are_uniform_and_walks_follow_edges():
    graph = graph_of_all()
    sampler = SaintSampler("walk", 1, walk_length=1)
    edges = set(zip(SRC, DST, strict=True))
    _, out = degrees()
    alone, loops = (
        {v for v in range(COUNT) if not out[v]},
        {v for v in range(COUNT) if (v, v) in edges},
    )
    roots = SaintSampler("walk", DRAWS, walk_length=1)._draws(COUNT, 5)
    assert chi_square(np.bincount(roots, minlength=COUNT), [1] * COUNT) > 0.01
    for key in range(300):
        found = one_edge(sampler, graph, key)
        if len(found) == 1:
            assert found[0] in alone | loops
        else:
            assert found in edges or found[::-1] in edges


@settings(max_examples=examples(60), deadline=None)
@given(
    st.data(),
    st.integers(1, 15),
    st.sampled_from([("node", 0), ("edge", 0), ("walk", 1), ("walk", 4)]),
    st.booleans(),
    st.integers(1, 30),
    st.integers(0, 2**64 - 1),
)
def test_batches_are_the_subgraphs_of_what_is_drawn(data, count, mode, by_degree, budget, key):
    m = data.draw(st.integers(0, 50))
    src, dst = (
        data.draw(st.lists(st.integers(0, count - 1), min_size=m, max_size=m)) for _ in range(2)
    )
    graph = Graph.from_coo(src, dst, count)
    sampler = SaintSampler(
        mode[0], budget, mode[1], by_degree, edge_dir=data.draw(st.sampled_from(["in", "out"]))
    )
    if m == 0 and (mode[0] == "edge" or (mode[0] == "node" and by_degree)):
        with pytest.raises(ValueError, match="the graph must have at least 1 edge for mode"):
            sampler.sample(graph, key=key)
        return
    batch = sampler.sample(graph, torch.tensor([4]), key, dtype=torch.int32)
    nodes = batch.input_nodes["_N"]
    assert torch.equal(nodes, nodes.unique())
    assert 1 <= len(nodes) <= budget * (2 if mode[0] == "edge" else 1 + mode[1])
    expected = induced_subgraph(graph, nodes, edge_dir=sampler.edge_dir).edges["_N", "_E", "_N"]
    edges = batch.edges["_N", "_E", "_N"]
    assert torch.equal(edges.edge_index, expected.edge_index)
    assert torch.equal(edges.edge_ids, expected.edge_ids)
    again = sampler.sample(graph, key=key, dtype=torch.int32)
    assert torch.equal(again.input_nodes["_N"], nodes)


def test_keys_differ():
    graph = Graph.from_coo(torch.randint(0, 200, (1000,)), torch.randint(0, 200, (1000,)), 200)
    for sampler in (SaintSampler("node", 20), SaintSampler("edge", 10), SaintSampler("walk", 5, 3)):
        assert len({one_edge(sampler, graph, key) for key in range(20)}) == 20


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("vertex", 3), ValueError, "mode must be one of"),
        (("node", 0), ValueError, "budget must be at least 1, got 0"),
        (("node", 1.5), TypeError, "budget must be an integer"),
        (("walk", 3), ValueError, "walk_length must be at least 1, got 0"),
        (("walk", 3, -1), ValueError, "walk_length must be at least 1, got -1"),
        (("edge", 3, 2), ValueError, "walk_length must be 0 for mode 'edge', got 2"),
        (("node", 3, 0, False, "up"), ValueError, "edge_dir must be 'in' or 'out', got 'up'"),
    ],
)
def test_arguments_that_are_none(arguments, error, message):
    with pytest.raises(error, match=message):
        SaintSampler(*arguments)


def test_graphs_that_have_nothing_to_draw():
    with pytest.raises(ValueError, match="at least 1 vertex to draw from, got 0"):
        SaintSampler("walk", 3, 2).sample(Graph.from_coo([], [], 0))
    assert SaintSampler("node", 50).sample(Graph.from_coo([], [], 3)).input_nodes[
        "_N"
    ].tolist() == [0, 1, 2]
