"""Every form of folder and file is recognised, keeps its fields under their names, and refuses
others' options."""

import sys

import numpy as np
import pytest
import scipy.sparse
import torch

from pagraph import FormatError, Graph
from pagraph.datasets import open_graph, read_graph, write_graph
from pagraph.datasets.forms import source_form
from pagraph.datasets.paths import folder_form


@pytest.fixture
def native(tmp_path):
    write_graph(Graph.from_coo([0], [1], ndata={"train_mask": [True, False]}), tmp_path / "native")
    return tmp_path / "native"


@pytest.fixture
def pagraph(tmp_path):
    (tmp_path / "pagraph").mkdir()
    scipy.sparse.save_npz(tmp_path / "pagraph" / "adj.npz", scipy.sparse.csr_matrix(np.eye(2)))
    return tmp_path / "pagraph"


def test_both_forms_open(native, pagraph):
    assert folder_form(native) == "native"
    assert folder_form(str(pagraph)) == "pagraph"
    assert open_graph(native).num_edges == 1
    assert open_graph(pagraph, verify=True).num_edges == 2
    assert Graph.open(pagraph).num_edges == 2


def test_native_wins_where_both_are(native, pagraph):
    (pagraph / "adj.npz").rename(native / "adj.npz")
    assert folder_form(native) == "native"


def test_what_is_no_graph_folder(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=f"folder must exist, got '{tmp_path}/none'"):
        open_graph(tmp_path / "none")
    with pytest.raises(
        NotADirectoryError, match=f"must be a folder, got the file '{tmp_path}/file'"
    ):
        open_graph(tmp_path / "file")
    with pytest.raises(
        FormatError, match=r"must hold manifest\.json .* or adj\.npz .* with neither"
    ):
        open_graph(tmp_path / "empty")


def test_split_of_a_native_folder(native):
    with pytest.raises(ValueError, match=r"split must be one of \[''\], got 'pub_'"):
        open_graph(native, split="pub_")


@pytest.fixture
def matrix():
    return scipy.sparse.csr_matrix(np.array([[0, 2.5, 0], [0, 1.5, 0], [4, 0, 0]]))


class TestForms:
    @pytest.mark.parametrize(
        ("name", "form"),
        [
            ("a.txt", "edge list"),
            ("a.TSV", "edge list"),
            ("a.csv.gz", "edge list"),
            ("a.b.txt.gz", "edge list"),
            ("a.parquet", "edge list"),
            ("a.npz", "scipy"),
            ("a.bin", "dgl"),
            ("a.pt", "pyg"),
        ],
    )
    def test_by_name(self, tmp_path, name, form):
        (tmp_path / name).touch()
        assert source_form(tmp_path / name).name == form

    @pytest.mark.parametrize("name", ["a", "a.npz.gz", "a.parquet.gz", "a.gz", "a.pkl", "a.json"])
    def test_unknown_names(self, tmp_path, name):
        (tmp_path / name).touch()
        with pytest.raises(
            FormatError,
            match=r"source must be a graph folder, .* or end in one of \.txt, .*\.bin, \.pt, .* "
            r"got '",
        ):
            read_graph(tmp_path / name)

    def test_missing(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="source must exist, got"):
            read_graph(tmp_path / "a.txt")


class TestFolders:
    def test_native_is_verified(self, tmp_path):
        write_graph(Graph.from_coo([0], [1], ndata={"x": [1.0, 2.0]}), tmp_path / "g")
        assert read_graph(tmp_path / "g").ndata["x"].tolist() == [1.0, 2.0]
        path = tmp_path / "g" / "node-x.npy"
        path.write_bytes(path.read_bytes()[:-1] + b"\x01")
        with pytest.raises(FormatError, match="corrupt"):
            read_graph(tmp_path / "g")

    def test_pagraph(self, tmp_path, matrix):
        scipy.sparse.save_npz(tmp_path / "adj.npz", matrix)
        np.save(tmp_path / "pub_train.npy", np.array([True, False, False]))
        assert read_graph(tmp_path, split="pub_").ndata["train_mask"].tolist() == [
            True,
            False,
            False,
        ]


class TestScipy:
    def test_structure_and_weights(self, tmp_path, matrix):
        scipy.sparse.save_npz(tmp_path / "m.npz", matrix)
        graph = read_graph(tmp_path / "m.npz", weight="w")
        assert graph.csc.indices.tolist() == [2, 0, 1]
        assert graph.edata["w"].tolist() == [2.5, 1.5, 4.0]  # by edge id: the order of tocoo()
        assert read_graph(tmp_path / "m.npz").edata == {}

    def test_undirected(self, tmp_path, matrix):
        scipy.sparse.save_npz(tmp_path / "m.npz", matrix)
        graph = read_graph(tmp_path / "m.npz", undirected=True, weight="w")
        assert graph.num_edges == 5
        assert graph.edata["w"].tolist() == [2.5, 1.5, 4.0, 2.5, 4.0]

    def test_not_square(self, tmp_path):
        scipy.sparse.save_npz(tmp_path / "m.npz", scipy.sparse.csr_matrix((2, 3)))
        with pytest.raises(FormatError, match=r"must hold a square matrix, got shape \(2, 3\)"):
            read_graph(tmp_path / "m.npz")

    def test_weights_that_torch_has_no_dtype_for(self, tmp_path):
        scipy.sparse.save_npz(
            tmp_path / "m.npz", scipy.sparse.csr_matrix(np.eye(2, dtype=np.longdouble))
        )
        with pytest.raises(FormatError, match="values that torch has a dtype for"):
            read_graph(tmp_path / "m.npz", weight="w")


