"""Graphs of tables against a plain reading of the same rows, from every kind of table, in memory
and in files."""

import subprocess
import tempfile
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest
import torch
from fresh_processes import bare_python
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import FormatError, Graph
from pagraph.datasets import edge_sort, new_ids, write_graph
from pagraph.datasets.column_files import Scratch
from pagraph.datasets.moved_graph import new_indptr, write_moved
from pagraph.datasets.tables import builder
from pagraph.datasets.tables.builder import build
from pagraph.datasets.tables.connection import Connection
from pagraph.datasets.tables.planning import plan
from pagraph.datasets.tables.schema import ForeignKey, Table
from pagraph.partition import open_partition, partition_graph
from pagraph.partition.writing import write_partition

KEYS = {
    "users": "id",
    "orders": None,
    "orders.user": "users",
    "orders.giver": "users",
    "users.boss": "users",
    "follows.a": "users",
    "follows.b": "users",
}


def edges_of(graph, edge_type):
    """Sources by destination, as lists."""
    csc = graph.csc_of(edge_type)
    indptr, indices = csc.arrays
    return [indices[a:b].tolist() for a, b in zip(indptr[:-1], indptr[1:], strict=True)]


def plain_edges(sources, targets, num_targets):
    """The same of two lists with None for no vertex; sources in the order of the rows."""
    rows = [[] for _ in range(num_targets)]
    for source, target in zip(sources, targets, strict=True):
        if source is not None and target is not None:
            rows[target].append(source)
    return rows


@st.composite
def shops(draw):
    """Three tables: users with a boss among them, orders with two users each, pairs of users."""
    words = draw(st.booleans())
    key = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 9)
    if words:
        letters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
        key = st.text(letters, max_size=6)
    ids = draw(st.lists(key, max_size=8, unique=True))
    some = st.sampled_from(ids) if ids else st.none()
    maybe = st.none() | some
    boss = draw(st.lists(maybe, min_size=len(ids), max_size=len(ids)))
    orders = draw(st.lists(st.tuples(maybe, maybe), max_size=12))
    follows = draw(st.lists(st.tuples(maybe, maybe), max_size=12))
    return words, ids, boss, orders, follows


def column(values, words):
    return pd.array(values, dtype="object" if words else "Int64")


def frames_of(shop):
    words, ids, boss, orders, follows = shop
    users = pd.DataFrame({"id": column(ids, words), "boss": column(boss, words)})
    users["age"] = np.arange(len(ids)) / 7
    rows = {name: [o[i] for o in orders] for i, name in enumerate(("user", "giver"))}
    sales = pd.DataFrame({name: column(v, words) for name, v in rows.items()})
    sales["price"] = np.arange(len(orders))
    rows = {name: [f[i] for f in follows] for i, name in enumerate("ab")}
    pairs = pd.DataFrame({name: column(v, words) for name, v in rows.items()})
    return {"users": users, "orders": sales, "follows": pairs}


def check_shop(graph, shop):
    _, ids, boss, orders, follows = shop
    place = {key: i for i, key in enumerate(ids)} | {None: None}
    ends = {
        ("users", "boss", "users"): (range(len(ids)), [place[b] for b in boss]),
        ("orders", "user", "users"): (range(len(orders)), [place[o[0]] for o in orders]),
        ("orders", "giver", "users"): (range(len(orders)), [place[o[1]] for o in orders]),
        ("users", "follows", "users"): (
            [place[a] for a, _ in follows],
            [place[b] for _, b in follows],
        ),
    }
    assert graph.num_nodes_by_type == {"users": len(ids), "orders": len(orders)}
    assert len(graph.edge_types) == 2 * len(ends)
    for (head, name, tail), (sources, targets) in ends.items():
        forward = edges_of(graph, (head, name, tail))
        assert forward == plain_edges(sources, targets, graph.num_nodes_of(tail))
        backward = edges_of(graph, (tail, f"rev_{name}", head))
        assert backward == plain_edges(targets, sources, graph.num_nodes_of(head))
    assert graph.node_fields("orders")["price"].tolist() == list(range(len(orders)))
    ages = torch.tensor([i / 7 for i in range(len(ids))], dtype=torch.float64)
    assert torch.equal(graph.node_fields("users")["age"].double(), ages)


