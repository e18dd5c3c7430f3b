"""Graphs of PostgreSQL, of a server that these tests start, against a plain reading."""

import contextlib
import datetime
import runpy
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from fresh_processes import HANGING
from plain_database import TABLES, check, plain_graph, shop_rows, values_of
from postgres_server import PASSWORD, QUOTED, running_server

from pagraph import FormatError
from pagraph.cli import main
from pagraph.datasets import import_graph, open_graph, read_graph
from pagraph.datasets.tables.connection import Connection
from pagraph.datasets.tables.location import location_of

pytest.importorskip("adbc_driver_manager", reason="needs adbc-driver-manager")
pytest.importorskip("adbc_driver_postgresql", reason="needs adbc-driver-postgresql")

pytestmark = pytest.mark.server

adbc = pytest.importorskip("pagraph.datasets.tables.adbc")
ask = adbc.ask


@pytest.fixture(scope="module")
def server():
    try:
        with running_server() as started:
            yield started
    except LookupError as error:
        pytest.skip(str(error))


@pytest.fixture
def database(server):
    """A new database: its name."""
    name = f"shop{time.monotonic_ns()}"
    server.run(f"create database {name}")
    yield name
    server.run(f"drop database {name} with (force)")


def literal(value):
    if value is None:
        return "null"
    if isinstance(value, str | datetime.datetime):
        return "'" + str(value).replace("'", "''") + "'"
    return str(value)


def fill(server, name, rows):
    statements = [f"create table {table} ({columns})" for table, columns in TABLES.items()]
    for table, of_table in rows.items():
        listed = ",".join(f"({','.join(map(literal, row))})" for row in of_table)
        if of_table:
            statements.append(f"insert into {table} values {listed}")
    server.run(";\n".join(statements), name)


COLUMNS = {
    table: [
        part.split()[0]
        for part in columns.replace("(order_id, number)", "").split(", ")
        if not part.startswith(("primary", "foreign"))
    ]
    for table, columns in TABLES.items()
}


@pytest.mark.server
@pytest.mark.parametrize("seed", [20, 21])
def test_any_shop(server, database, seed):
    rows = shop_rows(seed)
    fill(server, database, rows)
    graph = read_graph(server.url(database), task="orders:returned")
    plain = plain_graph(rows, COLUMNS, label=("orders", "returned"))
    check(graph, plain, asked="orders")


def test_the_same_in_files_and_nothing_of_the_password(server, database, tmp_path):
    rows = shop_rows(22)
    fill(server, database, rows)
    out = tmp_path / "graph"
    result = CliRunner().invoke(
        main, ["import", server.url(database), str(out), "--task", "orders:returned"]
    )
    assert result.exit_code == 0, result.output
    check(open_graph(out), plain_graph(rows, COLUMNS, label=("orders", "returned")), asked="orders")
    shown = result.output + (out / "manifest.json").read_text()
    assert f"postgresql://127.0.0.1:{server.port}/{database}" in shown
    for secret in (PASSWORD, QUOTED, "owner"):
        assert secret not in shown


