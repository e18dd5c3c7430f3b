"""Matrix Market files that SciPy writes, and the ``.npz`` of GNN benchmarks, as graphs."""

import gzip

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch
from tiny_graphs import ends

from pagraph import FormatError
from pagraph.datasets import read_graph
from pagraph.graph.graph import EDGE_TYPE


@pytest.fixture
def matrix():
    return scipy.sparse.random(20, 20, density=0.1, random_state=1, format="csr")


class TestMatrixMarket:
    @pytest.mark.parametrize("name", ["m.mtx", "m.mtx.gz"])
    def test_edges_and_weights(self, name, matrix, tmp_path):
        scipy.io.mmwrite(tmp_path / "m.mtx", matrix)
        if name.endswith(".gz"):
            (tmp_path / name).write_bytes(gzip.compress((tmp_path / "m.mtx").read_bytes()))
        graph = read_graph(tmp_path / name, weight="w")
        pairs = ends(graph, EDGE_TYPE).numpy()
        assert graph.num_nodes == 20
        assert np.allclose(matrix.toarray()[pairs[:, 0], pairs[:, 1]], graph.edata["w"])
        assert len(pairs) == matrix.nnz == len({*map(tuple, pairs.tolist())})

    def test_symmetric_goes_both_ways(self, matrix, tmp_path):
        both = matrix + matrix.T
        scipy.io.mmwrite(tmp_path / "m.mtx", both, symmetry="symmetric")
        assert read_graph(tmp_path / "m.mtx").num_edges == both.nnz
        with pytest.raises(
            ValueError,
            match="undirected=True must not be given .* symmetric matrix has both directions",
        ):
            read_graph(tmp_path / "m.mtx", undirected=True)

    def test_skew_symmetric(self, tmp_path):
        (tmp_path / "m.mtx").write_text(
            "%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 1\n2 1 2.0\n"
        )
        graph = read_graph(tmp_path / "m.mtx", weight="w")
        pairs = ends(graph, EDGE_TYPE).tolist()
        assert (pairs, graph.edata["w"].tolist()) == ([[1, 0], [0, 1]], [2, -2])

    def test_undirected(self, matrix, tmp_path):
        upper = scipy.sparse.triu(matrix, 1)
        scipy.io.mmwrite(tmp_path / "m.mtx", upper)
        assert read_graph(tmp_path / "m.mtx", undirected=True).num_edges == 2 * upper.nnz

    @pytest.mark.parametrize(
        ("text", "options", "message"),
        [
            ("hello\n", {}, "must be a Matrix Market file"),
            (
                "%%MatrixMarket matrix coordinate real general\n3 3 2\n1 1 5\n",
                {},
                "must hold 2 entries as its header says, got 1",
            ),
            (
                "%%MatrixMarket matrix coordinate real general\n3 3 99\n1 1 5\n",
                {},
                "must hold 99 entries as its header says, got 1",
            ),
            (
                "%%MatrixMarket matrix coordinate real general\n3 3 1\n4 1 5\n",
                {},
                r"must be in \[0, 3\), got 3",
            ),
            (
                "%%MatrixMarket matrix coordinate real general\n2 3 1\n1 1 5\n",
                {},
                "square matrix, got 2 x 3",
            ),
            (
                "%%MatrixMarket matrix array real general\n1 1\n5\n",
                {},
                "in coordinate form, its header says otherwise",
            ),
            (
                "%%MatrixMarket matrix coordinate pattern general\n3 3 1\n1 1\n",
                {"weight": "w"},
                "its matrix is pattern",
            ),
            (
                *(
                    "%%MatrixMarket matrix coordinate pattern general\n9000000000000 9000000000000 "
                    "1\n1 1\n",
                    {},
                ),
                "must have at most 10000000 vertices for 1 edges",
            ),
        ],
    )
    def test_refuses(self, text, options, message, tmp_path):
        (tmp_path / "m.mtx").write_text(text)
        with pytest.raises(FormatError, match=message):
            read_graph(tmp_path / "m.mtx", **options)