@pytest.mark.many
@settings(max_examples=examples(30))
@given(shops())
def test_any_tables(shop):
    check_shop(Graph.from_tables(frames_of(shop), keys=KEYS), shop)


@pytest.mark.many
@settings(max_examples=examples(30))
@given(shops(), st.booleans())
def test_the_same_in_files(shop, joined):
    """With so little memory that edges need many buckets, and by joins as by look-ups."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(edge_sort, "FEW_EDGES", -1)
        patch.setattr(builder, "_BLOCK_ROWS", 3)
        if joined:
            patch.setattr(builder, "_ANY_RANGE", 0)
            patch.setattr(builder, "_MOST_SPARSE", 0)
        with Connection(2**29) as connection, Scratch(Path(folder)) as scratch:
            tables = registered(connection, frames_of(shop))
            schema = plan(tables, connection, keys=KEYS)
            check_shop(build(connection, schema, scratch, edge_sort._SORT_ROW_BYTES * 40), shop)


def registered(connection, frames):
    found = []
    for name, frame in frames.items():
        connection.register(name, frame)
        columns = {row[0]: row[1] for row in connection.run(f'describe "{name}"')}
        found.append(Table(name, name, columns, is_ordered=True))
    return found


@pytest.fixture
def shop_frames():
    users = pd.DataFrame({"id": [30, 10, 20], "country": ["de", "fr", "de"]})
    users = pd.concat([users] * 2, ignore_index=True)
    users["id"] += [0, 0, 0, 100, 100, 100]
    days = ["1969-12-31T23:59:59", "2020-02-29", "2021-01-01", "2022-01-01"]
    when = pd.DatetimeIndex(np.array(days, dtype="datetime64[s]"))
    orders = pd.DataFrame({"user_id": [10, 30, 10, np.nan], "placed": when, "price": [1, 2, 3, 4]})
    return {"users": users, "orders": orders}


SHOP_EDGES = [[1], [0, 2], [], [], [], []]


def test_keys_links_and_times_are_inferred(shop_frames, caplog):
    graph = Graph.from_tables(shop_frames)
    assert graph.edge_types == [("orders", "user_id", "users"), ("users", "rev_user_id", "orders")]
    assert edges_of(graph, graph.edge_types[0]) == SHOP_EDGES
    assert graph.node_fields("orders")["time"].tolist() == [-1, 1582934400, 1609459200, 1640995200]
    assert [record.getMessage() for record in caplog.records] == [
        "inferred: users.id is the key of users",
        "inferred: orders.user_id refers to users.id",
        "inferred: orders.placed is the time of orders",
    ]
    assert graph.node_fields("users")["country"].tolist() == [0, 1, 0, 0, 1, 0]
    assert graph.node_fields("users").notes["country"].words == ("de", "fr")
    assert new_ids(graph, [20, 130], node_type="users").tolist() == [2, 3]


def arrow_tables(frames):
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    return {name: pyarrow.Table.from_pandas(frame) for name, frame in frames.items()}


def polars_frames(frames):
    polars = pytest.importorskip("polars", reason="needs polars")
    return {name: polars.DataFrame(table) for name, table in arrow_tables(frames).items()}


CONNECTION = duckdb.connect()  # a relation does not keep its own open


def relations(frames):
    found = {}
    for name, frame in frames.items():
        CONNECTION.register(name, frame)
        found[name] = CONNECTION.table(name)
    return found


class OnlyStream:
    """What has Arrow's interface and nothing else."""

    def __init__(self, rows):
        self.rows = rows

    def __arrow_c_stream__(self, requested_schema=None):
        return self.rows.__arrow_c_stream__(requested_schema)


def streams(frames):
    return {name: OnlyStream(rows) for name, rows in arrow_tables(frames).items()}


