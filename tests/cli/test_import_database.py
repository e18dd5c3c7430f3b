"""A database on the command line: what would come, the folder, and the verbs that use it, right in
time."""

import datetime
import random
import re
import sqlite3
from pathlib import Path

import pytest
import torch
from exact_times import exact, within
from runs import fails, run

from pagraph.datasets import open_graph
from pagraph.datasets.manifest import Manifest

pytest.importorskip("adbc_driver_sqlite", reason="needs adbc-driver-sqlite")


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """Orders that are returned where the last one before was."""
    path = tmp_path_factory.mktemp("database") / "shop.db"
    link = sqlite3.connect(path)
    link.executescript(
        "create table users(id integer primary key, country text, joined timestamp);"
        "create table orders(id integer primary key, user_id integer references users, "
        "placed timestamp, sent timestamp, returned boolean);"
        "create table lines(id integer primary key, order_id integer references orders, "
        "price real, added timestamp);"
    )
    draw = random.Random(0)
    first = datetime.datetime(2024, 1, 1)
    for user in range(40):
        link.execute(
            "insert into users values (?, ?, ?)",
            (user + 100, draw.choice(["de", "fr"]), str(first)),
        )
    for order in range(400):
        placed = first + datetime.timedelta(hours=draw.randrange(10**4))
        sent = placed + datetime.timedelta(days=1)
        row = (order, draw.randrange(100, 140), str(placed), str(sent), draw.randrange(2))
        link.execute("insert into orders values (?, ?, ?, ?, ?)", row)
        for _ in range(2):
            row = (order, draw.random(), str(placed))
            link.execute("insert into lines(order_id, price, added) values (?, ?, ?)", row)
    link.commit()
    link.close()
    return path


TASK = ("--task", "orders:returned:placed")


@pytest.fixture(scope="module")
def folder(shop):
    out = shop.parent / "graph"
    done = run("import", shop, out, *TASK, "--skip-column", "orders:sent")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{out}: 1,240 vertices, 2,400 edges, ")
    return out


def test_a_dry_run_shows_what_would_come(shop):
    done = run("import", shop, "--dry-run", *TASK, columns=200)
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[:4] == [
        ["vertices", "rows", "key", "time"],
        ["lines", "800", "id", "added"],
        ["orders", "400", "id", "placed"],
        ["users", "40", "id", "joined"],
    ]
    assert ["orders", "/", "user_id", "/", "users", "400"] in lines
    assert ["label", "orders", "int64", "returned"] in lines
    assert (
        "task: sent is later than placed in 400 rows of orders, and was not known then: leave it "
        "out by --skip-column orders:sent"
    ) in done.stdout
    assert {path.name for path in shop.parent.iterdir()} <= {"shop.db", "graph", "parts"}


def test_a_line_for_each_column_at_the_end(shop, tmp_path):
    done = run("import", shop, tmp_path / "out", *TASK, "--skip-column", "orders:sent", columns=200)
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["orders.id", "key", "0"] in lines
    assert ["orders.user_id", "edges", "0"] in lines
    shown = [" ".join(line) for line in lines]
    assert any("orders.returned int64 label" in line and "not in feat" in line for line in shown)
    assert any("in feat: scaled" in line for line in shown)
    assert any("users.country" in line and "in feat: a column a word" in line for line in shown)
    # As it was, and as Python shows it.
    listed = Manifest.read(tmp_path / "out").columns
    assert len(listed) == len(shown) - 1 - next(
        place for place, line in enumerate(lines) if line[:1] == ["column"]
    )


