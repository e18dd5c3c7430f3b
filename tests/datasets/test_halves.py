"""Tables of SQLite whose halves two connections read at once: the rows are those of one moment."""

import sqlite3
import subprocess
import sys
import time

import pytest

from pagraph.datasets import read_graph
from pagraph.datasets.tables import adbc
from pagraph.datasets.tables.choices import Choice
from pagraph.datasets.tables.connection import Connection, quoted
from pagraph.datasets.tables.database import database_tables
from pagraph.datasets.tables.halves import SecondReader
from pagraph.datasets.tables.location import location_of

pytest.importorskip("adbc_driver_sqlite", reason="needs adbc-driver-sqlite")

ROOM = 2**30
ROWS = 400
NUMBERS = f"with recursive n(i) as (select 1 union all select i + 1 from n where i < {ROWS})"
A = f"create table a(id integer primary key, x int);insert into a {NUMBERS} select i, i from n;"
B = "create table b(a_id int references a(id));insert into b select id from a;"
MODES = ("delete", "wal")


@pytest.fixture(autouse=True)
def tiny_halves(monkeypatch):
    """Tables of any size are divided, on a machine of any number of processors."""
    monkeypatch.setattr(adbc, "_HALVED_ROWS", 2)
    monkeypatch.setattr(adbc, "_HALVED_ROW", 2**20)
    monkeypatch.setattr("pagraph.datasets.tables.connection.usable_cpus", lambda: 2)


@pytest.fixture
def divided(monkeypatch):
    """What tables were divided at, by name."""
    found = {}
    halves_of = adbc.halves_of

    def noted(link, table, columns):
        found[table.name] = halves_of(link, table, columns)
        return found[table.name]

    monkeypatch.setattr(adbc, "halves_of", noted)
    return found


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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("script", "row_number", "middle"),
    [
        ("create table t(id integer primary key, x);", "id", ROWS // 2),
        # A quirk of SQLite's: such a key is no row number.
        ("create table t(id integer primary key desc, x);", "rowid", ROWS // 2),
        ("create table t(id int, x text);", "rowid", ROWS // 2),
        ('create table "t SCAN t"(id int, x);', "rowid", ROWS // 2),
        ("create table t(oid int, _rowid_ text);", "rowid", ROWS // 2),
    ],
)
def test_rows_and_their_order(tmp_path, divided, script, row_number, middle, mode):
    name = "t SCAN t" if "SCAN" in script else "t"
    rows = f"insert into {quoted(name)} {NUMBERS} select i, 7 * i % {ROWS} from n;"
    path = made(tmp_path, script + rows, mode)
    link = sqlite3.connect(path)
    expected = link.execute(f"select * from {quoted(name)}").fetchall()
    link.close()
    assert [tuple(map(str, row)) for row in copied(path, name)] == [
        tuple(map(str, row)) for row in expected
    ]
    assert divided[name].row_number.strip('"') == row_number
    assert divided[name].middle == middle


def test_rows_of_holes_below_zero_and_of_missing_values(tmp_path, divided):
    script = (
        "create table t(id integer primary key, x real, s text, w int);"
        f"insert into t {NUMBERS} select i * i - 9000, case when i > 300 then i / 2.0 end, "
        "case when i % 200 = 199 then 'word' end, case when i < 50 then i end from n;"
    )
    path = made(tmp_path, script)
    expected = [
        (
            i * i - 9000,
            i / 2 if i > 300 else None,
            "word" if i % 200 == 199 else None,
            i if i < 50 else None,
        )
        for i in range(1, ROWS + 1)
    ]
    assert copied(path, "t") == expected
    assert divided["t"].middle == (1 - 9000 + ROWS**2 - 9000) // 2


@pytest.mark.parametrize(
    "script",
    [
        # Such columns hide row numbers, here or in DuckDB.
        "create table t(rowid int, _rowid_ int, oid text);",
        "create table t(x int, rowid text, y int);",
        "create table t(rowid integer primary key, x int, y int);",
        "create table t(id int primary key, x int, y int) without rowid;",
        # Read from the index, and so in its order.
        "create table s(id int, x int, y int, long text); create index i on s(y, x, id);"
        "create view t as select id, x, y from s;",
        "create table t(x int, y int, z int, g text as ('long' || hex(x)) stored);"
        "create index i on t(y, x, z);",
    ],
)
def test_what_is_not_divided(tmp_path, divided, script):
    target = "s(id, x, y)" if "view" in script else "t"
    target = "t(x, y, z)" if "stored" in script else target
    path = made(tmp_path, f"{script}insert into {target} {NUMBERS} select i, 7 * i, -i from n;")
    skipped = ["t:g"] if "stored" in script else []
    link = sqlite3.connect(path)
    names = "x, y, z" if skipped else "*"
    expected = link.execute(f"select {names} from t").fetchall()
    link.close()
    with Connection(ROOM) as connection:
        choice = Choice(("t",), (), tuple(skipped), None)
        (found,) = database_tables(location_of(path), connection, choice)
        rows = connection.run(f"select * from {quoted(found.relation)}")
    assert [tuple(map(str, r)) for r in rows] == [tuple(map(str, r)) for r in expected]
    assert not any(divided.values())


@pytest.mark.parametrize("odd", ["'word'", "1.5"])
@pytest.mark.parametrize("at", [1, ROWS // 2, ROWS // 2 + 1, ROWS])
def test_values_of_another_type_in_one_half(tmp_path, monkeypatch, at, odd):
    """Which the driver notices in its first batch of a half, or later."""
    script = "create table t(i int, m int, r real);"
    rows = f"{NUMBERS} select i, case when i = {at} then {odd} else i end, i / 3.0 from n;"
    words = f"insert into t {rows}"
    if odd == "'word'":
        words += f"update t set r = 'word' where i = {at};"
    path = made(tmp_path, script + words)
    for batch in (16, 8192):
        monkeypatch.setattr(adbc, "_MANY_ROWS", batch)
        found = copied(path, "t")
        with monkeypatch.context() as alone:
            alone.setattr(adbc, "_HALVED_ROWS", 2**40)
            assert found == copied(path, "t")
        assert len(found) == ROWS


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
        assert writer.wait(60) == 0
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
def test_all_of_one_moment(tmp_path, divided, mode):
    """Tables that change while they are read, a half at a time."""
    path = made(tmp_path, A + B, mode)
    committed = []

    def write(*_done):
        script = "delete from b where a_id > 7; insert into a select max(id) + 1, 0 from a"
        committed.append(written(path, script))

    graph = read_graph(path, progress=write)
    assert graph.num_nodes_by_type == {"a": ROWS, "b": ROWS}
    assert graph.csc_of(("b", "a_id", "a")).num_edges == ROWS
    assert all(divided.values()) and set(divided) == {"a", "b"}
    assert committed[0] == (mode == "wal")


def test_one_thread_reads_with_one_connection(tmp_path, monkeypatch):
    monkeypatch.setattr("pagraph.datasets.tables.connection.usable_cpus", lambda: 1)
    assert not joined(made(tmp_path, A + B))