def test_types(server, database):
    server.run(
        "create type mood as enum ('sad', 'ok');\n"
        "create domain small as smallint check (value < 9);\n"
        "create table a(id uuid primary key, i2 smallint, i8 bigint, n numeric(12, 2), "
        "w numeric(30), f real, d double precision, b boolean, e mood, s small, l real[], "
        "day date, at timestamp(3) with time zone, j jsonb, by bytea, iv interval, m money);\n"
        "create table b(a_id uuid references a, at timestamp);\n"
        "insert into a values ('6f9619ff-8b86-d011-b42d-00c04fc964ff', 1, 9223372036854775807, "
        "0.25, 12345678901234567, 0.5, 0.1, true, 'ok', 3, '{1, 2}', '1905-01-01', "
        "'1960-01-01 00:00:00+02', '[1]', 'x', '1 day', 2.5), "
        "('6f9619ff-8b86-d011-b42d-00c04fc964fe', 2, -9223372036854775808, 1.5, -4, null, null, "
        "false, 'sad', 4, '{3, 4}', '2400-01-01', '2020-01-01 00:00:00+00', '{}', 'y', '2 days', "
        "-3);\n"
        "insert into b values ('6f9619ff-8b86-d011-b42d-00c04fc964ff', '2020-01-01')",
        database,
    )
    graph = read_graph(server.url(database), times=["a:at"])
    assert graph.node_fields("a")["l"].tolist() == [[3, 4], [1, 2]]
    fields = {n: values_of(rows) for n, rows in graph.node_fields("a").items() if n != "l"}
    assert fields.pop("original_id")[1] == "6f9619ff-8b86-d011-b42d-00c04fc964ff"
    assert fields == {
        "i2": [2, 1],
        "i8": [-(2**63), 2**63 - 1],
        "n": [1.5, 0.25],
        "w": [-4, 12345678901234567],
        "f": [None, 0.5],
        "d": [None, 0.1],
        "b": [0, 1],
        "s": [4, 3],
        "day": [13569465600, -2051222400],
        "time": [1577836800, -315626400],
        "m": [-3, 2.5],
    }
    left = {c.name: c.why for v in graph.schema().vertices for c in v.columns if not c.field}
    # A word of one row alone says nothing, also one of an enumeration.
    assert set(left) == {"e", "j", "by", "iv"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("'9223372036854775808'", "a.w must hold integers of 64 bits, got 9223372036854775808"),
        ("'9' || repeat('0', 60)", f"a.w must hold integers of 64 bits, got 9{'0' * 60}"),
    ],
)
def test_integers_beyond_64_bits(server, database, tmp_path, values, message):
    server.run(
        "create table a(id int primary key, w numeric);\n"
        "create table b(a_id int references a);\n"
        f"insert into a values (1, ({values})::numeric);\ninsert into b values (1)",
        database,
    )
    with pytest.raises(FormatError) as raised:
        import_graph(server.url(database), tmp_path / "out")
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_infinite_dates_are_missing_ones(server, database, tmp_path):
    server.run(
        "create table a(id int primary key, t timestamp);\n"
        "create table b(a_id int references a);\n"
        "insert into a values (1, 'infinity'), (2, '2020-01-01');\ninsert into b values (1)",
        database,
    )
    with pytest.raises(FormatError, match="a.t must have a value in every row"):
        import_graph(server.url(database), tmp_path / "out")
    graph = read_graph(server.url(database), missing=-5)
    assert graph.node_fields("a")["time"].tolist() == [-5, 1577836800]


def test_schemas_views_and_hostile_names(server, database):
    server.run(
        'create schema "o\'ther""";\n'
        'create table "o\'ther"""."a"";--"(id int primary key, "x\'y" int);\n'
        'create table "o\'ther""".b("A" int references "o\'ther"""."a"";--");\n'
        'create view "o\'ther""".v as select * from "o\'ther""".b;\n'
        'insert into "o\'ther"""."a"";--" values (7, 8);\n'
        'insert into "o\'ther""".b values (7)',
        database,
    )
    url = server.url(database)
    graph = read_graph(url, schema="o'ther\"")
    assert graph.edge_types[0] == ("b", "A", 'a";--')
    assert graph.node_fields('a";--')["x'y"].tolist() == [8]
    with pytest.raises(ValueError, match="schema must be one of the database, got 'none'"):
        read_graph(url, schema="none")
    with pytest.raises(FormatError, match="source must hold a table to read"):
        read_graph(url)


def test_partitions_are_rows_of_their_table(server, database):
    server.run(
        "create table a(id int primary key);\n"
        "create table b(a_id int references a, t timestamp) partition by range (t);\n"
        "create table b1 partition of b for values from ('2020-01-01') to ('2021-01-01');\n"
        "create table b2 partition of b for values from ('2021-01-01') to ('2022-01-01');\n"
        "insert into a values (0), (1);\n"
        "insert into b values (0, '2020-05-05'), (1, '2021-05-05')",
        database,
    )
    assert read_graph(server.url(database)).num_nodes_by_type == {"a": 2, "b": 2}


@pytest.mark.server
def test_one_snapshot(server, database):
    fill(server, database, rows := shop_rows(23))

    def write(*_done):
        server.run(
            "delete from visits;\ndelete from tags;\ninsert into coupons select coalesce(max(id), "
            "0) + 1 from coupons",
            database,
        )

    graph = read_graph(server.url(database), task="orders:returned", progress=write)
    check(graph, plain_graph(rows, COLUMNS, label=("orders", "returned")), asked="orders")


@pytest.fixture
def session(server, database, monkeypatch):
    """Opens a session on a database with one table of three rows."""
    monkeypatch.setattr("pagraph.datasets.tables.connection.usable_cpus", lambda: 2)
    server.run("create table a(id int primary key);\ninsert into a values (1), (2), (3)", database)
    with contextlib.ExitStack() as opened:

        def of():
            connection = opened.enter_context(Connection(2**30))
            made = adbc.session_of(location_of(server.url(database)), connection)
            opened.callback(made.close)
            return made, connection

        yield of


def rows_by(session, connection, relation):
    """Numbers of rows that each of the session's connections copies."""
    (table,) = session.tables(None)
    found = []
    # Connections take turns: the one that copied last comes last.
    for place in range(session.readers):
        session.copy(table, f"{relation} {place}")
        found.append(len(connection.run(f'select * from "{relation} {place}"')))
    return found


