"""Random graphs for device samplers, and whether two batches are the same to the bit."""

import pytest
import torch
from hypothesis import strategies as st

from pagraph import CSC, Graph
from pagraph.accelerator import HostAccelerator
from pagraph.sampling.gpu import state
from pagraph.sampling.gpu.sampler import DeviceSampler


@st.composite
def graphs(draw, max_nodes=40, max_edges=250):
    """Self-loops, parallel edges, hubs, isolated vertices, sometimes no edge at all; ids of int32
    or int64."""
    n = draw(st.integers(1, max_nodes))
    near = st.integers(0, n - 1)
    # A third of the edges and more lead to few vertices.
    to = st.one_of(near, st.integers(0, min(2, n - 1)))
    edges = draw(st.lists(st.tuples(near, to), max_size=max_edges))
    graph = Graph.from_coo([e[0] for e in edges], [e[1] for e in edges], n)
    if draw(st.booleans()):
        csc = graph.csc
        graph = Graph(CSC(csc.indptr.long(), csc.indices.long(), n))
    return graph


@st.composite
def typed_graphs(draw, max_nodes=15, max_edges=80):
    """One to three vertex types, some of them without vertices, and one to four edge types among
    them; ids of int32 or int64, a mixture too."""
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    counts = {name: draw(st.integers(0, max_nodes)) for name in names}
    counts[names[0]] += 1
    pairs = st.tuples(st.sampled_from(names), st.sampled_from(names))
    cscs = {}
    for number, (src, dst) in enumerate(draw(st.lists(pairs, min_size=1, max_size=4))):
        edges = []
        if counts[src] and counts[dst]:
            ends = st.tuples(st.integers(0, counts[src] - 1), st.integers(0, counts[dst] - 1))
            edges = draw(st.lists(ends, max_size=max_edges))
        sizes = counts[src], counts[dst]
        csc = CSC.from_coo([e[0] for e in edges], [e[1] for e in edges], sizes)
        if draw(st.booleans()):
            ids = None if csc.edge_ids is None else csc.edge_ids.long()
            csc = CSC(csc.indptr.long(), csc.indices.long(), counts[src], ids)
        cscs[src, f"r{number}", dst] = csc
    return Graph(cscs, counts)


def assert_drawn_alike(graph, sampler, batches, same, *, budget, size_first):
    """A device draws what the CPU draws, of one sampler for all batches.

    Args:
        batches: Seeds, key and further arguments of each.
        same: Asserts that two batches are the same.
        budget: Of the device's copy of the graph.
        size_first: Edges of a step from which its size is read.
    """
    on_device = DeviceSampler(graph, sampler, HostAccelerator(), budget)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "_SIZE_FIRST", size_first)
        for seeds, key, more in batches:
            expected = sampler.sample(graph, seeds, key, **more)
            same(on_device.sample(seeds, key, **more).batch, expected)
            # Each batch leaves the table as it was.
            assert not on_device.topology.first.any()
    on_device.close()


def assert_same_typed(batch, expected):
    """The same of blocks over several types."""
    assert_equal_by_key(batch.output_nodes, expected.output_nodes)
    assert_equal_by_key(batch.input_nodes, expected.input_nodes)
    assert len(batch.blocks) == len(expected.blocks)
    for block, other in zip(batch.blocks, expected.blocks, strict=True):
        assert block.num_dst == other.num_dst
        assert_equal_by_key(block.src_nodes, other.src_nodes)
        assert list(block.relations) == list(other.relations)
        for edge_type, relation in block.relations.items():
            for name in ("indptr", "indices", "positions"):
                of_other = getattr(other.relations[edge_type], name)
                assert_equal(getattr(relation, name), of_other)


def assert_same_typed_subgraph(batch, expected):
    """The same of subgraphs over several types."""
    assert batch.hop_ends == expected.hop_ends
    assert_equal_by_key(batch.output_nodes, expected.output_nodes)
    assert_equal_by_key(batch.input_nodes, expected.input_nodes)
    assert list(batch.edges) == list(expected.edges)
    for edge_type, edges in batch.edges.items():
        others = expected.edges[edge_type]
        assert edges.hop_ends == others.hop_ends
        assert_equal(edges.edge_index, others.edge_index)
        assert_equal(edges.edge_ids, others.edge_ids)
        assert edges.edge_index.is_contiguous()


def assert_equal_by_key(tensors, expected):
    assert list(tensors) == list(expected)
    for name, tensor in tensors.items():
        assert_equal(tensor, expected[name])


def assert_same(batch, expected):
    """All tensors of two mini-batches are equal, with their dtypes; the first one's may be on any
    device."""
    assert_equal(batch.output_nodes, expected.output_nodes)
    assert len(batch.blocks) == len(expected.blocks)
    for block, other in zip(batch.blocks, expected.blocks, strict=True):
        assert block.num_dst == other.num_dst
        for name in ("indptr", "indices", "positions", "src_nodes"):
            assert_equal(getattr(block, name), getattr(other, name))


def assert_same_subgraph(batch, expected):
    """The same of subgraphs."""
    assert batch.hop_ends == expected.hop_ends
    assert batch.trees is expected.trees is None
    for name in ("output_nodes", "input_nodes"):
        (nodes,) = getattr(batch, name).values()
        (others,) = getattr(expected, name).values()
        assert_equal(nodes, others)
    (edges,) = batch.edges.values()
    (others,) = expected.edges.values()
    assert edges.hop_ends == others.hop_ends
    assert_equal(edges.edge_index, others.edge_index)
    assert_equal(edges.edge_ids, others.edge_ids)
    assert edges.edge_index.is_contiguous()


def assert_equal(tensor, expected):
    assert tensor.dtype == expected.dtype
    assert tensor.shape == expected.shape
    assert torch.equal(tensor.cpu(), expected)
