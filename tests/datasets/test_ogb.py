"""OGB's raw folders, as its own scripts write them: pandas' comma-separated tables in gzip."""

import gzip

import numpy as np
import pytest
import torch
from tiny_graphs import HETEROGENEOUS, HOMOGENEOUS, ends, random_graph

from pagraph import FormatError
from pagraph.datasets import export_graph, read_graph
from pagraph.graph.graph import EDGE_TYPE

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")


def save(path, rows, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(path, index=False, header=options.get("header", False), compression="gzip")


@pytest.fixture
def arxiv(tmp_path):
    """A folder like ogbn-arxiv's."""
    folder, draw = tmp_path / "arxiv", np.random.default_rng(0)
    raw, split = folder / "raw", folder / "split" / "time"
    save(raw / "edge.csv.gz", [[0, 1], [1, 2], [3, 3], [3, 0]])
    save(raw / "num-node-list.csv.gz", [5])
    save(raw / "num-edge-list.csv.gz", [4])
    save(raw / "node-feat.csv.gz", draw.random((5, 3), dtype=np.float32).astype(np.float64))
    save(raw / "node-label.csv.gz", [[4], [3], [2], [1], [0]])
    save(raw / "node_year.csv.gz", [[2010 + i] for i in range(5)])
    save(raw / "edge-feat.csv.gz", [[1, 2], [3, 4], [5, 6], [7, 8]])
    for name, ids in (("train", [0, 1]), ("valid", [2]), ("test", [4])):
        save(split / f"{name}.csv.gz", ids)
    return folder


def test_one_type(arxiv):
    graph = read_graph(arxiv)
    assert ends(graph, EDGE_TYPE).tolist() == [[0, 1], [1, 2], [3, 3], [3, 0]]
    assert graph.num_nodes == 5
    assert {name: (v.dtype, list(v.shape)) for name, v in graph.ndata.items()} == {
        "feat": (torch.float32, [5, 3]),
        "label": (torch.int64, [5]),
        "year": (torch.int64, [5]),
        **{f"{part}_mask": (torch.bool, [5]) for part in ("train", "val", "test")},
    }
    assert graph.ndata["feat"].equal(torch.from_numpy(np.random.default_rng(0).random((5, 3), dtype=np.float32)))
    assert graph.ndata["val_mask"].tolist() == [False, False, True, False, False]
    assert graph.edata["feat"].tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]


def test_edges_named_once(arxiv):
    graph = read_graph(arxiv, undirected=True)
    assert graph.num_edges == 7
    assert graph.edata["feat"].tolist() == [[1, 2], [3, 4], [5, 6], [7, 8], [1, 2], [3, 4], [7, 8]]


def test_splits(arxiv):
    save(arxiv / "split" / "degree" / "train.csv.gz", [3])
    assert read_graph(arxiv, split="degree").ndata["train_mask"].nonzero().tolist() == [[3]]
    for split in ("", "none"):
        with pytest.raises(ValueError, match=rf"split must be one of \['degree', 'time'\], got '{split}'"):
            read_graph(arxiv, split=split)


def test_several_types(tmp_path):
    raw = tmp_path / "raw"
    save(raw / "triplet-type-list.csv.gz", [["author", "writes", "paper"], ["paper", "cites", "paper"]])
    save(raw / "num-node-dict.csv.gz", {"author": [2], "paper": [3]}, header=True)
    for name, edges in (("author___writes___paper", [[0, 2], [1, 0]]), ("paper___cites___paper", [[2, 1]])):
        save(raw / "relations" / name / "edge.csv.gz", edges)
        save(raw / "relations" / name / "edge_reltype.csv.gz", [[i] for i in range(len(edges))])
    save(raw / "node-feat" / "paper" / "node-feat.csv.gz", np.full((3, 2), 0.5))
    save(raw / "node-feat" / "paper" / "node_year.csv.gz", [[2000], [2001], [2002]])
    save(raw / "node-label" / "paper" / "node-label.csv.gz", [[1], [0], [1]])
    save(tmp_path / "split" / "time" / "paper" / "train.csv.gz", [1])
    graph = read_graph(tmp_path)
    assert graph.num_nodes_by_type == {"author": 2, "paper": 3}
    assert ends(graph, ("author", "writes", "paper")).tolist() == [[0, 2], [1, 0]]
    assert graph.edge_fields(("author", "writes", "paper"))["reltype"].tolist() == [0, 1]
    assert set(graph.node_fields("paper")) == {"feat", "label", "year", "train_mask"}
    assert graph.node_fields("author") == {}
    with pytest.raises(ValueError, match=r"undirected=True must not be given for .* several types"):
        read_graph(tmp_path, undirected=True)


