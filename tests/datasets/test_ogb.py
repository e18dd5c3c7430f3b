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
    pd.DataFrame(rows).to_csv(
        path, index=False, header=options.get("header", False), compression="gzip"
    )


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
    assert graph.ndata["feat"].equal(
        torch.from_numpy(np.random.default_rng(0).random((5, 3), dtype=np.float32))
    )
    assert graph.ndata["val_mask"].tolist() == [False, False, True, False, False]
    assert graph.edata["feat"].tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]


def test_edges_named_once(arxiv):
    graph = read_graph(arxiv, undirected=True)
    assert graph.num_edges == 7
    assert graph.edata["feat"].tolist() == [[1, 2], [3, 4], [5, 6], [7, 8], [1, 2], [3, 4], [7, 8]]


def test_labels_are_those_of_ogbs_loaders(arxiv):
    for rows, dtype, first in (
        ([[4.0], [3], [2], [1], [0]], torch.int64, [4]),
        ([["4"], [""], ["2"], ["1"], ["0"]], torch.float32, [4.0]),  # NaN: missing
        ([[0.5], [3], [2], [1], [0]], torch.float32, [0.5]),
        ([[4, 1], [3, 1], [2, 1], [1, 1], [0, 0]], torch.int64, [[4, 1]]),
    ):
        save(arxiv / "raw" / "node-label.csv.gz", rows)
        label = read_graph(arxiv).ndata["label"]
        assert label.dtype == dtype and label[:1].tolist() == first


def test_species_of_proteins(arxiv):
    # OGB's reader renames it to node_species.csv.gz when it first sees it.
    save(arxiv / "raw" / "species.csv.gz", [[9606 + i] for i in range(5)])
    assert read_graph(arxiv).ndata["species"].tolist() == [9606 + i for i in range(5)]
    save(arxiv / "raw" / "node_species.csv.gz", [[i] for i in range(5)])
    assert read_graph(arxiv).ndata["species"].tolist() == list(range(5))


def test_sets_of_links_are_named(arxiv, caplog):
    split = arxiv / "split" / "time"
    for name in ("train", "valid", "test"):
        (split / f"{name}.csv.gz").unlink()
    links = {"edge": torch.zeros(2, 2, dtype=torch.int64)}
    torch.save({"train": links, "valid": links, "test": links}, split / "split_dict.pt")
    assert set(read_graph(arxiv).ndata) == {"feat", "label", "year"}
    assert "time: left out: split_dict.pt (sets of links, of which masks hold none" in caplog.text


def test_splits(arxiv):
    save(arxiv / "split" / "degree" / "train.csv.gz", [3])
    assert read_graph(arxiv, split="degree").ndata["train_mask"].nonzero().tolist() == [[3]]
    for split in ("", "none"):
        with pytest.raises(
            ValueError, match=rf"split must be one of \['degree', 'time'\], got '{split}'"
        ):
            read_graph(arxiv, split=split)


def test_several_types(tmp_path):
    raw = tmp_path / "raw"
    save(
        raw / "triplet-type-list.csv.gz",
        [["author", "writes", "paper"], ["paper", "cites", "paper"]],
    )
    save(raw / "num-node-dict.csv.gz", {"author": [2], "paper": [3]}, header=True)
    for name, edges in (
        ("author___writes___paper", [[0, 2], [1, 0]]),
        ("paper___cites___paper", [[2, 1]]),
    ):
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
        ("raw/node-feat", "1,2\n3\n", "must be a table of numbers with lines of equal length"),
        ("raw/node-feat", "1,2\n", r"field 'feat' must have one row per vertex \(5\), got 1"),
        ("raw/edge-feat", "1,2\n", r"field 'feat' must have a row per edge \(4\), got 1"),
        ("split/time/train", "7\n", "must hold ids of vertices, one a line and each below 5"),
        ("split/time/train", "0.5\n", "must hold ids of vertices"),
        (
            "split/time/test",
            "4\n1\n2\n",
            r"test\.csv\.gz must have no vertex in common with .*train\.csv\.gz, got 1, such as 1",
        ),
        (
            "raw/num-edge-list",
            "3\n",
            r"edge.csv.gz must hold the edges that num-edge-list.csv.gz says, '3', got 4",
        ),
        ("raw/num-edge-list", "4\n9\n", "num-edge-list.csv.gz says, '4 9', got 4"),
    ],
)
def test_refuses(table, text, message, arxiv):
    (arxiv / f"{table}.csv.gz").write_bytes(gzip.compress(text.encode()))
    with pytest.raises(FormatError, match=message):
        read_graph(arxiv)


def test_damaged_and_missing_tables(arxiv, tmp_path):
    table = arxiv / "raw" / "edge.csv.gz"
    table.write_bytes(table.read_bytes()[:-9])
    with pytest.raises(FormatError, match="is not a complete gzip file"):
        read_graph(arxiv)
    (arxiv / "raw" / "num-node-list.csv.gz").unlink()
    with pytest.raises(FormatError, match=r"num-node-list.csv.gz is missing"):
        read_graph(arxiv)


