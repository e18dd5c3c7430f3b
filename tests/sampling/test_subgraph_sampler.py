"""Subgraph sampling against its plain reference, its statistics, and what it refuses."""

import hashlib
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_subgraph import sample as plain_sample
from scipy import stats
from tiers import examples

from pagraph import CSC, FormatError, Graph
from pagraph.sampling import SubgraphSampler
from pagraph.seeds import derive_key
from pagraph.system.buffers import BufferPools

EDGE = ("_N", "_E", "_N")
ETYPES = [("a", "x", "b"), ("a", "y", "b"), ("b", "x", "b"), ("b", "z", "a"), ("b", "to", "c")]
KINDS = st.sampled_from([{}, {"replace": True}, {"disjoint": True}, {"replace": True, "disjoint": True},
                         {"induced": True}, {"induced": True, "replace": True},
                         {"induced": True, "disjoint": True}])  # fmt: skip


@st.composite
def edge_lists(draw, num_src, num_dst, most):
    """Two lists of ends: self-loops and parallel edges among them, and vertices without any."""
    m = draw(st.integers(0, most)) if num_src and num_dst else 0
    ends = [
        draw(st.lists(st.integers(0, max(n - 1, 0)), min_size=m, max_size=m))
        for n in (num_src, num_dst)
    ]
    return ends[0], ends[1]


@st.composite
def single_graphs(draw):
    n = draw(st.integers(1, 20))
    return Graph.from_coo(*draw(edge_lists(n, n, 120)), n)


@st.composite
def typed_graphs(draw):
    counts = {t: draw(st.integers(0, 9)) for t in "abc"}
    return Graph(
        {(s, r, d): CSC.from_coo(*draw(edge_lists(counts[s], counts[d], 30)), (counts[s], counts[d]))
         for s, r, d in ETYPES},
        counts,
    )  # fmt: skip


def widened(graph):
    """The same graph with int64 ids."""
    return Graph(
        {
            etype: CSC(csc.indptr.long(), csc.indices.long(), csc.num_src, csc.edge_ids)
            for etype in graph.edge_types
            for csc in [graph.csc_of(etype)]
        },
        {t: graph.num_nodes_of(t) for t in graph.node_types},
    )


def check(batch, expected, dtype, *, disjoint):
    assert {t: ids.tolist() for t, ids in batch.input_nodes.items()} == expected.nodes
    assert batch.hop_ends == expected.node_ends
    assert {e: s.edge_index[0].tolist() for e, s in batch.edges.items()} == expected.src
    assert {e: s.edge_index[1].tolist() for e, s in batch.edges.items()} == expected.dst
    assert {e: s.edge_ids.tolist() for e, s in batch.edges.items()} == expected.edge_ids
    assert {e: s.hop_ends for e, s in batch.edges.items()} == expected.edge_ends
    assert all(ids.dtype == dtype for ids in batch.input_nodes.values())
    assert all(
        s.edge_index.dtype == dtype and s.edge_ids.dtype == torch.int64
        for s in batch.edges.values()
    )
    assert all(
        s.edge_index.is_contiguous() and s.edge_index[1].diff().ge(0).all()
        for s in batch.edges.values()
    )
    if disjoint:
        assert {t: ids.tolist() for t, ids in batch.trees.items()} == expected.trees
    else:
        assert batch.trees is None


@settings(max_examples=examples(120))
@given(
    graph=single_graphs(),
    wide=st.booleans(),
    fanouts=st.lists(st.sampled_from([-1, -1, 0, 1, 2, 3, 7, 70]), max_size=4),
    kind=KINDS,
    key=st.integers(0, 2**64 - 1),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    data=st.data(),
)
def test_equals_the_plain_reference(graph, wide, fanouts, kind, key, dtype, data):
    # Repeated ones too.
    seeds = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), max_size=9))
    graph = widened(graph) if wide else graph
    batch = SubgraphSampler(fanouts[::-1], **kind).sample(
        graph, torch.tensor(seeds, dtype=dtype), key
    )
    expected = plain_sample(graph, {"_N": seeds}, fanouts, key, **kind)
    check(batch, expected, dtype, disjoint="disjoint" in kind)
    assert batch.output_nodes["_N"].tolist() == seeds


