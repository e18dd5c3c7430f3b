"""Tables of several types, as a YAML file describes them."""

import gzip

import numpy as np
import pytest
import torch
from tiny_graphs import ends

from pagraph import FormatError
from pagraph.datasets import read_graph, write_graph

pa = pytest.importorskip("pyarrow")
pytest.importorskip("yaml")
import pyarrow.parquet  # noqa: E402

DESCRIPTION = """
nodes:
  paper:
    file: papers.csv
    id: paper_id
    fields: {feat: [f0, f1], label: field, extra: {file: extra.npy}}
  author: {file: authors.parquet, id: name, fields: [h_index, embedding]}
  venue: {}
edges:
  author:writes:paper: {file: writes.tsv.gz, src: name, dst: paper_id, fields: [position]}
  paper:at:venue: {file: papers.csv, src: paper_id, dst: venue}
"""
WRITES = "name\tpaper_id\tposition\nanna\tp2\t1\nbo\tp1\t2\nanna\tp1\t1.5\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "graph.yaml").write_text(DESCRIPTION)
    (tmp_path / "papers.csv").write_text(
        'paper_id,f0,f1,field,venue\np1,0.5,1,3,"kdd, 20"\np2,2,3,1,socc\n"p3",1,1,0,"kdd, 20"\n'
    )
    np.save(tmp_path / "extra.npy", np.arange(12).reshape(3, 4))
    authors = {"name": ["bo", "anna"], "h_index": [3, 9], "embedding": [[1.0, 2.0], [3.0, 4.0]]}
    pyarrow.parquet.write_table(pa.table(authors), tmp_path / "authors.parquet")
    (tmp_path / "writes.tsv.gz").write_bytes(gzip.compress(WRITES.encode()))
    return tmp_path


def words(fields):
    return [bytes(row).rstrip(b"\0").decode() for row in fields["original_id"].numpy()]


def test_types_fields_and_ids(folder):
    write_graph(read_graph(folder / "graph.yaml"), folder / "native")
    graph = read_graph(folder / "native")
    assert graph.num_nodes_by_type == {"paper": 3, "author": 2, "venue": 2}
    paper, author = graph.node_fields("paper"), graph.node_fields("author")
    assert words(paper) == ["p1", "p2", "p3"] and words(author) == ["bo", "anna"]
    assert words(graph.node_fields("venue")) == ["kdd, 20", "socc"]
    assert (
        paper["feat"].tolist() == [[0.5, 1], [2, 3], [1, 1]]
        and paper["feat"].dtype == torch.float32
    )
    assert paper["label"].tolist() == [3, 1, 0] and paper["label"].dtype == torch.int64
    assert paper["extra"].shape == (3, 4)
    assert author["h_index"].tolist() == [3, 9] and author["embedding"].tolist() == [[1, 2], [3, 4]]
    assert ends(graph, ("author", "writes", "paper")).tolist() == [[1, 1], [0, 0], [1, 0]]
    assert graph.edge_fields(("author", "writes", "paper"))["position"].tolist() == [1, 2, 1.5]
    assert ends(graph, ("paper", "at", "venue")).tolist() == [[0, 0], [1, 1], [2, 0]]


def test_numbers_are_ids(folder):
    pyarrow.parquet.write_table(
        pa.table({"user": [10, 11, 10], "item": [0, 1, 2]}), folder / "rates.parquet"
    )
    (folder / "graph.yaml").write_text(
        "nodes: {user: {}, item: {}}\nedges: {'user:rates:item': {file: rates.parquet, src: user, "
        "dst: item}}"
    )
    graph = read_graph(folder / "graph.yaml")
    assert graph.node_fields("user")["original_id"].tolist() == [10, 11]
    assert graph.node_fields("item") == {}  # they count from 0


