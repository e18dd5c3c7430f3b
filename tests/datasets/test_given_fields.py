"""Features, labels and sets from files beside an edge list."""

import numpy as np
import pytest
import torch

from pagraph import Graph
from pagraph.datasets import read_graph
from pagraph.datasets.given_fields import add_fields

COUNT = 10


@pytest.fixture
def edges(tmp_path):
    (tmp_path / "e.txt").write_text("".join(f"{i} {(i + 1) % COUNT}\n" for i in range(COUNT)))
    return tmp_path / "e.txt"


def save(folder, **arrays):
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    return {name: folder / f"{name}.npy" for name in arrays}


def selected(graph, part):
    return graph.ndata[f"{part}_mask"].nonzero().squeeze(1).tolist()


def test_files(edges, tmp_path):
    pytest.importorskip("pyarrow")
    files = save(
        tmp_path, features=np.ones((COUNT, 3)), train=np.array([4, 2]), val=np.arange(COUNT) == 7
    )
    (tmp_path / "labels.csv").write_text("label\n" + "1\n" * COUNT)
    (tmp_path / "test.txt").write_text("0\n9\n")
    graph = read_graph(edges, **files, labels=tmp_path / "labels.csv", test=tmp_path / "test.txt")
    assert graph.ndata["feat"].shape == (COUNT, 3) and graph.ndata["label"].tolist() == [1] * COUNT
    assert [selected(graph, part) for part in ("train", "val", "test")] == [[2, 4], [7], [0, 9]]


def test_masks_of_integers(edges, tmp_path):
    graph = read_graph(edges, **save(tmp_path, train=np.arange(COUNT) % 2))
    assert selected(graph, "train") == [1, 3, 5, 7, 9]


def test_fractions(edges, tmp_path):
    graph = read_graph(edges, train=0.5, val="30%", test="0.2")
    sets = [selected(graph, part) for part in ("train", "val", "test")]
    assert [len(ids) for ids in sets] == [5, 3, 2] and sorted(sum(sets, [])) == list(range(COUNT))
    assert sets == [
        selected(read_graph(edges, train=0.5, val=0.3, test=0.2), p)
        for p in ("train", "val", "test")
    ]
    mixed = read_graph(edges, **save(tmp_path, test=np.arange(5)), train=0.5)
    assert selected(mixed, "train") == [5, 6, 7, 8, 9]


def test_ids_are_those_of_the_source(tmp_path):
    (tmp_path / "e.txt").write_text("100 7\n7 300\n")
    graph = read_graph(tmp_path / "e.txt", relabel=True, **save(tmp_path, train=np.array([300, 7])))
    assert graph.ndata["original_id"][graph.ndata["train_mask"]].tolist() == [7, 300]
    with pytest.raises(ValueError, match="train must hold ids of the source, got 2"):
        read_graph(tmp_path / "e.txt", relabel=True, **save(tmp_path, train=np.array([300, 2])))
    empty = Graph.from_coo([], [], 0, ndata={"original_id": torch.zeros(0, dtype=torch.int64)})
    with pytest.raises(ValueError, match="train must hold ids of the source, got 300"):
        add_fields(empty, train=tmp_path / "train.npy")


def test_words_as_ids(tmp_path):
    pytest.importorskip("pyarrow")
    source, train, val = tmp_path / "w.txt", tmp_path / "train.txt", tmp_path / "val.csv"
    source.write_text("élise bo\nbo 10\n10 cy\n")
    train.write_text("élise\r\n\n10\n")
    val.write_text("0\n1\n0\n0\n")  # a mask: 10, bo, cy, élise
    graph = read_graph(source, relabel=True, train=train, val=val)
    assert [selected(graph, part) for part in ("train", "val")] == [[0, 3], [1]]
    train.write_text("bo\nmy friend\n")
    with pytest.raises(ValueError, match="train must hold ids of the source, got 'my friend' in"):
        read_graph(source, relabel=True, train=train)
    train.write_text("bo\nbo\n")
    with pytest.raises(ValueError, match="train must hold each id once, got 1 again"):
        read_graph(source, relabel=True, train=train)
    with pytest.raises(
        ValueError, match="train must be a text file, a mask or a fraction if ids are words"
    ):
        read_graph(source, relabel=True, **save(tmp_path, train=np.array([0, 2])))
    with pytest.raises(FileNotFoundError, match="file must exist, got"):
        read_graph(source, relabel=True, train=tmp_path / "none.txt")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"features": np.ones((9, 2))}, r"features must have one row per vertex \(10\).*got shape "
                                        r"\[9, 2\] in"),
        ({"features": np.ones(COUNT)}, "features must have .* two dimensions or more, got shape"),
        ({"labels": np.ones(11)}, r"labels must have one row per vertex \(10\), got shape \[11\]"),
        ({"train": np.array([1, 10])}, r"train must hold ids in \[0, 10\), got 10 in"),
        ({"val": np.array([-1, 1])}, r"val must hold ids in \[0, 10\), got -1 in"),
        ({"val": np.array([3, 3])}, "val must hold each id once, got 1 again in"),
        ({"test": np.ones(9, dtype=bool)}, r"test must have one entry per vertex \(10\) as a mask, "
                                           r"got 9"),
        ({"test": np.ones(3)}, "test must be a file of ids or of a mask, got torch.float64"),
        (
            *({"train": np.array([1, 2]), "test": np.array([2, 3])},),
            "test must have no vertex in common with train, got 1, such as 2",
        ),
    ],
)  # fmt: skip
def test_refuses(arrays, message, edges, tmp_path):
    with pytest.raises(ValueError, match=message):
        read_graph(edges, **save(tmp_path, **arrays))


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ({"train": 1.5}, r"train must be a file or a fraction in \(0, 1\], got 1.5"),
        ({"val": 0.0}, r"val must be a file or a fraction in \(0, 1\], got 0.0"),
        ({"val": "nan"}, "val must be a file or a fraction"),
        (
            {"train": 0.6, "val": 0.6},
            "train and val must be fractions that add up to no more than the vertices left",
        ),
    ],
)
def test_fractions_that_are_none(sets, message, edges):
    with pytest.raises(ValueError, match=message):
        read_graph(edges, **sets)


def test_more_than_files_leave(edges, tmp_path):
    with pytest.raises(
        ValueError, match=r"train must be fractions that add up to .* left \(2 of 10\), got 0.5"
    ):
        read_graph(edges, **save(tmp_path, test=np.arange(8)), train=0.5)


def test_graphs_that_take_none(tmp_path):
    files = save(tmp_path, labels=np.ones(2))
    graph = Graph.from_coo([0], [1], ndata={"label": torch.zeros(2)})
    with pytest.raises(
        ValueError, match="labels must not be given for a graph that has the field 'label'"
    ):
        add_fields(graph, **files)
    (tmp_path / "out.two").write_text("% bip unweighted\n1 1\n")
    with pytest.raises(
        ValueError,
        match=r"labels must be given for a graph of one vertex type, got \['left', 'right'\]",
    ):
        read_graph(tmp_path / "out.two", **files)