def save_benchmark(path, adjacency, **arrays):
    parts = {"adj": adjacency, **{k: v for k, v in arrays.items() if scipy.sparse.issparse(v)}}
    saved = {
        f"{k}_{n}": getattr(m, n)
        for k, m in parts.items()
        for n in ("data", "indices", "indptr", "shape")
    }
    np.savez(path, **saved, **{k: v for k, v in arrays.items() if k not in parts})


class TestBenchmark:
    def test_sparse_attributes(self, matrix, tmp_path):
        features = scipy.sparse.random(20, 7, density=0.3, random_state=2, format="csr")
        names = np.array([f"v{i}" for i in range(20)], dtype=object)
        labels = np.arange(20) % 3
        save_benchmark(tmp_path / "b.npz", matrix, attr=features, labels=labels, node_names=names)
        graph = read_graph(tmp_path / "b.npz", weight="w")
        assert set(graph.ndata) == {"feat", "label"}
        assert torch.equal(graph.ndata["feat"], torch.from_numpy(features.toarray()).float())
        assert graph.ndata["label"].tolist() == labels.tolist()
        pairs = ends(graph, EDGE_TYPE).numpy()
        assert np.allclose(matrix.toarray()[pairs[:, 0], pairs[:, 1]], graph.edata["w"])

    def test_dense_attributes(self, matrix, tmp_path):
        features = np.ones((20, 3), dtype=np.float32)
        save_benchmark(
            tmp_path / "b.npz",
            matrix,
            attr_matrix=features,
            train_mask=np.arange(20) < 5,
            other=np.ones(3),
        )
        graph = read_graph(tmp_path / "b.npz", undirected=True)
        assert set(graph.ndata) == {"feat", "train_mask"}
        assert graph.ndata["feat"].shape == (20, 3)
        assert graph.ndata["train_mask"].dtype == torch.bool

    def test_what_stays_behind_is_named(self, matrix, tmp_path, caplog):
        names = np.array([f"v{i}" for i in range(20)], dtype=object)
        save_benchmark(
            tmp_path / "b.npz", matrix, node_names=names, other=np.ones(3), title=np.array("cora")
        )
        read_graph(tmp_path / "b.npz")
        [record] = caplog.records
        assert record.getMessage() == (
            f"{tmp_path / 'b.npz'}: left out: node_names, other (no numbers with a row per vertex)"
        )

    def test_labels_of_other_vertices(self, matrix, tmp_path):
        save_benchmark(tmp_path / "b.npz", matrix, labels=np.arange(19))
        with pytest.raises(
            FormatError,
            match=r"labels must be numbers with a row per vertex \(20\), got int64 of shape",
        ):
            read_graph(tmp_path / "b.npz")

    def test_refuses(self, matrix, tmp_path):
        path = tmp_path / "b.npz"
        np.savez(path, adj_data=matrix.data, adj_indices=matrix.indices)
        with pytest.raises(
            FormatError, match="must hold a CSR matrix adj_data, adj_indices, ...: 'adj_indptr'"
        ):
            read_graph(path)
        save_benchmark(path, matrix, attr=scipy.sparse.eye(19, format="csr"))
        with pytest.raises(FormatError, match=r"attr must have a row per vertex \(20\), got 19"):
            read_graph(path)
        save_benchmark(path, matrix[:10])
        with pytest.raises(FormatError, match="must hold a square matrix"):
            read_graph(path)
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(FormatError):
            read_graph(path)


def test_more_than_a_matrix_in_a_file_of_scipys(matrix, tmp_path, caplog):
    parts = {name: getattr(matrix, name) for name in ("data", "indices", "indptr", "shape")}
    np.savez(tmp_path / "m.npz", format=np.array("csr"), **parts, labels=np.arange(20))
    assert read_graph(tmp_path / "m.npz").num_edges == matrix.nnz
    [record] = caplog.records
    assert record.getMessage().endswith("m.npz: left out: labels (not part of a sparse matrix)")
    scipy.sparse.save_npz(tmp_path / "n.npz", matrix)
    read_graph(tmp_path / "n.npz")
    assert len(caplog.records) == 1