def test_masks_are_bools(folder):
    (folder / "u.csv").write_text("user,train,stars\na,1,0\nb,0,1\nc,1,2\n")
    (folder / "graph.yaml").write_text(
        "nodes: {user: {file: u.csv, id: user, fields: {train_mask: train, stars_mask: stars, one: "
        "train}}}\n"
        "edges: {'user:is:user': {file: u.csv, src: user, dst: user}}"
    )
    fields = read_graph(folder / "graph.yaml").ndata
    assert (
        fields["train_mask"].tolist() == [True, False, True]
        and fields["train_mask"].dtype == torch.bool
    )
    # No masks.
    assert fields["stars_mask"].dtype == torch.int64 and fields["one"].dtype == torch.int64


@pytest.mark.every
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("id: paper_id", "id: none", "must have one column 'none', it has"),
        ("label: field", "label: venue", "column 'venue' must hold numbers"),
        ("file: papers.csv", "file: none.csv", "none.csv is missing, and .* names it"),
        ("file: papers.csv", "file: ../p.csv", "must name a file inside"),
        ("file: papers.csv", "file: graph.yaml", "must have one column|must end in .parquet"),
        ("extra.npy", "authors.parquet", "must hold|must have a row per row"),
        ("author:writes:paper", "author:paper", "edges must be named source:relation:target"),
        ("author:writes:paper", "author:writes:book", "with types of"),
        ("fields: [position]", "fields: 3", "fields must be a list of columns"),
        (
            "fields: [position]",
            "fields: [[position]]",
            r"names must be printable characters, got \['position'\]",
        ),
        ("feat: [f0, f1]", "feat: []", r"names must be printable characters, got \[\]"),
        (
            "id: paper_id",
            "id: [paper_id]",
            r"names must be printable characters, got \['paper_id'\]",
        ),
        ("src: name", "source: name", "src must be a JSON str|src must be"),
        ("nodes:", "vertices:", "nodes must be"),
    ],
)
def test_descriptions_that_do_not_fit(old, new, message, folder):
    (folder / "graph.yaml").write_text(DESCRIPTION.replace(old, new, 1))
    with pytest.raises(FormatError, match=message):
        read_graph(folder / "graph.yaml")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("papers.csv", "p2,", "p1,", "ids must be unique, got 'p1' twice"),
        ("papers.csv", "p2,", ",", "row 2 must have an id in the column of id, got none"),
        ("papers.csv", "p2,2,3", "p2,2,3,4", "cannot be read"),
        ("papers.csv", "p2,2,3", "p2,,3", "column 'f0' must hold numbers"),
        ("writes.tsv", "bo\tp1", "bo\tp9", r"dst must be an id of .*papers.csv, got 'p9'"),
        ("writes.tsv", "bo\tp1", "bob\tp1", r"src must be an id of .*authors.parquet, got 'bob'"),
    ],
)
def test_tables_that_do_not_fit(file, old, new, message, folder):
    if file == "writes.tsv":
        (folder / "writes.tsv.gz").write_bytes(gzip.compress(WRITES.replace(old, new).encode()))
    else:
        (folder / file).write_text((folder / file).read_text().replace(old, new))
    with pytest.raises(FormatError, match=message):
        read_graph(folder / "graph.yaml")


def test_matrix_beside_numbers(folder):
    fields = "fields: {feat: [embedding, h_index]}"
    (folder / "graph.yaml").write_text(DESCRIPTION.replace("fields: [h_index, embedding]", fields))
    assert read_graph(folder / "graph.yaml").node_fields("author")["feat"].tolist() == [
        [1, 2, 3],
        [3, 4, 9],
    ]


def test_one_column_of_words_with_spaces(folder):
    (folder / "venues.txt").write_text("name\nkdd 20\nsocc\n")
    (folder / "papers.csv").write_text(
        (folder / "papers.csv").read_text().replace('"kdd, 20"', "kdd 20")
    )
    description = DESCRIPTION.replace("venue: {}", "venue: {file: venues.txt, id: name}")
    (folder / "graph.yaml").write_text(description)
    assert words(read_graph(folder / "graph.yaml").node_fields("venue")) == ["kdd 20", "socc"]
