"""SQLite's tables, which two connections read at once: all of one moment."""

import sqlite3
import subprocess
import sys
import threading
import time

import pytest
from fresh_processes import HANGING

from pagraph import FormatError
from pagraph.datasets import read_graph
from pagraph.datasets.tables.connection import Connection
from pagraph.datasets.tables.location import location_of

pytest.importorskip("adbc_driver_manager", reason="needs adbc-driver-manager")
pytest.importorskip("adbc_driver_sqlite", reason="needs adbc-driver-sqlite")
adbc = pytest.importorskip("pagraph.datasets.tables.adbc")
SecondReader = adbc.SecondReader

ROOM = 2**30
ROWS = 400
NUMBERS = f"with recursive n(i) as (select 1 union all select i + 1 from n where i < {ROWS})"
A = f"create table a(id integer primary key, x int);insert into a {NUMBERS} select i, i from n;"
B = "create table b(a_id int references a(id));insert into b select id from a;"
MODES = ("delete", "wal")


@pytest.fixture(autouse=True)
def two_processors(monkeypatch):
    monkeypatch.setattr("pagraph.datasets.tables.connection.usable_cpus", lambda: 2)


def made(tmp_path, script, mode="delete"):
    path = tmp_path / "some.db"
    link = sqlite3.connect(path)
    link.executescript(f"pragma journal_mode = {mode}; {script}")
    link.close()
    return path


def written(path, script):
    """Whether another process could commit: one of ours must not open a file twice."""
    code = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).executescript(sys.argv[2])"
    done = subprocess.run([sys.executable, "-c", code, path, script], capture_output=True)
    return not done.returncode


def copied(path, name):
    """The rows of a table as they come, without conversions."""
    with Connection(ROOM) as connection:
        session = adbc.session_of(location_of(path), connection)
        try:
            (table,) = (table for table in session.tables(None) if table.name == name)
            session.copy(table, "copy")
        finally:
            session.close()
        return connection.run("select * from copy")


@pytest.mark.parametrize(
    "columns", ["rowid int, x int", "_rowid_ text, rowid text", "ROWID real, oid"]
)
def test_columns_that_are_named_like_row_numbers(tmp_path, columns):
    path = made(tmp_path, f"create table t({columns}); insert into t values (0, 1), (7, 0), (0, 2)")
    link = sqlite3.connect(path)
    expected = link.execute("select * from t").fetchall()
    link.close()
    assert copied(path, "t") == expected


def joined(path):
    """Whether a session has two connections."""
    with Connection(ROOM) as connection:
        session = adbc.session_of(location_of(path), connection)
        try:
            return session._second.link is not None
        finally:
            session.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_commit_between_the_beginnings_is_noticed(tmp_path, monkeypatch, mode):
    path = made(tmp_path, A + B, mode)
    assert joined(path)
    begin = SecondReader.open

    def open_and_write(self, database):
        begin(self, database)
        assert written(path, "delete from b where a_id > 7; vacuum")

    monkeypatch.setattr(SecondReader, "open", open_and_write)
    assert not joined(path)
    assert read_graph(path).csc_of(("b", "a_id", "a")).num_edges == 7


@pytest.mark.parametrize("mode", MODES)
def test_a_commit_after_the_first_beginning(tmp_path, monkeypatch, mode):
    path = made(tmp_path, A + B, mode)
    begin = SecondReader.join
    committed = []

    def write_and_join(self):
        committed.append(written(path, "delete from b where a_id > 7"))
        begin(self)

    monkeypatch.setattr(SecondReader, "join", write_and_join)
    # A journal lets nobody commit while one reads, and a log lets them.
    assert joined(path) == (mode == "delete")
    assert committed == [mode == "wal"]
    # The moment of the first connection, which the second one missed.
    link = sqlite3.connect(path)
    link.executescript("delete from b; insert into b select id from a")
    link.close()
    assert read_graph(path).csc_of(("b", "a_id", "a")).num_edges == ROWS


def test_a_writer_who_waits(tmp_path, monkeypatch):
    """Who keeps new readers out, but not ours."""
    path = made(tmp_path, A + B)
    code = (
        "import sqlite3, sys; link = sqlite3.connect(sys.argv[1], timeout=20); print('', flush=True)"
        "\nsys.stdin.readline(); link.executescript('delete from b where a_id > 7')"
    )
    begin = SecondReader.join
    with subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        writer.stdout.readline()

        def wait_and_join(self):
            writer.stdin.write("\n")
            writer.stdin.flush()
            while written(path, "select count(*) from a"):
                time.sleep(0.01)
            begin(self)

        monkeypatch.setattr(SecondReader, "join", wait_and_join)
        assert read_graph(path).csc_of(("b", "a_id", "a")).num_edges == ROWS
        assert writer.wait(HANGING) == 0
    assert written(path, "select count(*) from a")


def test_a_file_that_is_replaced_between_the_beginnings(tmp_path, monkeypatch):
    path = made(tmp_path, A + B)
    other = tmp_path / "other"
    other.mkdir()
    new = made(other, f"{A}{B}delete from b where a_id > 7")
    begin = SecondReader.open

    def replace_and_open(self, database):
        new.replace(path)
        begin(self, database)
        assert self.link is not None

    monkeypatch.setattr(SecondReader, "open", replace_and_open)
    assert read_graph(path).csc_of(("b", "a_id", "a")).num_edges == ROWS


@pytest.mark.parametrize("mode", MODES)
def test_all_of_one_moment(tmp_path, monkeypatch, mode):
    """Two tables that change before two threads read them."""
    path = made(tmp_path, A + B, mode)
    both = threading.Barrier(2)
    committed = []
    copy = adbc.SQLiteSession.copy

    def meet_and_copy(self, table, relation):
        if both.wait(HANGING) == 0:
            script = "delete from b where a_id > 7; insert into a select max(id) + 1, 0 from a"
            committed.append(written(path, script))
        both.wait(HANGING)
        copy(self, table, relation)

    monkeypatch.setattr(adbc.SQLiteSession, "copy", meet_and_copy)
    graph = read_graph(path)
    assert graph.num_nodes_by_type == {"a": ROWS, "b": ROWS}
    assert graph.csc_of(("b", "a_id", "a")).num_edges == ROWS
    assert committed == [mode == "wal"]


def test_an_error_of_one_table_stops_the_other(tmp_path, monkeypatch):
    script = (
        "create table wrong(a_id int references a(id), y bool); insert into wrong values (1, 5)"
    )
    path = made(tmp_path, A + B + script)
    stopped = threading.Event()
    load = Connection.load

    def endless(self, name, rows, values, rest=""):
        if '"x"' not in values:
            load(self, name, rows, values, rest)
            return
        try:
            load(self, name, rows, "count(*) from range(10_000_000_000_000) --", rest)
        finally:
            stopped.set()

    monkeypatch.setattr(Connection, "load", endless)
    with pytest.raises(FormatError, match=r"^wrong\.y must hold 0 and 1, as it is declared bool, "):
        read_graph(path)
    assert stopped.is_set()


def test_one_thread_reads_with_one_connection(tmp_path, monkeypatch):
    monkeypatch.setattr("pagraph.datasets.tables.connection.usable_cpus", lambda: 1)
    assert not joined(made(tmp_path, A + B))