@pytest.mark.every
@pytest.mark.parametrize("other", [arrow_tables, polars_frames, relations, streams])
def test_every_kind_of_table(shop_frames, other):
    want = Graph.from_tables(shop_frames)
    got = Graph.from_tables(other(shop_frames))
    assert got.num_nodes_by_type == want.num_nodes_by_type
    for edge_type in want.edge_types:
        assert edges_of(got, edge_type) == edges_of(want, edge_type)
    for name in want.node_types:
        fields, others = want.node_fields(name), got.node_fields(name)
        assert list(fields) == list(others)
        assert all(torch.equal(fields[key], others[key]) for key in fields)
        assert fields.notes == others.notes


def test_rows_keep_their_order_however_many():
    """Of several of DuckDB's row groups, which threads read at once."""
    count = 400_000
    rng = np.random.default_rng(0)
    keys = rng.permutation(count)
    parents = rng.integers(0, count, count)
    tables = {
        "a": pd.DataFrame({"id": keys, "x": np.arange(count)}),
        "b": pd.DataFrame({"a_id": parents, "y": np.arange(count)}),
    }
    graph = Graph.from_tables(tables)
    assert torch.equal(graph.node_fields("a")["original_id"], torch.from_numpy(keys))
    for name, field in (("a", "x"), ("b", "y")):
        assert torch.equal(graph.node_fields(name)[field], torch.arange(count))
    place = np.empty(count, dtype=np.int64)
    place[keys] = np.arange(count)
    ends = graph.csc_of(("a", "rev_a_id", "b"))
    assert torch.equal(ends.indices.long(), torch.from_numpy(place[parents]))
    order = np.argsort(place[parents], kind="stable")
    forward = graph.csc_of(("b", "a_id", "a"))
    assert torch.equal(forward.indices.long(), torch.from_numpy(order))


def test_rows_of_a_database_are_taken_by_key():
    rows = "select * from (values ('b', 1), ('c', 2), ('a', 3)) t(id, x)"
    with Connection(2**29) as connection:
        connection.run(f"create table t as {rows}")
        connection.run("create table l as select * from (values ('c', 'a'), ('a', 'b')) t(p, q)")
        links = tuple(ForeignKey((name,), "t", ("id",)) for name in ("p", "q"))
        tables = [
            Table("t", "t", {"id": "VARCHAR", "x": "INTEGER"}, ("id",)),
            Table("l", "l", {"p": "VARCHAR", "q": "VARCHAR"}, (), links),
        ]
        graph = build(connection, plan(tables, connection), None, 2**29)
    assert graph.ndata["x"].tolist() == [3, 1, 2]
    assert graph.edge_types == [("t", "l", "t"), ("t", "rev_l", "t")]
    assert edges_of(graph, ("t", "l", "t")) == [[2], [0], []]


def test_composite_keys():
    lines = pd.DataFrame({"order": [1, 1, 2], "line": [1, 2, 1], "q": [4, 5, 6]})
    parcels = pd.DataFrame({"o": [1, 2, None, 1], "l": [2, 1, 1, None], "w": [1.0, 2, 3, 4]})
    graph = Graph.from_tables(
        {"lines": lines, "parcels": parcels},
        keys={"lines": ["order", "line"], "parcels.o,l": "lines"},
    )
    assert edges_of(graph, ("parcels", "o_l", "lines")) == [[], [0], [1]]
    assert graph.node_fields("lines")["line"].tolist() == [1, 2, 1]
    assert "original_id" not in graph.node_fields("lines")


def test_links_in_a_circle():
    a = pd.DataFrame({"id": [0, 1], "b_id": [1, 0]})
    b = pd.DataFrame({"id": [0, 1], "a_id": [1, 1]})
    graph = Graph.from_tables({"a": a, "b": b})
    assert edges_of(graph, ("a", "b_id", "b")) == [[1], [0]]
    assert edges_of(graph, ("b", "a_id", "a")) == [[], [0, 1]]


def test_a_key_with_a_zero_byte():
    """Padded with zeros it would be another key."""
    users = pd.DataFrame({"id": ["a", "a\0"], "age": [1, 2]})
    with pytest.raises(FormatError, match=r"users.id cannot be kept: .* zero byte .*'a\\x00'"):
        Graph.from_tables({"users": users}, keys={"users": "id"})


