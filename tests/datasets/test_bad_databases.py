"""What is wrong with a database in a file, or unusual: one clear line, and nothing left behind."""

import os
import signal
import sqlite3
import subprocess
import tempfile
import time

import pytest
from fresh_processes import HANGING, bare_python, forked_python

from pagraph import FormatError
from pagraph.datasets import import_graph, open_graph, read_graph
from pagraph.datasets.tables.from_database import database_schema
from pagraph.errors import MissingDependencyError

pytest.importorskip("adbc_driver_sqlite", reason="needs adbc-driver-sqlite")

A = "create table a(id integer primary key, x int); insert into a values (1, 5), (2, 6);"
B = "create table b(id integer primary key, a_id int references a(id));"
ONE = "create table b(a_id int references a); insert into b values (1);"


@pytest.fixture
def database(tmp_path):
    def make(script, rows=()):
        path = tmp_path / "some.db"
        path.unlink(missing_ok=True)
        link = sqlite3.connect(path)
        link.executescript(script)
        for row in rows:
            link.execute(*row)
        link.commit()
        link.close()
        return path

    return make


@pytest.fixture(autouse=True)
def nothing_left(tmp_path):
    before = {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("pagraph-")}
    yield
    # What runs beside this test may have folders of its own.
    ours = f"-{os.getpid()}-"
    after = {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("pagraph-")}
    assert not [name for name in after - before if ours in name]
    assert {p.name for p in tmp_path.iterdir()} <= {"some.db", "some.db-wal", "some.db-shm", "out"}


def edges(graph):
    """Edges of the edge types that are not reverse, as pairs."""
    found = {}
    for source, name, target in graph.edge_types:
        if not name.startswith("rev_"):
            indptr, indices = graph.csc_of((source, name, target)).arrays
            found[source, name, target] = [
                (int(u), v)
                for v in range(len(indptr) - 1)
                for u in indices[indptr[v] : indptr[v + 1]]
            ]
    return found


def refused(tmp_path, source, kind=FormatError, **options):
    """The one line of an import that leaves nothing."""
    with pytest.raises(kind) as raised:
        import_graph(source, tmp_path / "out", **options)
    text = str(raised.value)
    assert "\n" not in text and text.isprintable()
    assert not (tmp_path / "out").exists()
    return text


# -- keys ------------------------------------------------------------------------------------------


def test_keys_that_point_nowhere(database, tmp_path):
    path = database(f"{A}{B} insert into b values (1, 1), (2, 9), (3, 8), (4, null);")
    assert refused(tmp_path, path) == (
        "b.a_id must hold keys of a, got 8, which is not in id; 2 rows point nowhere: "
        "orphans='drop' leaves out their edges"
    )
    graph = read_graph(path, orphans="drop")
    assert edges(graph) == {("b", "a_id", "a"): [(0, 0)]}
    assert "b / a_id / a           1" in str(graph.schema())
    # A dry run finds the same.
    assert "b / a_id / a           1" in str(database_schema(path, orphans="drop"))
    with pytest.raises(FormatError, match="got 8, which is not in id; 2 rows point nowhere"):
        database_schema(path)