def typed_fanouts():
    by_type = st.fixed_dictionaries({etype: st.sampled_from([-1, 0, 1, 3]) for etype in ETYPES})
    return st.lists(st.one_of(st.sampled_from([-1, 0, 1, 2, 5]), by_type), max_size=3)


@settings(max_examples=examples(100))
@given(
    graph=typed_graphs(),
    fanouts=typed_fanouts(),
    kind=KINDS,
    key=st.integers(0, 2**64 - 1),
    data=st.data(),
)
def test_equals_the_plain_reference_over_types(graph, fanouts, kind, key, data):
    seeds = {}
    for t in data.draw(st.lists(st.sampled_from("abc"), unique=True, min_size=1)):
        n = graph.num_nodes_of(t)
        seeds[t] = data.draw(st.lists(st.integers(0, n - 1), max_size=5)) if n else []
    tensors = {t: torch.tensor(ids, dtype=torch.int64) for t, ids in seeds.items()}
    batch = SubgraphSampler(fanouts[::-1], **kind).sample(graph, tensors, key)
    check(
        batch,
        plain_sample(graph, seeds, fanouts, key, **kind),
        torch.int64,
        disjoint="disjoint" in kind,
    )


@st.composite
def weighted_graphs(draw):
    """A graph with a field of weights, zeros among them, and these in CSC order."""
    graph = draw(single_graphs())
    few = draw(st.lists(st.sampled_from([0.0, 1.0, 2.0, 0.25, 7.5]), min_size=1, max_size=8))
    values = torch.tensor([few[e % len(few)] for e in range(graph.num_edges)])
    in_order = values if graph.csc.edge_ids is None else values[graph.csc.edge_ids.long()]
    return Graph(graph.csc, graph.num_nodes, edata={"w": values}), {EDGE: in_order.tolist()}


@pytest.mark.kernels
@settings(max_examples=examples(60))
@given(
    weighted=weighted_graphs(),
    fanouts=st.lists(st.sampled_from([-1, 1, 2, 70]), min_size=1, max_size=3),
    kind=KINDS.map(lambda kind: {**kind, "replace": True}),
    key=st.integers(0, 2**64 - 1),
    data=st.data(),
)
def test_weighted_draws_equal_the_plain_reference(weighted, fanouts, kind, key, data):
    graph, weights = weighted
    seeds = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), max_size=5))
    batch = SubgraphSampler(fanouts[::-1], prob="w", **kind).sample(
        graph, torch.tensor(seeds, dtype=torch.int64), key
    )
    expected = plain_sample(graph, {"_N": seeds}, fanouts, key, weights=weights, **kind)
    check(batch, expected, torch.int64, disjoint="disjoint" in kind)


@settings(max_examples=examples(60))
@given(
    weighted=weighted_graphs(),
    fanout=st.sampled_from([-1, 1, 2, 3, 70]),
    disjoint=st.booleans(),
    data=st.data(),
)
def test_weighted_picks_without_replacement_equal_the_plain_reference(
    weighted, fanout, disjoint, data
):
    """Up to their order in a row: what they are is tested with the weighted picker."""
    graph, weights = weighted
    seeds = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), max_size=5))
    sampler = SubgraphSampler([fanout], prob="w", disjoint=disjoint)
    edges = sampler.sample(graph, torch.tensor(seeds, dtype=torch.int64), 9).edges[EDGE]
    expected = plain_sample(graph, {"_N": seeds}, [fanout], 9, weights=weights, disjoint=disjoint)
    assert edges.edge_index[1].tolist() == expected.dst[EDGE]
    assert sorted(
        zip(edges.edge_index[1].tolist(), edges.edge_ids.tolist(), strict=True)
    ) == sorted(zip(expected.dst[EDGE], expected.edge_ids[EDGE], strict=True))
    assert (graph.edata["w"][edges.edge_ids] > 0).all()


def random_graph(n=200, m=3000, seed=0):
    rng = np.random.default_rng(seed)
    return Graph.from_coo(rng.integers(0, n, m), rng.integers(0, n, m), n)