def test_names_of_any_characters():
    hostile = 'x"; drop table y; --'
    words = ["it's", "a\nb", 'q"', "ü€", ""]
    users = pd.DataFrame({"id": words, hostile: [1, 2, 3, 4, 5]})
    likes = pd.DataFrame({"who ": [words[3], words[1], words[4]], "n": [1, 2, 3]})
    graph = Graph.from_tables(
        {hostile: users, "likes": likes}, keys={hostile: "id", "likes.who ": hostile}
    )
    assert edges_of(graph, ("likes", "who ", hostile)) == [[], [1], [], [0], [2]]
    assert graph.node_fields(hostile)[hostile].tolist() == [1, 2, 3, 4, 5]
    assert new_ids(graph, words, node_type=hostile).tolist() == [0, 1, 2, 3, 4]


def refused(tables, message, error=FormatError, **options):
    with pytest.raises(error) as raised:
        Graph.from_tables(tables, **options)
    assert str(raised.value) == message


def test_keys_that_point_nowhere(shop_frames):
    orders = shop_frames["orders"]
    orders["user_id"] = [10, 77, 78, 77]
    refused(
        shop_frames,
        "orders.user_id must hold keys of users, got 77, which is not in id; 3 rows point nowhere: "
        "orphans='drop' leaves out their edges",
        keys={"orders.user_id": "users"},
    )
    graph = Graph.from_tables(shop_frames, keys={"orders.user_id": "users"}, orphans="drop")
    assert edges_of(graph, ("orders", "user_id", "users")) == [[], [0], [], [], [], []]
    assert edges_of(graph, ("users", "rev_user_id", "orders")) == [[1], [], [], []]


@pytest.mark.parametrize("end", ["a", "b"])
def test_either_end_of_a_pair_that_points_nowhere(end):
    pairs = pd.DataFrame({"a": [10, 30, 10], "b": [30, 30, 10]})
    pairs[end] = [77, 30, 10]
    frames = {"users": pd.DataFrame({"id": [10, 30]}), "follows": pairs}
    keys = {"users": "id", "follows.a": "users", "follows.b": "users"}
    refused(
        frames,
        f"follows.{end} must hold keys of users, got 77, which is not in id; 1 row points "
        "nowhere: orphans='drop' leaves out their edges",
        keys=keys,
    )
    graph = Graph.from_tables(frames, keys=keys, orphans="drop")
    assert edges_of(graph, ("users", "follows", "users")) == [[0], [1]]


def test_a_column_that_is_no_key_stays_a_field(shop_frames, caplog):
    shop_frames["orders"]["user_id"] = [10, 77, 78, 77]
    graph = Graph.from_tables(shop_frames)
    assert graph.edge_types == []
    assert graph.node_fields("orders")["user_id"].tolist() == [10, 77, 78, 77]
    assert (
        "orders.user_id is no key of users: 3 of its values, such as 77, are missing there; "
        "pass keys={'orders.user_id': 'users'} to make it one"
    ) in [record.getMessage() for record in caplog.records]


def test_wrong_keys(shop_frames):
    users, orders = shop_frames["users"], shop_frames["orders"]
    given = {"keys": {"users": "id", "orders.user_id": "users"}}
    twice = users.assign(id=[1, 2, 2, 3, 4, 5])
    refused(
        {"users": twice, "orders": orders},
        "users: keys in id must be unique, got 2 (2 times)",
        **given,
    )
    missing = users.assign(id=pd.array([1, 2, None, 3, 4, 5], dtype="Int64"))
    refused(
        {"users": missing, "orders": orders},
        "users: every row must have a key in id, row 3 has none",
        **given,
    )
    broken = orders.assign(user_id=[10, 1.7, np.nan, 10])
    refused(
        {"users": users, "orders": broken},
        "orders.user_id must hold integers below 2**53, as a key of floats does, got 1.7",
        **given,
    )