@pytest.mark.parametrize("orphans", ["error", "drop"])
def test_pairs_that_point_nowhere(database, orphans):
    path = database(
        "create table a(x int, y text, primary key (x, y)); create table c(id int primary key);"
        "create table p(x int, y text, c int references c, foreign key (x, y) references a(x, y));"
        "insert into a values (1, 'q'), (2, 'q'); insert into c values (4), (5);"
        "insert into p values (1, 'q', 4), (1, 'z', 5), (2, null, 4), (2, 'q', 9), (3, 'r', 8);"
    )
    if orphans == "error":
        for ask in (read_graph, database_schema):
            with pytest.raises(FormatError, match="p.x, y must hold keys of a, got 1, z, .* 2 row"):
                ask(path)
        return
    graph = read_graph(path, orphans="drop")
    assert edges(graph) == {("a", "p", "c"): [(0, 0)]}
    shown = str(database_schema(path, orphans="drop"))
    assert shown.splitlines()[:7] == str(graph.schema()).splitlines()[:7]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        # Texts, UUIDs.
        (
            "create table a(id uuid primary key); create table b(a_id uuid references a);"
            "insert into a values ('6F'), ('7a'); insert into b values ('7a'), (null), ('6F');",
            {("b", "a_id", "a"): [(2, 0), (0, 1)]},
        ),
        # To itself, and in a circle.
        (
            "create table a(id integer primary key, up int references a, b_id int references b);"
            "create table b(id integer primary key, a_id int references a);"
            "insert into a values (1, null, 1), (2, 1, 1); insert into b values (1, 2);",
            {
                ("a", "up", "a"): [(1, 0)],
                ("a", "b_id", "b"): [(0, 0), (1, 0)],
                ("b", "a_id", "a"): [(0, 1)],
            },
        ),
        # Two keys to one table, with a column of its own.
        (
            "create table a(id integer primary key);"
            "create table b(n int, x int references a, y int references a);"
            "insert into a values (1), (2); insert into b values (5, 1, 2), (6, 2, null);",
            {("b", "x", "a"): [(0, 0), (1, 1)], ("b", "y", "a"): [(0, 1)]},
        ),
        # Composite, with a part missing.
        (
            "create table a(x int, y text, primary key (x, y));"
            "create table b(x int, y text, foreign key (x, y) references a);"
            "insert into a values (1, 'q'), (1, 'p');"
            "insert into b values (1, 'q'), (1, null), (1, 'p');",
            {("b", "x_y", "a"): [(2, 0), (0, 1)]},
        ),
        # Pairs in the order of their columns, from views only where these are named; a view of a
        # table that is gone harms nobody.
        (
            "create table b(id text primary key); create table a(id integer primary key);"
            "create table ab(b_id text references b, a_id int references a);"
            "create view v as select * from gone; create view w as select * from a;"
            "insert into a values (4), (5); insert into b values ('x');"
            "insert into ab values ('x', 5), ('x', 4), ('x', 5);",
            {("b", "ab", "a"): [(0, 0), (0, 1), (0, 1)]},
        ),
        # Written in other letters, without the column, and to a table that is not there.
        (
            "create table A(Id integer primary key, x int references gone);"
            "create table b(y int references a); insert into a values (3, 4);"
            "insert into B values (3);",
            {("b", "y", "A"): [(0, 0)]},
        ),
        # Empty tables.
        (f"{A.split('insert')[0]}{B}", {("b", "a_id", "a"): []}),
    ],
)
def test_unusual_keys(database, script, expected):
    assert edges(read_graph(database(script))) == expected


@pytest.mark.parametrize(
    ("script", "options", "message"),
    [
        (
            "create table a(x int, y int); create table b(y int references a(y));"
            "insert into a values (1, 1), (2, 1); insert into b values (1);",
            {},
            "a: keys in y must be unique, got 1 (2 times)",
        ),
        (
            "create table a(x int); create table b(a_id int references a);",
            {},
            "b.a_id must refer to columns of a that are read, got a table without a primary key; "
            "pass keys={'b.a_id': None} to leave it out",
        ),
        (
            f"{A} create table b(a_id int references a(z));",
            {},
            "b.a_id must refer to columns of a that are read, got z; "
            "pass keys={'b.a_id': None} to leave it out",
        ),
        (
            f"{A}{ONE}".replace("references a", "references a(id)"),
            {"skip_columns": ["a:id"]},
            "b.a_id must refer to columns of a that are read, got id; "
            "pass keys={'b.a_id': None} to leave it out",
        ),
        (
            "create table a(id text primary key, x); create table b(a_id text references a);"
            "insert into a values (null, 1);",
            {},
            "a: every row must have a key in id, row 1 has none",
        ),
        (
            "create table a(x int);",
            {},
            "source must have a table that refers to another, or to itself, got 1 without a "
            "foreign key; pass keys={'TABLE.COLUMN': 'TABLE'} to name one",
        ),
    ],
)
def test_keys_that_are_refused(database, tmp_path, script, options, message):
    assert refused(tmp_path, database(script), **options) == message


def test_views_are_read_if_they_are_named(database, tmp_path):
    path = database(f"{A}{B} insert into b values (1, 2); create view v as select a_id from b;")
    assert read_graph(path).node_types == ["a", "b"]
    assert read_graph(path, tables=["a", "v"]).node_types == ["a", "v"]
    path = database(f"{A}{B} create view v as select * from gone;")
    assert refused(tmp_path, path, tables=["a", "v"]).endswith(
        "v must have a column to read, got none"
    )


# -- values ----------------------------------------------------------------------------------------