def test_two_connections_read_one_snapshot(server, database, session):
    first, connection = session()
    server.run("delete from a where id > 1", database)
    assert rows_by(first, connection, "before") == [3, 3]
    later, connection = session()
    assert rows_by(later, connection, "after") == [1, 1]


def test_a_server_without_snapshots_is_read_by_one_connection(session, monkeypatch):
    def without(link, query):
        return ask(link, query.replace("pg_export_snapshot", "pg_has_none"))

    monkeypatch.setattr(adbc, "ask", without)
    alone, connection = session()
    assert rows_by(alone, connection, "alone") == [3]


def test_a_second_connection_to_another_server_is_not_used(session, monkeypatch):
    """A pool may lead it there, where the snapshot is unknown."""

    def elsewhere(link, query):
        known = query.startswith("set transaction snapshot")
        return ask(link, "set transaction snapshot '00000003-0000001B-1'" if known else query)

    monkeypatch.setattr(adbc, "ask", elsewhere)
    alone, connection = session()
    assert rows_by(alone, connection, "alone") == [3]


@pytest.mark.server
def test_the_example(server, database, monkeypatch, capsys):
    pytest.importorskip("torch_geometric")
    path = Path(__file__).parents[2] / "examples" / "database.py"
    example = runpy.run_path(str(path))
    statements = [s.strip() for s in example["TABLES"].split(";") if s.strip()]
    for table, rows in example["shop"]().items():
        listed = ",".join(f"({','.join(map(literal, row))})" for row in rows)
        statements.append(f"insert into {table} values {listed}")
    server.run(";\n".join(statements), database)
    example["main"](server.url(database))
    assert "test accuracy 0.8" in capsys.readouterr().out


# -- what goes wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"password": "wrong-secret"}, "password authentication failed"),
        ({"user": "nobody-here"}, "password authentication failed"),
        ({"name": "nosuch"}, 'database "nosuch" does not exist'),
    ],
)
def test_a_server_that_refuses(server, tmp_path, changed, said):
    result = CliRunner().invoke(main, ["import", server.url(**changed), str(tmp_path / "out")])
    assert result.exit_code != 0
    text = f"{result.output}{result.exception}"
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error")]
    assert said in line
    for secret in (PASSWORD, QUOTED, "wrong-secret"):
        assert secret not in text
    assert list(tmp_path.iterdir()) == []


def test_no_server(tmp_path):
    with pytest.raises(ConnectionError, match="postgresql://127.0.0.1:1/x: .*refused"):
        import_graph(f"postgresql://me:{QUOTED}@127.0.0.1:1/x", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_passwords_of_the_environment(server, database, tmp_path, monkeypatch):
    fill(server, database, shop_rows(24))
    url = f"postgresql://owner@127.0.0.1:{server.port}/{database}"
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    with pytest.raises(ConnectionError, match="no password supplied"):
        read_graph(url, missing=-1)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    assert read_graph(url, missing=-1).num_nodes
    monkeypatch.delenv("PGPASSWORD")
    kept = tmp_path / "pass"
    kept.write_text(f"127.0.0.1:{server.port}:*:owner:{PASSWORD}\n")
    kept.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(kept))
    assert read_graph(url, missing=-1).num_nodes


def slow_tables(server, database):
    server.run(
        "create table a(id int primary key);\n"
        "create table b(a_id int references a);\n"
        "insert into a values (1);\ninsert into b values (1);\n"
        "create view slow as select 1 as a_id, pg_sleep(0.01)::text as t "
        "from generate_series(1, 100000)",
        database,
    )


@pytest.mark.server
@pytest.mark.parametrize("end", ["backend", "server"])
def test_a_connection_that_is_lost(server, database, tmp_path, end):
    slow_tables(server, database)

    def lose():
        asked = "select pid from pg_stat_activity where query like '%slow%' and pid <> "
        deadline = time.monotonic() + HANGING
        while time.monotonic() < deadline:
            if server.run(f"{asked} pg_backend_pid() and state = 'active'", database):
                break
            time.sleep(0.05)
        time.sleep(0.2)
        if end == "server":
            server.stop("immediate")
        else:
            kill = asked.replace("select pid", "select pg_terminate_backend(pid)")
            server.run(f"{kill} pg_backend_pid()", database)

    thread = threading.Thread(target=lose)
    thread.start()
    try:
        with pytest.raises(ConnectionError) as raised:
            import_graph(server.url(database), tmp_path / "out", tables=["a", "slow"])
    finally:
        thread.join()
        if end == "server":
            server.start()
    text = str(raised.value)
    assert text.startswith(f"postgresql://127.0.0.1:{server.port}/{database}: ")
    assert "\n" not in text and PASSWORD not in text
    assert list(tmp_path.iterdir()) == []