def test_arguments_that_name_nothing(shop_frames):
    for options, message in (
        ({"keys": {"user": "id"}}, "keys must name a table, or table.column, got 'user'"),
        (
            {"keys": {"users": "key"}},
            "keys must name columns of users (['id', 'country']), got 'key'",
        ),
        (
            {"keys": {"orders.user_id": "people"}},
            "keys must name a table of ['users', 'orders'], or None, got 'people'",
        ),
        ({"times": {"people": "at"}}, "times must name a table, got 'people'"),
        (
            {"times": {"users": "at"}},
            "times must name a column of 'users' (['id', 'country']), got 'at'",
        ),
        (
            {"times": {"users": "country"}},
            "times: users.country must be a column of dates, timestamps or numbers, got VARCHAR",
        ),
        ({"orphans": "keep"}, "orphans must be one of error, drop, got 'keep'"),
        (
            {"fields": {"users": ["at"]}},
            "fields must name columns of users (['id', 'country']), got 'at'",
        ),
    ):
        refused(shop_frames, message, ValueError, **options)
    refused(
        {"users": [1]},
        "tables must be DataFrames, Arrow tables or relations, got list for 'users'",
        TypeError,
    )
    refused({}, "tables must hold at least 1 table, got 0", ValueError)
    refused([1], "tables must be a mapping from name to table, got list", TypeError)
    refused(
        {"t\x1b[2J": shop_frames["users"]},
        "names of tables and columns must be printable characters, got 't\\x1b[2J'",
    )
    refused(
        {"t": pd.DataFrame([[1, 2]], columns=["a", "A"])},
        "t: names of columns must differ by more than case, got 'a' and 'A'",
        ValueError,
    )


def test_no_edge_where_an_argument_says_so(shop_frames):
    graph = Graph.from_tables(shop_frames, keys={"orders.user_id": None}, times={"orders": None})
    assert graph.edge_types == []
    fields = graph.node_fields("orders")
    assert list(fields) == ["user_id", "placed", "price"]
    assert fields["user_id"].dtype == torch.float32


def test_chosen_fields(shop_frames):
    graph = Graph.from_tables(shop_frames, fields={"orders": ["price"], "users": []})
    assert list(graph.node_fields("orders")) == ["time", "price"]
    assert list(graph.node_fields("users")) == ["original_id"]


def test_empty_tables():
    users = pd.DataFrame({"id": pd.array([], dtype="int64"), "x": pd.array([], dtype="float64")})
    orders = pd.DataFrame({"user_id": pd.array([None, None], dtype="Int64"), "y": [1, 2]})
    keys = {"users": "id", "orders.user_id": "users"}
    graph = Graph.from_tables({"users": users, "orders": orders}, keys=keys)
    assert edges_of(graph, ("users", "rev_user_id", "orders")) == [[], []]
    assert graph.csc_of(("orders", "user_id", "users")).num_dst == 0
    graph = Graph.from_tables({"users": users, "orders": orders.iloc[:0]}, keys=keys)
    assert graph.num_nodes == 0


def test_a_folder_keeps_units_and_words(shop_frames, tmp_path):
    graph = Graph.from_tables(shop_frames)
    write_graph(graph, tmp_path / "g")
    back = Graph.open(tmp_path / "g", verify=True)
    for name in graph.node_types:
        assert back.node_fields(name).notes == graph.node_fields(name).notes != {}
    assert "2 words: de, fr" in str(back.schema())
    assert "seconds" in str(back.schema())
    places = {name: np.arange(graph.num_nodes_of(name)) for name in graph.node_types}
    offsets = {t: new_indptr(back, t, places[t[2]]) for t in back.edge_types}
    write_moved(back, tmp_path / "moved", places, offsets, bucket_bytes=2**20)
    assert Graph.open(tmp_path / "moved").node_fields("users").notes["country"].words == (
        "de",
        "fr",
    )


def test_parts_keep_units_and_words(shop_frames, tmp_path):
    graph = Graph.from_tables(shop_frames)
    graph.set_field("train_mask", torch.ones(4, dtype=torch.bool), node_type="orders")
    partition = partition_graph(graph, 2, node_type="orders", method="hash")
    write_partition(partition, tmp_path / "p")
    for part in range(2):
        fields = open_partition(tmp_path / "p", part).graph.node_fields
        assert fields("users").notes["country"].words == ("de", "fr")
        assert fields("orders").notes["time"].unit == "seconds"


def test_a_field_that_is_set_again_has_no_words(shop_frames):
    graph = Graph.from_tables(shop_frames)
    graph.set_field("country", torch.zeros(6), node_type="users")
    assert graph.node_fields("users").notes == {}