def test_times_of_all_kinds(database):
    path = database(
        "create table a(id integer primary key, t timestamp, s text);"
        "create table b(a_id references a, d date); insert into b values (1, '1969-12-31');"
        "insert into a values (1, '1901-02-03 04:05:06', '2020-01-01T00:00:00+02:00'),"
        "(2, '2020-01-01T00:00:00+02:00', '1969-12-31 23:59:59'), (3, 1700000000, '2020-01-01'),"
        "(4, '2020-01-01 00:00:00Z', '2020-01-01');"
    )
    graph = read_graph(path)
    assert graph.node_fields("a")["time"].tolist() == [
        -2174586894,
        1577829600,
        1700000000,
        1577836800,
    ]
    assert graph.node_fields("b")["time"].tolist() == [-86400]
    # SQLite has times as texts: one that is named is read as what it says.
    graph = read_graph(path, times=["a:s"])
    assert graph.node_fields("a")["time"].tolist() == [1577829600, -1, 1577836800, 1577836800]


@pytest.mark.parametrize(
    ("script", "options", "message"),
    [
        (
            f"create table a(id integer primary key, t timestamp); {ONE}"
            "insert into a values (1, '2020-01-01'), (2, null);",
            {},
            "a.t must have a value in every row, as TIMESTAMP has no NaN; row 2 has none: "
            "missing=-1 fills them",
        ),
        (
            f"create table a(id integer primary key, t date); {ONE}"
            "insert into a values (1, '2020-13-45');",
            {},
            "a.t must hold dates or seconds since 1970, as it is declared date, got 2020-13-45",
        ),
        (
            f"create table a(id integer primary key, t text); {ONE}"
            "insert into a values (1, 'soon');",
            {"times": ["a:t"]},
            "a.t must hold dates or seconds since 1970, as a time, got soon",
        ),
        (
            f"create table a(id integer primary key, x boolean); {ONE}insert into a values (1, 2);",
            {},
            "a.x must hold 0 and 1, as it is declared boolean, got 2",
        ),
        (
            f"create table a(id integer primary key, x int); {ONE} insert into a values (1, null),"
            "(2, 4);",
            {},
            "a.x must have a value in every row, as BIGINT has no NaN; row 1 has none: missing=-1 "
            "fills them",
        ),
    ],
)
def test_values_that_are_refused(database, tmp_path, script, options, message):
    assert refused(tmp_path, database(script), **options) == message


def test_missing_values(database):
    path = database(
        "create table a(id integer primary key, x int, f real, w text, t timestamp, e int);"
        f"{ONE} insert into a values (1, null, null, null, null, null), (2, 3, 0.5, 'u', "
        "'2020-01-01', null), (3, 3, 0.5, 'u', '2020-01-01', null);"
    )
    fields = read_graph(path, missing=-7).node_fields("a")
    assert fields["x"].tolist() == [-7, 3, 3]
    assert fields["f"].isnan().tolist() == [True, False, False]
    assert fields["w"].tolist() == [-1, 0, 0]
    assert fields["time"].tolist() == [-7, 1577836800, 1577836800]
    assert "e" not in fields
    graph = read_graph(path, missing={"a": {"x": 0, "t": 5, "f": 2}})
    assert graph.node_fields("a")["f"].tolist() == [2, 0.5, 0.5]
    assert "missing: -1 in 1 rows" in str(graph.schema())
    with pytest.raises(ValueError, match="missing must name columns that are read, got 'a.z'"):
        read_graph(path, missing={"a": {"z": 0}})


@pytest.mark.parametrize("text", ["", " ", "N/A", "null", "NaN"])
@pytest.mark.parametrize("declared", ["int", "real", "numeric", "boolean", "timestamp", ""])
def test_texts_that_stand_for_missing_values(database, declared, text):
    value = {"real": 0.5, "boolean": 1, "timestamp": "2020-01-01"}.get(declared, 3)
    rows = [(1, value), (2, text), (3, None), (4, value)]
    path = database(
        f"create table a(id integer primary key, x {declared}); {ONE}",
        [("insert into a values (?, ?)", row) for row in rows],
    )
    graph = read_graph(path, missing=-7, times={"a": None})
    fields = graph.node_fields("a")
    number = 1577836800 if declared == "timestamp" else value
    fill = None if declared == "real" else -7
    found = [None if v != v else v for v in fields["x"].tolist()]
    assert found == [number, fill, fill, number]
    assert "x" not in fields.notes or fields.notes["x"].unit == "seconds"
    (column,) = graph.tables.vertices[0].columns
    assert column.missing == 2 and "2 missing ones are" in column.holds


