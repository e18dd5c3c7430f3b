"""What is read from names of columns, and how a schema is shown."""

import pandas as pd
import pytest
import torch

from pagraph import Graph
from pagraph.datasets.tables.connection import Connection
from pagraph.datasets.tables.keys import may_be_key, may_refer
from pagraph.datasets.tables.planning import plan
from pagraph.datasets.tables.schema import ForeignKey, Table


@pytest.mark.parametrize(
    ("column", "table", "key", "words"),
    [
        ("user_id", "users", "id", 2),
        ("users_id", "users", "id", 2),
        ("userId", "User", "Id", 2),
        ("seller_user_id", "users", "id", 2),
        ("order_line_id", "lines", "id", 2),
        ("order_line_id", "order_lines", "id", 3),
        ("city_id", "cities", "id", 2),
        ("box_id", "boxes", "id", 2),
        ("user_id", "people", "user_id", 2),
        ("iid", "items", "iid", 1),
        ("id", "users", "id", 0),
        ("paid", "users", "id", 0),
        ("superuser_id", "users", "id", 0),
        ("user", "users", "id", 0),
        ("user_id", "", "id", 0),
    ],
)
def test_names_that_refer(column, table, key, words):
    assert may_refer(column, table, key) == words


def test_names_of_keys():
    assert [may_be_key(c, "users") for c in ("id", "ID", "user_id", "uuid", "order_id", "age")] == [
        2,
        2,
        1,
        2,
        0,
        0,
    ]


def refused(tables, message, **options):
    with pytest.raises(ValueError) as raised:
        Graph.from_tables(tables, **options)
    assert str(raised.value) == message


def test_two_readings_are_an_error_that_names_both():
    one = pd.DataFrame({"id": [1, 2], "x": [1, 2]})
    refers = pd.DataFrame({"user_id": [1, 2], "x": [1, 2]})
    tables = {"user": one, "users": one, "o": refers}
    refused(
        tables,
        "keys: o.user_id could refer to 'user' and to 'users'; pass keys={'o.user_id': 'user'} "
        "to choose",
    )
    graph = Graph.from_tables(tables, keys={"o.user_id": "users"})
    assert graph.edge_types[0] == ("o", "user_id", "users")
    days = pd.DatetimeIndex(["2020-01-01", "2020-01-02"])
    refused(
        {"o": pd.DataFrame({"made": days, "sent": days})},
        "times: both 'made' and 'sent' could be the time of o; pass times={'o': 'made'} to "
        "choose, times={'o': None} to take neither",
    )
    refused(
        {"users": pd.DataFrame({"user_id": [1, 2], "users_id": [1, 2]})},
        "keys: both 'user_id' and 'users_id' could be the key of users; "
        "pass keys={'users': 'user_id'} to choose",
    )
    refused(
        {"a": one, "a.b": pd.DataFrame({"c": [1]}), "a.b.c": one},
        "keys must name one thing, got 'a.b.c'",
        keys={"a.b.c": "id"},
    )


def test_the_longest_name_wins():
    row = pd.DataFrame({"id": [1, 2], "x": [1, 2]})
    refers = pd.DataFrame({"order_line_id": [1, 2], "y": [1, 2]})
    graph = Graph.from_tables({"lines": row, "order_lines": row, "o": refers})
    assert graph.edge_types[0] == ("o", "order_line_id", "order_lines")


def test_fields_and_edges_as_they_are_now():
    users = pd.DataFrame({"id": [3, 5], "age": [1.5, None], "size": [1, 2]})
    orders = pd.DataFrame({"user_id": [3, 9], "x": [1, 2]})
    keys = {"orders.user_id": "users"}
    graph = Graph.from_tables({"users": users, "orders": orders}, keys=keys, orphans="drop")
    edge_type = graph.edge_types[0]
    graph.set_field("age", torch.zeros(2, 3), node_type="users")
    graph.set_field("w", torch.ones(1), edge_type=edge_type)
    del graph.node_fields("users")["size"]
    shown = str(graph.schema())
    assert [line.split() for line in shown.splitlines()[4:14]] == [
        ["edges", "number"],
        ["orders", "/", "user_id", "/", "users", "1"],
        ["users", "/", "rev_user_id", "/", "orders", "1"],
        [],
        ["field", "of", "dtype", "column", "holds"],
        ["age", "users", "float32", "x", "3", "age"],
        ["original_id", "users", "int64", "id"],
        ["x", "orders", "int64", "x"],
        ["w", "orders/user_id/users", "float32", "w"],
        [],
    ]


