"""Every vertex gets one owner: its own part, the nearest one, or the smallest."""

import torch
from hypothesis import given, settings
from plain_partition import make_partition, partitions, plain_hops

from pagraph import Graph
from pagraph.partition.owners import vertex_owners


def plain_owners(partition):
    graph, num_parts = partition.graph, partition.num_parts
    hops = []
    for part in range(num_parts):
        without = () if partition.dropped is None else set(partition.dropped[part].tolist())
        hops.append(plain_hops(graph, partition.seeds_of(part).tolist(), partition.hops, without))
    owner = dict(zip(partition.train.tolist(), partition.parts.tolist(), strict=True))
    counts = [list(owner.values()).count(part) for part in range(num_parts)]
    far = partition.hops + 1
    for hop in range(far + 1):
        for v in range(graph.num_nodes):
            if v not in owner and min(found.get(v, far) for found in hops) == hop:
                equals = [part for part in range(num_parts) if hops[part].get(v, far) == hop]
                owner[v] = min(equals, key=lambda part: (counts[part], part))
                counts[owner[v]] += 1
    return [owner[v] for v in range(graph.num_nodes)]


@settings(max_examples=80)
@given(partitions())
def test_equals_the_reference(partition):
    owner = vertex_owners(partition)
    assert owner.dtype == torch.int32
    assert owner.tolist() == plain_owners(partition)


def test_a_vertex_evaluated_in_a_part_is_that_parts():
    graph = Graph.from_coo([2, 2], [0, 1], 4)
    more = {"evaluated": torch.tensor([2, 3]), "evaluation": torch.tensor([1, 0], dtype=torch.int32)}
    assert vertex_owners(make_partition(graph, [0, 1], [0, 1], 2, 1, **more)).tolist() == [0, 1, 1, 0]


def test_vertices_that_no_part_reaches_make_sizes_even():
    graph = Graph.from_coo([], [], 90)
    owner = vertex_owners(make_partition(graph, [0, 1, 2, 3], [0, 0, 0, 1], 2, 2))
    assert torch.bincount(owner).tolist() == [45, 45]
