"""Files of an ``edge_index``: ``.npy``, ``.npz`` and ``.pt``."""

import numpy as np
import pytest
import torch
from tiny_graphs import ends

from pagraph import FormatError
from pagraph.datasets import read_graph
from pagraph.graph.graph import EDGE_TYPE

EDGES = np.array([[0, 1, 2, 2], [1, 2, 0, 4]])


@pytest.mark.parametrize(
    "edges", [EDGES, EDGES.T, EDGES.T.astype(np.uint16), np.asfortranarray(EDGES)]
)
def test_alone(edges, tmp_path):
    np.save(tmp_path / "e.npy", edges)
    torch.save(torch.from_numpy(edges.astype(np.int32)), tmp_path / "e.pt")
    for name in ("e.npy", "e.pt"):
        graph = read_graph(tmp_path / name)
        assert graph.num_nodes == 5
        assert ends(graph, EDGE_TYPE).tolist() == EDGES.T.tolist()
    assert read_graph(tmp_path / "e.npy", num_nodes=9, undirected=True).num_edges == 8
    assert read_graph(tmp_path / "e.npy", num_nodes=9).num_nodes == 9


FIELDS = {
    "x": np.random.default_rng(0).random((6, 3), dtype=np.float32),
    "y": np.arange(6)[:, None],
    "train_mask": np.array([[True, False]] * 6),
    "edge_attr": np.arange(4.0),
    "name": np.array("cora"),
    "further": np.zeros(11),
}


def save(folder, form, **arrays):
    if form == "npz":
        np.savez(folder / "g.npz", **arrays)
    else:
        torch.save(
            {n: torch.from_numpy(a) if a.dtype.kind != "U" else str(a) for n, a in arrays.items()},
            folder / "g.pt",
        )
    return folder / f"g.{form}"


@pytest.mark.parametrize("form", ["npz", "pt"])
def test_with_fields(form, tmp_path):
    graph = read_graph(save(tmp_path, form, edge_index=EDGES, **FIELDS))
    assert graph.num_nodes == 6
    assert set(graph.ndata) == {"feat", "label", "train_mask", "split1_train_mask"}
    assert graph.ndata["label"].tolist() == list(range(6))
    assert graph.ndata["feat"].equal(torch.from_numpy(FIELDS["x"]))
    assert graph.edata["edge_attr"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("form", ["npz", "pt"])
def test_what_stays_behind_is_named(form, tmp_path, caplog):
    path = save(tmp_path, form, edge_index=EDGES, words=np.array(["a", "b"]), **FIELDS)
    read_graph(path)
    names = {"npz": "further, words", "pt": "further"}[form]  # one text in the .pt
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: left out: {names} (no numbers with a row per vertex or edge)"
    ]


def test_pickled_arrays_stay_behind(tmp_path, caplog):
    np.savez(tmp_path / "g.npz", edge_index=EDGES, names=np.array(["a", None], dtype=object))
    assert read_graph(tmp_path / "g.npz").num_edges == 4
    assert "left out: names (" in caplog.text


@pytest.mark.parametrize("form", ["npz", "pt"])
def test_as_many_edges_as_vertices(form, tmp_path):
    arrays = {"w": np.zeros(4), "edge_w": np.ones(4), "num_nodes": np.array(4)}
    graph = read_graph(save(tmp_path, form, edge_index=EDGES % 4, **arrays))
    assert set(graph.ndata) == {"w"} and set(graph.edata) == {"edge_w"}


@pytest.mark.parametrize("form", ["npz", "pt"])
def test_number_of_vertices_is_no_field(form, tmp_path):
    for num_nodes in (1, 2):
        edges = np.array([[0, num_nodes - 1]]).T
        graph = read_graph(save(tmp_path, form, edge_index=edges, num_nodes=np.array([num_nodes])))
        assert graph.num_nodes == num_nodes and not graph.ndata and not graph.edata


def test_undirected_edges_have_the_same_rows(tmp_path):
    graph = read_graph(
        save(tmp_path, "npz", edge_index=EDGES, edge_attr=np.arange(4)), undirected=True
    )
    assert graph.edata["edge_attr"].tolist() == [0, 1, 2, 3] * 2


@pytest.mark.parametrize(
    ("form", "arrays", "message"),
    [
        ("npz", {"edge_index": EDGES * 1.0}, "edge_index must hold integers, got torch.float64"),
        (
            "pt",
            {"edge_index": EDGES[:, :3, None]},
            r"must have shape \[2, edges\] or \[edges, 2\], got \[2, 3, 1\]",
        ),
        ("npz", {"edge_index": -EDGES}, r"must be in \[0, 1\), got -"),
        ("npz", {"edge_index": EDGES, "num_nodes": np.array(3)}, r"must be in \[0, 3\), got 4"),
        (
            "pt",
            {"edge_index": EDGES, "num_nodes": np.array([3.5, 1])},
            "num_nodes must be 1 integer",
        ),
        (
            "npz",
            {"edge_index": EDGES, "num_nodes": np.array(2**50)},
            "must have at most 10000000 vertices for 4 edges",
        ),
        ("npz", {"edge_index": EDGES, "x": np.zeros((3, 2))}, r"must be in \[0, 3\), got 4"),
        (
            "npz",
            {"edge_index": EDGES, "num_nodes": np.array(6), "x": np.zeros((5, 2))},
            "x must have a row",
        ),
        (
            "pt",
            {"edge_index": EDGES, "x": np.zeros((6, 2)), "y": np.zeros(5)},
            r"y must have .* \(6\), got 5",
        ),
        (
            "npz",
            {"edge_index": EDGES, "num_edges": np.array(9)},
            "num_edges must be the 4 of edge_index, got 9",
        ),
    ],
)
def test_refuses(form, arrays, message, tmp_path):
    with pytest.raises(FormatError, match=message):
        read_graph(save(tmp_path, form, **arrays))


def test_sparse(tmp_path):
    torch.save(torch.from_numpy(EDGES).to_sparse(), tmp_path / "e.pt")
    with pytest.raises(
        FormatError, match="edge_index must be a dense tensor, got layout torch.sparse_coo"
    ):
        read_graph(tmp_path / "e.pt")


def test_two_by_two(tmp_path):
    edges = np.array([[0, 1], [2, 3]])
    np.save(tmp_path / "e.npy", edges)
    with pytest.raises(
        FormatError, match="must not be a 2 x 2 array, whose rows may be edges or ends"
    ):
        read_graph(tmp_path / "e.npy")
    assert ends(read_graph(save(tmp_path, "npz", edge_index=edges)), EDGE_TYPE).tolist() == [
        [0, 2],
        [1, 3],
    ]


def test_damaged(tmp_path):
    for form in ("npz", "pt"):
        path = save(tmp_path, form, edge_index=EDGES, **FIELDS)
        content = path.read_bytes()
        for length in (0, 10, len(content) // 2, len(content) - 30):
            path.write_bytes(content[:length])
            with pytest.raises(FormatError):
                read_graph(path)


def test_another_number_of_vertices_than_the_file_says(tmp_path):
    path = save(tmp_path, "npz", edge_index=EDGES, num_nodes=np.array(6))
    assert read_graph(path, num_nodes=6).num_nodes == 6
    with pytest.raises(ValueError, match=r"num_nodes must be the 6 that .*g\.npz says, got 9"):
        read_graph(path, num_nodes=9)
