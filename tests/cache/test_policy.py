"""One conformance suite for every policy with a name, and the checks of a user's own."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph.graph import Graph
from pagraph.graph.graph import CSC
from pagraph.ranking import (
    POLICIES,
    Ranking,
    apply_policy,
    check_ranking,
    check_rankings,
    degree,
    presample,
    resolve_policy,
)
from pagraph.ranking.policy import descending
from pagraph.sampling import NeighborSampler

graphs = st.integers(1, 30).flatmap(
    lambda n: st.tuples(
        st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=80)
    )
)


def build(num_nodes, edges):
    src, dst = (list(side) for side in zip(*edges, strict=True)) if edges else ([], [])
    return Graph.from_coo(src, dst, num_nodes=num_nodes)


def hetero(sizes, edges):
    """A graph of two vertex types and four edge types; ``edges`` has one list of pairs for each."""
    counts = dict(zip("ab", sizes, strict=True))
    etypes = [("a", "to", "b"), ("b", "to", "a"), ("a", "to", "a"), ("a", "again", "b")]
    csc = {}
    for (src, relation, dst), pairs in zip(etypes, edges, strict=True):
        pairs = [
            (u % counts[src], v % counts[dst]) for u, v in pairs if counts[src] and counts[dst]
        ]
        by_dst = [[u for u, v in pairs if v == w] for w in range(counts[dst])]
        indptr = torch.tensor(
            [0, *torch.tensor([len(us) for us in by_dst], dtype=torch.int64).cumsum(0).tolist()]
        )
        csc[src, relation, dst] = CSC(
            indptr, torch.tensor(sum(by_dst, []), dtype=torch.int64), counts[src]
        )
    return Graph(csc, counts)


pairs = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=40)


def rank(policy, graph, seeds, sampler, seed, batch_size=4):
    """What a loader makes of a policy, and it names all vertices."""
    rankings = apply_policy(
        resolve_policy(policy), graph, seeds, sampler, seed, batch_size=batch_size
    )
    for ntype in graph.node_types:
        assert rankings[ntype].ids.sort().values.tolist() == list(range(graph.num_nodes_of(ntype)))
    return rankings


def ids(rankings):
    return {ntype: ranking.ids.tolist() for ntype, ranking in rankings.items()}


@pytest.mark.parametrize("name", [*sorted(POLICIES), "presample:2"])
class TestEveryPolicy:
    """What holds for all of them."""

    @settings(max_examples=examples(25))
    @given(graph=graphs, seed=st.integers(0, 2**63 - 1), data=st.data())
    def test_ranks_each_vertex_once(self, name, graph, seed, data):
        graph = build(*graph)
        seeds = torch.tensor(
            data.draw(st.lists(st.integers(0, graph.num_nodes - 1), min_size=1, max_size=20))
        )
        rank(name, graph, seeds, NeighborSampler([2, -1]), seed, data.draw(st.integers(1, 30)))

    def test_is_a_function_of_its_arguments(self, name, monkeypatch, no_threads_left):
        src, dst = torch.randint(0, 100, (2, 1000), generator=torch.Generator().manual_seed(0))
        graph, seeds = Graph.from_coo(src, dst, num_nodes=100), torch.arange(50)
        first = rank(name, graph, seeds, NeighborSampler([2, 2]), 7)
        for threads in (1, 4):
            torch.manual_seed(threads)
            np.random.seed(threads)
            random.seed(threads)
            monkeypatch.setattr(presample, "default_threads", lambda threads=threads: threads)
            again = rank(
                name,
                Graph.from_coo(src, dst, num_nodes=100),
                seeds.clone(),
                NeighborSampler([2, 2]),
                7,
            )
            assert ids(first) == ids(again)

    def test_leaves_the_global_generators_alone(self, name):
        graph = Graph.from_coo([0, 1, 2], [1, 2, 0])
        before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
        rank(name, graph, torch.arange(3), NeighborSampler([1]), 0)
        after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
        assert torch.equal(before[0], after[0]) and before[1:] == after[1:]

    def test_prefers_a_hub_that_every_seed_reaches(self, name):
        graph = Graph.from_coo([9] * 9 + [0, 1], list(range(9)) + [9, 9])
        rankings = rank(name, graph, torch.arange(9), NeighborSampler([2]), 0)
        assert name == "random" or ids(rankings)["_N"][0] == 9

    @pytest.mark.every
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_takes_seeds_of_both_dtypes(self, name, dtype):
        graph = Graph.from_coo([9] * 9 + [0, 1], list(range(9)) + [9, 9])
        expected = rank(name, graph, torch.arange(9), NeighborSampler([2]), 0)
        assert ids(rank(name, graph, torch.arange(9, dtype=dtype), NeighborSampler([2]), 0)) == ids(
            expected
        )

    @settings(max_examples=examples(15))
    @given(
        sizes=st.tuples(st.integers(0, 9), st.integers(1, 9)),
        edges=st.tuples(pairs, pairs, pairs, pairs),
    )
    def test_ranks_all_types_of_a_heterograph(self, name, sizes, edges):
        rank(name, hetero(sizes, edges), {"b": torch.arange(sizes[1])}, NeighborSampler([2, 3]), 1)

    def test_scores_of_several_types_are_all_there_or_none_is(self, name):
        graph = hetero((3, 4), ([(0, 1), (1, 2)], [(2, 0)], [], []))
        rankings = rank(name, graph, {"b": torch.arange(4)}, NeighborSampler([2, 3]), 1)
        assert len({ranking.scores is None for ranking in rankings.values()}) == 1

    def test_changes_neither_graph_nor_seeds(self, name):
        graph, seeds = Graph.from_coo([2, 1, 0, 0], [0, 0, 1, 2]), torch.tensor([2, 0, 1])
        before = [graph.csc.indptr.tolist(), graph.csc.indices.tolist(), seeds.tolist()]
        rank(name, graph, seeds, NeighborSampler([1, 2]), 3)
        assert [graph.csc.indptr.tolist(), graph.csc.indices.tolist(), seeds.tolist()] == before


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_policies_have_names(name):
    assert resolve_policy(name) is POLICIES[name]


@pytest.mark.parametrize("name", ["presample", "vip"])
def test_a_users_own_sampling_cannot_be_foreseen(name):
    with pytest.raises(
        ValueError,
        match=f"cache_policy '{name}' needs seeds and a sampler .*got custom ones.*'degree'",
    ):
        rank(name, Graph.from_coo([0], [1]), torch.arange(2), None, 0)


@pytest.mark.parametrize("name", ["degree", "random"])
def test_policies_that_need_no_sampler(name):
    rank(name, Graph.from_coo([0], [1]), torch.empty(0, dtype=torch.int64), None, 0)


def test_degree_ranks_by_out_degree_and_breaks_ties_by_id():
    graph = Graph.from_coo([2, 2, 2, 4, 4, 0, 1], [0, 1, 3, 0, 2, 4, 4])
    assert degree(graph, torch.tensor([0]), None, 0).tolist() == [2, 4, 0, 1, 3]
    assert degree(graph.reverse(), torch.tensor([0]), None, 0).tolist() == [0, 4, 1, 2, 3]


@settings(max_examples=examples(50), deadline=None)
@given(graph=graphs)
def test_degree_equals_sorting_by_count(graph):
    num_nodes, edges = graph
    counts = [sum(1 for src, _ in edges if src == v) for v in range(num_nodes)]
    expected = sorted(range(num_nodes), key=lambda v: (-counts[v], v))
    assert degree(build(num_nodes, edges), torch.arange(num_nodes), None, 0).tolist() == expected


def test_a_function_is_its_own_policy():
    def mine(graph, seeds, sampler, seed):
        return torch.arange(graph.num_nodes)

    assert resolve_policy(mine) is mine


def test_unknown_policies():
    with pytest.raises(
        ValueError,
        match=r"cache_policy must be one of \['adaptive', 'auto'.*\] or a function, got 'best'",
    ):
        resolve_policy("best")
    with pytest.raises(TypeError, match="cache_policy must be a name or a function, got int"):
        resolve_policy(3)


@pytest.mark.parametrize(
    ("ranking", "error", "text"),
    [
        ([0, 1], TypeError, "must return an int32 or int64 tensor, got list"),
        (torch.tensor([0.5]), TypeError, "got torch.float32"),
        (torch.tensor([[0, 1]]), ValueError, r"must return a 1-D tensor, got shape \(1, 2\)"),
        (torch.tensor([0, 5]), ValueError, r"ids in \[0, 5\), got 5"),
        (torch.tensor([0, -1]), ValueError, r"ids in \[0, 5\), got -1"),
        (
            torch.tensor([0, 3, 0]),
            ValueError,
            "each id at most once, got 3 ids, 2 of them distinct",
        ),
    ],
)
def test_wrong_rankings(ranking, error, text):
    with pytest.raises(error, match=f"a cache policy .*{text}"):
        check_ranking(ranking, 5)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_right_rankings(dtype):
    ranking = check_ranking(torch.tensor([3, 0], dtype=dtype), 5)
    assert ranking.dtype == torch.int64 and ranking.tolist() == [3, 0]
    assert check_ranking(torch.empty(0, dtype=dtype), 0).tolist() == []


@settings(max_examples=examples(50))
@given(
    sizes=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    edges=st.tuples(pairs, pairs, pairs, pairs),
)
def test_degree_over_several_types_counts_all_edges_that_leave(sizes, edges):
    graph = hetero(sizes, edges)
    rankings = check_rankings(degree(graph, {}, None, 0), dict(zip("ab", sizes, strict=True)))
    for ntype, size in zip("ab", sizes, strict=True):
        leaving = [
            graph.csc_of(etype).indices.tolist() for etype in graph.edge_types if etype[0] == ntype
        ]
        counts = [sum(us.count(v) for us in leaving) for v in range(size)]
        assert rankings[ntype].ids.tolist() == sorted(range(size), key=lambda v: (-counts[v], v))
        assert rankings[ntype].scores.tolist() == sorted(counts, reverse=True)


def test_rankings_of_all_types():
    checked = check_rankings({"b": torch.tensor([1, 0], dtype=torch.int32)}, {"a": 3, "b": 2})
    assert {t: r.ids.tolist() for t, r in checked.items()} == {"a": [], "b": [1, 0]}
    assert (
        list(checked) == ["a", "b"]
        and checked["b"].ids.dtype == torch.int64
        and checked["b"].scores is None
    )
    ranking = Ranking(torch.tensor([2, 0]), torch.tensor([5, 5], dtype=torch.int32))
    for ranked in (ranking, {"a": ranking}):
        (only,) = check_rankings(ranked, {"a": 3}).values()
        assert (only.ids.tolist(), only.scores.tolist(), only.scores.dtype) == (
            [2, 0],
            [5.0, 5.0],
            torch.float64,
        )


def scores(*values, **options):
    return {"a": Ranking(torch.tensor([1, 0]), torch.tensor(values, **options))}


@pytest.mark.parametrize(
    ("ranked", "error", "text"),
    [
        (
            torch.tensor([0]),
            ValueError,
            r"mapping from vertex type to ids for the types \['a', 'b'\], got a Tensor",
        ),
        (Ranking(torch.tensor([0])), ValueError, "got a Ranking"),
        ({"c": torch.tensor([0])}, ValueError, r"vertex types among \['a', 'b'\], got 'c'"),
        ({"a": torch.tensor([2])}, ValueError, r"ids in \[0, 2\), got 2"),
        (
            {"a": Ranking(torch.tensor([0.5]))},
            TypeError,
            "int32 or int64 tensor, got torch.float32",
        ),
        (
            {"a": Ranking(torch.tensor([0]), [1.0])},
            TypeError,
            "scores .* tensor of real numbers, got list",
        ),
        (scores(1j, 1j), TypeError, "real numbers, got torch.complex64"),
        (scores(1), ValueError, r"shape \(2,\) as its ids, got \(1,\)"),
        (scores(1.0, float("nan")), ValueError, "finite and at least 0, got nan"),
        (scores(float("inf"), 1.0), ValueError, "finite and at least 0"),
        (scores(1, -2), ValueError, "finite and at least 0, got -2.0"),
        (scores(1, 2), ValueError, "must not increase"),
    ],
)
def test_wrong_rankings_of_several_types(ranked, error, text):
    with pytest.raises(error, match=text):
        check_rankings(ranked, {"a": 2, "b": 3})


@given(
    values=st.lists(
        st.integers(-9, 9) | st.integers(-(2**17), 2**17) | st.integers(-(2**63) + 1, 2**63 - 1)
    ),
    dtype=st.sampled_from([torch.int64, torch.int32, torch.int16, torch.uint8, torch.float64]),
)
def test_descending_equals_a_sort(values, dtype):
    values = torch.tensor(values, dtype=torch.int64).to(dtype)
    known = values.tolist()
    assert descending(values).tolist() == sorted(
        range(len(known)), key=lambda place: (-known[place], place)
    )