def test_two_times_are_a_question(shop):
    assert fails("import", shop, "--dry-run") == (
        "Error: times: both 'placed' and 'sent' could be the time of orders; "
        "pass --time orders:placed to choose, --time orders: to take neither"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--table", "gone"), "--table must be of the database (lines, orders, users), got"),
        (("--skip-table", "gone"), "--skip-table must be of the database (lines, orders, users)"),
        (
            ("--skip-column", "users:x"),
            "--skip-column must be TABLE:COLUMN of what is read, got 'u",
        ),
        (
            ("--key", "users:none"),
            "--key must name columns of users (['id', 'country', 'joined']), go",
        ),
        (
            ("--time", "users:none"),
            "--time must name a column of 'users' (['id', 'country', 'joined'",
        ),
        (("--train", "50%"), "--train must come with task for tables, got 50%"),
        ((*TASK, "--train", "2"), "--train must be a share of the task's rows in (0, 1], got 2"),
        (("--relabel",), "--relabel must not be given for a source of the form 'database'"),
        (("--schema", "x"), "--schema must not be given for SQLite, got 'x'"),
        (("--memory", "10MiB"), "--memory must be at least"),
    ],
)
def test_options_that_are_refused(shop, tmp_path, options, message):
    done = run("import", shop, tmp_path / "out", *options)
    assert done.exit_code in (1, 2) and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert message in line
    assert list(tmp_path.iterdir()) == []


def test_options_choose_what_is_read(shop, tmp_path):
    done = run(
        *("import", shop, tmp_path / "out", "--skip-table", "lines", "--key", "orders.user_id:"),
        *("--key", "users.country:orders", "--time", "orders:", "--orphans", "drop"),
        *("--skip-column", "orders:sent", "--skip-column", "orders:placed"),
    )
    assert done.exit_code == 0, done.output
    graph = open_graph(tmp_path / "out")
    assert graph.edge_types[0] == ("users", "country", "orders")
    assert graph.csc_of(graph.edge_types[0]).num_edges == 0
    assert "time" not in graph.node_fields("orders")


def test_info(folder):
    done = run("info", folder, "--verify", columns=200)
    assert done.exit_code == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["users:", "country", "int64", "40", "320", "B", "disk", "2", "words:", "de,", "fr"] in (
        lines
    )
    assert "from source=shop.db" in done.stdout
    assert "seconds since 1970" in done.stdout


def test_masks_follow_time(folder):
    fields = open_graph(folder).node_fields("orders")
    times = [fields["time"][fields[f"{part}_mask"]] for part in ("train", "val", "test")]
    assert [len(t) for t in times] == pytest.approx([240, 80, 80], abs=4)
    assert times[0].max() < times[1].min() and times[1].max() < times[2].min()


def test_no_batch_knows_the_future(folder):
    pyg = pytest.importorskip("pagraph.pyg")
    data = pyg.to_pyg(open_graph(folder))
    loader = pyg.NeighborLoader(
        data,
        [-1, -1, -1],
        input_nodes=("orders", torch.arange(400)),
        time_attr="time",
        batch_size=100,
    )
    rows = 0
    for batch in loader:
        limits = exact(batch["orders"].time[: batch["orders"].batch_size])
        for ntype in data.node_types:
            store = batch[ntype]
            times = exact(data[ntype].time[store.n_id])
            for time, tree in zip(times, store.batch.tolist(), strict=True):
                assert within(limits[tree], time)
            rows += len(times)
    # Most orders have others before them, and all have lines.
    assert rows > 400 * 6


def test_the_verbs_that_follow(folder):
    done = run("profile", folder, "--fanout", "2", "--policies", "degree", "--budgets", "10%")
    assert done.exit_code == 0, done.output
    parts = folder.parent / "parts"
    done = run("partition", folder, parts, "-k", "2", "--method", "hash")
    assert done.exit_code == 0, done.output
    pytest.importorskip("torch_geometric")
    quick = ("--epochs", "1", "--hidden", "4", "--fanout", "4,2")
    done = run("train", folder, *quick)
    assert done.exit_code == 0, done.output
    assert "test accuracy" in done.output
    done = run("train", folder, "--layers", "dgl", "--epochs", "1")
    assert done.exit_code == 2
    assert "whose loader would show the model later data" in done.stderr


def test_the_page_shows_what_is_printed(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "howto" / "databases.md"
    if not page.exists():
        pytest.skip("needs the checkout, not only its tests")
    text = page.read_text()
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"^```python\n(.*?)^```$", text, re.M | re.S)[1], {})
    done = run("import", "shop.db", "--dry-run", *TASK, columns=200)
    assert re.search(r"^```text\n(.*?)^```$", text, re.M | re.S)[1] == done.stdout
