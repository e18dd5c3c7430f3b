"""PaGraph's folder form: what is there is read, what is wrong is refused, real graphs have their
known counts."""

import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

from pagraph import FormatError, Graph
from pagraph.datasets import open_graph, write_graph
from pagraph.datasets.matrices import load_sparse


@pytest.fixture
def folder(tmp_path):
    matrix = scipy.sparse.csr_matrix(np.array([[0, 1, 0], [1, 1, 0], [0, 1, 0]], dtype=np.int8))
    scipy.sparse.save_npz(tmp_path / "adj.npz", matrix)
    np.save(tmp_path / "labels.npy", np.array([0, 1, 1]))
    np.save(tmp_path / "feat.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    for part, mask in (("train", [1, 0, 0]), ("val", [0, 1, 0]), ("test", [0, 0, 1])):
        np.save(tmp_path / f"{part}.npy", np.array(mask, dtype=bool))
    return tmp_path


class TestReading:
    def test_everything(self, folder):
        graph = open_graph(folder)
        assert graph.num_nodes == 3
        assert graph.csc.indptr.tolist() == [0, 1, 4, 4]
        assert graph.csc.indices.tolist() == [1, 0, 1, 2]
        assert list(graph.ndata) == ["feat", "label", "train_mask", "val_mask", "test_mask"]
        assert graph.ndata["feat"].tolist() == [[0, 1], [2, 3], [4, 5]]
        assert graph.ndata["label"].dtype == torch.int64
        assert graph.ndata["val_mask"].tolist() == [False, True, False]

    def test_edge_ids_follow_tocoo(self, folder):
        coo = scipy.sparse.load_npz(folder / "adj.npz").tocoo()
        csc = open_graph(folder).csc
        for position, edge in enumerate(csc.edge_ids.tolist()):
            assert coo.row[edge] == csc.indices[position]
            assert coo.col[edge] == csc.destinations()[position]

    def test_dense_features_are_mapped_copy_on_write(self, folder):
        before = (folder / "feat.npy").read_bytes()
        graph = open_graph(folder)
        assert str(folder / "feat.npy") in Path("/proc/self/maps").read_text()
        graph.ndata["feat"] += 1
        assert (folder / "feat.npy").read_bytes() == before

    def test_sparse_features_become_dense(self, folder):
        (folder / "feat.npy").unlink()
        dense = np.zeros((3, 5000), dtype=np.float32)
        dense[1, 4999] = 2.5
        scipy.sparse.save_npz(folder / "feat.npz", scipy.sparse.csr_matrix(dense))
        feat = open_graph(folder).ndata["feat"]
        assert feat.dtype == torch.float32
        assert np.array_equal(feat.numpy(), dense)

    def test_sparse_features_of_many_rows(self, folder):
        rows = 10_000
        scipy.sparse.save_npz(folder / "adj.npz", scipy.sparse.coo_matrix((rows, rows)))
        for name in ("labels", "train", "val", "test", "feat"):
            (folder / f"{name}.npy").unlink()
        sparse = scipy.sparse.random(rows, 7, 0.3, "csc", np.float64, np.random.default_rng(0))
        scipy.sparse.save_npz(folder / "feat.npz", sparse)
        assert np.array_equal(
            open_graph(folder).ndata["feat"].numpy(), sparse.toarray().astype(np.float32)
        )

    @pytest.mark.parametrize("form", ["csr", "csc", "coo"])
    def test_forms_of_the_matrix(self, folder, form):
        matrix = scipy.sparse.load_npz(folder / "adj.npz").asformat(form)
        scipy.sparse.save_npz(folder / "adj.npz", matrix)
        assert open_graph(folder).csc.indptr.tolist() == [0, 1, 4, 4]

    def test_structure_alone(self, folder):
        for file in folder.glob("*.npy"):
            file.unlink()
        assert open_graph(folder).ndata == {}

    @pytest.mark.parametrize("convert", [lambda a: a.astype(">f4"), np.asfortranarray])
    def test_arrays_that_cannot_be_mapped_are_converted(self, folder, convert):
        np.save(folder / "feat.npy", convert(np.load(folder / "feat.npy")))
        feat = open_graph(folder).ndata["feat"]
        assert feat.tolist() == [[0, 1], [2, 3], [4, 5]]
        assert feat.is_contiguous()

    def test_masks_of_integers(self, folder):
        np.save(folder / "train.npy", np.array([0, 1, 1], dtype=np.uint8))
        assert open_graph(folder).ndata["train_mask"].tolist() == [False, True, True]

    def test_several_labels(self, folder):
        np.save(folder / "labels.npy", np.eye(3, dtype=np.float32))
        assert open_graph(folder).ndata["label"].shape == (3, 3)


class TestRefusals:
    @pytest.mark.parametrize("name", ["labels", "feat", "train", "val", "test"])
    def test_wrong_length(self, folder, name):
        array = np.load(folder / f"{name}.npy")
        np.save(folder / f"{name}.npy", array[:2])
        with pytest.raises(
            FormatError, match=r"must have one row per vertex \(3\), got 2"
        ) as caught:
            open_graph(folder)
        assert str(folder) in str(caught.value)

    def test_wrong_length_of_sparse_features(self, folder):
        (folder / "feat.npy").unlink()
        scipy.sparse.save_npz(folder / "feat.npz", scipy.sparse.csr_matrix((4, 2)))
        with pytest.raises(
            FormatError, match=r"field 'feat' must have one row per vertex \(3\), got 4"
        ):
            open_graph(folder)

    @pytest.mark.parametrize("name", ["labels.npy", "feat.npy", "train.npy", "adj.npz"])
    @pytest.mark.parametrize("length", [0, 20, -1])
    def test_truncated(self, folder, name, length):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:length])
        with pytest.raises(FormatError, match=name):
            open_graph(folder)

    def test_truncated_array_that_is_not_mapped(self, folder):
        path = folder / "feat.npy"
        np.save(path, np.load(path).astype(">f4"))
        path.write_bytes(path.read_bytes()[:-3])
        with pytest.raises(
            FormatError, match=r"feat\.npy must have 24 bytes after its header, got 21"
        ):
            open_graph(folder)

    def test_pickles_are_not_opened(self, folder):
        np.save(folder / "labels.npy", np.array([0, None, "x"], dtype=object), allow_pickle=True)
        with pytest.raises(FormatError, match=r"labels\.npy must hold plain numbers"):
            open_graph(folder)

    @pytest.mark.parametrize(
        ("mask", "message"),
        [
            (np.array([0, 1, 2]), "must be a mask of bool, or of the integers 0 and 1"),
            (np.array([0.0, 1.0, 1.0]), "must be a mask of bool"),
            (np.zeros((3, 1), dtype=bool), r"must be a 1-D mask, got shape \[3, 1\]"),
        ],
    )
    def test_masks_that_are_none(self, folder, mask, message):
        np.save(folder / "train.npy", mask)
        with pytest.raises(FormatError, match=message):
            open_graph(folder)

    def test_matrix_that_is_not_square(self, folder):
        scipy.sparse.save_npz(folder / "adj.npz", scipy.sparse.csr_matrix((3, 4)))
        with pytest.raises(FormatError, match=r"adj\.npz must be square, got shape \(3, 4\)"):
            open_graph(folder)


