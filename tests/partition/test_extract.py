"""A part's structure equals that of the slow reference, edge for edge."""

import pytest
import torch
from hypothesis import given, settings
from plain_partition import in_edges, make_partition, partitions, plain_part
from tiers import examples

from pagraph import CSC, Graph
from pagraph.partition.extract import extract_part


def edges_of(structure):
    rows = in_edges(Graph(structure.csc))
    ids = structure.edge_ids.tolist()
    return [[(u, ids[position]) for u, position in row] for row in rows]


@settings(max_examples=examples(150))
@given(partitions())
def test_equals_the_reference(partition):
    for part in range(partition.num_parts):
        structure = extract_part(partition, part)
        without = () if partition.dropped is None else set(partition.dropped[part].tolist())
        seeds = partition.seeds_of(part).tolist()
        ids, edges = plain_part(partition.graph, seeds, partition.hops, without)
        assert structure.vertices.ids.tolist() == ids
        assert edges_of(structure) == edges
        rows = in_edges(partition.graph)
        inner = ids[: structure.vertices.hop_ends[-2]]
        assert structure.missing == sum(len(rows[v]) for v in inner) - sum(map(len, edges))


def test_self_loops_and_parallel_edges_keep_their_order():
    graph = Graph.from_coo([2, 1, 2, 1, 1], [1, 1, 1, 2, 1])
    structure = extract_part(make_partition(graph, [1], [0], 1, 1), 0)
    assert structure.vertices.ids.tolist() == [1, 2]
    assert edges_of(structure) == [[(1, 0), (0, 1), (1, 2), (0, 4)], []]


def test_isolated_training_vertices():
    structure = extract_part(make_partition(Graph.from_coo([], [], 3), [0, 2], [0, 0], 1, 2), 0)
    assert structure.csc.indptr.tolist() == [0, 0, 0]
    assert structure.csc.num_src == 2
    assert len(structure.edge_ids) == structure.csc.num_edges == 0


def test_int64_ids_of_edges_that_need_them():
    csc = CSC(torch.tensor([0, 1, 2]), torch.tensor([1, 0]), 2, torch.tensor([2**40, 5]))
    structure = extract_part(make_partition(Graph(csc), [0], [0], 1, 1), 0)
    assert structure.edge_ids.dtype == torch.int64
    assert structure.edge_ids.tolist() == [2**40]
    assert structure.csc.indices.dtype == torch.int32


def test_an_empty_neighbourhood_of_a_later_hop():
    structure = extract_part(make_partition(Graph.from_coo([0], [1], 2), [1], [0], 1, 3), 0)
    assert structure.vertices.hop_ends == (1, 2, 2, 2)
    assert edges_of(structure) == [[(1, 0)], []]


@pytest.mark.parametrize("part", [-1, 2])
def test_no_such_part(part):
    with pytest.raises(ValueError, match=rf"part must be in \[0, 2\), got {part}"):
        extract_part(make_partition(Graph.from_coo([0], [1]), [0, 1], [0, 1], 2, 1), part)


def test_a_corrupt_graph_is_refused():
    graph = Graph(CSC(torch.tensor([0, 1]), torch.tensor([7]), 1))
    with pytest.raises(ValueError, match=r"indices must be in \[0, 1\), got 7"):
        extract_part(make_partition(graph, [0], [0], 1, 1), 0)
