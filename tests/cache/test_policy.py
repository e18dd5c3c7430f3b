"""One conformance suite for every policy with a name, and the checks of a user's own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagraph.cache import POLICIES, Ranking, check_ranking, check_rankings, degree, resolve_policy
from pagraph.graph import CSC, Graph
from pagraph.sampling import NeighborSampler

graphs = st.integers(1, 30).flatmap(
    lambda n: st.tuples(st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=80))
)


def build(num_nodes, edges):
    src, dst = (list(side) for side in zip(*edges, strict=True)) if edges else ([], [])
    return Graph.from_coo(src, dst, num_nodes=num_nodes)


@pytest.mark.parametrize("name", sorted(POLICIES))
class TestEveryPolicy:
    """What holds for all of them."""

    @settings(max_examples=50, deadline=None)
    @given(graph=graphs, seed=st.integers(0, 2**63 - 1))
    def test_ranks_each_vertex_once(self, name, graph, seed):
        graph = build(*graph)
        seeds = torch.arange(0, graph.num_nodes, 2)
        ranking = POLICIES[name](graph, seeds, NeighborSampler([2, 2]), seed)
        assert check_ranking(ranking, graph.num_nodes).sort().values.tolist() == list(range(graph.num_nodes))

    def test_is_a_function_of_its_arguments(self, name):
        generator = torch.Generator().manual_seed(0)
        src, dst = torch.randint(0, 100, (2, 1000), generator=generator)
        graph, seeds = Graph.from_coo(src, dst, num_nodes=100), torch.arange(50)
        first = POLICIES[name](graph, seeds, NeighborSampler([2, 2]), 7)
        torch.manual_seed(1)
        again = POLICIES[name](graph, seeds, NeighborSampler([2, 2]), 7)
        assert torch.equal(first, again)

    def test_prefers_a_hub_that_every_seed_reaches(self, name):
        graph = Graph.from_coo([9] * 9 + [0, 1], list(range(9)) + [9, 9])
        ranking = POLICIES[name](graph, torch.arange(9), NeighborSampler([2]), 0)
        assert int(ranking[0]) == 9

    def test_resolves_by_name(self, name):
        assert resolve_policy(name) is POLICIES[name]


def test_degree_ranks_by_out_degree_and_breaks_ties_by_id():
    graph = Graph.from_coo([2, 2, 2, 4, 4, 0, 1], [0, 1, 3, 0, 2, 4, 4])
    assert degree(graph, torch.tensor([0]), None, 0).tolist() == [2, 4, 0, 1, 3]
    assert degree(graph.reverse(), torch.tensor([0]), None, 0).tolist() == [0, 4, 1, 2, 3]


@settings(max_examples=50, deadline=None)
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
    with pytest.raises(ValueError, match=r"cache_policy must be one of \['degree'.*\] or a function, got 'best'"):
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
        (torch.tensor([0, 3, 0]), ValueError, "each id at most once, got 3 ids of 2 vertices"),
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


def hetero(sizes, edges):
    """A graph of two vertex types and four edge types; ``edges`` has one list of pairs for each."""
    counts = dict(zip("ab", sizes, strict=True))
    etypes = [("a", "to", "b"), ("b", "to", "a"), ("a", "to", "a"), ("a", "again", "b")]
    csc = {}
    for (src, relation, dst), pairs in zip(etypes, edges, strict=True):
        pairs = [(u % counts[src], v % counts[dst]) for u, v in pairs if counts[src] and counts[dst]]
        by_dst = [[u for u, v in pairs if v == w] for w in range(counts[dst])]
        indptr = torch.tensor([0, *torch.tensor([len(us) for us in by_dst], dtype=torch.int64).cumsum(0).tolist()])
        csc[src, relation, dst] = CSC(indptr, torch.tensor(sum(by_dst, []), dtype=torch.int64), counts[src])
    return Graph(csc, counts)


pairs = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=40)


@settings(max_examples=50)
@given(sizes=st.tuples(st.integers(0, 9), st.integers(0, 9)), edges=st.tuples(pairs, pairs, pairs, pairs))
def test_degree_over_several_types_counts_all_edges_that_leave(sizes, edges):
    graph = hetero(sizes, edges)
    rankings = check_rankings(degree(graph, {}, None, 0), dict(zip("ab", sizes, strict=True)))
    for ntype, size in zip("ab", sizes, strict=True):
        leaving = [graph.csc_of(etype).indices.tolist() for etype in graph.edge_types if etype[0] == ntype]
        counts = [sum(us.count(v) for us in leaving) for v in range(size)]
        assert rankings[ntype].ids.tolist() == sorted(range(size), key=lambda v: (-counts[v], v))
        assert rankings[ntype].scores.tolist() == sorted(counts, reverse=True)


def test_rankings_of_all_types():
    checked = check_rankings({"b": torch.tensor([1, 0], dtype=torch.int32)}, {"a": 3, "b": 2})
    assert {t: r.ids.tolist() for t, r in checked.items()} == {"a": [], "b": [1, 0]}
    assert list(checked) == ["a", "b"] and checked["b"].ids.dtype == torch.int64 and checked["b"].scores is None
    ranking = Ranking(torch.tensor([2, 0]), torch.tensor([5, 5], dtype=torch.int32))
    for ranked in (ranking, {"a": ranking}):
        (only,) = check_rankings(ranked, {"a": 3}).values()
        assert (only.ids.tolist(), only.scores.tolist(), only.scores.dtype) == ([2, 0], [5.0, 5.0], torch.float64)


def scores(*values, **options):
    return {"a": Ranking(torch.tensor([1, 0]), torch.tensor(values, **options))}


@pytest.mark.parametrize(
    ("ranked", "error", "text"),
    [
        (torch.tensor([0]), ValueError, r"mapping from vertex type to ids for the types \['a', 'b'\], got a Tensor"),
        (Ranking(torch.tensor([0])), ValueError, "got a Ranking"),
        ({"c": torch.tensor([0])}, ValueError, r"vertex types among \['a', 'b'\], got 'c'"),
        ({"a": torch.tensor([2])}, ValueError, r"ids in \[0, 2\), got 2"),
        ({"a": Ranking(torch.tensor([0.5]))}, TypeError, "int32 or int64 tensor, got torch.float32"),
        ({"a": Ranking(torch.tensor([0]), [1.0])}, TypeError, "scores .* tensor of real numbers, got list"),
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