@pytest.mark.parametrize(
    ("table", "text", "message"),
    [
        ("raw/edge", "0,1\n1,2\n3,3\n0,9\n", r"edge.csv.gz: dst must be in \[0, 5\), got 9"),
        ("raw/edge", "a,b\n", "line 1 must begin with two integers"),
        ("raw/num-node-list", "5\n6\n", "must hold the number of vertices of 1 graph, got 2 lines"),
        ("raw/num-node-list", "-5\n", "must hold the number of vertices of 1 graph"),
        ("raw/num-node-list", "9000000000000000\n", "no more vertices than fit into memory"),
        ("raw/node-feat", "1,2\n3\n", "must be a table of numbers, as many in every line"),
        ("raw/node-feat", "1,2\n", r"field 'feat' must have one row per vertex \(5\), got 1"),
        ("raw/edge-feat", "1,2\n", r"field 'feat' must have a row per edge \(4\), got 1"),
        ("split/time/train", "7\n", "must hold ids of vertices, one a line and each below 5"),
        ("split/time/train", "0.5\n", "must hold ids of vertices"),
    ],
)
def test_refuses(table, text, message, arxiv):
    (arxiv / f"{table}.csv.gz").write_bytes(gzip.compress(text.encode()))
    with pytest.raises(FormatError, match=message):
        read_graph(arxiv)


def test_damaged_and_missing_tables(arxiv, tmp_path):
    table = arxiv / "raw" / "edge.csv.gz"
    table.write_bytes(table.read_bytes()[:-9])
    with pytest.raises(FormatError, match="is no whole gzip file"):
        read_graph(arxiv)
    (arxiv / "raw" / "num-node-list.csv.gz").unlink()
    with pytest.raises(FormatError, match=r"num-node-list.csv.gz is missing"):
        read_graph(arxiv)


@pytest.mark.parametrize("triplet", [["a", "to", "../b"], ["a", "to"], ["a", "to", "c"]])
def test_types_that_are_none(triplet, tmp_path):
    save(tmp_path / "raw" / "triplet-type-list.csv.gz", [triplet])
    save(tmp_path / "raw" / "num-node-dict.csv.gz", {"a": [2], "../b": [3]}, header=True)
    with pytest.raises(FormatError, match="must hold triples of types|must have types of plain names"):
        read_graph(tmp_path)


@pytest.mark.parametrize("types", [HOMOGENEOUS, HETEROGENEOUS])
def test_ogbs_own_reader_takes_what_is_exported(types, tmp_path):
    io = pytest.importorskip("ogb.io.read_graph_raw")
    graph = random_graph(types, 0)
    first = graph.node_types[0]
    graph.set_field("feat", torch.randn(graph.num_nodes_of(first), 3), node_type=first)
    export_graph(graph, tmp_path / "o", form="ogb")
    if types is HOMOGENEOUS:
        [read] = io.read_csv_graph_raw(str(tmp_path / "o" / "raw"))
        assert read["edge_index"].T.tolist() == ends(graph, EDGE_TYPE).tolist()
        assert np.array_equal(read["node_feat"], graph.ndata["feat"])
    else:
        [read] = io.read_csv_heterograph_raw(str(tmp_path / "o" / "raw"))
        assert read["num_nodes_dict"] == graph.num_nodes_by_type
        for edge_type in graph.edge_types:
            assert read["edge_index_dict"][edge_type].T.tolist() == ends(graph, edge_type).tolist()
        assert np.array_equal(read["node_feat_dict"][first], graph.node_fields(first)["feat"])