class TestSplits:
    @pytest.fixture
    def two_splits(self, folder):
        for part, mask in (("train", [0, 1, 0]), ("test", [1, 0, 0])):
            np.save(folder / f"pub_{part}.npy", np.array(mask, dtype=bool))
        return folder

    def test_the_first_is_the_default(self, two_splits):
        graph = open_graph(two_splits)
        assert graph.ndata["train_mask"].tolist() == [True, False, False]
        assert graph.ndata["pub_train_mask"].tolist() == [False, True, False]

    def test_another(self, two_splits):
        graph = open_graph(two_splits, split="pub_")
        assert graph.ndata["train_mask"].tolist() == [False, True, False]
        assert graph.ndata["test_mask"].tolist() == [True, False, False]
        assert "val_mask" not in graph.ndata  # the first split's must not be mixed in
        assert "pub_train_mask" not in graph.ndata

    def test_one_that_is_not_there(self, two_splits):
        with pytest.raises(ValueError, match=r"split must be one of \['', 'pub_'\], got 'my_'"):
            open_graph(two_splits, split="my_")

    def test_survives_the_native_form(self, two_splits, tmp_path):
        write_graph(open_graph(two_splits), tmp_path / "native")
        graph = open_graph(tmp_path / "native", split="pub_")
        assert graph.ndata["train_mask"].tolist() == [False, True, False]


class TestRealGraphs:
    @pytest.mark.every
    @pytest.mark.parametrize(
        ("name", "num_nodes", "num_edges", "width", "train"),
        [
            ("cora", 2708, 10556, 1433, 140),
            ("amazon-computers", 13752, 491722, 767, None),
            ("facebook-pages", 22470, 341646, 4714, None),
            ("cnr-2000", 325557, 3216152, None, None),
            ("soc-slashdot0902", 82168, 948464, None, None),
        ],
    )
    def test_counts(self, data_folder, name, num_nodes, num_edges, width, train):
        graph = open_graph(data_folder / name)
        graph.csc.validate()
        assert (graph.num_nodes, graph.num_edges) == (num_nodes, num_edges)
        assert graph.csc.indices.dtype == torch.int32
        assert ("feat" in graph.ndata) == (width is not None)
        if width:
            assert graph.ndata["feat"].shape == (num_nodes, width)
            masks = [graph.ndata[f"{part}_mask"] for part in ("train", "val", "test")]
            assert not bool((masks[0] & masks[1] | masks[0] & masks[2] | masks[1] & masks[2]).any())
        if train:
            assert int(graph.ndata["train_mask"].sum()) == train

    def test_second_split(self, data_folder):
        graph = open_graph(data_folder / "amazon-computers", split="pub_")
        assert int(graph.ndata["train_mask"].sum()) == 200

    def test_native_round_trip(self, data_folder, tmp_path):
        graph = open_graph(data_folder / "cora")
        write_graph(graph, tmp_path / "cora")
        opened = Graph.open(tmp_path / "cora", verify=True)
        for name, value in graph.ndata.items():
            assert torch.equal(opened.ndata[name], value)
        assert torch.equal(opened.csc.indices, graph.csc.indices)
        assert torch.equal(opened.csc.edge_ids, graph.csc.edge_ids)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.npz"