@pytest.mark.parametrize("triplet", [["a", "to", "../b"], ["a", "to"], ["a", "to", "c"]])
def test_types_that_are_none(triplet, tmp_path):
    save(tmp_path / "raw" / "triplet-type-list.csv.gz", [triplet])
    save(tmp_path / "raw" / "num-node-dict.csv.gz", {"a": [2], "../b": [3]}, header=True)
    with pytest.raises(
        FormatError, match="must hold triples of types|must have types of plain names"
    ):
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


def rows_of(table):
    return pd.read_csv(table, header=None).to_numpy()


@pytest.fixture
def papers(arxiv):
    """The same graph in the binary form, as ogbn-papers100M's folder."""
    raw = arxiv / "raw"
    arrays = {
        "edge_index": rows_of(raw / "edge.csv.gz").T,
        "num_nodes_list": np.array([5]),
        "num_edges_list": np.array([4]),
        "node_feat": rows_of(raw / "node-feat.csv.gz").astype(np.float32),
        "node_year": rows_of(raw / "node_year.csv.gz"),
        "edge_feat": rows_of(raw / "edge-feat.csv.gz"),
    }
    np.savez(raw / "node-label.npz", node_label=rows_of(raw / "node-label.csv.gz"))
    for table in list(raw.glob("*.csv.gz")):
        table.unlink()
    np.savez(raw / "data.npz", **arrays)
    return arxiv, arrays


def fields_of(graph):
    owners = [*map(graph.node_fields, graph.node_types), *map(graph.edge_fields, graph.edge_types)]
    return [{name: values.tolist() for name, values in fields.items()} for fields in owners]


class TestBinary:
    def test_is_the_graph_of_the_tables(self, arxiv, request):
        tables = read_graph(arxiv)
        folder, _ = request.getfixturevalue("papers")
        arrays = read_graph(folder)
        assert ends(arrays, EDGE_TYPE).tolist() == ends(tables, EDGE_TYPE).tolist()
        assert fields_of(arrays) == fields_of(tables)
        assert read_graph(folder, undirected=True).num_edges == 7

    def test_the_file_alone(self, papers, tmp_path):
        folder, arrays = papers
        graph = read_graph(folder / "raw" / "data.npz")
        assert (
            graph.num_nodes == 5
            and set(graph.ndata) == {"feat", "year"}
            and set(graph.edata) == {"feat"}
        )
        assert graph.ndata["feat"].dtype == torch.float32 and graph.ndata["year"].tolist() == [
            2010 + i for i in range(5)
        ]
        np.savez(
            tmp_path / "some.npz",
            **{**arrays, "num_nodes_list": np.array([9]), "node_feat": np.ones((9, 1))},
        )
        with pytest.raises(
            FormatError, match=r"field 'year' must have one row per vertex \(9\), got 5"
        ):
            read_graph(tmp_path / "some.npz")

    def test_what_is_neither_of_vertices_nor_of_edges_is_named(self, papers, caplog):
        folder, arrays = papers
        np.savez(
            folder / "raw" / "data.npz",
            more=np.ones(3),
            node_name=np.array(list("abcde")),
            **arrays,
        )
        assert set(read_graph(folder).ndata) == {
            "feat",
            "year",
            "label",
            "train_mask",
            "val_mask",
            "test_mask",
        }
        left = [record.getMessage().partition("left out: ")[2] for record in caplog.records]
        assert left == [
            "node_name (no numbers)",
            "more (names that begin neither with node_ nor with edge_)",
        ]

    @pytest.mark.parametrize(
        ("name", "array", "message"),
        [
            (
                "num_nodes_list",
                np.array([3, 2]),
                r"data.npz must hold 1 graph, whose num_nodes_list is 1 integer",
            ),
            ("num_nodes_list", np.array([4.0]), "is 1 integer, got float64"),
            (
                "num_edges_list",
                np.array([3]),
                "must hold the 3 edges that num_edges_list says, got 4",
            ),
            (
                "edge_index",
                np.zeros((3, 4), dtype=np.int64),
                r"of integers and shape \[2, edges\], got int64 of shape",
            ),
            ("edge_index", np.full((2, 4), 9), r"data.npz: src must be in \[0, 5\), got 9"),
            ("edge_feat", np.zeros((3, 1)), r"field 'feat' must have a row per edge \(4\), got 3"),
            ("node_year", np.array(3), r"field 'year' must have one row per vertex \(5\), got 1"),
        ],
    )
    def test_refuses(self, name, array, message, papers):
        folder, arrays = papers
        np.savez(folder / "raw" / "data.npz", **{**arrays, name: array})
        with pytest.raises(FormatError, match=message):
            read_graph(folder)

    def test_ids_that_a_split_dict_holds(self, papers):
        folder, _ = papers
        saved = folder / "split" / "time" / "split_dict.pt"
        torch.save(
            {"train": torch.tensor([3]), "valid": torch.tensor([0]), "test": torch.tensor([1, 4])},
            saved,
        )
        assert read_graph(folder).ndata["test_mask"].nonzero().squeeze(1).tolist() == [1, 4]
        ids = {"train": np.array([3]), "valid": np.array([[0]]), "test": np.array([1, 4], ">i4")}
        torch.save(ids, saved)  # as OGB's DatasetSaver does
        assert read_graph(folder).ndata["test_mask"].nonzero().squeeze(1).tolist() == [1, 4]
        for content, message in (
            ({"train": [3]}, "must hold tensors of ids, got a list"),
            ({"train": torch.tensor([1]), "test": torch.tensor([1])}, "must have no vertex in com"),
            ({"train": np.array(["a"])}, "must hold .*NumPy values that are not numbers"),
            ({"train": np.array([0.5])}, "must hold ids of vertices"),
            ({"dev": torch.tensor([3])}, r"must hold a dict of \['train', 'valid', 'test'\]"),
            ({"train": torch.tensor([7])}, "must hold ids of vertices"),
        ):
            torch.save(content, saved)
            with pytest.raises(FormatError, match=rf"split_dict.pt {message}"):
                read_graph(folder)


