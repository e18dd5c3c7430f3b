"""Tables of numbers in text, and columns of named tables: by DuckDB and line by line the same, and
as a plain reading of each word has it."""

import csv
import gzip
import math
import subprocess

import numpy as np
import pytest
import torch
from fresh_processes import bare_python
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import FormatError
from pagraph.datasets.column_files import Scratch
from pagraph.datasets.tables import described, number_tables
from pagraph.datasets.tables.connection import Connection
from pagraph.datasets.tables.number_tables import read_numbers

pytestmark = pytest.mark.usefixtures("kept_connection")

INTEGERS = st.integers(-(2**62), 2**62).map(str) | st.sampled_from(["+3", "007", "-0", " 5 "])
FRACTIONS = st.floats(width=32).map(repr) | st.sampled_from(
    ["1e5", ".5", "2.", "nan", "NaN", "inf"]
)
ODD = st.sampled_from(["1_0", "+-1", "nan(1)", "0x10", "NULL", "n/a", "x", " ", "1d", "٣", "1 2"])
WIDE = st.sampled_from([str(2**53 + 1), str(2**63), "0.5", "1"])


@st.composite
def tables(draw):
    """The words of a table, and its text."""
    word = draw(st.sampled_from([INTEGERS, FRACTIONS, INTEGERS | FRACTIONS | st.just(""), WIDE]))
    width = draw(st.integers(1, 4))
    rows = draw(st.lists(st.lists(word, min_size=width, max_size=width), min_size=1, max_size=8))
    rows = [row for row in rows if row != [""]]
    if rows and draw(st.booleans()):
        place = draw(st.integers(0, len(rows) - 1))
        rows[place][draw(st.integers(0, width - 1))] = draw(ODD)
    separator = draw(st.sampled_from([",", ";", "\t"]))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    lines = [separator.join(f"n{place}" for place in range(width))]
    lines += [separator.join(row) for row in rows]
    return rows, end.join(lines) + end


def number(word):
    """A number of text, as a person reads it."""
    if word == "":
        return math.nan
    word = word.strip()
    if not word.isascii() or "_" in word:
        raise ValueError(word)
    return int(word) if word.lstrip("+-").isdigit() else float(word)


def expected(rows, field):
    """The array of a table; None where it must be refused."""
    try:
        numbers = [[number(word) for word in row] for row in rows]
    except ValueError:
        return None
    flat = [value for row in numbers for value in row]
    if all(type(value) is int and -(2**63) <= value < 2**63 for value in flat):
        return np.array(numbers, dtype=np.int64)
    if field == "feat":
        return np.array(numbers, dtype=np.float64).astype(np.float32)
    if any(type(value) is int and abs(value) >= 2**53 for value in flat):
        return None
    return np.array(numbers, dtype=np.float64)


def outcome(path, field):
    try:
        return read_numbers(path, field=field)
    except FormatError as error:
        return str(error)


@settings(max_examples=examples(40), deadline=None)
@given(tables(), st.sampled_from(["feat", "label"]), st.booleans())
def test_by_lines_and_by_duckdb(tmp_path_factory, table, field, is_packed):
    rows, text = table
    path = tmp_path_factory.mktemp("t") / "a.csv"
    path.write_bytes(gzip.compress(text.encode()) if is_packed else text.encode())
    want = expected(rows, field)
    by_lines = outcome(path, field)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(number_tables, "_FEW_BYTES", 0)
        quick = outcome(path, field)
    if want is None:
        assert isinstance(by_lines, str)
        assert by_lines == quick
        return
    for got in (by_lines, quick):
        assert not isinstance(got, str), got
        if rows:
            np.testing.assert_array_equal(got.numpy().astype(want.dtype), want)
            assert got.is_floating_point() == (want.dtype.kind == "f")
        assert field != "feat" or got.dtype in (torch.int64, torch.float32)
    assert by_lines.dtype == quick.dtype


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n3\n", "line 2 has 1, and the first 2"),
        ("a,b\n1,2\n\n3,x\n", "line 4 has 'x' as number 2"),
        ("1\r2\rx\r", "line 1 has 'x' as number 1"),
        ("1 2\n3  4 5\n", "line 2 has 3, and the first 2"),
    ],
)
@pytest.mark.parametrize("few", [0, 2**20])
def test_the_line_is_named(text, message, few, tmp_path, monkeypatch):
    monkeypatch.setattr(number_tables, "_FEW_BYTES", few)
    (tmp_path / "a.csv").write_bytes(text.encode())
    with pytest.raises(FormatError) as raised:
        read_numbers(tmp_path / "a.csv")
    assert str(raised.value) == (
        f"{tmp_path / 'a.csv'} must be a table of numbers with lines of equal length: {message}"
    )


