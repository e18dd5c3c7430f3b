"""Induced subgraphs, and those of clusters, against a plain reference."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import CSC, Graph
from pagraph.errors import FormatError
from pagraph.sampling import ClusterSampler
from pagraph.sampling.induced import induced_subgraph
from pagraph.sampling.kernels import induced as kernels
from pagraph.system.buffers import BufferPools

pytestmark = pytest.mark.kernels


EDGE = ("_N", "_E", "_N")
TYPES = [("a", "x", "b"), ("b", "y", "b"), ("b", "z", "a")]


@st.composite
def ends(draw, num_src, num_dst):
    """Two lists of ends: self-loops and parallel edges among them, and vertices without any."""
    m = draw(st.integers(0, 60)) if num_src and num_dst else 0
    return tuple(
        draw(st.lists(st.integers(0, max(n - 1, 0)), min_size=m, max_size=m))
        for n in (num_src, num_dst)
    )


def plain_induced(csc, sources, destinations):
    """Places of the ends of all in-edges of ``destinations`` whose source is in ``sources``, and
    the edges' ids."""
    first = {}
    for place, v in enumerate(sources):
        first.setdefault(v, place)
    ids = range(csc.num_edges) if csc.edge_ids is None else csc.edge_ids.tolist()
    found = []
    for place, v in enumerate(destinations):
        for p in range(int(csc.indptr[v]), int(csc.indptr[v + 1])):
            source = int(csc.indices[p])
            if source in first:
                found.append((first[source], place, ids[p]))
    return found


def as_tuples(edges):
    return [
        (*map(int, pair), int(i))
        for pair, i in zip(edges.edge_index.T, edges.edge_ids, strict=True)
    ]


@settings(max_examples=examples(90), deadline=None)
@given(
    st.data(),
    st.integers(1, 12),
    st.sampled_from([torch.int32, torch.int64]),
    st.booleans(),
    st.booleans(),
)
def test_all_edges_among_the_vertices(data, count, dtype, wide, hashed):
    """By the bits of the ids, as in small graphs, and by hashes, as in large ones."""
    with pytest.MonkeyPatch.context() as patch:
        if hashed:
            patch.setattr(kernels, "MOST_DIRECT", 0)
        check_all_edges(data, count, dtype, wide)


def check_all_edges(data, count, dtype, wide):
    graph = Graph.from_coo(*data.draw(ends(count, count)), count)
    if wide:
        csc = graph.csc
        graph = Graph(CSC(csc.indptr.long(), csc.indices.long(), count, csc.edge_ids))
    nodes = data.draw(st.lists(st.integers(0, count - 1), max_size=15))
    for edge_dir in ("in", "out"):
        batch = induced_subgraph(
            graph,
            torch.tensor(nodes, dtype=dtype),
            edge_dir=edge_dir,
            pools=BufferPools(batches=2),
        )
        edges = batch.edges[EDGE]
        assert batch.input_nodes["_N"].tolist() == nodes
        assert batch.hop_ends == {"_N": [len(nodes)]}
        assert edges.edge_index.dtype == dtype
        assert edges.hop_ends == [0]
        assert edges.edge_ids.dtype == torch.int64
        assert as_tuples(edges) == plain_induced(graph.adjacency(edge_dir), nodes, nodes)
        turned = induced_subgraph(
            graph, torch.tensor(nodes, dtype=dtype), edge_dir=edge_dir, turned=True
        ).edges[EDGE]
        assert torch.equal(turned.edge_index, edges.edge_index.flip(0))
        assert torch.equal(turned.edge_ids, edges.edge_ids)


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_several_types(data):
    counts = {t: data.draw(st.integers(0, 8)) for t in "ab"}
    graph = Graph(
        {
            e: CSC.from_coo(
                *data.draw(ends(counts[e[0]], counts[e[2]])), (counts[e[0]], counts[e[2]])
            )
            for e in TYPES
        },
        counts,
    )
    nodes = {
        t: data.draw(st.lists(st.integers(0, n - 1), max_size=9)) for t, n in counts.items() if n
    }
    ids = {t: torch.tensor(ids, dtype=torch.int64) for t, ids in nodes.items()}
    batch, turned = induced_subgraph(graph, ids), induced_subgraph(graph, ids, edge_dir="out")
    for etype in TYPES:
        sources, destinations = nodes.get(etype[0], []), nodes.get(etype[2], [])
        assert as_tuples(batch.edges[etype]) == plain_induced(
            graph.csc_of(etype), sources, destinations
        )
        assert as_tuples(turned.edges[etype]) == plain_induced(
            graph.out_csc_of(etype), destinations, sources
        )
    assert {t: ids.tolist() for t, ids in batch.input_nodes.items()} == {
        t: nodes.get(t, []) for t in "ab"
    }