def digest(batch):
    h = hashlib.sha256()
    for tensor in [
        *batch.input_nodes.values(),
        *(t for e in batch.edges.values() for t in (e.edge_index, e.edge_ids)),
    ]:
        h.update(tensor.long().numpy().tobytes())
    return h.hexdigest()[:16]


@pytest.mark.parametrize(
    "kind", [{}, {"disjoint": True}, {"induced": True}, {"disjoint": True, "induced": True}]
)
def test_same_key_same_bits_whatever_the_threads(kind):
    graph = random_graph()
    sampler = SubgraphSampler([3, 4], **kind)
    alone = [digest(sampler.sample(graph, torch.arange(i, i + 20), i)) for i in range(40)]
    results, pools = {}, BufferPools(3)

    def run(part):
        for i in range(part, 40, 4):
            results[i] = digest(sampler.sample(graph, torch.arange(i, i + 20), i, pools=pools))

    threads = [threading.Thread(target=run, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[i] for i in range(40)] == alone
    assert len(set(alone)) == 40


@pytest.mark.every
@pytest.mark.parametrize(("degree", "fanout"), [(2, 1), (3, 2), (5, 2), (8, 7), (11, 3), (20, 10)])
@pytest.mark.parametrize("disjoint", [False, True])
def test_every_neighbour_is_drawn_equally_often(degree, fanout, disjoint):
    """The first and the last among them."""
    graph = Graph.from_coo(np.arange(degree) + 1, np.zeros(degree, dtype=int), degree + 1)
    sampler, rounds = SubgraphSampler([fanout], disjoint=disjoint), 2000
    counts = np.zeros(degree)
    for key in range(rounds):
        batch = sampler.sample(graph, torch.tensor([0]), derive_key(77, key))
        np.add.at(counts, batch.edges[EDGE].edge_ids.numpy(), 1)
    expected = rounds * fanout / degree
    statistic = ((counts - expected) ** 2 / expected).sum() * (degree - 1) / (degree - fanout)
    assert counts.sum() == rounds * fanout
    assert 1e-4 < stats.chi2.sf(statistic, degree - 1) < 1 - 1e-4


def test_trees_draw_independently():
    """The same vertex in many trees must not draw the same neighbours in all of them."""
    graph = Graph.from_coo(np.arange(10) + 1, np.zeros(10, dtype=int), 11)
    batch = SubgraphSampler([1], disjoint=True).sample(
        graph, torch.zeros(500, dtype=torch.int64), 5
    )
    drawn = batch.edges[EDGE].edge_ids
    assert stats.chisquare(torch.bincount(drawn, minlength=10).numpy()).pvalue > 1e-4
    assert batch.trees["_N"][:500].tolist() == list(range(500))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    "kind", [{}, {"disjoint": True}, {"induced": True}, {"disjoint": True, "induced": True}]
)
def test_ids_at_the_int32_border(dtype, kind):
    top = 2**31 - 2
    csc = CSC(
        torch.tensor([0, 3], dtype=dtype), torch.tensor([top, top - 1, top], dtype=dtype), 2**31 - 1
    )
    etype = ("far", "to", "near")
    batch = SubgraphSampler([-1], **kind).sample(Graph({etype: csc}), {"near": torch.tensor([0])})
    assert batch.input_nodes["far"].tolist() == [top, top - 1]
    assert batch.edges[etype].edge_index.tolist() == [[0, 1, 0], [0, 0, 0]]


def test_induced_edges_between_ids_that_differ_above_bit_32_only():
    csc = CSC(torch.tensor([0, 4, 8]), torch.tensor([5, 5 + 2**32, 5, 6] * 2), 2**40)
    graph = Graph({("far", "to", "near"): csc})
    seeds = {"near": torch.tensor([0]), "far": torch.tensor([5 + 2**33, 5])}
    batch = SubgraphSampler([], induced=True).sample(graph, seeds)
    assert batch.edges["far", "to", "near"].edge_index.tolist() == [[1, 1], [0, 0]]
    assert batch.edges["far", "to", "near"].edge_ids.tolist() == [0, 2]