def test_features_that_float32_does_not_hold(tmp_path):
    (tmp_path / "a.csv").write_text("0.5,1\n1,1e39\n")
    with pytest.raises(FormatError, match=r"row 2 must hold a number of float32 .* got 1e\+39"):
        read_numbers(tmp_path / "a.csv", field="feat")


def test_a_large_table_in_a_file(tmp_path):
    """As many threads as there are, and blocks that end in the middle of a row's words."""
    want = np.random.default_rng(0).standard_normal((30_000, 33)).astype(np.float32)
    np.savetxt(tmp_path / "a.txt", want, fmt="%.9g")
    with Scratch(tmp_path) as scratch:
        got = read_numbers(tmp_path / "a.txt", scratch, field="feat")
        assert torch.equal(got, torch.from_numpy(want))
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


WORDS = st.text(st.sampled_from(list("ab1 ,;\"'é#")), max_size=4)


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.lists(WORDS, min_size=3, max_size=3), max_size=6), st.sampled_from(",;\t"))
def test_named_columns(tmp_path_factory, rows, separator):
    path = tmp_path_factory.mktemp("t") / "a.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=separator, lineterminator="\n")
        writer.writerows([["x", "y", "z"], *rows])
    with Connection(0) as connection:
        described._load_text(connection, "t", path, {"z": "z", "x": "x"})
        found = connection.run("SELECT coalesce(z, ''), coalesce(x, '') FROM t ORDER BY rowid")
    assert found == [(row[2], row[0]) for row in rows]


WITHOUT_PYARROW = """
import sys
sys.modules["pyarrow"] = None
import gzip, pathlib
import duckdb
from pagraph import FormatError
from pagraph.datasets import import_graph, read_graph
folder = pathlib.Path(sys.argv[1])
(folder / "e.csv").write_text("src,dst,w\\n" + "0,1,0.5\\n1,2,1\\n" * 40_000)
(folder / "x.csv").write_text("a,b\\n0.5,1\\n2,3\\n4,5\\n")
rows = "(VALUES (0, 1), (1, 2)) t(src, dst)"
duckdb.sql(f"COPY (SELECT * FROM {rows}) TO '{folder}/e.parquet' (FORMAT parquet)")
lists = "SELECT unnest([[1, 2], [3, 4], [5, 6]])::FLOAT[] AS x"
duckdb.sql(f"COPY ({lists}) TO '{folder}/x.parquet' (FORMAT parquet)")
words = "(VALUES ('p', 'q'), ('q', 'r')) t(s, t)"
duckdb.sql(f"COPY (SELECT * FROM {words}) TO '{folder}/w.parquet' (FORMAT parquet)")
for edges in ("e.csv", "e.parquet"):
    for features in ("x.csv", "x.parquet"):
        graph = read_graph(folder / edges, features=folder / features)
        assert graph.ndata["feat"].shape == (3, 2)
        import_graph(folder / edges, folder / f"{edges}-{features}", features=folder / features)
(folder / "n.csv").write_text("id,f,label\\np,0.5,1\\nq,1,2\\nr,2,3\\n")
(folder / "g.yaml").write_text(
    "nodes:\\n  n: {file: n.csv, id: id, fields: {feat: [f], label: label}}\\n"
    "edges:\\n  n:to:n: {file: w.parquet, src: s, dst: t}\\n"
)
graph = read_graph(folder / "g.yaml")
assert graph.ndata["label"].tolist() == [1, 2, 3] and graph.num_edges == 2
tables = {"edge": "0,1\\n1,2\\n", "num-node-list": "3\\n", "node-feat": "0.5,1\\n1,2\\n3,4\\n"}
(folder / "ogb" / "raw").mkdir(parents=True)
for name, text in tables.items():
    (folder / "ogb" / "raw" / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
assert read_graph(folder / "ogb").ndata["feat"].tolist() == [[0.5, 1], [1, 2], [3, 4]]
"""


@pytest.mark.processes
def test_all_is_read_where_pyarrow_is_not(tmp_path):
    subprocess.run([bare_python(), "-c", WITHOUT_PYARROW, str(tmp_path)], check=True)
