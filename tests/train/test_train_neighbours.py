"""What a layer adds up over all neighbours, against loops over the edges."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagraph import CSC, Graph
from pagraph.system.spill import spilled
from pagraph.train.evaluate import Neighbours
from pagraph.train.task import whole_norm


@st.composite
def shares(draw):
    """A graph with self-loops, parallel edges and isolated vertices, rows to send, and some of its vertices."""
    n = draw(st.integers(1, 12))
    ends = st.lists(st.integers(0, n - 1), min_size=(m := draw(st.integers(0, 50))), max_size=m)
    begin = draw(st.integers(0, n))
    rows = torch.randn(n, 3, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    return Graph.from_coo(draw(ends), draw(ends), n), rows, slice(begin, draw(st.integers(begin, n)))


def edges(graph):
    return list(zip(graph.csc.indices.tolist(), graph.csc.destinations().tolist(), strict=True))


@settings(max_examples=60)
@given(given_share=shares())
def test_means(given_share):
    graph, rows, share = given_share
    want = torch.ones(graph.num_nodes, 3)
    for v in range(graph.num_nodes):
        received = [rows[src] for src, dst in edges(graph) if dst == v]
        if received:
            want[v] += torch.stack(received).mean(0)
    sent, out = rows.clone(), torch.ones(share.stop - share.start, 3)
    neighbours = Neighbours(graph.csc)
    neighbours.scale(sent, slice(0, graph.num_nodes))
    neighbours.add(sent, share, out)
    assert torch.equal(sent, rows)
    torch.testing.assert_close(out, want[share], rtol=1e-5, atol=1e-5)


@settings(max_examples=60)
@given(given_share=shares(), more=st.integers(0, 3))
def test_gcn_has_one_self_loop_and_makes_up_for_edges_that_are_missing(given_share, more):
    graph, rows, share = given_share
    kept = [(src, dst) for src, dst in edges(graph) if src != dst]
    norm = whole_norm(graph)
    norm[:, 1] = (norm[:, 1] ** 2 + more).sqrt()  # degrees in a graph that had more edges
    want = torch.zeros(graph.num_nodes, 3)
    for v in range(graph.num_nodes):
        sources = [v, *(src for src, dst in kept if dst == v)]
        out_degree = [1 + sum(src == u for src, _ in kept) for u in sources]
        total = sum(rows[u] / degree**0.5 for u, degree in zip(sources, out_degree, strict=True))
        want[v] = total / len(sources) * (len(sources) + more) ** 0.5
    sent, out = rows.clone(), torch.zeros(share.stop - share.start, 3)
    neighbours = Neighbours(graph.csc, norm)
    neighbours.scale(sent, slice(0, graph.num_nodes))
    neighbours.add(sent, share, out)
    torch.testing.assert_close(out, want[share], rtol=1e-4, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(given_share=shares(), normalised=st.booleans(), heads=st.integers(0, 2))
def test_rows_that_do_not_fit_come_to_the_same_bits(given_share, normalised, heads):
    graph, rows, share = given_share
    rows, norm = rows.repeat(1, 2), whole_norm(graph) if normalised else None
    g = torch.Generator().manual_seed(0)
    attention = [torch.randn(heads, 6 // heads, generator=g) for _ in range(2)] if heads else []
    outs = [torch.ones(share.stop - share.start, 6) for _ in range(2)]
    on_file = spilled(rows.shape, rows.dtype)
    on_file.copy_(rows)
    room = (int(graph.in_degrees().max()) + 1) * (24 + 8)
    for sent, out in zip((rows, on_file), outs, strict=True):
        Neighbours(graph.csc, norm).add(sent, share, out, attention, room=room)
    if heads:  # matrix products of other shapes round in other ways
        torch.testing.assert_close(*outs, rtol=1e-5, atol=1e-6)
    else:
        assert torch.equal(*outs)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_graph_of_many_chunks_equals_one_matrix_product(dtype):
    """And is not written to: an int64 array is handed on as it is."""
    n, g = 20_000, torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, n, (2, 100_000), generator=g)
    narrow = Graph.from_coo(src, dst, n).csc
    graph = Graph(CSC(narrow.indptr.to(dtype), narrow.indices.to(dtype), n, narrow.edge_ids))
    before, rows, out = graph.csc.indptr.clone(), torch.randn(n, 4, generator=g), torch.zeros(n, 4)
    Neighbours(graph.csc).add(rows, slice(0, n), out)
    assert torch.equal(graph.csc.indptr, before)
    sums = torch.zeros(n, 4).index_add_(0, dst, rows[src])
    torch.testing.assert_close(out, sums / graph.in_degrees().clamp(min=1)[:, None], rtol=1e-4, atol=1e-5)


def test_ids_outside_the_graph_are_refused():
    graph = Graph.from_coo([0, 1], [1, 2], 3)
    graph.csc.indices[0] = 7
    with pytest.raises(ValueError, match=r"indices must be in \[0, 3\), got .*7"):
        Neighbours(graph.csc)
