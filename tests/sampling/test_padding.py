"""Padded batches against a plain reference, and room for every batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_whole_batch import graphs
from tiers import examples

from pagraph import Graph, NeighborSampler
from pagraph.engine.block_source import sizes_of
from pagraph.sampling import LaborSampler, LayerSampler, SubgraphSampler
from pagraph.sampling.fixed_shapes import (
    Sizes,
    empty_of,
    largest_sizes,
    pad_blocks,
    pad_edges,
    padded_nodes,
)
from pagraph.system.buffers import BufferPools

EMPTY = empty_of(BufferPools(batches=0))


@st.composite
def room(draw, sampled):
    """Sizes with room for a batch, hop by hop."""
    more = [draw(st.integers(1, 3)) for _ in sampled.nodes]
    further = [draw(st.integers(0, 3)) for _ in sampled.edges]
    return Sizes(
        tuple(a + b for a, b in zip(sampled.nodes, more, strict=True)),
        tuple(a + b for a, b in zip(sampled.edges, further, strict=True)),
    )


def plain_places(sampled, sizes):
    """The padded local id of each sampled vertex, and the last of each hop, by counting."""
    places, last, at = [], [], 0
    for count, most in zip(sampled.nodes, sizes.nodes, strict=True):
        places += range(at, at + count)
        at += most
        last.append(at - 1)
    return places, last


def edges_of(block):
    return list(zip(*block.to_pyg().tolist(), block.positions.tolist(), strict=True))


@given(st.data(), graphs(), st.sampled_from([torch.int32, torch.int64]))
@settings(max_examples=examples(150))
def test_blocks(data, graph, dtype):
    ids = st.lists(st.integers(0, graph.num_nodes - 1), min_size=1, max_size=6)
    seeds = torch.tensor(data.draw(ids), dtype=dtype)
    fanouts = data.draw(st.lists(st.sampled_from([1, 3, -1]), min_size=1, max_size=3))
    kind = data.draw(st.sampled_from([NeighborSampler, LaborSampler]))
    batch = kind(fanouts).sample(graph, seeds, data.draw(st.integers(0, 9)))
    sampled = sizes_of(batch)
    sizes = data.draw(room(sampled))
    padded = pad_blocks(batch, sampled, sizes, EMPTY)
    places, last = plain_places(sampled, sizes)

    nodes = [-1] * sum(sizes.nodes)
    for place, node in zip(places, batch.input_nodes.tolist(), strict=True):
        nodes[place] = node
    assert padded.input_nodes.tolist() == nodes and padded.input_nodes.dtype == dtype
    assert sizes_of(padded) == sizes
    assert padded.output_nodes.tolist() == nodes[: sizes.nodes[0]]
    for hop, (block, given_) in enumerate(
        zip(reversed(padded.blocks), reversed(batch.blocks), strict=True)
    ):
        moved = [(places[src], places[dst], at) for src, dst, at in edges_of(given_)]
        extra = sizes.edges[hop] - sampled.edges[hop]
        assert edges_of(block) == moved + [(last[hop + 1], last[hop], -1)] * extra
        assert block.num_dst == last[hop] + 1 and block.num_src == last[hop + 1] + 1
        assert block.indptr.dtype == given_.indptr.dtype == block.indices.dtype
        if given_.weights is not None:
            assert block.weights.tolist() == given_.weights.tolist() + [1.0] * extra


@given(st.data(), graphs())
@settings(max_examples=examples(100))
def test_subgraphs(data, graph):
    ids = st.lists(st.integers(0, graph.num_nodes - 1), min_size=1, max_size=6)
    fanouts = data.draw(st.lists(st.sampled_from([0, 2, -1]), max_size=3))
    batch = SubgraphSampler(fanouts).sample(graph, torch.tensor(data.draw(ids)))
    (edges,) = batch.edges.values()
    (ends,) = batch.hop_ends.values()
    (nodes,) = batch.input_nodes.values()
    drawn = [end - begin for begin, end in zip(edges.hop_ends, edges.hop_ends[1:], strict=False)]
    sampled = Sizes.of(ends, drawn)
    sizes = data.draw(room(sampled))
    row, col = edges.edge_index
    padded, moved = padded_nodes(nodes, sampled, sizes, row, EMPTY)
    pair, edge_ids = pad_edges((row, col), edges.edge_ids, moved, sampled, sizes, EMPTY)

    places, last = plain_places(sampled, sizes)
    assert padded[torch.tensor(places)].tolist() == nodes.tolist()
    assert (padded >= 0).sum() == len(nodes)
    all_edges = list(zip(row.tolist(), col.tolist(), edges.edge_ids.tolist(), strict=True))
    expected = []
    for hop, most in enumerate(sizes.edges):
        begin, end = edges.hop_ends[hop : hop + 2]
        expected += [(places[src], places[dst], e) for src, dst, e in all_edges[begin:end]]
        expected += [(last[hop + 1], last[hop], -1)] * (most - (end - begin))
    assert list(zip(*pair.tolist(), edge_ids.tolist(), strict=True)) == expected
    assert (pair[1].diff() >= 0).all()  # PyG's batches are sorted by destination


@given(st.data(), graphs())
@settings(max_examples=examples(150))
def test_the_largest_size_has_room_for_every_batch(data, graph):
    ids = st.lists(st.integers(0, graph.num_nodes - 1), min_size=1, max_size=8)
    seeds = torch.tensor(data.draw(ids))  # repeated ones draw for themselves
    fanouts = data.draw(st.lists(st.sampled_from([1, 2, 7, -1]), min_size=1, max_size=3))
    replace = data.draw(st.booleans())
    samplers = [
        NeighborSampler(fanouts, replace=replace),
        NeighborSampler(fanouts, edge_dir="out"),
        LaborSampler([3] * len(fanouts)),
        LayerSampler([4] * len(fanouts)),
    ]
    for sampler in samplers:
        batch = sampler.sample(graph, seeds, data.draw(st.integers(0, 9)))
        assert largest_sizes(sampler, graph, len(seeds)).has_room_for(sizes_of(batch)), sampler
    sampler = SubgraphSampler(fanouts, replace=replace)
    batch = sampler.sample(graph, seeds)
    (edges,) = batch.edges.values()
    drawn = [end - begin for begin, end in zip(edges.hop_ends, edges.hop_ends[1:], strict=False)]
    (ends,) = batch.hop_ends.values()
    assert largest_sizes(sampler, graph, len(seeds)).has_room_for(Sizes.of(ends, drawn))


def test_largest_sizes_by_hand():
    graph = Graph.from_coo([0, 1, 2, 3], [1, 2, 3, 4], 10)
    assert largest_sizes(NeighborSampler([2, 3]), graph, 2) == Sizes((3, 7, 11), (6, 16))
    # Of all neighbours no more than there are edges, and those of the seeds once more.
    assert largest_sizes(NeighborSampler([-1, -1]), graph, 2) == Sizes((3, 3, 5), (2, 4))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ids_at_the_border(dtype):
    """Padding is -1 and no id, also beside the largest ids that there are."""
    most = torch.iinfo(torch.int32).max
    nodes = torch.tensor([most, most - 1], dtype=dtype)
    sampled, sizes = Sizes((1, 1), (1,)), Sizes((2, 3), (1,))
    padded, moved = padded_nodes(nodes, sampled, sizes, nodes, EMPTY)
    assert padded.tolist() == [most, -1, most - 1, -1, -1] and moved.tolist() == [0, 2]