class TestEdgeLists:
    def test_options_reach_the_reader(self, tmp_path):
        (tmp_path / "a.csv").write_text("a,b,2\nb,c,3\n")
        calls = []
        graph = read_graph(
            tmp_path / "a.csv",
            relabel=True,
            undirected=True,
            weight="w",
            header=False,
            progress=lambda done, total: calls.append((done, total)),
        )
        assert graph.edata["w"].tolist() == [2, 3, 2, 3]
        assert calls[-1] == (12, 12)
        (tmp_path / "b.txt").write_text("0 1\n")
        assert read_graph(tmp_path / "b.txt", num_nodes=9).num_nodes == 9


class TestDgl:
    @pytest.fixture(autouse=True)
    def dgl(self):
        pytest.importorskip("pagraph.dgl")
        import dgl

        return dgl

    def test_structure_and_fields(self, dgl, tmp_path):
        source = dgl.graph(([0, 1, 2, 2], [1, 2, 2, 0]), num_nodes=5)
        source.ndata["feat"] = torch.randn(5, 3).half()
        source.ndata["train_mask"] = torch.tensor([True, False, True, False, False])
        source.edata["weight"] = torch.arange(4.0)
        dgl.save_graphs(str(tmp_path / "g.bin"), [source])
        write_graph(read_graph(tmp_path / "g.bin"), tmp_path / "g")
        graph = open_graph(tmp_path / "g", verify=True)
        assert set(graph.ndata) == {"feat", "train_mask"}
        assert torch.equal(graph.ndata["feat"], source.ndata["feat"])
        assert graph.edata["weight"].tolist() == [0, 1, 2, 3]
        assert graph.csc.indices.tolist() == [2, 0, 1, 2]
        assert graph.csc.edge_ids is not None
        assert graph.csc.edge_ids.tolist() == [3, 0, 1, 2]

    def test_several_types(self, dgl, tmp_path):
        source = dgl.heterograph({("a", "x", "b"): ([0, 1], [0, 0]), ("b", "y", "a"): ([0], [1])})
        source.nodes["a"].data["f"] = torch.ones(2, 2)
        dgl.save_graphs(str(tmp_path / "g.bin"), [source])
        graph = read_graph(tmp_path / "g.bin")
        assert graph.edge_types == [("a", "x", "b"), ("b", "y", "a")]
        assert graph.node_fields("a")["f"].shape == (2, 2)

    @pytest.mark.parametrize("place", [60, 200])
    def test_bytes_inserted(self, dgl, tmp_path, place):
        """DGL's own reader ends the process, or does not end, over some of them."""
        source = dgl.graph((torch.arange(50), torch.arange(50)))
        source.ndata["feat"] = torch.randn(50, 3)
        dgl.save_graphs(str(tmp_path / "g.bin"), [source])
        whole = (tmp_path / "g.bin").read_bytes()
        (tmp_path / "b.bin").write_bytes(whole[:place] + b"\xff\xff\x7f" + whole[place:])
        with pytest.raises(FormatError, match=r"b.bin (must be a file that DGL wrote|is damaged)"):
            read_graph(tmp_path / "b.bin")

    def test_modules_beside_the_file_are_not_run(self, dgl, tmp_path, monkeypatch):
        dgl.save_graphs(str(tmp_path / "g.bin"), [dgl.rand_graph(10, 30)])
        (tmp_path / "torch.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
        assert read_graph("g.bin").num_edges == 30
        assert not (tmp_path / "run").exists()

    def test_truncated(self, dgl, tmp_path):
        path = tmp_path / "g.bin"
        dgl.save_graphs(str(path), [dgl.rand_graph(10, 30)])
        content = path.read_bytes()
        for length in (0, 5, 8, 20, 100, len(content) // 2):
            path.write_bytes(content[:length])
            with pytest.raises(FormatError, match=r"g\.bin must be a file that DGL wrote"):
                read_graph(path)

    @pytest.mark.parametrize("content", [b"", b"PK\x03\x04" * 10, b"\x80\x04pickle" * 10])
    def test_other_files(self, tmp_path, content):
        (tmp_path / "g.bin").write_bytes(content)
        with pytest.raises(FormatError, match="does not begin like one"):
            read_graph(tmp_path / "g.bin")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "a.txt",
            {"split": "pub_"},
            "split must not be given for a source of the form 'edge list'",
        ),
        ("a.npz", {"relabel": True}, "relabel must not be given for a source of the form 'scipy'"),
        ("a.npz", {"num_nodes": 0}, "num_nodes must not be given"),
        ("a.bin", {"weight": "w"}, "weight must not be given for a source of the form 'dgl'"),
        (".", {"header": False}, "header must not be given for a source of the form 'folder'"),
        (".", {"undirected": True}, "undirected must not be given"),
    ],
)
def test_options_that_do_not_go_with_the_form(tmp_path, name, options, message):
    if name != ".":
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=message):
        read_graph(tmp_path / name, **options)
