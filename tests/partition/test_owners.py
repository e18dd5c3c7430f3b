"""Every vertex belongs to one part: its own, one of the nearest, or the smallest."""

import torch
from hypothesis import given, settings
from plain_partition import make_partition, partitions, plain_hops
from tiers import examples

from pagraph import Graph
from pagraph.partition.extract import nearest_part, vertex_owners


def plain_nearest(partition):
    """For each vertex the parts that hold it at the lowest hop."""
    hops = []
    for part in range(partition.num_parts):
        without = () if partition.dropped is None else set(partition.dropped[part].tolist())
        hops.append(
            plain_hops(partition.graph, partition.seeds_of(part).tolist(), partition.hops, without)
        )
    nearest = []
    for v in range(partition.graph.num_nodes):
        found = [hop_of.get(v) for hop_of in hops]
        lowest = min((hop for hop in found if hop is not None), default=-1)
        nearest.append({part for part, hop in enumerate(found) if hop == lowest})
    return nearest


def parts_of(partition):
    return [partition.vertices(part) for part in range(partition.num_parts)]


class TestNearest:
    @settings(max_examples=examples(80))
    @given(partitions())
    def test_equals_the_reference(self, partition):
        owner = nearest_part(partition.graph.num_nodes, parts_of(partition))
        assert owner.dtype == torch.int32
        for got, nearest in zip(owner.tolist(), plain_nearest(partition), strict=True):
            assert got in nearest if nearest else got == -1

    @settings(max_examples=examples(40))
    @given(partitions())
    def test_parts_that_hold_a_vertex_farther_off_change_nothing(self, partition):
        owner = nearest_part(partition.graph.num_nodes, parts_of(partition))
        for v, nearest in enumerate(plain_nearest(partition)):
            if len(nearest) == 1:
                assert {int(owner[v])} == nearest

    def test_a_part_that_has_few_of_its_own_gets_more_of_what_others_hold_too(self):
        """100 vertices that only part 1 reaches, and 900 that both do."""
        sources = torch.arange(2, 1002)
        graph = Graph.from_coo(
            torch.cat([sources, sources[100:]]),
            torch.cat([torch.ones(1000), torch.zeros(900)]).long(),
        )
        for parts in ([0, 1], [1, 0]):
            partition = make_partition(graph, [0, 1], parts, 2, 1)
            counts = torch.bincount(nearest_part(1002, parts_of(partition)))
            assert abs(int(counts[0]) - 501) < 50
            assert int(counts.sum()) == 1002

    def test_equals_are_served_alike(self):
        """3,000 vertices that all of 300 parts hold at the first hop: about 10 a part, neighbouring
        ones in others."""
        edges = torch.cartesian_prod(torch.arange(300, 3300), torch.arange(300))
        graph = Graph.from_coo(edges[:, 0], edges[:, 1])
        partition = make_partition(graph, list(range(300)), list(range(300)), 300, 1)
        owner = nearest_part(3300, parts_of(partition))
        counts = torch.bincount(owner[300:], minlength=300)
        assert counts.min() >= 5 and counts.max() <= 15
        assert (owner[301:] == owner[300:-1]).float().mean() < 0.02


class TestOwners:
    @settings(max_examples=examples(80))
    @given(partitions())
    def test_own_nearest_or_any(self, partition):
        owner = vertex_owners(partition)
        assert owner.dtype == torch.int32
        own = dict(zip(partition.train.tolist(), partition.parts.tolist(), strict=True))
        for v, nearest in enumerate(plain_nearest(partition)):
            allowed = {own[v]} if v in own else nearest or set(range(partition.num_parts))
            assert int(owner[v]) in allowed

    def test_a_vertex_evaluated_in_a_part_is_that_parts(self):
        graph = Graph.from_coo([2, 2], [0, 1], 4)
        more = {
            "evaluated": torch.tensor([2, 3]),
            "evaluation": torch.tensor([1, 0], dtype=torch.int32),
        }
        assert vertex_owners(make_partition(graph, [0, 1], [0, 1], 2, 1, **more)).tolist() == [
            0,
            1,
            1,
            0,
        ]

    def test_vertices_that_no_part_reaches_make_sizes_even(self):
        graph = Graph.from_coo([], [], 90)
        owner = vertex_owners(make_partition(graph, [0, 1, 2, 3], [0, 0, 0, 1], 2, 2))
        assert torch.bincount(owner).tolist() == [45, 45]
