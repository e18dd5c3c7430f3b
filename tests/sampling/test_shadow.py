"""ShaDow against its plain reference, its statistics, and what it refuses."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_sampler import pick
from plain_subgraph import sample as plain_sample
from scipy import stats
from tiers import examples

from pagraph import CSC, FormatError, Graph
from pagraph.ranking.presample import most_repeats
from pagraph.sampling import ShaDowSampler
from pagraph.seeds import derive_key
from pagraph.seeds.order import SeedOrder
from pagraph.system.buffers import BufferPools

pytestmark = pytest.mark.kernels


EDGE = ("_N", "_E", "_N")


def plain_shadow(graph, seeds, depth, fanout, key, replace):
    """Vertices by tree and id, their trees, and the edges by destination: places of both ends, and
    edge ids."""

    def drawn(etype, tree, vertex, drawn_as, fanout, hop_key):
        start, end = (int(graph.csc.indptr[v]) for v in (vertex, vertex + 1))
        more = replace and end - start > fanout >= 0
        return pick(drawn_as, start, end - start, fanout, more, hop_key) if fanout else []

    found = plain_sample(
        graph, {"_N": seeds}, [fanout] * depth, key, disjoint=True, induced=True, timed=drawn
    )
    known = list(zip(found.trees["_N"], found.nodes["_N"], strict=True))
    place = {v: i for i, v in enumerate(sorted(known))}
    ends = zip(found.src[EDGE], found.dst[EDGE], found.edge_ids[EDGE], strict=True)
    edges = [(place[known[s]], place[known[d]], e) for s, d, e in ends]
    return sorted(known), sorted(edges, key=lambda edge: edge[1])


@st.composite
def graphs(draw):
    n = draw(st.integers(1, 16))
    ends = st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=90)
    csc = CSC.from_coo(*np.array(draw(ends), dtype=np.int64).reshape(-1, 2).T, (n, n))
    if draw(st.booleans()):
        csc = CSC(csc.indptr.long(), csc.indices.long(), n, csc.edge_ids)
    return Graph(csc, n)


@settings(max_examples=examples(60))
@given(
    graph=graphs(),
    depth=st.integers(0, 3),
    fanout=st.sampled_from([-1, 0, 1, 2, 3, 70]),
    replace=st.booleans(),
    key=st.integers(0, 2**64 - 1),
    data=st.data(),
)
def test_equals_the_plain_reference(graph, depth, fanout, replace, key, data):
    # Repeated ones too.
    seeds = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), max_size=9))
    check_batches(graph, seeds, depth, fanout, key, replace)


def check_batches(graph, seeds, depth, fanout, key=0, replace=False):
    known, edges = plain_shadow(graph, seeds, depth, fanout, key, replace)
    for by_source in (False, True):
        sampler = ShaDowSampler(depth, fanout, replace, by_source)
        batch = sampler.sample(graph, torch.tensor(seeds, dtype=torch.int64), key)
        assert (
            list(zip(batch.trees["_N"].tolist(), batch.input_nodes["_N"].tolist(), strict=True))
            == known
        )
        found = zip(
            *batch.edges[EDGE].edge_index.tolist(), batch.edges[EDGE].edge_ids.tolist(), strict=True
        )
        assert list(found) == (sorted(edges, key=lambda edge: edge[:2]) if by_source else edges)
        assert batch.output_nodes["_N"].tolist() == seeds and batch.hop_ends == {"_N": [len(known)]}


@pytest.mark.parametrize(("depth", "fanout"), [(1, 60), (2, 2), (2, 8)])
def test_rows_longer_and_shorter_than_their_trees(depth, fanout):
    """Hubs with parallel edges, which have few of their sources in their trees, or nearly all."""
    draws = np.random.default_rng(fanout)
    src, dst = draws.integers(0, 500, (2, 4000))
    dst[:3000] %= 4
    src[:100] %= 4
    check_batches(Graph.from_coo(src, dst, 500), [0, 1, 0, *range(8)], depth, fanout)


@pytest.mark.parametrize("replace", [False, True])
def test_neighbours_are_drawn_equally_often(replace):
    """The first and the last among them; with replacement in independent draws."""
    degree, fanout, rounds = 7, 3, 3000
    graph = Graph.from_coo(np.arange(degree) + 1, np.zeros(degree, dtype=int), degree + 1)
    batch = ShaDowSampler(1, fanout, replace).sample(
        graph, torch.zeros(rounds, dtype=torch.int64), derive_key(5)
    )
    nodes = batch.input_nodes["_N"]
    counts = torch.bincount(nodes[nodes > 0] - 1, minlength=degree).double().numpy()
    chance = 1 - (1 - 1 / degree) ** fanout if replace else fanout / degree
    expected = rounds * chance
    statistic = ((counts - expected) ** 2 / (expected * (1 - chance))).sum()
    if replace:  # hardly correlated
        assert stats.chi2.sf(statistic, degree) > 1e-4
    else:
        assert counts.sum() == rounds * fanout
        assert stats.chi2.sf(statistic * (degree - 1) / degree, degree - 1) > 1e-4


def random_graph():
    draws = np.random.default_rng(0)
    return Graph.from_coo(draws.integers(0, 200, 3000), draws.integers(0, 200, 3000), 200)


def content(batch):
    edges = batch.edges[EDGE]
    return [
        t.tolist()
        for t in (batch.input_nodes["_N"], batch.trees["_N"], edges.edge_index, edges.edge_ids)
    ]


def test_same_key_same_bits_whatever_the_threads():
    graph, sampler, pools, results = random_graph(), ShaDowSampler(2, 3), BufferPools(3), {}
    alone = [content(sampler.sample(graph, torch.arange(i, i + 20), i)) for i in range(12)]

    def run(part):
        for i in range(part, 12, 4):
            results[i] = content(sampler.sample(graph, torch.arange(i, i + 20), i, pools=pools))

    threads = [threading.Thread(target=run, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[i] for i in range(12)] == alone and alone[0] != alone[1]


def test_trees_with_ids_beyond_32_bits():
    """Vertex ids at the border of int32, in several trees."""
    top = 2**31 - 2
    csc = CSC(torch.tensor([0, 3]), torch.tensor([top, top - 1, top]), 2**31 - 1)
    graph = Graph({("far", "to", "near"): csc})
    batch = ShaDowSampler(1, 5).sample(graph, {"near": torch.tensor([0, 0, 0])})
    assert batch.input_nodes["far"].tolist() == [top - 1, top] * 3
    assert batch.edges["far", "to", "near"].edge_index.tolist() == [
        [1, 0, 1, 3, 2, 3, 5, 4, 5],
        [0, 0, 0, 1, 1, 1, 2, 2, 2],
    ]


def test_a_vertex_is_read_once_in_each_tree():
    order = SeedOrder(torch.arange(50), 20, shuffle=False, drop_last=False, seed=0)
    assert most_repeats(order, ShaDowSampler(1, 2)) == 20


def test_damaged_arrays_are_an_error():
    graph = Graph(CSC(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 1, 9]), 2))
    with pytest.raises(FormatError, match=r"indices must be in \[0, 2\), got 9"):
        ShaDowSampler(0, 1).sample(graph, torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((-1, 2), ValueError, "depth must be at least 0, got -1"),
        ((1.5, 2), TypeError, "depth must be an integer, got 1.5"),
        ((1, -2), ValueError, "fanouts must be positive or -1 "),
        ((1, 2, "yes"), TypeError, "replace must be True or False, got 'yes'"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        ShaDowSampler(*arguments)
