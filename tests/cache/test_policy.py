"""One conformance suite for every policy with a name, and the checks of a user's own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagraph.cache import POLICIES, check_ranking, degree, resolve_policy
from pagraph.graph import Graph
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
