"""Expectations, counts and policies for samplers that expand a vertex once: against epochs that
were counted."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_graphs import directed, undirected, weighted
from tiers import examples

from pagraph.datasets import rmat, sbm
from pagraph.graph import Graph
from pagraph.graph.graph import CSC
from pagraph.ranking import edge_draws, expected_accesses, resolve_policy
from pagraph.ranking.auto import Counted, counted_epochs, expected_reads
from pagraph.ranking.presample import count_accesses, most_repeats, reads_by_seed
from pagraph.sampling import NeighborSampler, SubgraphSampler
from pagraph.seeds.order import SeedOrder

pytestmark = pytest.mark.kernels


SEEDS = torch.arange(0, 300, 4)


def count(graph, seeds, sampler, batch_size, epochs):
    return count_accesses(
        graph, seeds, sampler, batch_size=batch_size, seed=5, epochs=epochs, threads=1
    )


def errors(expected, counts, epochs):
    """Error of the sum, and the sum of absolute errors, each over the sum of all reads."""
    total = counts.total / epochs
    parts = [expected.reads(t) - counts.reads(t).double() / epochs for t in counts.node_types]
    return abs(expected.total / total - 1), float(sum(part.abs().sum() for part in parts)) / total


def compare(graph, seeds, sampler, batch_size, epochs=100):
    expected = expected_accesses(graph, seeds, sampler, batch_size=batch_size)
    return errors(expected, count(graph, seeds, sampler, batch_size, range(epochs)), epochs)


@pytest.mark.every
@pytest.mark.parametrize("fanouts", [[3, 3], [2, 2, 2], [4, 4, 4], [-1, -1], [5, -1], [1]])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("make", [directed, undirected])
def test_close_to_many_epochs(make, fanouts, replace):
    total, each = compare(make(), SEEDS, SubgraphSampler(fanouts, replace=replace), 10)
    assert total < 0.015 and each < (0.06 if make is undirected else 0.03)


def test_each_hop_is_close_to_many_epochs():
    """Not only the sum: a hop finds what the hop before leads to, and nothing else."""
    graph, sampler = directed(), SubgraphSampler([3, 3, 3])
    expected = expected_accesses(graph, SEEDS, sampler, batch_size=10).by_hop("_N").sum(0)
    counted = count(graph, SEEDS, sampler, 10, range(100)).by_hop("_N").double().sum(0) / 100
    assert float((expected / counted - 1).abs().max()) < 0.03
    again = (
        expected_accesses(graph, SEEDS, NeighborSampler([3, 3, 3]), batch_size=10)
        .by_hop("_N")
        .sum(0)
    )
    assert float((again / counted - 1).abs().max()) > 0.1


@pytest.mark.every
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("field", ["w", "mask"])
@pytest.mark.parametrize("make", [directed, undirected])
def test_close_to_many_epochs_with_weights(make, field, replace):
    graph = weighted(make)
    total, each = compare(graph, SEEDS, SubgraphSampler([3, 2], prob=field, replace=replace), 10)
    coarse = make is undirected and field == "w"  # the weight of an edge back is not looked up
    assert total < (0.07 if coarse else 0.02) and each < (0.1 if coarse else 0.06)


TYPES = [("a", "to", "b"), ("b", "back", "a"), ("a", "in", "a")]


def typed(seed=3):
    rng = np.random.default_rng(seed)
    there = rng.integers(0, (90, 120), (400, 2))
    inside = rng.integers(0, 90, (150, 2))
    ends = {
        TYPES[0]: (there, 90, 120),
        TYPES[1]: (there[:, ::-1], 120, 90),
        TYPES[2]: (inside, 90, 90),
    }
    csc = {
        etype: CSC.from_coo(
            torch.from_numpy(pairs[:, 0].copy()), torch.from_numpy(pairs[:, 1].copy()), (src, dst)
        )
        for etype, (pairs, src, dst) in ends.items()
    }
    return Graph(csc, {"a": 90, "b": 120})


FANOUTS = [
    {**dict.fromkeys(TYPES, 2), TYPES[2]: 0},
    dict.fromkeys(TYPES, 3),
    dict.fromkeys(TYPES, -1),
]


@pytest.mark.statistics
def test_close_to_many_epochs_of_a_heterograph():
    seeds = {"a": torch.arange(0, 90, 3), "b": torch.arange(20)}
    total, each = compare(typed(), seeds, SubgraphSampler(FANOUTS), 5)
    assert total < 0.015 and each < 0.05


def test_edges_are_drawn_as_often_as_expected():
    graph, sampler = directed(), SubgraphSampler([3, 2, 4])
    expected = expected_accesses(graph, SEEDS, sampler, batch_size=10)
    draws = edge_draws(expected, graph, sampler, graph.edge_types[0])
    order, drawn = SeedOrder(SEEDS, 10, shuffle=True, seed=0), 0
    for epoch in range(50):
        plan = order.plan(epoch)
        for index in range(len(order)):
            ticket = order.ticket(plan, index)
            drawn += sampler.sample(graph, ticket.seeds, ticket.key).num_edges
    degrees = graph.csc.indptr.diff().double()
    assert float((draws * degrees).sum()) == pytest.approx(drawn / 50, rel=0.015)


# -- disjoint trees
# ---------------------------------------------------------------------------------------


def plain_trees(graph, seeds, fanouts, replace):
    """The chances of each seed's tree, in plain Python; what is less likely than 1e-4 is not
    followed."""
    rows = [
        graph.csc.indices[a:b].tolist()
        for a, b in zip(graph.csc.indptr[:-1], graph.csc.indptr[1:], strict=True)
    ]
    reads = [0.0] * graph.num_nodes
    for seed in seeds:
        known, fresh = {seed: 1.0}, {seed: 1.0}
        followed = [fresh]
        for hop in range(1, len(fanouts) + 1):
            missed = {}
            for u in known:
                drawn = 0.0
                for t in range(hop):
                    fanout, degree = fanouts[t], len(rows[u])
                    if not degree:
                        break
                    takes_all = fanout < 0 or (fanout >= degree and not replace)
                    keep = (
                        0.0
                        if takes_all
                        else (1 - 1 / degree) ** fanout
                        if replace
                        else 1 - fanout / degree
                    )
                    drawn += followed[t].get(u, 0.0) * (1 - keep)
                if drawn >= 1e-4:
                    for v in rows[u]:
                        missed[v] = missed.get(v, 1.0) * (1 - drawn)
            now = {v: max(1 - missed.get(v, 1.0), known.get(v, 0.0)) for v in {**known, **missed}}
            followed.append({v: now[v] - known.get(v, 0.0) for v in now})
            known = now
        for v, chance in known.items():
            reads[v] += chance * (v != seed)
    return reads


@settings(max_examples=examples(60))
@given(
    n=st.integers(1, 10),
    edges=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30),
    fanouts=st.lists(st.sampled_from([1, 2, 5, -1]), min_size=1, max_size=3),
    replace=st.booleans(),
    batch_size=st.integers(1, 4),
    data=st.data(),
)
def test_trees_by_seed_equal_the_plain_version(n, edges, fanouts, replace, batch_size, data):
    graph = Graph.from_coo([u % n for u, _ in edges], [v % n for _, v in edges], n)
    seeds = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=8))
    sampler = SubgraphSampler(fanouts[::-1], replace=replace, disjoint=True)
    reads = reads_by_seed(graph, torch.tensor(seeds), sampler, batch_size=batch_size)
    assert reads.tolist() == pytest.approx(plain_trees(graph, seeds, fanouts, replace), abs=1e-9)


@pytest.mark.statistics
@pytest.mark.parametrize("batch_size", [1, 10, 75])
def test_trees_by_seed_are_those_of_many_epochs_whatever_the_batch(batch_size):
    sampler = SubgraphSampler([3, 3], disjoint=True)
    counts = count(directed(), SEEDS, sampler, batch_size, range(60))
    drawn = (counts.reads("_N") - counts.by_hop("_N")[:, 0]).double() / 60
    reads = reads_by_seed(directed(), SEEDS, sampler, batch_size=batch_size)
    assert float(reads.sum()) == pytest.approx(float(drawn.sum()), rel=0.03)
    assert float((reads - drawn).abs().sum() / drawn.sum()) < 0.06


def test_trees_are_not_analysed_as_one_draw_for_all_seeds():
    graph, sampler = directed(), SubgraphSampler([3], disjoint=True)
    assert expected_accesses(graph, SEEDS, sampler, batch_size=10) is None
    with pytest.raises(
        ValueError, match="batches that are not disjoint, got disjoint SubgraphSampler"
    ):
        resolve_policy("vip")(graph, SEEDS, sampler, 0, batch_size=10)


@pytest.mark.parametrize("batch_size", [100, 400, 1200])
def test_counts_of_trees_do_not_overflow(batch_size):
    """One vertex is in every tree: a batch reads it more often than a byte holds."""
    graph = Graph.from_coo([0] * 1200, range(1, 1201), 1201)
    sampler = SubgraphSampler([1], disjoint=True)
    counts = count(graph, torch.arange(1, 1201), sampler, batch_size, [0, 1])
    assert int(counts.reads("_N")[0]) == 2 * 1200
    order = SeedOrder(torch.arange(1, 1201), batch_size)
    assert (
        most_repeats(order, sampler) == batch_size
        and most_repeats(order, SubgraphSampler([1])) == 1
    )


# -- policies
# ---------------------------------------------------------------------------------------------


def web(num_pages=3000, size=20):
    """Sites of pages that link to each other: what is near a seed is near it by many ways."""
    rng = np.random.default_rng(0)
    begins = np.repeat(np.arange(0, num_pages, size), 8 * size)
    src, dst = begins + rng.integers(0, size, len(begins)), np.repeat(np.arange(num_pages), 8)
    far = (rng.random(2000) ** 4 * num_pages).astype(np.int64)
    return Graph.from_coo(np.r_[src, far], np.r_[dst, rng.integers(0, num_pages, 2000)], num_pages)


GRAPHS = {
    "rmat": lambda: rmat(12, num_edges=1 << 15, seed=0),
    "blocks": lambda: Graph(sbm(3000, num_edges=30000, num_classes=5, num_features=1, seed=0).csc),
    "web": web,
}


def hit_rate(scores, reads, share):
    best = torch.argsort(scores.double(), descending=True, stable=True)[: int(share * len(scores))]
    return float(reads[best].sum() / reads.sum())


@pytest.mark.every
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("disjoint", [False, True])
def test_ranks_nearly_as_well_as_thirty_epochs(name, disjoint):
    graph, sampler = GRAPHS[name](), SubgraphSampler([10, 5], disjoint=disjoint)
    seeds = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0))[:1000]
    measured = count(graph, seeds, sampler, 50, range(100, 105)).reads("_N").double() / 5
    ideal = count(graph, seeds, sampler, 50, range(200, 230)).reads("_N")
    counted = [
        Counted(count(graph, seeds, sampler, 50, [0]), 1),
        Counted(count(graph, seeds, sampler, 50, [1, 2]), 2),
    ]
    for countings in (1, 2):
        reads = expected_reads(graph, seeds, sampler, counted[:countings], batch_size=50)["_N"]
        for share in (0.05, 0.2):
            best, ours = hit_rate(ideal, measured, share), hit_rate(reads, measured, share)
            assert ours >= 0.96 * best, (share, ours, best)
            assert hit_rate(reads, reads, share) == pytest.approx(ours, abs=0.03)
        assert float(reads.sum()) == pytest.approx(float(measured.sum()), rel=0.02)


@pytest.mark.parametrize(
    "policy", ["auto", "adaptive", "degree", "presample", "presample:2", "random", "oracle"]
)
@pytest.mark.parametrize("disjoint", [False, True])
def test_policies_rank_all_vertices_of_all_types(policy, disjoint):
    graph, sampler = typed(), SubgraphSampler(FANOUTS, disjoint=disjoint)
    settings = {} if policy in ("adaptive", "degree", "random") else {"batch_size": 5}
    ranked = resolve_policy(policy)(graph, {"b": torch.arange(40)}, sampler, 3, **settings)
    for ntype in graph.node_types:
        ids = getattr(ranked[ntype], "ids", ranked[ntype])
        assert sorted(ids.tolist()) == list(range(graph.num_nodes_of(ntype)))


def test_expected_reads_of_trees_over_types_are_those_of_many_epochs():
    graph, sampler, seeds = (
        typed(),
        SubgraphSampler(FANOUTS, disjoint=True),
        {"b": torch.arange(40)},
    )
    ranked = resolve_policy("auto")(graph, seeds, sampler, 3, batch_size=8)
    counts = count(graph, seeds, sampler, 8, range(50, 80))
    for ntype in graph.node_types:
        assert float(ranked[ntype].scores.sum()) == pytest.approx(
            float(counts.reads(ntype).sum()) / 30, rel=0.05
        )
        assert float(ranked[ntype].scores.max()) > 40 / 8  # in more trees than there are batches


def test_how_many_epochs_are_counted_goes_by_the_edges_that_are_drawn():
    counted = counted_epochs(
        directed(), SEEDS, SubgraphSampler([-1, -1, -1]), batch_size=10, seed=1
    )
    assert [c.epochs for c in counted] == [1, 7]


def test_duplicate_seeds_are_read_as_often_as_they_are_there():
    seeds = torch.cat([SEEDS, SEEDS[:10], SEEDS[:10]])
    expected = expected_accesses(directed(), seeds, SubgraphSampler([3, 3]), batch_size=10)
    assert expected.by_hop("_N")[:44:4, 0].tolist() == [3.0] * 10 + [1.0]
    total, each = compare(directed(), seeds, SubgraphSampler([3, 3]), 10)
    assert total < 0.02 and each < 0.04
