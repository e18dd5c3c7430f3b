"""Graphs of databases in files, SQLite's and DuckDB's, against a plain reading of the same rows."""

import datetime
import sqlite3

import duckdb
import pytest
from plain_database import TABLES, check, plain_graph, shop_rows

from pagraph.datasets import import_graph, open_graph, read_graph

pytest.importorskip("adbc_driver_sqlite", reason="needs adbc-driver-sqlite")

TASK = ("orders", "returned")


def fill(link, rows):
    """Make the tables of the shop, and insert the rows one by one."""
    for name, columns in TABLES.items():
        link.execute(f"create table {name} ({columns})")
    for name, of_table in rows.items():
        for row in of_table:
            link.execute(f"insert into {name} values ({', '.join('?' * len(row))})", row)


def make_sqlite(path, rows):
    def as_text(value):
        return str(value) if isinstance(value, datetime.datetime) else value

    path.unlink(missing_ok=True)
    link = sqlite3.connect(path)
    fill(link, {name: [tuple(map(as_text, r)) for r in t] for name, t in rows.items()})
    link.commit()
    link.close()
    return path


def make_duckdb(path, rows):
    path.unlink(missing_ok=True)
    with duckdb.connect(str(path)) as link:
        fill(link, rows)
    return path


def plain_of(link, **options):
    """The graph of what Python's own client reads."""
    rows = {}
    columns = {}
    for name in TABLES:
        found = link.execute(f"select * from {name}")
        columns[name] = [column[0] for column in found.description]
        rows[name] = found.fetchall()
    link.close()
    return plain_graph(rows, columns, **options)


SHARES = [(0.6, 0.2, 0.2), (0.1, 0.1, 0.1), (0.9, 0.05, 0.05)]


@pytest.mark.every
@pytest.mark.parametrize("seed", range(6))
def test_any_shop_of_sqlite(tmp_path, seed):
    shares = SHARES[seed % len(SHARES)]
    path = make_sqlite(tmp_path / "shop.db", shop_rows(seed))
    parts = dict(zip(("train", "val", "test"), shares, strict=True))
    graph = read_graph(path, task="orders:returned", **parts)
    check(graph, plain_of(sqlite3.connect(path), label=TASK, shares=shares), asked="orders")


@pytest.mark.every
@pytest.mark.parametrize("seed", range(10, 14))
def test_any_shop_of_duckdb(tmp_path, seed):
    path = make_duckdb(tmp_path / "shop.duckdb", shop_rows(seed))
    graph = read_graph(path, task="orders:returned")
    check(graph, plain_of(duckdb.connect(str(path)), label=TASK), asked="orders")


@pytest.mark.parametrize("make", [make_sqlite, make_duckdb])
def test_the_same_in_files(tmp_path, make):
    path = make(tmp_path / "shop.db", shop_rows(5))
    connect = sqlite3.connect if make is make_sqlite else duckdb.connect
    out = tmp_path / "graph"
    import_graph(path, out, task="orders:returned", memory="1GiB")
    check(open_graph(out), plain_of(connect(str(path)), label=TASK), asked="orders")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["graph", "shop.db"]
    assert sorted(p.suffix for p in out.iterdir() if p.suffix != ".npy") == [".json"]