def test_empty_seeds_and_graphs_without_edges():
    for kind in ({}, {"disjoint": True}, {"induced": True}, {"disjoint": True, "induced": True}):
        none = SubgraphSampler([2, -1], **kind).sample(
            random_graph(), torch.empty(0, dtype=torch.int64)
        )
        assert (
            none.num_edges == 0
            and len(none.input_nodes["_N"]) == 0
            and none.hop_ends == {"_N": [0, 0, 0]}
        )
        lonely = SubgraphSampler([2, -1], **kind).sample(
            Graph.from_coo([], [], 3), torch.tensor([2, 0])
        )
        assert lonely.input_nodes["_N"].tolist() == [2, 0] and lonely.num_edges == 0
        nobody = SubgraphSampler([2], **kind).sample(
            Graph.from_coo([], [], 0), torch.empty(0, dtype=torch.int64)
        )
        assert nobody.num_edges == 0


def test_induced_trees_with_more_edges_than_there_is_room_for_at_first():
    """A clique of 70 vertices with parallel edges, whole in each of three trees, beside one of a
    single vertex."""
    src, dst = np.divmod(np.arange(4900), 70)
    graph = Graph.from_coo(np.repeat(src, 2), np.repeat(dst, 2), 71)
    batch = SubgraphSampler([-1], disjoint=True, induced=True).sample(
        graph, torch.tensor([3, 70, 3, 9])
    )
    (edges,) = batch.edges.values()
    assert batch.trees["_N"].bincount().tolist() == [70, 1, 70, 70] and edges.num_edges == 3 * 9800
    nodes, trees = batch.input_nodes["_N"], batch.trees["_N"]
    sources, targets = edges.edge_index
    assert torch.equal(trees[sources], trees[targets]) and (targets.diff() >= 0).all()
    assert torch.equal(nodes[sources] * 70 + nodes[targets], edges.edge_ids // 2)


def test_memory_is_recycled_but_never_under_a_held_tensor():
    graph, sampler, pools = random_graph(), SubgraphSampler([5, 5], induced=True), BufferPools(2)
    held = sampler.sample(graph, torch.arange(10), 0, pools=pools)
    before = digest(held)
    pointers = set()
    for i in range(20):
        batch = sampler.sample(graph, torch.arange(i, i + 10), i, pools=pools)
        pointers.add(batch.edges[EDGE].edge_index.data_ptr())
    assert digest(held) == before and len(pointers) < 20


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"fanouts": [-2]}, ValueError, "got -2"),
        ({"fanouts": [2.5]}, TypeError, "fanouts must be integers, got 2.5"),
        ({"fanouts": [2], "prob": 3}, TypeError, "prob must be the name of an edge field, got 3"),
        (
            {"fanouts": [2], "edge_dir": "up"},
            ValueError,
            "edge_dir must be 'in' or 'out', got 'up'",
        ),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        SubgraphSampler(**arguments)


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("seed", [-1, 200, 2**31, -(2**40)])
def test_seeds_outside_the_graph(seed, disjoint):
    with pytest.raises(IndexError, match=rf"seeds must be in \[0, 200\), got {seed}"):
        SubgraphSampler([2], disjoint=disjoint).sample(random_graph(), torch.tensor([0, seed]))


@pytest.mark.parametrize(
    ("fanouts", "kind"),
    [
        ([-1], {}),
        ([-1], {"disjoint": True}),
        ([], {"induced": True}),
        ([], {"disjoint": True, "induced": True}),
    ],
)
@pytest.mark.parametrize("wrong", [99, -1])
def test_damaged_arrays_are_an_error_and_never_read_outside(fanouts, kind, wrong):
    indptr, indices = torch.tensor([0, 2, 4]), torch.tensor([0, 1, 1, wrong])
    with pytest.raises(FormatError, match=rf"indices must be in \[0, 2\), got {wrong}"):
        SubgraphSampler(fanouts, **kind).sample(
            Graph(CSC(indptr, indices, 2)), torch.tensor([0, 1])
        )
    bent = Graph(CSC(torch.tensor([0, 9, 4]), torch.tensor([0, 1, 1, 0]), 2))
    with pytest.raises(FormatError, match="indptr must be non-decreasing, it is not at vertex"):
        SubgraphSampler(fanouts, **kind).sample(bent, torch.tensor([0, 1]))
