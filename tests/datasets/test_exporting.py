"""What is exported comes back with every type, field, dtype and edge id; what a form cannot hold is
refused by name."""

import importlib.util
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_graphs import HETEROGENEOUS, HOMOGENEOUS, assert_same, random_graph

from pagraph import Graph
from pagraph.datasets import export_graph, open_graph, read_graph, write_graph
from pagraph.graph.graph import CSC

ENDINGS = {"dgl": ".bin", "pyg": ".pt", "ogb": ""}
NEEDS = {"dgl": "dgl", "pyg": "torch_geometric", "ogb": "torch"}
FORMS = [
    pytest.param(
        form,
        marks=pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"needs {name}"),
    )
    for form, name in NEEDS.items()
]
DTYPES = {
    "dgl": ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bfloat16"],
    "pyg": ["bool", "uint8", "uint32", "int64", "float16", "float32", "float64", "float8_e5m2", "complex64"],
    "ogb": ["int64", "float32"],
}  # fmt: skip
MASKS = ("train_mask", "val_mask", "test_mask")


def exported(graph, folder, form):
    """The graph after native -> form -> native."""
    if form == "pyg" and not hasattr(torch.serialization, "safe_globals"):
        pytest.skip("torch before 2.5 reads no objects of PyG's")
    write_graph(graph, folder / "native")
    out = folder / f"out{ENDINGS[form]}"
    export_graph(open_graph(folder / "native"), out, form=form)
    write_graph(read_graph(out), folder / "back")
    return open_graph(folder / "back", verify=True)


def values(rows, dtype, width, seed):
    shape = (rows,) if width is None else (rows, width)
    generator = torch.Generator().manual_seed(seed)
    bits = (
        torch.randint(0, 2, shape, generator=generator)
        if dtype == "bool"
        else torch.randn(shape, generator=generator)
    )
    return (bits if dtype == "bool" else bits * 100).to(getattr(torch, dtype))


@st.composite
def graphs(draw, form):
    types = draw(st.sampled_from([HOMOGENEOUS, HETEROGENEOUS]))
    graph = random_graph(types, draw(st.integers(0, 99)), num_edges=draw(st.integers(9, 30)))
    for ntype in graph.node_types:
        for name in draw(st.sets(st.sampled_from(["feat", "label", "year", "node.a"]))):
            width = 3 if name == "feat" else draw(st.sampled_from([None, 2]))
            field = values(graph.num_nodes_of(ntype), draw(st.sampled_from(DTYPES[form])), width, 1)
            graph.set_field(name, field, node_type=ntype)
        part = torch.randint(0, 4, (graph.num_nodes_of(ntype),))
        for name in draw(st.sets(st.sampled_from(MASKS))):
            graph.set_field(name, part == MASKS.index(name), node_type=ntype)
    for etype in graph.edge_types:
        for name in draw(st.sets(st.sampled_from(["edge_attr", "edge_time"]))):
            width = draw(st.sampled_from([None, 2]))
            field = values(
                graph.csc_of(etype).num_edges, draw(st.sampled_from(DTYPES[form])), width, 3
            )
            graph.set_field(name, field, edge_type=etype)
    return graph


@pytest.mark.every
@pytest.mark.every
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_round_trips(form):
    # DGL's files are read in another process.
    @settings(max_examples=4 if form == "dgl" else 40, deadline=None)
    @given(graphs(form))
    def keeps_everything(graph):
        with tempfile.TemporaryDirectory() as folder:
            assert_same(exported(graph, Path(folder), form), graph)

    keeps_everything()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("types", [HOMOGENEOUS, HETEROGENEOUS])
def test_a_round_trip(types, form, tmp_path):
    graph = random_graph(types, 0)
    first, edges = graph.node_types[0], graph.edge_types[0]
    graph.set_field("feat", values(graph.num_nodes_of(first), "float32", 4, 1), node_type=first)
    graph.set_field("label", torch.arange(graph.num_nodes_of(first)), node_type=first)
    graph.set_field(
        "train_mask", values(graph.num_nodes_of(first), "bool", None, 2), node_type=first
    )
    graph.set_field(
        "edge_time", torch.arange(graph.csc_of(edges).num_edges) * 10**12, edge_type=edges
    )
    assert_same(exported(graph, tmp_path, form), graph)