def test_other_texts_among_numbers_are_words(database):
    rows = [(1, 5), (2, "low"), (3, ""), (4, "low"), (5, "low"), (6, 5), (7, "")]
    path = database(
        f"create table a(id integer primary key, x int); {ONE}",
        [("insert into a values (?, ?)", row) for row in rows],
    )
    fields = read_graph(path).node_fields("a")
    known = (*fields.notes["x"].words, "")
    assert [known[code] for code in fields["x"].tolist()] == [str(value) for _, value in rows]


def test_integers_beyond_64_bits_are_what_sqlite_makes_of_them(database):
    path = database(f"{A}{ONE}", [("insert into a values (3, 9223372036854775808)",)])
    assert read_graph(path).node_fields("a")["x"].tolist() == [5, 6, 2**63]


# -- tasks -----------------------------------------------------------------------------------------

ORDERS = (
    f"{A} create table b(id integer primary key, a_id int references a, placed timestamp, "
    "paid timestamp, good int);"
)


def test_what_is_said_of_times_of_a_task(database, caplog):
    path = database(
        ORDERS.replace("x int", "joined timestamp")
        .replace("5", "'2021-01-01'")
        .replace("6", "7")
        .replace("7", "'2021-01-01'")
        + "insert into b values (1, 1, '2020-01-01', '2020-01-02', 0),"
        "(2, 1, '2022-01-01', '2022-01-01', 1), (3, 2, '2022-01-02', '2022-03-01', null),"
        "(4, 2, '2022-01-03', '2022-01-01', 1);"
    )
    graph = read_graph(path, task="b:good:placed")
    assert "task: paid is later than placed in 2 rows of b, and was not known then: leave it " in (
        caplog.text
    )
    assert "task: 1 rows of b are earlier than all other tables' rows: nothing was" in caplog.text
    fields = graph.node_fields("b")
    assert fields["label"].tolist() == [0, 1, -1, 1]
    masks = [fields[f"{part}_mask"].tolist() for part in ("train", "val", "test")]
    assert masks == [[i == k for i in range(4)] for k in (0, 1, 3)]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("c:z", "task must be TABLE:LABEL or TABLE:LABEL:TIME of the tables that are read (a, b)"),
        ("b:zz", "task must name columns of b (id, a_id, placed, paid, good), got 'zz'"),
        ("b", "task must be TABLE:LABEL or TABLE:LABEL:TIME, got 'b'"),
        ("b:placed", "task must have a label that is no key and no time, got b.placed"),
        ("b:id:placed", "task must have a label that is no key and no time, got b.id"),
        ("b:paid:placed", "task must have a label of integers, booleans or words, got b.paid of"),
        ("b:good:placed", "task must have rows of at least 3 different times, to divide them"),
    ],
)
def test_tasks_that_are_refused(database, tmp_path, task, message):
    path = database(ORDERS + "insert into b values (1, 1, '2020-01-01', '2020-01-02', 0);")
    times = () if task.count(":") > 1 else ["b:placed"]
    assert message in refused(tmp_path, path, ValueError, task=task, times=times)


def test_labels_below_0(database, tmp_path):
    path = database(ORDERS + "insert into b values (1, 1, '2020-01-01', '2020-01-02', -3);")
    got = refused(tmp_path, path, task="b:good:placed")
    assert got == "b.good must hold classes from 0 on, got -3"


# -- names -----------------------------------------------------------------------------------------


def test_hostile_names(database, tmp_path):
    name = "\"; drop table b; --/../'%s"
    quoted = name.replace('"', '""')
    path = database(
        f'create table "{quoted}"("i.d:""x" integer primary key, "/etc/y" int);'
        f'create table b(".." int references "{quoted}");'
        f'insert into "{quoted}" values (3, 4), (5, 6); insert into b values (5);'
    )
    import_graph(path, tmp_path / "out")
    graph = open_graph(tmp_path / "out")
    assert edges(graph) == {("b", "..", name): [(0, 1)]}
    assert graph.node_fields(name)["/etc/y"].tolist() == [4, 6]
    link = sqlite3.connect(path)
    assert link.execute("select count(*) from b").fetchone() == (1,)
    link.close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x\x1b[2J", "names of tables and columns must be printable characters, got 'x\\x1b[2J'"),
        ("ID", "columns of a must differ by more than case, got id and ID: skip one of them"),
    ],
)
def test_names_that_are_refused(database, tmp_path, name, message):
    if name == "ID":
        # SQLite itself tells no case; of letters beyond ASCII it does.
        name, message = "É", message.replace("id", "é").replace("ID", "É")
    path = database(f'create table a(id integer primary key, é int, "{name}" int); {ONE}')
    assert refused(tmp_path, path).endswith(message)


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"hello world, no database", b"SQLite format 3\0" + bytes(99)])
def test_files_that_are_no_database(tmp_path, content):
    path = tmp_path / "some.db"
    path.write_bytes(content)
    got = refused(tmp_path, path)
    assert str(path) in got