@pytest.mark.many
@pytest.mark.parametrize("most_direct", [kernels.MOST_DIRECT, 0])
def test_rows_of_several_chunks_and_more_edges_than_there_was_room_for(monkeypatch, most_direct):
    """A hub's row is looked at 64 edges at a time; room for the edges found is doubled as they are
    found."""
    monkeypatch.setattr(kernels, "MOST_DIRECT", most_direct)
    rng = np.random.default_rng(0)
    many = rng.integers(0, 400, 90_000)
    graph = Graph.from_coo(
        many, np.where(rng.random(90_000) < 0.1, 7, rng.integers(0, 400, 90_000)), 400
    )
    nodes = rng.permutation(400)[:390]
    for _ in range(2):  # the second time there is room
        edges = induced_subgraph(graph, torch.from_numpy(nodes)).edges[EDGE]
        assert len(edges.edge_ids) > 2**16
        assert as_tuples(edges) == plain_induced(graph.csc, nodes.tolist(), nodes.tolist())


def test_vertices_that_share_the_bit_of_a_hash(monkeypatch):
    """Of 40,000 vertices some have the same bit, and others that are not among them have it,
    too."""
    monkeypatch.setattr(kernels, "MOST_DIRECT", 0)
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 100_000, (2, 300_000))
    graph, nodes = Graph.from_coo(*ends, 100_000), rng.permutation(100_000)[:40_000]
    edges = induced_subgraph(graph, torch.from_numpy(nodes)).edges[EDGE]
    place = np.full(100_000, -1)
    place[nodes] = np.arange(len(nodes))
    among = np.flatnonzero((place[ends] >= 0).all(axis=0))
    ids = edges.edge_ids.numpy()
    assert np.array_equal(np.sort(ids), among)
    assert np.array_equal(edges.edge_index.numpy(), place[ends[:, ids]])
    assert (np.diff(edges.edge_index[1]) >= 0).all()


@pytest.mark.parametrize("place", [0, 1500, 2999])
@pytest.mark.parametrize("source", [-1, 3000])
def test_a_source_outside_the_graph(place, source):
    sources = torch.arange(3000)
    sources[place] = source
    graph = Graph(CSC(torch.tensor([0, *[3000] * 3000]), sources, 3000))
    with pytest.raises(FormatError, match=rf"indices must be in \[0, 3000\), got {source}"):
        induced_subgraph(graph, torch.tensor([5, 0]))
    # The thread's scratch is as it was: the next batch has no vertices of this one.
    sound = Graph.from_coo(torch.arange(2999), torch.arange(1, 3000), 3000)
    assert induced_subgraph(sound, torch.tensor([7, 6])).edges[EDGE].edge_index.tolist() == [
        [1],
        [0],
    ]


def test_a_vertex_outside_the_graph():
    with pytest.raises(IndexError, match=r"seeds must be in \[0, 2\), got 2"):
        induced_subgraph(Graph.from_coo([0], [1]), torch.tensor([2]))


@settings(max_examples=examples(40), deadline=None)
@given(st.data(), st.integers(1, 10), st.booleans())
def test_clusters_are_their_vertices(data, count, ordered):
    graph = Graph.from_coo(*data.draw(ends(count, count)), count)
    cluster = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)))
    bounds = torch.nn.functional.pad(torch.bincount(cluster, minlength=4).cumsum(0), (1, 0))
    nodes = torch.arange(count) if ordered else torch.argsort(cluster, stable=True)
    sampler = ClusterSampler(bounds, None if ordered else nodes)
    seeds = data.draw(st.permutations(range(4)))[: data.draw(st.integers(0, 4))]
    batch = sampler.sample(graph, torch.tensor(seeds, dtype=torch.int64), dtype=torch.int32)
    expected = [int(v) for c in seeds for v in nodes[bounds[c] : bounds[c + 1]]]
    assert batch.input_nodes["_N"].tolist() == expected
    assert batch.input_nodes["_N"].dtype == torch.int32
    assert as_tuples(batch.edges[EDGE]) == plain_induced(graph.csc, expected, expected)
    assert sampler.num_clusters == 4


@pytest.mark.parametrize(
    ("bounds", "nodes", "message"),
    [
        ([1, 2], None, "bounds must begin with 0"),
        ([], None, "bounds must begin with 0"),
        ([0, 2, 1], None, "never decrease"),
        ([0, 1], [0, 1], "bounds must end with the number of nodes 2, got 1"),
    ],
)
def test_clusters_that_are_none(bounds, nodes, message):
    with pytest.raises(ValueError, match=message):
        ClusterSampler(
            torch.tensor(bounds, dtype=torch.int64), None if nodes is None else torch.tensor(nodes)
        )


def test_numbers_and_directions_that_are_none():
    sampler = ClusterSampler(torch.tensor([0, 2]))
    with pytest.raises(IndexError, match=r"seeds must be in \[0, 1\), got 1"):
        sampler.sample(Graph.from_coo([0], [1]), torch.tensor([1]))
    with pytest.raises(TypeError, match="bounds must hold integers"):
        ClusterSampler(torch.tensor([0.0, 2.0]))
    with pytest.raises(ValueError, match="edge_dir must be 'in' or 'out', got 'both'"):
        ClusterSampler(torch.tensor([0, 2]), edge_dir="both")


def test_a_vertex_that_is_not_there_is_told_before_ids_are_narrowed():
    sampler = ClusterSampler([0, 1], nodes=torch.tensor([2**32 + 1]))
    with pytest.raises(IndexError, match="nodes must be in"):
        sampler.sample(Graph.from_coo([0], [1]), torch.tensor([0], dtype=torch.int32))
