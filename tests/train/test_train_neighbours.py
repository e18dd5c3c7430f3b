"""A layer over all neighbours, against loops over the edges."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import CSC, Graph
from pagraph.datasets import write_graph
from pagraph.graph import csc_pages
from pagraph.train import _neighbor_rows, layer_pass
from pagraph.train.layer_pass import LayerPass, Rows, needed_vertices
from pagraph.train.task import whole_norm


class Bare:
    """A layer without weights: a vertex keeps 1 and sends its row."""

    def __init__(self, width, attention=()):
        self.sizes, self._attention = [width, width], attention

    def kept(self, i, x):
        return torch.ones_like(x)

    def sent(self, i, x):
        return x

    def attention(self, i):
        return self._attention


def received(graph, rows, targets, norm=None, attention=(), **more):
    layer = LayerPass(graph.csc, Bare(rows.shape[1], attention), norm, **more)
    return layer.rows(0, Rows([rows], lambda some: some), targets)


@st.composite
def cases(draw):
    """A graph with self-loops, parallel edges and isolated vertices, rows to send, and some of its
    vertices."""
    n = draw(st.integers(1, 12))
    ends = st.lists(st.integers(0, n - 1), min_size=(m := draw(st.integers(0, 50))), max_size=m)
    rows = torch.randn(n, 6, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    ids = torch.tensor(sorted(draw(st.sets(st.integers(0, n - 1)))), dtype=torch.int64)
    begin = draw(st.integers(0, n))
    targets = draw(st.sampled_from([ids, slice(begin, draw(st.integers(begin, n))), slice(0, n)]))
    return Graph.from_coo(draw(ends), draw(ends), n), rows, targets


@pytest.fixture(params=["at once", "block by block"], scope="module")
def room(request):
    """Bytes for rows: all fit, or two at a time of sources and of sums."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "at once":
            patch.setattr(layer_pass, "_LEAST_ROWS", 2)
        yield 2**40 if request.param == "at once" else 1


def edges(graph):
    return list(zip(graph.csc.indices.tolist(), graph.csc.destinations().tolist(), strict=True))