def test_damaged_files(database, tmp_path):
    path = database(f"{A}{ONE}")
    whole = path.read_bytes()
    for damaged in (whole[:5000], whole[:4096] + b"\xff" * 4096 + whole[8192:]):
        path.write_bytes(damaged)
        assert "malformed" in refused(tmp_path, path)
    path.write_bytes(b"")
    assert refused(tmp_path, path).endswith(
        "source must hold a table to read, got a database without one"
    )


@pytest.mark.processes
def test_drivers_that_are_missing(tmp_path):
    got = refused(tmp_path, "adbc:nosuch:host=here", MissingDependencyError)
    assert got == (
        "adbc:nosuch needs the ADBC driver nosuch, which is not installed: pip install "
        "adbc-driver-nosuch, if there is one"
    )
    code = (
        "import sys; sys.modules['adbc_driver_manager'] = None\n"
        "from pagraph.cli import main; main(['import', 'some.db', 'out'])"
    )
    sqlite3.connect(tmp_path / "some.db").close()
    done = subprocess.run([bare_python(), "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith(
        "Error: databases need adbc-driver-manager: pip install"
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("mysql://me:secret@h/x", "got a URL of the form mysql://"),
        ("postgresql://me:sec/ret@h/x", "with /, @, : and other signs of a password as %2F"),
        ("postgresql://me:sec%ret@h/x", "and % itself as %25"),
        ("sqlite://some.db", "source must be sqlite:///PATH for a file, got 'sqlite://some.db'"),
    ],
)
def test_urls_that_are_refused(tmp_path, source, message):
    got = refused(tmp_path, source, ValueError)
    assert message in got and "sec" not in got


def test_a_database_that_changes_while_it_is_read(database):
    rows = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 500)"
    path = database(
        f"pragma journal_mode = wal; {A}{B}insert into b {rows} select i, 1 + i % 2 from n;"
    )
    link = sqlite3.connect(path)

    def write(*_done):
        link.execute("delete from b where id > 7")
        link.execute("insert into a select max(id) + 1, 0 from a")
        link.commit()

    graph = read_graph(path, progress=write)
    link.close()
    assert graph.num_nodes_by_type == {"a": 2, "b": 500}
    assert graph.csc_of(("b", "a_id", "a")).num_edges == 500


LARGE = (
    "create table a(id integer primary key, x real); create table b(a_id int references a, t text);"
    "insert into a with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)"
    "select i, i / 7.0 from n;"
    "insert into b select x.id, hex(randomblob(500)) from a x, (select 1 from a limit 3);"
)


# Read by two connections.
LONG = (
    "create table a(id integer primary key, x real); create table b(a_id int references a, t text);"
    "insert into a with recursive n(i) as (select 1 union all select i + 1 from n where i < 500000)"
    "select i, i / 7.0 from n; insert into b select id, 'word' from a;"
)


@pytest.mark.attack
@pytest.mark.parametrize("script", [LARGE, LONG])
def test_ctrl_c(database, tmp_path, script):
    path = database(script)
    command = [forked_python(), "-m", "pagraph", "import", str(path), str(tmp_path / "out")]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    # Once the folder is being written.
    deadline = time.monotonic() + HANGING
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=HANGING)
    assert running.returncode in (1, 130)
    assert "Traceback" not in said
    assert [p.name for p in tmp_path.iterdir()] == ["some.db"]


def test_a_disk_that_runs_full(database, tmp_path):
    path = database(LARGE)
    small = tmp_path / "out"
    small.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)])
    if done.returncode:
        small.rmdir()
        pytest.skip("needs the right to mount a small disk")
    try:
        with pytest.raises(OSError, match="No space left on device"):
            import_graph(path, small / "graph")
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)
        small.rmdir()
