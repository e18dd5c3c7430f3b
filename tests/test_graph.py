"""Graph and CSC against scipy, networkx and plain Python."""

import copy
import pickle
import re

import networkx
import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import CSC, FormatError, Graph
from pagraph.graph import csc as csc_module
from pagraph.graph.graph import EDGE_TYPE, id_dtype

COUNTS = st.integers(min_value=1, max_value=12)


@st.composite
def edge_lists(draw):
    """(number of vertices, sources, destinations): loops, parallel edges and isolated vertices
    included."""
    num_nodes = draw(COUNTS)
    ids = st.integers(min_value=0, max_value=num_nodes - 1)
    ends = draw(st.lists(st.tuples(ids, ids), max_size=40))
    return num_nodes, [u for u, _ in ends], [v for _, v in ends]


def edges_of(csc: CSC) -> list[tuple[int, int, int]]:
    """(edge id, source, destination) of every edge, by id."""
    ids = range(csc.num_edges) if csc.edge_ids is None else csc.edge_ids.tolist()
    found = []
    for v in range(csc.num_dst):
        for position in range(int(csc.indptr[v]), int(csc.indptr[v + 1])):
            found.append((ids[position], int(csc.indices[position]), v))
    return sorted(found)


@pytest.fixture(params=[csc_module.FEW_EDGES, -1], ids=["torch", "kernels"], scope="module")
def few_edges(request):
    """As many edges as tests have are sorted by torch, else by kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csc_module, "FEW_EDGES", request.param)
        yield


@pytest.mark.usefixtures("few_edges")
class TestFromCoo:
    @settings(max_examples=examples(200), deadline=None)
    @given(edge_lists())
    def test_keeps_every_edge_with_its_id(self, case):
        num_nodes, src, dst = case
        graph = Graph.from_coo(src, dst, num_nodes)
        assert edges_of(graph.csc) == [
            (i, u, v) for i, (u, v) in enumerate(zip(src, dst, strict=True))
        ]
        assert graph.csc.destinations().tolist() == [
            v for _, _, v in sorted(edges_of(graph.csc), key=lambda e: e[2])
        ]
        assert graph.in_degrees().tolist() == [dst.count(v) for v in range(num_nodes)]
        assert graph.out_degrees().tolist() == [src.count(v) for v in range(num_nodes)]

    @settings(max_examples=examples(100), deadline=None)
    @given(edge_lists())
    def test_equals_scipy(self, case):
        num_nodes, src, dst = case
        graph = Graph.from_coo(src, dst, num_nodes)
        want = scipy.sparse.coo_matrix(
            (np.ones(len(src)), (src, dst)), (num_nodes, num_nodes)
        ).toarray()
        csc = graph.csc
        shape = (num_nodes, num_nodes)
        got = scipy.sparse.csc_matrix(
            (np.ones(len(src)), csc.indices.numpy(), csc.indptr.numpy()), shape
        )
        assert (got.toarray() == want).all()

    @settings(max_examples=examples(100), deadline=None)
    @given(edge_lists())
    def test_order_within_a_destination_is_that_of_the_input(self, case):
        num_nodes, src, dst = case
        csc = Graph.from_coo(src, dst, num_nodes).csc
        for v in range(num_nodes):
            want = [u for u, w in zip(src, dst, strict=True) if w == v]
            assert csc.indices[csc.indptr[v] : csc.indptr[v + 1]].tolist() == want

    def test_sorted_input_needs_no_edge_ids(self):
        assert Graph.from_coo([3, 0, 2], [0, 1, 1]).csc.edge_ids is None
        assert Graph.from_coo([3, 0, 2], [1, 0, 1]).csc.edge_ids.tolist() == [1, 0, 2]

    def test_counts_vertices_by_the_largest_id(self):
        assert Graph.from_coo([0, 7], [1, 1]).num_nodes == 8
        assert Graph.from_coo([], []).num_nodes == 0
        assert Graph.from_coo([0], [0], 5).num_nodes == 5

    @pytest.mark.parametrize(
        "ids",
        [
            [0, 2, 1],
            np.array([0, 2, 1], dtype=np.uint8),
            np.array([0, 2, 1], dtype=np.uint64),
            np.array([0, 9, 2, 9, 1])[::2],
            torch.tensor([0, 2, 1], dtype=torch.int16),
            torch.tensor([0, 2, 1], dtype=torch.int64),
        ],
    )
    def test_takes_any_integers(self, ids):
        graph = Graph.from_coo(ids, ids)
        assert graph.csc.indices.tolist() == [0, 1, 2]
        assert graph.csc.indices.dtype == torch.int32

    def test_takes_arrays_that_cannot_be_written(self):
        ids = np.array([0, 1, 1])
        ids.flags.writeable = False
        assert Graph.from_coo(ids, ids).num_edges == 3

    def test_leaves_its_input_alone(self):
        src, dst = torch.tensor([2, 0, 1]), torch.tensor([1, 1, 0])
        Graph.from_coo(src, dst)
        assert (src.tolist(), dst.tolist()) == ([2, 0, 1], [1, 1, 0])

    @pytest.mark.parametrize(
        ("src", "dst", "num_nodes", "error", "message"),
        [
            ([0, 1], [0], None, ValueError, "src and dst must have the same length, got 2 and 1"),
            ([0, 5], [0, 1], 3, ValueError, r"src must be in \[0, 3\), got 5"),
            ([10**30], [0], None, ValueError, f"src must fit into 64 bits, got {10**30}"),
            (
                [0],
                np.uint64([2**64 - 1]),
                None,
                ValueError,
                "dst must fit .* got 18446744073709551",
            ),
            ([0], [0], 10**30, ValueError, f"num_nodes must fit into 64 bits, got {10**30}"),
            ([0, 1], [0, -2], 3, ValueError, r"dst must be in \[0, 3\), got -2"),
            ([0.5], [0], None, TypeError, "src must hold integers, got float64"),
            ([0, [1, 2]], [0], None, TypeError, "src must hold integers, got a list: "),
            (
                [torch.ones(1, requires_grad=True)],
                [0],
                None,
                TypeError,
                "src must hold integers, got a list: ",
            ),
            ([0], torch.tensor([True]), None, TypeError, "dst must hold integers, got torch.bool"),
            ([[0]], [[0]], None, ValueError, r"src must be 1-D, got shape \(1, 1\)"),
            ([], [], -1, ValueError, "num_nodes must be at least 0, got -1"),
        ],
    )
    def test_refuses(self, src, dst, num_nodes, error, message):
        with pytest.raises(error, match=message):
            Graph.from_coo(src, dst, num_nodes)


class TestFromOthers:
    @settings(max_examples=examples(100), deadline=None)
    @given(edge_lists(), st.sampled_from(["coo", "csr", "csc"]))
    def test_scipy_edge_ids_follow_tocoo(self, case, form):
        num_nodes, src, dst = case
        matrix = scipy.sparse.coo_matrix(
            (np.ones(len(src)), (src, dst)), (num_nodes, num_nodes)
        ).asformat(form)
        coo = matrix.tocoo()
        graph = Graph.from_scipy(matrix)
        assert edges_of(graph.csc) == list(
            zip(range(coo.nnz), coo.row.tolist(), coo.col.tolist(), strict=True)
        )

    def test_scipy_keeps_explicit_zeros_and_fields(self):
        matrix = scipy.sparse.csr_matrix(([0, 1], ([0, 1], [1, 0])), (2, 2))
        graph = Graph.from_scipy(matrix, ndata={"x": [1.0, 2.0]}, weight="w")
        assert graph.num_edges == 2
        assert graph.ndata["x"].tolist() == [1.0, 2.0]
        assert graph.edata["w"].tolist() == [0, 1]
        assert not Graph.from_scipy(matrix).edata

    def test_scipy_must_be_square(self):
        with pytest.raises(ValueError, match=r"matrix must be square, got shape \(2, 3\)"):
            Graph.from_scipy(scipy.sparse.csr_matrix((2, 3)))

    @settings(max_examples=examples(50), deadline=None)
    @given(edge_lists())
    def test_networkx_directed(self, case):
        num_nodes, src, dst = case
        source = networkx.MultiDiGraph()
        source.add_nodes_from(f"v{i}" for i in range(num_nodes))
        source.add_edges_from((f"v{u}", f"v{v}") for u, v in zip(src, dst, strict=True))
        graph = Graph.from_networkx(source)
        ends = [(int(u[1:]), int(v[1:])) for u, v in source.edges()]
        assert [e[1:] for e in edges_of(graph.csc)] == ends
        assert sorted(ends) == sorted(zip(src, dst, strict=True))

    @settings(max_examples=examples(50), deadline=None)
    @given(edge_lists())
    def test_networkx_undirected_has_both_directions(self, case):
        num_nodes, src, dst = case
        source = networkx.Graph()
        source.add_nodes_from(range(num_nodes))
        source.add_edges_from(zip(src, dst, strict=True))
        csc = Graph.from_networkx(source).csc
        matrix = networkx.to_numpy_array(source)
        got = np.zeros_like(matrix)
        for _, u, v in edges_of(csc):
            got[u, v] += 1
        assert (got == matrix).all()

    @pytest.mark.parametrize("kind", [networkx.Graph, networkx.DiGraph, networkx.MultiDiGraph])
    def test_networkx_attributes_that_are_numbers(self, kind, caplog):
        source = kind()
        source.add_node("b", age=3, tall=True, size=np.float32(0.5), town="x", some=1)
        source.add_node("a", age=2**60 + 1, tall=False, size=np.float32(1.5), town="y")
        source.add_node("c", age=5, tall=True, size=np.float32(2), town="z", wide=2**64)
        source.add_edge("b", "a", weight=1.5, time=1600000001, mixed=2**53 + 1, kind="m")
        source.add_edge("c", "c", weight=2, time=1600000002, mixed=0.5, kind="n")
        source.add_edge("a", "c", weight=0.1, time=1600000003, mixed=1, kind="n")
        given = torch.tensor([7, 8, 9])
        with caplog.at_level("WARNING"):
            graph = Graph.from_networkx(source, ndata={"tall": given})
        assert len(caplog.records) == 1
        left = ", ".join(f"vertex attribute '{name}'" for name in ("town", "some", "wide"))
        left += "".join(f", edge attribute '{name}'" for name in ("mixed", "kind"))
        assert caplog.records[0].getMessage().endswith(f"no number for them: {left}")
        assert set(graph.ndata) == {"age", "size", "tall"} and set(graph.edata) == {
            "weight",
            "time",
        }
        assert graph.ndata["age"].tolist() == [3, 2**60 + 1, 5]
        assert graph.ndata["size"].dtype == torch.float32 and graph.ndata["tall"].equal(given)
        csc, index = graph.csc, list(source)
        for e, u, v in edges_of(csc):
            data = source.get_edge_data(index[u], index[v])
            data = data[0] if source.is_multigraph() else data
            assert (graph.edata["weight"][e], graph.edata["time"][e]) == (
                data["weight"],
                data["time"],
            )
        assert graph.num_edges == 3 + 2 * (kind is networkx.Graph)

    def test_networkx_without_attributes_warns_of_nothing(self, caplog):
        graph = Graph.from_networkx(networkx.path_graph(3))
        assert not caplog.records and not graph.ndata and not graph.edata

    def test_networkx_empty(self):
        assert Graph.from_networkx(networkx.Graph()).num_nodes == 0


class TestFromDgl:
    @pytest.fixture(autouse=True)
    def dgl(self):
        pytest.importorskip("pagraph.dgl")
        import dgl

        return dgl

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    @pytest.mark.parametrize("formats", ["coo", "csc", "csr"])
    def test_edges_ids_and_fields(self, dgl, dtype, formats):
        torch.manual_seed(0)
        src, dst = (
            torch.randint(0, 30, (200,), dtype=dtype),
            torch.randint(0, 30, (200,), dtype=dtype),
        )
        source = dgl.graph((src, dst), num_nodes=31)
        source.ndata["feat"] = torch.randn(31, 3)
        source.edata["w"] = torch.arange(200)
        graph = Graph.from_dgl(source.formats(formats))
        assert edges_of(graph.csc) == list(zip(range(200), src.tolist(), dst.tolist(), strict=True))
        assert graph.csc.indices.dtype == torch.int32
        assert graph.ndata["feat"].data_ptr() == source.ndata["feat"].data_ptr()
        assert graph.edata["w"].tolist() == list(range(200))

    def test_agrees_with_in_edges(self, dgl):
        source = dgl.rand_graph(40, 300)
        csc = Graph.from_dgl(source).csc
        for v in range(40):
            begin, end = int(csc.indptr[v]), int(csc.indptr[v + 1])
            src, _, ids = source.in_edges(v, form="all")
            mine = range(begin, end) if csc.edge_ids is None else csc.edge_ids[begin:end].tolist()
            assert sorted(zip(mine, csc.indices[begin:end].tolist(), strict=True)) == sorted(
                zip(ids.tolist(), src.tolist(), strict=True)
            )

    def test_several_types(self, dgl):
        source = dgl.heterograph(
            {
                ("author", "writes", "paper"): ([0, 1, 1], [0, 0, 1]),
                ("paper", "cites", "paper"): ([0], [1]),
            },
            num_nodes_dict={"author": 2, "paper": 3},
        )
        source.nodes["paper"].data["feat"] = torch.ones(3, 2)
        source.edges["writes"].data["w"] = torch.arange(3)
        graph = Graph.from_dgl(source)
        assert graph.edge_types == source.canonical_etypes
        assert not graph.is_homogeneous
        assert edges_of(graph.csc_of(("author", "writes", "paper"))) == [
            (0, 0, 0),
            (1, 1, 0),
            (2, 1, 1),
        ]
        assert graph.node_fields("paper")["feat"].shape == (3, 2)
        assert graph.edge_fields(("author", "writes", "paper"))["w"].tolist() == [0, 1, 2]

    def test_refuses_a_block(self, dgl):
        block = dgl.to_block(dgl.graph(([0], [1])), torch.tensor([1]))
        with pytest.raises(ValueError, match="graph must be a whole graph, got a block"):
            Graph.from_dgl(block)


class TestTurning:
    @settings(max_examples=examples(200), deadline=None)
    @given(edge_lists())
    def test_transpose_swaps_the_ends(self, case):
        num_nodes, src, dst = case
        csc = Graph.from_coo(src, dst, num_nodes).csc
        turned = csc.transpose()
        turned.validate()
        assert edges_of(turned) == [(i, v, u) for i, u, v in edges_of(csc)]
        assert edges_of(turned.transpose()) == edges_of(csc)

    def test_reverse_keeps_fields(self):
        graph = Graph.from_coo([0, 1, 1], [2, 0, 2], ndata={"x": [1, 2, 3]}, edata={"w": [5, 6, 7]})
        turned = graph.reverse()
        assert edges_of(turned.csc) == [(0, 2, 0), (1, 0, 1), (2, 2, 1)]
        assert turned.ndata["x"].tolist() == [1, 2, 3]
        assert turned.edata["w"].tolist() == [5, 6, 7]

    def test_adjacency(self):
        graph = Graph.from_coo([0, 0, 1], [1, 2, 2])
        assert graph.adjacency("in") is graph.csc
        assert graph.adjacency("out").indptr.tolist() == [0, 2, 3, 3]
        assert graph.adjacency("out") is graph.adjacency("out")


class TestIds:
    @pytest.mark.parametrize(
        ("num_nodes", "num_edges", "want"),
        [
            (0, 0, torch.int32),
            (2**31 - 1, 0, torch.int32),
            (2**31, 0, torch.int64),
            (5, 2**31 - 1, torch.int32),
            (5, 2**31, torch.int64),
        ],
    )
    def test_int32_wherever_they_fit(self, num_nodes, num_edges, want):
        assert id_dtype(num_nodes, num_edges) == want

    def test_int64_arrays_are_kept_as_given(self):
        csc = CSC(torch.tensor([0, 1]), torch.tensor([0]), 1)
        assert Graph(csc).csc.indices.dtype == torch.int64


class TestCscChecks:
    @pytest.mark.parametrize(
        ("indptr", "indices", "edge_ids", "error", "message"),
        [
            (
                [0, 1],
                [0.0],
                None,
                TypeError,
                "indices must be an int32 or int64 tensor, got torch.float32",
            ),
            ([[0, 1]], [0], None, ValueError, r"indptr must be 1-D, got shape \(1, 2\)"),
            ([], [], None, ValueError, "indptr must have at least 1 element, got 0"),
            (
                [0, 2],
                [0],
                None,
                ValueError,
                "indptr must run from 0 to the number of edges 1, got 0 to 2",
            ),
            (
                [1, 1],
                [0],
                None,
                ValueError,
                "indptr must run from 0 to the number of edges 1, got 1 to 1",
            ),
            (
                [0, 1],
                [0],
                [0, 1],
                ValueError,
                r"edge_ids must have one entry per edge \(1\), got 2",
            ),
        ],
    )
    def test_refuses(self, indptr, indices, edge_ids, error, message):
        def tensor(values):
            is_float = bool(values) and isinstance(values[0], float)
            return torch.tensor(values, dtype=torch.float32 if is_float else torch.int64)

        ids = None if edge_ids is None else tensor(edge_ids)
        with pytest.raises(error, match=message):
            CSC(tensor(indptr), tensor(indices), 1, ids)

    def test_refuses_mixed_dtypes(self):
        with pytest.raises(
            TypeError, match="indices must have indptr's dtype torch.int64, got torch.int32"
        ):
            CSC(torch.tensor([0, 1]), torch.tensor([0], dtype=torch.int32), 1)

    def test_validate_reads_every_id(self):
        with pytest.raises(ValueError, match="indptr must be non-decreasing"):
            CSC(torch.tensor([0, 2, 1, 2]), torch.tensor([0, 0]), 3).validate()
        with pytest.raises(ValueError, match=r"indices must be in \[0, 3\), got 3"):
            CSC(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 3]), 3).validate()

    @pytest.mark.parametrize(
        "use",
        [
            CSC.transpose,
            CSC.destinations,
            lambda csc: csc.source_counts,
            lambda csc: csc.loop_counts,
        ],
    )
    def test_what_indexes_by_id_checks_the_ids_before(self, use):
        far = 2**30
        for indptr, indices in (
            ([0, 1, 1, 2], [0, far]),
            ([0, 1, 1, 2], [-far, 0]),
            ([0, far, 1, 2], [0, 0]),
        ):
            csc = CSC(torch.tensor(indptr), torch.tensor(indices), 3)
            for _ in range(2):
                with pytest.raises(
                    ValueError, match="indices must be in|indptr must be non-decreasing"
                ):
                    use(csc)

    @pytest.mark.parametrize(
        "use", [lambda csc: csc.positions_of(torch.tensor([1])), CSC.ends_by_id, CSC.places]
    )
    def test_what_looks_edges_up_by_id_has_one_of_each(self, use):
        for ids, message in (
            ([0, 0], "edge_ids must be distinct, got one of them twice and none equal to 1"),
            ([0, 2], r"edge_ids must be in \[0, 2\), got 2"),
            ([-1, 0], r"edge_ids must be in \[0, 2\), got -1"),
        ):
            csc = CSC(torch.tensor([0, 1, 2]), torch.tensor([1, 0]), 2, torch.tensor(ids))
            for _ in range(2):
                with pytest.raises(ValueError, match=message):
                    use(csc)

    def test_ends_by_id(self):
        csc = CSC(torch.tensor([0, 1, 3]), torch.tensor([1, 0, 1]), 2, torch.tensor([2, 0, 1]))
        assert csc.ends_by_id().tolist() == [[0, 1, 1], [1, 1, 0]]
        assert CSC.from_coo([0, 1], [0, 1]).ends_by_id().tolist() == [[0, 1], [0, 1]]

    def test_a_copy_is_checked_itself(self):
        csc = CSC(torch.tensor([0, 1, 2]), torch.tensor([1, 0]), 2)
        csc.validate()
        made = csc.copy(torch.int64)
        csc.indices[0] = 2
        assert made.indices.tolist() == [1, 0]
        with pytest.raises(ValueError, match=r"indices must be in \[0, 2\), got 2"):
            csc.copy()

    def test_self_loops_are_counted_by_vertex(self):
        csc = CSC.from_coo([0, 2, 2, 1, 3], [1, 2, 2, 0, 3], 5)
        assert csc.loop_counts.tolist() == [0, 0, 2, 1, 0]
        assert CSC.from_coo([], [], 0).loop_counts.tolist() == []


class TestFields:
    @pytest.fixture
    def graph(self):
        return Graph.from_coo([0, 1, 1], [1, 2, 2])

    def test_set_and_get(self, graph):
        graph.set_field("x", np.ones((3, 2), dtype=np.float16))
        graph.set_field("w", [1, 2, 3], edge_type=EDGE_TYPE)
        assert graph.ndata["x"].dtype == torch.float16
        assert graph.edata["w"].tolist() == [1, 2, 3]

    @pytest.mark.parametrize(
        ("value", "got"), [([1, 2], "2"), (5, "a scalar"), (torch.ones(4, 3), "4")]
    )
    def test_wrong_number_of_rows(self, graph, value, got):
        with pytest.raises(
            ValueError, match=rf"field 'x' must have one row per vertex \(3\), got {got}"
        ):
            graph.set_field("x", value)

    def test_wrong_number_of_edge_rows(self, graph):
        with pytest.raises(ValueError, match=r"field 'w' must have one row per edge \(3\), got 2"):
            graph.set_field("w", [1, 2], edge_type=EDGE_TYPE)

    def test_takes_arrays_that_cannot_be_written(self, graph):
        values = np.arange(3)
        values.flags.writeable = False
        graph.set_field("x", values)
        assert graph.ndata["x"].tolist() == [0, 1, 2]


class TestSeveralTypes:
    @pytest.fixture
    def graph(self):
        writes = Graph.from_coo([0, 1, 1], [0, 0, 1]).csc
        cites = CSC(
            torch.tensor([0, 0, 1], dtype=torch.int32), torch.tensor([0], dtype=torch.int32), 2
        )
        return Graph({("author", "writes", "paper"): writes, ("paper", "cites", "paper"): cites})

    def test_counts(self, graph):
        assert graph.node_types == ["author", "paper"]
        assert (graph.num_nodes, graph.num_edges, graph.num_nodes_of("paper")) == (4, 4, 2)
        assert repr(graph) == (
            "Graph(num_nodes={'author': 2, 'paper': 2}, "
            "num_edges={'author/writes/paper': 3, 'paper/cites/paper': 1}, ids=int32)"
        )

    def test_calls_for_one_type_say_so(self, graph):
        with pytest.raises(ValueError, match="exactly 1 edge type"):
            _ = graph.csc
        with pytest.raises(ValueError, match="exactly 1 vertex type"):
            graph.set_field("x", [1, 2])
        with pytest.raises(KeyError, match="edge_type must be one of"):
            graph.csc_of(("a", "b", "c"))

    def test_reverse(self, graph):
        assert graph.reverse().edge_types == [
            ("paper", "writes", "author"),
            ("paper", "cites", "paper"),
        ]

    def test_counts_must_agree(self):
        with pytest.raises(ValueError, match="num_nodes must agree with every CSC"):
            Graph(Graph.from_coo([0], [1]).csc, 5)
        with pytest.raises(ValueError, match="csc must hold at least 1 edge type, got 0"):
            Graph({})
        with pytest.raises(ValueError, match="csc must hold at least 1 edge type, got 0"):
            Graph({}, {})

    def test_vertex_types_without_any_edge_type(self):
        lonely = Graph({}, {"paper": 3, "author": 2})
        assert lonely.node_types == ["paper", "author"] and lonely.edge_types == []
        assert lonely.num_nodes_of("author") == 2 and lonely.num_edges == 0
        assert repr(lonely) == "Graph(num_nodes={'paper': 3, 'author': 2}, num_edges={}, ids=int32)"


def test_open_is_open_graph(tmp_path):
    with pytest.raises(FormatError, match=r"folder must hold manifest\.json"):
        Graph.open(tmp_path)


def test_not_iterable():
    with pytest.raises(TypeError, match="not iterable"):
        list(Graph.from_coo([0], [0]))


def test_a_pickled_graph_is_equal():
    graph = Graph.from_coo(
        torch.tensor([0, 1, 1]), torch.tensor([2, 2, 1]), num_nodes=4, ndata={"x": torch.arange(4)}
    )
    graph.adjacency("out")
    for clone in (pickle.loads(pickle.dumps(graph)), copy.deepcopy(graph)):
        assert torch.equal(clone.csc.indptr, graph.csc.indptr) and torch.equal(
            clone.csc.indices, graph.csc.indices
        )
        assert torch.equal(clone.adjacency("out").indices, graph.adjacency("out").indices)
        assert torch.equal(clone.ndata["x"], graph.ndata["x"]) and clone.num_nodes == 4


class TestCheckedFields:
    """What is put into ``ndata`` and ``edata`` is checked as by ``set_field``."""

    PUTS = {
        "by name": lambda fields, value: fields.__setitem__("x", value),
        "update": lambda fields, value: fields.update(x=value),
        "update with a mapping": lambda fields, value: fields.update({"x": value}),
        "setdefault": lambda fields, value: fields.setdefault("x", value),
        "in place or": lambda fields, value: fields.__ior__({"x": value}),
    }

    @pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)
    def test_arrays_and_lists_become_tensors(self, put):
        graph = Graph.from_coo([0, 1], [1, 2], 3)
        for value in (np.arange(3.0), [0.0, 1.0, 2.0], torch.arange(3.0)):
            graph.ndata.clear()
            put(graph.ndata, value)
            assert isinstance(graph.ndata["x"], torch.Tensor) and graph.ndata["x"].tolist() == [
                0.0,
                1.0,
                2.0,
            ]

    @pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)
    def test_wrong_rows_are_refused(self, put):
        graph = Graph.from_coo([0, 1], [1, 2], 3)
        with pytest.raises(
            ValueError, match=re.escape("field 'x' must have one row per vertex (3), got 5")
        ):
            put(graph.ndata, np.zeros((5, 2)))
        with pytest.raises(
            ValueError, match=re.escape("field 'x' must have one row per edge (2), got a scalar")
        ):
            put(graph.edata, torch.tensor(1))
        with pytest.raises(TypeError, match="field 'x' must be a tensor or rows of numbers"):
            put(graph.ndata, "abc")
        assert graph.ndata == {} and graph.edata == {}

    def test_a_copy_checks_too(self):
        graph = Graph.from_coo([0], [1], 2, ndata={"x": [1, 2]})
        for copied in (pickle.loads(pickle.dumps(graph)), copy.deepcopy(graph)):
            assert copied.ndata["x"].tolist() == [1, 2]
            with pytest.raises(ValueError, match="one row per vertex"):
                copied.ndata["y"] = [1]


def test_only_sparse_matrices_come_from_scipy():
    with pytest.raises(TypeError, match=r"matrix must be a scipy sparse matrix, got ndarray"):
        Graph.from_scipy(np.eye(3))