def sound(form="csr"):
    return scipy.sparse.random(20, 30, 0.2, form, random_state=1)


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("kind", ["matrix", "array"])
def test_round_trip(path, form, compressed, kind):
    want = sound(form)
    if kind == "array":
        want = getattr(scipy.sparse, f"{form}_array")(want)
    scipy.sparse.save_npz(path, want, compressed=compressed)
    got = load_sparse(path)
    assert got.format == form
    assert (got.toarray() == want.toarray()).all()


@pytest.mark.parametrize("form", ["bsr", "dia"])
def test_other_forms_are_refused(path, form):
    scipy.sparse.save_npz(path, sound().asformat(form))
    with pytest.raises(
        FormatError, match=f"the format must be csr, csc or coo in 2 dimensions, got '{form}'"
    ):
        load_sparse(path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("indptr", lambda a: a[::-1].copy(), "indptr|index pointer"),
        ("indptr", lambda a: np.where(np.arange(len(a)) == 3, 10**6, a), "index pointer|indptr"),
        ("indptr", lambda a: a[:-1], "index pointer size"),
        (
            "indptr",
            lambda a: np.where(np.arange(len(a)) == 0, 5, a),
            "index pointer should start with 0",
        ),
        ("indices", lambda a: a + 30, "column|indices|index"),
        ("indices", lambda a: a - 5, "column|indices|index|negative"),
        ("indices", lambda a: a[:-1], "indices"),
        ("indices", lambda a: a.astype(float), "indices must hold integers, got float64"),
        ("data", lambda a: a[:-1], "data"),
        ("shape", lambda a: np.array([20]), "2 dimensions"),
        ("shape", lambda a: np.array([-20, 30]), "shape|dimension|index"),
        ("format", lambda a: np.array(b"evil"), "got 'evil'"),
        ("data", lambda a: np.array([None] * len(a), dtype=object), "pickle"),
    ],
)
def test_corrupt_csr_is_refused(path, name, change, message):
    matrix = sound()
    arrays = {
        "indptr": matrix.indptr,
        "indices": matrix.indices,
        "data": matrix.data,
        "shape": np.array(matrix.shape),
        "format": np.array(b"csr"),
    }
    np.savez(path, allow_pickle=True, **{**arrays, name: change(arrays[name])})
    with pytest.raises(FormatError, match=message) as caught:
        load_sparse(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("row", "message"), [([0, 20], "row index"), ([0, -1], "negative row"), ([0], "row")]
)
def test_corrupt_coo_is_refused(path, row, message):
    arrays = {"row": np.array(row), "col": np.array([1, 2]), "data": np.ones(2)}
    np.savez(path, format=np.array(b"coo"), shape=np.array([20, 30]), **arrays)
    with pytest.raises(FormatError):
        load_sparse(path)


def test_a_missing_member_is_refused(path):
    np.savez(path, format=np.array(b"csr"), shape=np.array([2, 2]), data=np.ones(1))
    with pytest.raises(FormatError, match="indices"):
        load_sparse(path)
    np.savez(path, x=np.ones(1))
    with pytest.raises(FormatError, match=r"it holds \['x'\], and neither 'format' nor 'shape'"):
        load_sparse(path)


def test_a_zip_file_of_other_things_is_refused(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("format", "csr")
        archive.writestr("shape.npy", "text")
    with pytest.raises(FormatError, match="must be a sparse matrix saved by scipy"):
        load_sparse(path)


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04", b"\x80\x04\x95pickle", random.Random(0).randbytes(500)]
)
def test_what_is_no_npz_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(
        FormatError, match=r"must be a sparse matrix saved by scipy: it is not an \.npz file"
    ):
        load_sparse(path)


def test_a_flipped_byte_is_found(path):
    scipy.sparse.save_npz(path, sound())
    content = bytearray(path.read_bytes())
    content[200] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(FormatError):
        load_sparse(path)


def test_missing_file(path):
    with pytest.raises(FileNotFoundError):
        load_sparse(path)
