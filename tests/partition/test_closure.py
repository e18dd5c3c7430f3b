"""What vertices reach within L hops, against a plain breadth-first search."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_methods import graphs, reach, rows_of, train_sets

from pagraph import Graph
from pagraph.options.partitioning import MAX_HOPS
from pagraph.partition import Partition
from pagraph.partition.partition import vertices_within


@given(st.data(), graphs(), st.integers(0, 4))
def test_ids_and_hops_equal_a_plain_search(data, graph, hops):
    seeds = data.draw(train_sets(graph))
    found = vertices_within(graph, seeds, hops)
    distance = reach(rows_of(graph), seeds.tolist(), hops)
    assert found.ids.tolist() == sorted(distance, key=lambda v: (distance[v], v))
    assert found.ids.dtype == torch.int64
    assert list(found.hop_ends) == [
        sum(d <= hop for d in distance.values()) for hop in range(hops + 1)
    ]
    assert found.num_seeds == len(seeds)


@given(st.data(), graphs(), st.integers(1, 3))
def test_vertices_left_out_are_not_expanded(data, graph, hops):
    seeds, without = data.draw(train_sets(graph)), data.draw(train_sets(graph))
    found = vertices_within(graph, seeds, hops, without=without)
    dropped = set(without.tolist()) - set(seeds.tolist())
    rows = [[u for u in row if u not in dropped] for row in rows_of(graph)]
    assert set(found.ids.tolist()) == set(reach(rows, seeds.tolist(), hops))


@pytest.mark.parametrize("hops", [1, 2, 200, MAX_HOPS])
def test_a_long_path_is_followed_as_far_as_asked(hops):
    graph = Graph.from_coo(torch.arange(300), torch.arange(1, 301))
    found = vertices_within(graph, torch.tensor([300]), hops)
    assert found.ids.tolist() == list(range(300, 299 - hops, -1))
    assert found.hop_ends == tuple(range(1, hops + 2))


def test_a_part_holds_its_own_seeds_and_their_neighbourhood():
    graph = Graph.from_coo([0, 1, 2, 3], [1, 2, 3, 4], 6)
    partition = Partition(
        graph, torch.tensor([1, 4, 5]), torch.tensor([0, 1, 1], dtype=torch.int32), 2, 2, "hash"
    )
    assert [partition.vertices(part).ids.tolist() for part in range(2)] == [[1, 0], [4, 5, 3, 2]]