@pytest.mark.parametrize("form", FORMS)
def test_names_of_a_single_type_are_kept(form, tmp_path):
    graph = random_graph(({"paper": 5}, [("paper", "cites", "paper")]), 0)
    assert_same(exported(graph, tmp_path, form), graph)


@pytest.mark.parametrize("form", FORMS)
def test_a_type_without_edges_and_an_edge_type_without_any(form, tmp_path):
    types = {"a": 3, "b": 0, "c": 4}, [("a", "to", "b"), ("a", "own", "a")]
    assert_same(exported(random_graph(types, 0), tmp_path, form), random_graph(types, 0))


def rows(count, dtype="float32", width=None):
    return torch.zeros((count,) if width is None else (count, width), dtype=getattr(torch, dtype))


FLAWS = [
    (
        "ogb",
        {"ndata": {"feat": rows(3)}},
        r"vertex field _N/feat must have rows and columns .* shape \[3\]",
    ),
    ("ogb", {"ndata": {"y": rows(3, width=1)}}, "vertex field _N/y must have rows of one number"),
    (
        "ogb",
        {"ndata": {"y": rows(3, "float64")}},
        "_N/y must be int64 or float32 .* got torch.float64",
    ),
    (
        "ogb",
        {"ndata": {"pub_train_mask": rows(3, "bool")}},
        "pub_train_mask must be int64 or float32",
    ),
    (
        "ogb",
        {"ndata": {"train_mask": [True, True, False], "test_mask": [False, True, False]}},
        "vertex field _N/test_mask must have no vertex in common with train_mask .*, got 1",
    ),
    ("ogb", {"ndata": {"../y": rows(3)}}, "must have a name of letters"),
    ("ogb", {"edata": {"w": rows(2, "int32")}}, "edge field _N/_E/_N/w must be int64 or float32"),
    (
        "dgl",
        {"ndata": {"y": rows(3, "complex64")}},
        "field 'y' of _N must have a dtype that DGL can save",
    ),
    (
        "dgl",
        {"ndata": {"y": rows(3, "bool")}},
        "'y' of _N must be named ..._mask if and only if it is bool",
    ),
    (
        "dgl",
        {"ndata": {"a_mask": rows(3, "uint8")}},
        "'a_mask' of _N must be named ..._mask if and only if it is bool",
    ),
    (
        "pyg",
        {"ndata": {"w": rows(3)}, "edata": {"w": rows(2)}},
        "fields must keep their names .* 'edge_w'",
    ),
    ("pyg", {"ndata": {"edge_index": rows(3)}}, "vertex field 'edge_index' must have another name"),
]


@pytest.mark.parametrize(("form", "fields", "message"), FLAWS)
def test_what_a_form_cannot_hold(form, fields, message, tmp_path):
    pytest.importorskip({"dgl": "pagraph.dgl", "pyg": "pagraph.pyg"}.get(form, "pyarrow"))
    with pytest.raises(ValueError, match=message):
        export_graph(
            Graph.from_coo([0, 1], [1, 2], **fields), tmp_path / f"out{ENDINGS[form]}", form=form
        )
    assert list(tmp_path.iterdir()) == []


def test_bad_arguments(tmp_path):
    graph = Graph.from_coo([0, 1], [1, 2])
    with pytest.raises(ValueError, match=r"form must be one of \['dgl', 'pyg', 'ogb'\], got 'csv'"):
        export_graph(graph, tmp_path / "out", form="csv")
    with pytest.raises(ValueError, match=r"out must end in \.pt for the form pyg, got"):
        export_graph(graph, tmp_path / "out", form="pyg")
    with pytest.raises(FileExistsError, match="out must not exist yet"):
        export_graph(graph, tmp_path, form="ogb")
    parts = Graph(CSC(torch.tensor([0, 1]), torch.tensor([0]), 1, torch.tensor([5])))
    with pytest.raises(
        ValueError, match="edge ids of _N/_E/_N must be 0 to 0, each once, to be exported"
    ):
        export_graph(parts, tmp_path / "out", form="ogb")
