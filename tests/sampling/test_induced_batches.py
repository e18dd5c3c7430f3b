"""Induced batches: the vertices that a sampler of blocks finds, and all edges among them but the
excluded ones."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_induced import TYPES, as_tuples, ends, plain_induced
from tiers import examples

from pagraph import CSC, Graph
from pagraph.ranking.presample import count_accesses
from pagraph.sampling import LaborSampler, NeighborSampler
from pagraph.sampling.drawing import ExcludedEdges
from pagraph.sampling.edge_batches import EdgeBatches
from pagraph.sampling.induced import InducedBatches

pytestmark = pytest.mark.kernels


EDGE = ("_N", "_E", "_N")


@settings(max_examples=examples(60), deadline=None)
@given(
    st.data(),
    st.integers(1, 12),
    st.sampled_from([[1], [2, -1], [-1, 3]]),
    st.sampled_from(["in", "out"]),
)
def test_vertices_of_the_blocks_and_all_edges_but_the_excluded(data, count, fanouts, edge_dir):
    graph = Graph.from_coo(*data.draw(ends(count, count)), count)
    seeds = torch.tensor(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=6)))
    excluded = (
        data.draw(st.lists(st.integers(0, graph.num_edges - 1), max_size=5))
        if graph.num_edges
        else []
    )
    positions = graph.csc.positions_of(torch.tensor(excluded, dtype=torch.int64))
    exclude = {EDGE: ExcludedEdges(positions)} if data.draw(st.booleans()) else None
    blocks, key = NeighborSampler(fanouts), data.draw(st.integers(0, 2**64 - 1))
    expected = blocks.sample(graph, {"_N": seeds}, key, exclude=exclude)
    batch = InducedBatches(blocks, edge_dir).sample(
        graph, seeds, key, exclude=exclude, dtype=torch.int32
    )
    nodes = expected.input_nodes["_N"].tolist()
    assert batch.input_nodes["_N"].tolist() == nodes
    assert batch.hop_ends == expected.hop_ends
    assert torch.equal(batch.output_nodes["_N"], seeds)
    kept = [
        edge
        for edge in plain_induced(graph.adjacency(edge_dir), nodes, nodes)
        if exclude is None or edge[2] not in excluded
    ]
    assert as_tuples(batch.edges[EDGE]) == kept
    assert batch.edges[EDGE].edge_index.dtype == torch.int32
    assert batch.edges[EDGE].edge_index.is_contiguous()


@settings(max_examples=examples(20), deadline=None)
@given(st.data(), st.sampled_from(["in", "out"]))
def test_several_types_with_edges_excluded_of_one(data, edge_dir):
    counts = {"a": 7, "b": 5}
    csc = {
        e: CSC.from_coo(*data.draw(ends(counts[e[0]], counts[e[2]])), (counts[e[0]], counts[e[2]]))
        for e in TYPES
    }
    graph, first = Graph(csc, counts), TYPES[0]
    excluded = list(range(0, csc[first].num_edges, 2))
    exclude = {
        first: ExcludedEdges(csc[first].positions_of(torch.tensor(excluded, dtype=torch.int64)))
    }
    seeds = {"b": torch.tensor([4, 0]), "a": torch.tensor([6])}
    batch = InducedBatches(LaborSampler([2, 2]), edge_dir).sample(graph, seeds, 3, exclude=exclude)
    nodes = {t: ids.tolist() for t, ids in batch.input_nodes.items()}
    for etype in TYPES:
        far, near = (etype[0], etype[2]) if edge_dir == "in" else (etype[2], etype[0])
        adjacency = graph.csc_of(etype) if edge_dir == "in" else graph.out_csc_of(etype)
        edges = plain_induced(adjacency, nodes[far], nodes[near])
        assert as_tuples(batch.edges[etype]) == [
            e for e in edges if etype != first or e[2] not in excluded
        ]


def test_what_policies_ask():
    graph = Graph.from_coo([0, 1, 2, 3, 4], [1, 2, 3, 4, 0])
    blocks = NeighborSampler([2, 2])
    batches = InducedBatches(blocks)
    assert batches.hops is blocks and batches.num_hops == 2 and batches.seeds_are_vertices
    assert (
        batches.cache_key
        == InducedBatches(NeighborSampler([2, 2])).cache_key
        != InducedBatches(blocks, "out").cache_key
    )
    settings = {"batch_size": 2, "seed": 1}
    counts = [
        count_accesses(graph, torch.arange(5), s, **settings).by_hop("_N").tolist()
        for s in (blocks, batches)
    ]
    assert counts[0] == counts[1]
    with pytest.raises(ValueError, match="edge_dir must be 'in' or 'out', got 'both'"):
        InducedBatches(blocks, "both")


def test_out_edges_in_an_order_of_ones_own():
    graph = Graph.from_coo([0, 0, 1], [1, 2, 0])
    own = CSC(torch.tensor([0, 2, 3, 3]), torch.tensor([2, 1, 0]), 3, torch.tensor([1, 0, 2]))
    graph.set_out_csc(EDGE, own)
    assert graph.adjacency("out") is own
    batch = InducedBatches(NeighborSampler([-1]), "out").sample(graph, torch.tensor([0, 1, 2]))
    assert as_tuples(batch.edges[EDGE]) == [(2, 0, 1), (1, 0, 0), (0, 1, 2)]
    with pytest.raises(
        ValueError,
        match="csc must have .3, 3, 3. sources, destinations and edges for .* got .3, 3, 1.",
    ):
        graph.set_out_csc(EDGE, CSC.from_coo([0], [1], (3, 3)))


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_a_batch_of_links_does_not_hold_them(edge_dir):
    generator = torch.Generator().manual_seed(0)
    graph = Graph.from_coo(*torch.randint(40, (2, 300), generator=generator), 40)
    links = EdgeBatches(InducedBatches(NeighborSampler([3, 3], edge_dir=edge_dir)), exclude=True)
    seeds = torch.randperm(300, generator=generator)[:20]
    (edges,) = links.sample(graph, seeds, key=1).edges.values()
    assert edges.num_edges > 100 and not torch.isin(edges.edge_ids, seeds).any()