@pytest.fixture
def mag(tmp_path):
    """A folder like that of several types which OGB's ``DatasetSaver`` writes."""
    raw, split = tmp_path / "raw", tmp_path / "split" / "time"
    raw.mkdir()
    split.mkdir(parents=True)
    edges = {
        "author___writes___paper": np.array([[0, 1], [2, 0]]),
        "paper___cites___paper": np.array([[2], [1]]),
    }
    np.savez(raw / "edge_index_dict.npz", **edges)
    np.savez(raw / "num_nodes_dict.npz", author=np.array([2]), paper=np.array([3]))
    np.savez(
        raw / "num_edges_dict.npz",
        **{name: np.array([ends.shape[1]]) for name, ends in edges.items()},
    )
    np.savez(raw / "node_feat.npz", paper=np.full((3, 2), 0.5, dtype=np.float32))
    np.savez(raw / "edge_reltype.npz", author___writes___paper=np.array([[0], [1]]))
    np.savez(raw / "node-label.npz", paper=np.array([[1], [0], [1]]))
    torch.save({"train": {"paper": torch.tensor([1])}}, split / "split_dict.pt")
    return tmp_path


class TestBinaryOfSeveralTypes:
    def test_is_read_by_type(self, mag):
        graph = read_graph(mag)
        assert graph.num_nodes_by_type == {"author": 2, "paper": 3}
        assert ends(graph, ("author", "writes", "paper")).tolist() == [[0, 2], [1, 0]]
        assert graph.edge_fields(("author", "writes", "paper"))["reltype"].tolist() == [0, 1]
        assert set(graph.node_fields("paper")) == {"feat", "label", "train_mask"}
        assert graph.node_fields("paper")["train_mask"].tolist() == [False, True, False]
        assert graph.node_fields("author") == {}

    @pytest.mark.parametrize(
        ("file", "arrays", "message"),
        [
            (
                "num_nodes_dict",
                {"paper": [3]},
                r"count the vertices of each type, it counts \['paper'\], got 'author'",
            ),
            ("num_edges_dict", {"paper___cites___paper": [5]}, "got 1 of paper/cites/paper"),
            (
                "edge_index_dict",
                {"cites": [[0], [1]]},
                "must be named SOURCE___RELATION___DESTINATION, got 'cites'",
            ),
            (
                "node_feat",
                {"river": [[0], [1]]},
                r"must hold node_feat by types among .*, got 'river'",
            ),
        ],
    )
    def test_refuses(self, file, arrays, message, mag):
        np.savez(mag / "raw" / f"{file}.npz", **arrays)
        with pytest.raises(FormatError, match=message):
            read_graph(mag)

    def test_names_that_ogb_gives_dicts(self, mag):
        raw = mag / "raw"
        (raw / "node_feat.npz").rename(raw / "node_feat_dict.npz")
        assert read_graph(mag).node_fields("paper")["feat"].shape == (3, 2)
        np.savez(raw / "node_feat.npz", paper=np.zeros((3, 1)))
        with pytest.raises(FormatError, match=r"must hold node_feat once, got node_feat_dict\.npz"):
            read_graph(mag)

    def test_members_of_other_lengths(self, mag):
        np.savez(mag / "raw" / "node_feat.npz", paper=np.zeros((4, 1)))
        with pytest.raises(FormatError, match=r"of paper: field 'feat' must have one row per vert"):
            read_graph(mag)

    def test_a_missing_file_and_one_of_no_type(self, mag, caplog):
        np.savez(mag / "raw" / "table.npz", paper=np.ones(3))
        read_graph(mag)
        assert "left out: table.npz (" in caplog.text
        (mag / "raw" / "num_nodes_dict.npz").unlink()
        with pytest.raises(FormatError, match=r"num_nodes_dict\.npz is missing"):
            read_graph(mag)