def test_the_whole_text():
    users = pd.DataFrame({"id": [3, 5], "name": ["anna", "bo"], "age": [1.5, None]})
    at = pd.DatetimeIndex(["2020-01-01", "2021-01-01", "2022-01-01"])
    orders = pd.DataFrame({"user_id": [3, 3, None], "at": at, "kind": ["a", "b", "a"]})
    orders = pd.concat([orders, orders], ignore_index=True)
    likes = pd.DataFrame({"user_id": [3, 5], "friend_user_id": [5, 3]})
    graph = Graph.from_tables({"users": users, "orders": orders, "likes": likes})
    assert (
        str(graph.schema())
        == graph.schema().text()
        == (
            """\
vertices  rows  key  time
users        2  id   -
orders       6  -    at

edges                         number
orders / user_id / users           4
users / rev_user_id / orders       4
users / likes / users              2
users / rev_likes / users          2

field        of      dtype    column  holds
age          users   float32  age     1 missing ones are NaN
original_id  users   int64    id
time         orders  int64    at      seconds; no zone
kind         orders  int64    kind    2 words: a, b

left out    type     why
users.name  VARCHAR  its texts differ from row to row

inferred: users.id is the key of users
inferred: orders.user_id refers to users.id
inferred: likes.user_id refers to users.id
inferred: likes.friend_user_id refers to users.id
inferred: orders.at is the time of orders"""
        )
    )
    html = graph.schema()._repr_html_()
    assert html.count("<table>") == 4
    assert "<p>inferred: users.id is the key of users</p>" in html


def test_the_schema_of_any_graph():
    graph = Graph.from_coo([0, 1], [1, 2], edata={"w": [1.0, 2.0]})
    assert str(graph.schema()) == (
        """\
vertices  rows  key  time
_N           3  -    -

edges         number
_N / _E / _N       2

field  of        dtype    column  holds
w      _N/_E/_N  float32  w"""
    )


def test_words_of_strangers_are_escaped():
    frame = pd.DataFrame({"c": ["\x1b[2J", "<b>"] * 2})
    schema = Graph.from_tables({"t": frame}).schema()
    assert "2 words: \\x1b[2J, <b>" in str(schema)
    assert "&lt;b&gt;" in schema._repr_html_()


def tables_of(connection, *, keyed=True):
    connection.run("create table a as select * from (values (1), (2)) t(k)")
    connection.run("create table l as select * from (values (1, 2)) t(x, y)")
    links = tuple(ForeignKey((name,), "a", ()) for name in ("x", "y"))
    return [
        Table("a", "a", {"k": "INTEGER"}, ("k",)),
        Table("l", "l", {"x": "INTEGER", "y": "INTEGER"}, ("x", "y") if keyed else (), links),
    ]


@pytest.mark.parametrize("keyed", [True, False])
def test_a_table_of_pairs_is_an_edge_type(keyed):
    with Connection(2**29) as connection:
        schema = plan(tables_of(connection, keyed=keyed), connection)
    assert [v.name for v in schema.vertices] == ["a"]
    assert [(k.edge_type, k.reverse, k.count) for k in schema.links] == [
        (("a", "l", "a"), ("a", "rev_l", "a"), 1)
    ]


def test_a_pair_that_others_refer_to_is_a_thing():
    with Connection(2**29) as connection:
        tables = tables_of(connection)
        connection.run("create table n as select * from (values (1, 2, 'a')) t(p, q, note)")
        link = ForeignKey(("p", "q"), "l", ("x", "y"))
        columns = {"p": "INTEGER", "q": "INTEGER", "note": "VARCHAR"}
        schema = plan([*tables, Table("n", "n", columns, (), (link,))], connection)
    assert [v.name for v in schema.vertices] == ["a", "l", "n"]
    assert [k.edge_type for k in schema.links] == [
        ("l", "x", "a"),
        ("l", "y", "a"),
        ("n", "p_q", "l"),
    ]


def test_a_key_of_a_table_that_is_not_there():
    with Connection(2**29) as connection:
        connection.run("create table b as select 1 as z")
        table = Table("b", "b", {"z": "INTEGER"}, (), (ForeignKey(("z",), "other", ("id",)),))
        schema = plan([table], connection)
    assert schema.notes == (
        "b.z refers to the table other, which is not among those read: no edges",
    )
    assert schema.vertices[0].columns[0].field == "z"


def test_times_that_a_source_declares():
    with Connection(2**29) as connection:
        connection.run("create table b as select '2020-01-01'::date as p, '2020-01-02'::date as q")
        table = Table("b", "b", {"p": "DATE", "q": "DATE"}, time_columns=("q",))
        schema = plan([table], connection)
    assert schema.vertices[0].time == "q"
    assert [c.field for c in schema.vertices[0].columns] == ["p", "time"]
    assert schema.notes == ()


def test_edge_types_of_one_name_are_told_apart():
    a = pd.DataFrame({"x": [1, 2], "y": [1, 1], "v": [0, 0]})
    b = pd.DataFrame({"x_y": [1, 2], "x": [1, 2], "y": [1, 1], "w": [3, 4]})
    keys = {"a": ["x", "y"], "b.x,y": "a", "b.x_y": "a.v"}
    refused({"a": a, "b": b}, "a: keys in v must be unique, got 0 (2 times)", keys=keys)
    a["v"] = [1, 2]
    graph = Graph.from_tables({"a": a, "b": b}, keys=keys)
    assert sorted(graph.edge_types) == [
        ("a", "rev_x_y", "b"),
        ("a", "rev_x_y_2", "b"),
        ("b", "x_y", "a"),
        ("b", "x_y_2", "a"),
    ]