class TestSums:
    @settings(max_examples=examples(60))
    @given(case=cases())
    def test_means(self, room, case):
        graph, rows, targets = case
        want = torch.ones(graph.num_nodes, 6)
        for v in range(graph.num_nodes):
            sources = [rows[src] for src, dst in edges(graph) if dst == v]
            if sources:
                want[v] += torch.stack(sources).mean(0)
        got = received(graph, rows, targets, room=room)
        torch.testing.assert_close(got, want[targets], rtol=1e-5, atol=1e-5)

    @settings(max_examples=examples(60))
    @given(case=cases(), more=st.integers(0, 3))
    def test_gcn_has_one_self_loop_and_makes_up_for_edges_that_are_missing(self, room, case, more):
        graph, rows, targets = case
        kept = [(src, dst) for src, dst in edges(graph) if src != dst]
        norm = whole_norm(graph)
        norm[:, 1] = (norm[:, 1] ** 2 + more).sqrt()  # degrees in a graph that had more edges
        want = torch.ones(graph.num_nodes, 6)
        for v in range(graph.num_nodes):
            sources = [v, *(src for src, dst in kept if dst == v)]
            out_degree = [1 + sum(src == u for src, _ in kept) for u in sources]
            total = sum(
                rows[u] / degree**0.5 for u, degree in zip(sources, out_degree, strict=True)
            )
            want[v] += total / len(sources) * (len(sources) + more) ** 0.5
        got = received(graph, rows, targets, norm, room=room)
        torch.testing.assert_close(got, want[targets], rtol=1e-4, atol=1e-5)

    @settings(max_examples=examples(60))
    @given(case=cases(), heads=st.integers(1, 3), scale=st.sampled_from([1.0, 50.0]))
    def test_attention_to_neighbours_and_itself_once(self, room, case, heads, scale):
        graph, rows, targets = case
        vectors = scale * torch.randn(
            2, heads, 6 // heads, generator=torch.Generator().manual_seed(0)
        )
        want = torch.ones(graph.num_nodes, 6)
        for v in range(graph.num_nodes):
            sources = [v, *(src for src, dst in edges(graph) if dst == v and src != v)]
            for h in range(heads):
                part = slice(h * (6 // heads), (h + 1) * (6 // heads))
                scores = torch.stack(
                    [rows[u, part] @ vectors[0, h] + rows[v, part] @ vectors[1, h] for u in sources]
                )
                weights = torch.nn.functional.leaky_relu(scores, 0.2).softmax(0)
                want[v, part] += weights @ rows[sources][:, part]
        got = received(graph, rows, targets, attention=tuple(vectors), room=room)
        torch.testing.assert_close(got, want[targets], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_graph_of_many_chunks_equals_one_matrix_product(dtype):
    """And is not written to: an int64 array is handed on as it is."""
    n, g = 20_000, torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, n, (2, 100_000), generator=g)
    narrow = Graph.from_coo(src, dst, n).csc
    graph = Graph(CSC(narrow.indptr.to(dtype), narrow.indices.to(dtype), n, narrow.edge_ids))
    before, rows = graph.csc.indptr.clone(), torch.randn(n, 4, generator=g)
    sums = torch.zeros(n, 4).index_add_(0, dst, rows[src])
    want = 1 + sums / graph.in_degrees().clamp(min=1)[:, None]
    for targets, room in (
        (slice(0, n), 2**40),
        (slice(0, n), 1 << 18),
        (torch.arange(0, n, 3), 1 << 16),
    ):
        got = received(graph, rows, targets, room=room)
        torch.testing.assert_close(got, want[targets], rtol=1e-4, atol=1e-5)
    assert torch.equal(graph.csc.indptr, before)


def test_edges_on_disk_come_to_the_same_bits(tmp_path, monkeypatch):
    """Of vertices far apart only their pages are asked for, some vertices' together."""
    g = torch.Generator().manual_seed(0)
    graph = Graph.from_coo(*torch.randint(0, 5000, (2, 40_000), generator=g), 5000)
    write_graph(graph, tmp_path / "graph")
    rows, targets = torch.randn(5000, 6, generator=g), torch.arange(3, 5000, 97)
    want, asked = received(graph, rows, targets), []
    monkeypatch.setattr(csc_pages, "LEAST_BYTES", 1)
    monkeypatch.setattr(layer_pass, "_RUN_BYTES", 400)
    need = csc_pages.CSCPages.need_edges
    monkeypatch.setattr(
        csc_pages.CSCPages,
        "need_edges",
        lambda *arguments: (asked.extend(arguments[1]), need(*arguments)),
    )
    opened = Graph.open(tmp_path / "graph")
    assert torch.equal(received(opened, rows, targets), want)
    starts = graph.csc.indptr[targets].tolist()
    assert asked == 3 * starts  # to mark sources, and to add them up in two blocks
    assert [s.tolist() for s in needed_vertices(opened.csc, targets, 2)] == [
        s.tolist() for s in needed_vertices(graph.csc, targets, 2)
    ]


@settings(max_examples=examples(60))
@given(case=cases(), hops=st.integers(1, 3))
def test_what_outputs_need(case, hops):
    graph, _, targets = case
    ids = torch.arange(graph.num_nodes)[targets]
    want = [set(ids.tolist())]
    for _ in range(hops - 1):
        want.insert(0, want[0] | {src for src, dst in edges(graph) if dst in want[0]})
    entries = sum(dst in some for some in want for _, dst in edges(graph))
    got = needed_vertices(graph.csc, ids, hops)
    if 2 * entries > hops * graph.num_edges:
        assert got is None
    else:
        assert [some.tolist() for some in got] == [sorted(some) for some in want]


@settings(max_examples=examples(60))
@given(
    marked=st.lists(st.booleans(), min_size=1, max_size=30),
    places=st.integers(1, 9),
    most=st.integers(1, 9),
)
def test_marked_vertices_are_taken_once_and_numbered(marked, places, most):
    mask, end, taken = torch.tensor(marked).numpy(), 0, []
    while end < len(marked):
        begin, place, found = (
            end,
            torch.full((places,), -1).numpy(),
            torch.zeros(most, dtype=torch.int64).numpy(),
        )
        end, count = _neighbor_rows.take_marked(mask, begin, place, found)
        assert begin < end <= begin + places or count == most
        assert [place[v - begin] for v in found[:count]] == list(range(count))
        taken += found[:count].tolist()
    assert taken == [v for v, one in enumerate(marked) if one]


def test_scores_that_differ_much_do_not_overflow():
    graph = Graph.from_coo([1, 2], [0, 0], 3)
    rows, one = torch.tensor([[-500.0], [500.0], [400.0]]), torch.ones(1, 1)
    assert received(graph, rows, slice(0, 1), attention=(one, 0 * one)).tolist() == [[501.0]]
    assert math.isfinite(float(received(graph, -rows, slice(0, 1), attention=(one, 0 * one))))


def test_ids_outside_the_graph_are_refused():
    graph = Graph.from_coo([0, 1], [1, 2], 3)
    graph.csc.indices[0] = 7
    with pytest.raises(ValueError, match=r"indices must be in \[0, 3\), got .*7"):
        LayerPass(graph.csc, Bare(1))
