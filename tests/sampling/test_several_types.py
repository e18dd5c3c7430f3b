"""Sampling over several vertex and edge types against the plain reference, and edges that must not
occur."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_sampler import sample as plain_sample
from plain_sampler import sample_types

from pagraph import CSC, Graph, NeighborSampler
from pagraph.sampling.drawing import ExcludedEdges
from pagraph.seeds import derive_key
from pagraph.system.buffers import BufferPools

ETYPES = [
    ("a", "x", "b"),
    ("a", "y", "b"),
    ("b", "x", "b"),
    ("b", "z", "a"),
    ("c", "z", "a"),
    ("b", "to", "c"),
]


def csc_of(src, dst, num_src, num_dst):
    """A CSC between two types: sorted by destination, edge ids as given."""
    order = np.argsort(dst, kind="stable")
    indptr = np.concatenate(
        [[0], np.cumsum(np.bincount(np.asarray(dst, dtype=int), minlength=num_dst))]
    )
    indices = np.asarray(src, dtype=np.int32)[order]
    return CSC(
        torch.from_numpy(indptr.astype(np.int32)),
        torch.from_numpy(indices),
        num_src,
        torch.from_numpy(order),
    )


@st.composite
def graphs(draw):
    """Vertex types of different sizes, also empty ones; edge types with and without edges."""
    counts = {t: draw(st.integers(0, 12)) for t in "abc"}
    cscs = {}
    for s, r, d in ETYPES:
        m = draw(st.integers(0, 40)) if counts[s] and counts[d] else 0
        ends = draw(st.lists(st.tuples(st.integers(0, max(counts[s] - 1, 0)), st.integers(0, max(counts[d] - 1, 0))),
                             min_size=m, max_size=m))  # fmt: skip
        cscs[s, r, d] = csc_of([e[0] for e in ends], [e[1] for e in ends], counts[s], counts[d])
    return Graph(cscs, counts)


def fanouts():
    one = st.sampled_from([-1, 1, 2, 5, 70])
    by_type = st.fixed_dictionaries({etype: st.sampled_from([-1, 0, 1, 3]) for etype in ETYPES})
    return st.lists(st.one_of(one, by_type), min_size=1, max_size=3)


def keys(key):
    return lambda hop, number: derive_key(key, hop, number) if number else derive_key(key, hop)


def check(batch, expected, graph):
    for block, (edges, nodes) in zip(batch.blocks[::-1], expected, strict=True):
        assert (
            list(block.relations) == graph.edge_types and list(block.src_nodes) == graph.node_types
        )
        for etype, (indptr, indices, positions) in edges.items():
            relation = block.relations[etype]
            assert relation.indptr.tolist() == indptr
            assert relation.indices.tolist() == indices
            assert relation.positions.tolist() == positions
        assert {t: ids.tolist() for t, ids in block.src_nodes.items()} == nodes
    assert {t: ids.tolist() for t, ids in batch.input_nodes.items()} == expected[-1][1]


@given(
    graph=graphs(),
    fanouts=fanouts(),
    replace=st.booleans(),
    key=st.integers(0, 2**64 - 1),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    data=st.data(),
)
def test_equals_the_plain_reference(graph, fanouts, replace, key, dtype, data):
    seeds = {}
    for t in data.draw(st.lists(st.sampled_from("abc"), unique=True)):
        n = graph.num_nodes_of(t)
        seeds[t] = data.draw(st.lists(st.integers(0, n - 1), max_size=6)) if n else []
    excluded = {
        etype: data.draw(st.lists(st.integers(0, graph.csc_of(etype).num_edges - 1), max_size=9))
        for etype in ETYPES
        if graph.csc_of(etype).num_edges
    }
    sampler = NeighborSampler(fanouts, replace=replace)
    tensors = {t: torch.tensor(ids, dtype=dtype) for t, ids in seeds.items()}
    batch = sampler.sample(graph, tensors, key)
    check(batch, sample_types(graph, seeds, fanouts, keys(key), replace), graph)
    assert batch.output_nodes == tensors
    for block in batch.blocks if tensors else []:
        assert all(ids.dtype == dtype for ids in block.src_nodes.values())
    without = sampler.sample(
        graph,
        tensors,
        key,
        exclude={
            etype: ExcludedEdges(torch.tensor(p, dtype=torch.int64))
            for etype, p in excluded.items()
        },
    )
    check(without, sample_types(graph, seeds, fanouts, keys(key), replace, excluded), graph)


def test_one_type_is_the_homogeneous_case():
    rng = np.random.default_rng(0)
    graph = Graph.from_coo(rng.integers(0, 50, 400), rng.integers(0, 50, 400), 50)
    seeds = torch.arange(7)
    by_type = NeighborSampler([3, 2]).sample(graph, {"_N": seeds}, 5)
    single = NeighborSampler([3, 2]).sample(graph, seeds, 5)
    for one, other in zip(by_type.blocks, single.blocks, strict=True):
        block = one.only()
        assert torch.equal(block.indices, other.indices) and torch.equal(
            block.src_nodes, other.src_nodes
        )
    csc, hop_keys = graph.csc, [derive_key(5, 0), derive_key(5, 1)]
    expected = plain_sample(csc.indptr.tolist(), csc.indices.tolist(), range(7), [3, 2], hop_keys)
    assert single.input_nodes.tolist() == expected[-1][3]


def test_edge_types_draw_independently():
    """The same edges under two names must not give the same picks."""
    ends = np.arange(40), np.zeros(40, dtype=int)
    csc = csc_of(*ends, 40, 1)
    graph = Graph({("u", "r", "v"): csc, ("u", "s", "v"): csc})
    block = NeighborSampler([10]).sample(graph, {"v": torch.tensor([0])}, 3).blocks[0]
    one, other = (set(block.relations[etype].positions.tolist()) for etype in graph.edge_types)
    assert len(one) == len(other) == 10 and one != other


def test_memory_of_types_is_recycled_and_never_under_a_held_tensor():
    ends = np.arange(40), np.arange(40) % 5
    graph = Graph(
        {("u", "r", "v"): csc_of(*ends, 40, 5), ("v", "s", "u"): csc_of(ends[1], ends[0], 5, 40)}
    )
    pools = BufferPools(2)
    held = NeighborSampler([3, 3]).sample(graph, {"v": torch.arange(5)}, 0, pools=pools)
    copy = {etype: r.indices.clone() for etype, r in held.blocks[0].relations.items()}
    for key in range(1, 30):
        NeighborSampler([3, 3]).sample(graph, {"v": torch.arange(5)}, key, pools=pools)
    assert all(torch.equal(held.blocks[0].relations[etype].indices, c) for etype, c in copy.items())


def test_what_several_types_refuse():
    graph = Graph(
        {("u", "r", "v"): csc_of([0], [0], 1, 1), ("v", "s", "v"): csc_of([0], [0], 1, 1)}
    )
    sampler = NeighborSampler([2])
    with pytest.raises(KeyError, match="w"):
        sampler.sample(graph, {"w": torch.tensor([0])})
    with pytest.raises(IndexError, match=r"seeds\['v'\] must be in \[0, 1\), got 3"):
        sampler.sample(graph, {"v": torch.tensor([3])})
    with pytest.raises(ValueError, match="exactly 1 vertex type"):
        sampler.sample(graph, torch.tensor([0]))
    with pytest.raises(
        ValueError, match="edge_dir must be 'in' for edges between different vertex types"
    ):
        NeighborSampler([2], edge_dir="out").sample(graph, {"u": torch.tensor([0])})
    with pytest.raises(KeyError):
        NeighborSampler([{("u", "r", "v"): 1}]).sample(graph, {"v": torch.tensor([0])})
    with pytest.raises(ValueError, match="got -3"):
        NeighborSampler([{("u", "r", "v"): -3}])
