"""Tables of several types, as a YAML file describes them."""

import gzip

import numpy as np
import pytest
import torch
from tiny_graphs import ends

from pagraph import FormatError
from pagraph.datasets import import_graph, read_graph, write_graph

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
        ("label: field", "label: venue", "field 'label' must be .*papers.csv: its texts differ"),
        ("feat: [f0, f1]", "feat: [f0, venue]", "field 'feat' must be a column that .*differ"),
        ("feat: [f0, f1]", "F0: f0, f0: f1", "differ by more than case, got 'F0' and 'f0'"),
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
        ("papers.csv", "p2,", "p1,", r"keys in paper_id must be unique, got p1 \(2 times\)"),
        ("papers.csv", "p2,", ",", "row 2 must have an id in the column of id, got none"),
        ("papers.csv", "p2,2,3", "p2,2,3,4", "cannot be read"),
        (
            "papers.csv",
            "p2,2,3,1",
            "p2,2,3,",
            "paper.label must have a value in every row, .* row 2",
        ),
        ("papers.csv", "p2,2,3,1", "p2,2,3,x", "'x' is no number, as 2 of its 3 texts are"),
        (
            "writes.tsv",
            "bo\tp1",
            "bo\tp9",
            r"writes.tsv.gz.paper_id must hold keys of paper, got p9",
        ),
        (
            "writes.tsv",
            "bo\tp1",
            "bob\tp1",
            r"writes.tsv.gz.name must hold keys of author, got bob,",
        ),
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


class TestMessyCells:
    """The options of databases."""

    USERS = (
        "name,size,age,born,vip,kind,zip\nanna,1.5,30,1990-01-01,true,a,007\nbo,,NA,,N/A,b,8\n"
        "cy,n/a,40,1991-02-03,False,b,9\ndi,2.5,31,1970-01-01,true,c,10\n"
    )
    LIKES = "who,whom,at,mood\nanna,bo,2024-01-01 10:00,x\nbo,,2024-01-02,y\ncy,zed,2024-01-03,x\n"
    DESCRIPTION = (
        "nodes:\n  user: {file: users.csv, id: name, fields: {size: size, age: age, born: born, vip: "
        "vip, kind: kind, zip_: zip, label: kind, both: [age, size]}}\n"
        "edges:\n  user:likes:user: {file: likes.csv, src: who, dst: whom, fields: [at, mood]}\n"
    )

    @pytest.fixture
    def path(self, tmp_path):
        (tmp_path / "users.csv").write_text(
            self.USERS
            + self.USERS.partition("\n")[2]
            .replace("anna", "ed")
            .replace("bo,", "fi,")
            .replace("cy", "gil")
            .replace("di", "hal")
        )
        (tmp_path / "likes.csv").write_text(self.LIKES + "di,di,2024-01-04,y\n")
        path = tmp_path / "graph.yaml"
        path.write_text(self.DESCRIPTION)
        return path

    def test_with_options(self, path, tmp_path):
        graph = read_graph(path, missing=-1, orphans="drop", words=2)
        fields = graph.node_fields("user")
        assert fields["size"].isnan().tolist() == [0, 1, 1, 0] * 2
        assert fields["age"].tolist() == [30, -1, 40, 31] * 2
        # The times of edges have the same unit.
        born = np.array(["1990-01-01", "1991-02-03"], dtype="M8[s]").astype(int)
        assert fields["born"].tolist() == [born[0], -1, born[1], 0] * 2
        assert fields["vip"].tolist() == [1, -1, 0, 1] * 2
        assert fields.notes["kind"].words == ("a", "b", "other")
        assert fields["kind"].tolist() == [0, 1, 1, 2] * 2
        assert fields["zip_"].tolist() == [7, 8, 9, 10] * 2
        assert fields["both"].shape == (8, 2) and fields["both"][1].isnan().tolist() == [1, 1]
        likes = ("user", "likes", "user")
        assert ends(graph, likes).tolist() == [[0, 1], [3, 3]]
        assert graph.edge_fields(likes).notes["at"].unit == "seconds"
        at = np.array(["2024-01-01T10:00", "2024-01-04"], dtype="M8[s]").astype(int)
        assert graph.edge_fields(likes)["at"].tolist() == at.tolist()
        assert graph.edge_fields(likes)["mood"].tolist() == [0, 1]
        shown = str(graph.schema())
        assert "2 missing ones are -1" in shown and "other: 2 rows of rarer words" in shown

    def test_without_options(self, path):
        with pytest.raises(
            FormatError, match="likes.csv, row 2 must have an id in .* dst, got none"
        ):
            read_graph(path)
        (path.parent / "likes.csv").write_text(
            self.LIKES.replace("bo,,", "bo,cy,") + "di,di,2024-01-04,y\n"
        )
        with pytest.raises(FormatError, match="user.age must have a value in every row, .* row 2"):
            read_graph(path)
        with pytest.raises(FormatError, match="likes.csv.whom must hold keys of user, got zed"):
            read_graph(path, missing=-1)
        with pytest.raises(ValueError, match="orphans must be one of error, drop, got 'x'"):
            read_graph(path, orphans="x")
        with pytest.raises(
            ValueError, match="missing must name columns that are read, got 'user.z"
        ):
            read_graph(path, missing={"user": {"z": 1}})

    def test_with_a_task(self, path, tmp_path):
        options = {"missing": -1, "orphans": "drop", "task": "user:label"}
        import_graph(path, tmp_path / "out", **options, train=0.5, val=0.25, test=0.25)
        fields = read_graph(tmp_path / "out").node_fields("user")
        masks = [int(fields[f"{part}_mask"].sum()) for part in ("train", "val", "test")]
        assert masks == [4, 2, 2]
        assert fields["label"].tolist() == [0, 1, 1, 2] * 2
        # What is missing is 0 among the features: size, age, vip, three words, zip, both.
        assert fields["feat"].shape == (8, 9)
        assert fields["feat"][1, :3].tolist() == [0, 0, 0]

    def test_fields_that_are_files_and_edges_that_are_left_out(self, path):
        np.save(path.parent / "w.npy", np.arange(4))
        text = self.DESCRIPTION.replace("[at, mood]", "{w: {file: w.npy}}")
        path.write_text(text)
        with pytest.raises(FormatError, match="w must be a column of the table, as orphans='drop'"):
            read_graph(path, missing=-1, orphans="drop")


def test_ids_are_texts_and_fields_numbers(tmp_path):
    (tmp_path / "u.csv").write_text("id,x\n007,1\n7,2\n+7,3\n")
    (tmp_path / "e.csv").write_text("a,b\n7,007\n+7,7\n")
    (tmp_path / "graph.yaml").write_text(
        "nodes: {u: {file: u.csv, id: id, fields: [id, x]}}\n"
        "edges: {'u:e:u': {file: e.csv, src: a, dst: b}}"
    )
    graph = read_graph(tmp_path / "graph.yaml")
    assert words(graph.ndata) == ["007", "7", "+7"]
    assert graph.ndata["id"].tolist() == [7, 7, 7]
    assert ends(graph, ("u", "e", "u")).tolist() == [[1, 0], [2, 1]]
