"""Edge lists and databases larger than the memory that their import may take, in a control group a
quarter above it, which would end the process."""

import gzip
import shutil
import sqlite3
import subprocess
import sys

import duckdb
import pytest

from pagraph.graph.graph import Graph

# Read into memory, each form takes 100 MiB more than its group has.
EDGES = 6_000_000
VERTICES = 500_000

pytestmark = pytest.mark.memory


def written(path, columns, form, count=EDGES):
    """A file of drawn edges."""
    query = f"SELECT {columns} FROM range({count}) AS rows(i)"
    duckdb.sql(f"COPY ({query}) TO '{path}' ({form})")
    return path


def end(number):
    """A vertex of each edge, as SQL."""
    return f"hash({number}, i) % {VERTICES}"


def words_as_ids(folder):
    columns = f"'user-' || ({end(1)}) AS src, 'user-' || ({end(2)}) AS dst, i % 75 AS year"
    return written(folder / "words.csv", columns, "format csv, header true"), ("--relabel",)


def packed(folder):
    columns = f"{end(1)}, {end(2)}"
    text = written(folder / "edges.tsv", columns, "format csv, delimiter '\t', header false")
    zipped = text.with_suffix(".tsv.gz")
    with open(text, "rb") as plain, gzip.open(zipped, "wb", 1) as out:
        shutil.copyfileobj(plain, out, 2**24)
    text.unlink()
    return zipped, ()


def parquet(folder):
    columns = f"({end(1)})::BIGINT AS src, ({end(2)})::BIGINT AS dst, i / 7 AS amount"
    return written(folder / "edges.parquet", columns, "format parquet"), ()


def sqlite(folder):
    path = folder / "shop.db"
    with sqlite3.connect(path) as database:
        database.executescript(
            f"""
            CREATE TABLE users (id INTEGER PRIMARY KEY, age INTEGER);
            CREATE TABLE orders (id INTEGER PRIMARY KEY, user_id INTEGER REFERENCES users (id),
                                 amount REAL, note TEXT);
            WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT {VERTICES})
                INSERT INTO users SELECT i, i % 90 FROM n;
            WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT {EDGES // 3})
                INSERT INTO orders
                SELECT i, i * 7919 % {VERTICES}, i / 7.0, 'a note that differs ' || i FROM n;
            """
        )
    database.close()
    return path, ()


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """What :func:`words_as_ids` gives, once for both tests of it."""
    return words_as_ids(tmp_path_factory.mktemp("words"))


@pytest.mark.parametrize(
    ("source", "edges", "mebibytes"),
    [
        (words_as_ids, EDGES, 320),
        (packed, EDGES, 256),
        (parquet, EDGES, 256),
        (sqlite, EDGES // 3 * 2, 320),
    ],
)
def test_an_import_keeps_to_a_quarter_more_than_memory(
    in_group, tmp_path, request, source, edges, mebibytes
):
    path, options = request.getfixturevalue("words") if source is words_as_ids else source(tmp_path)
    command = [sys.executable, "-m", "pagraph", "import", path, tmp_path / "graph", *options]
    in_group(mebibytes, *command)
    graph = Graph.open(tmp_path / "graph")
    assert sum(graph.csc_of(t).num_edges for t in graph.edge_types) == edges


def test_too_little_memory_for_words_is_refused(words, tmp_path):
    path, options = words
    command = [sys.executable, "-m", "pagraph", "import", path, tmp_path / "graph", *options]
    done = subprocess.run([*command, "--memory", "260MiB"], capture_output=True, text=True)
    assert done.returncode == 2
    # What the process holds by itself decides which of both is said.
    said = " ".join(done.stderr.split())
    assert "192 MiB for 6,000,000 rows with words as ids" in said or "edges sorted in" in said
    assert list(tmp_path.iterdir()) == []