class TableOfRelBench:
    """What is read of RelBench's ``Table``."""

    def __init__(self, df, links, key=None, time=None):
        self.df, self.fkey_col_to_pkey_table, self.pkey_col, self.time_col = df, links, key, time


class DatabaseOfRelBench:
    def __init__(self, tables):
        self.table_dict = tables


def relbench_shop():
    rng = np.random.default_rng(0)
    # RelBench takes all times for nanoseconds.
    days = pd.to_datetime(rng.integers(-(10**9), 10**9, 50) * 10**9, unit="ns")
    users = pd.DataFrame({"uid": np.arange(20), "age": rng.random(20), "at": days[:20]})
    items = pd.DataFrame({"iid": np.arange(9), "price": rng.random(9)})
    reviews = pd.DataFrame({"user": rng.integers(0, 20, 50), "item": rng.integers(0, 9, 50)})
    reviews["user"] = reviews["user"].astype("Int64").mask(rng.random(50) < 0.2)
    reviews["stars"] = rng.random(50)
    reviews["at"] = days
    return {
        "users": (users, {}, "uid", "at"),
        "items": (items, {}, "iid", None),
        "reviews": (reviews, {"user": "users", "item": "items"}, None, "at"),
    }


def test_a_database_of_relbench_knows_its_keys(caplog):
    tables = {name: TableOfRelBench(*of_table) for name, of_table in relbench_shop().items()}
    graph = Graph.from_tables(DatabaseOfRelBench(tables))
    assert caplog.records == []
    assert [t for t in graph.edge_types if not t[1].startswith("rev_")] == [
        ("reviews", "user", "users"),
        ("reviews", "item", "items"),
    ]
    assert "time" in graph.node_fields("users")
    assert "time" not in graph.node_fields("items")


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_the_edges_and_times_of_relbench():
    base = pytest.importorskip("relbench.base", reason="needs relbench")
    modeling = pytest.importorskip("relbench.modeling.graph", reason="needs relbench with PyG")
    from torch_frame import stype

    tables = {name: base.Table(*of_table) for name, of_table in relbench_shop().items()}
    database = base.Database(tables)
    kinds = {
        "users": {"age": stype.numerical},
        "items": {"price": stype.numerical},
        "reviews": {"stars": stype.numerical},
    }
    want, _ = modeling.make_pkey_fkey_graph(database, kinds)
    graph = Graph.from_tables(database)
    assert len(graph.edge_types) == len(want.edge_types)
    for head, name, tail in want.edge_types:
        # Theirs are called f2p_user and rev_f2p_user, ours user and rev_user.
        csc = graph.csc_of((head, name.replace("f2p_", ""), tail))
        ours = torch.stack([csc.indices.long(), csc.destinations().long()])
        theirs = want[head, name, tail].edge_index
        order = np.lexsort((ours[1], ours[0]))
        assert torch.equal(ours[:, order], theirs)
    for name in ("users", "reviews"):
        assert torch.equal(graph.node_fields(name)["time"], want[name].time)


WITHOUT_PYARROW = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pyarrow":
            raise ImportError("no pyarrow")
sys.meta_path.insert(0, Refused())
import numpy as np, pandas as pd
from pagraph import Graph
users = pd.DataFrame({"id": ["a", "b"], "at": pd.to_datetime(["2020-01-01", "2021-01-01"])})
orders = pd.DataFrame({"user_id": ["b", None, "a"], "kind": ["x", "y", "x"]})
graph = Graph.from_tables({"users": users, "orders": orders})
assert graph.num_edges == 4 and "pyarrow" not in sys.modules
"""


def test_pyarrow_is_not_needed():
    subprocess.run([bare_python(), "-c", WITHOUT_PYARROW], check=True)


def test_progress_ends_at_the_whole(tmp_path, shop_frames):
    calls = []
    with Connection(2**29) as connection:
        schema = plan(registered(connection, shop_frames), connection)
        build(connection, schema, None, 2**29, progress=lambda *call: calls.append(call))
    assert calls == sorted(calls)
    assert calls[-1][0] == calls[-1][1]
