"""Progress: a bar on a terminal, elsewhere a line every ten seconds. Tables of all verbs, in
terminals of any width and in pipes."""

import io
import re
import sqlite3
from collections import Counter

import pytest
import runs
import torch
from click.testing import CliRunner
from rich.console import Console

from pagraph import Loader, NeighborSampler
from pagraph.cli.terminal import print_table, progress_bar
from pagraph.datasets import citation, open_graph, write_graph
from pagraph.system.tables import Table, columns_of


def test_short_work_says_nothing_in_a_pipe(capfd):
    with progress_bar("working") as progress:
        progress(1, 4)
        progress(4, 4)
    assert capfd.readouterr() == ("", "")


def test_lines_with_the_time_left_in_a_pipe(capfd, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("pagraph.cli.terminal.time.monotonic", lambda: clock[0])
    with progress_bar("writing [a]") as progress:
        for seconds, done in ((5, 1), (9, 2), (20, 4), (29, 5), (30, 6), (3640, 7)):
            clock[0] = seconds
            progress(done, 8)
    lines = [
        "writing [a]: 50%, 0:00:20 left",
        "writing [a]: 75%, 0:00:10 left",
        "writing [a]: 88%, 0:08:40 left",
    ]
    assert capfd.readouterr() == ("", "\n".join([*lines, ""]))


def test_bar_on_a_terminal():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    with progress_bar("working", console=console) as progress:
        progress(1, 4)
        progress(4, 4)
    assert "working" in screen.getvalue()
    assert "100%" in screen.getvalue()


def test_ends_when_the_work_fails():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    with pytest.raises(RuntimeError), progress_bar("working", console=console) as progress:
        progress(1, 4)
        raise RuntimeError
    assert screen.getvalue().endswith(("\x1b[2K", "\x1b[?25h", "\n", "\r"))


QUICK = ["--fanout", "5,5", "--batch-size", "100", "--device", "cpu"]
TRAIN = [*QUICK, "--epochs", "2", "--hidden", "8"]
PARTS = ["-k", "2", "--cache", "20%", "--cache-policy", "degree"]
VERBS = {
    "doctor": ["doctor"],
    "info": ["info", "types"],
    "train": ["train", "graph", *TRAIN],
    "train --compare": ["train", "graph", *TRAIN, "--compare", "dgl"],
    "profile": ["profile", "graph", *QUICK, "--budgets", "10%,50%", "--measure"],
    "partition": ["partition", "graph", "parts", *PARTS],
    "partition --compare": ["partition", "graph", "--compare", *PARTS],
    "partition --format dgl": ["partition", "graph", "parts", "-k", "2", "--format", "dgl"],
    "partition --format dgl --compare": [
        *["partition", "graph", "-k", "2", "--format", "dgl", "--compare"]
    ],
    "reorder": ["reorder", "graph", "out", "--fanout", "5,5"],
    "generate": ["generate", "sbm", "out", "--nodes", "100"],
    "import": ["import", "edges.csv", "out"],
    "import --dry-run": ["import", "shop.db", "out", "--dry-run"],
}


@pytest.fixture(scope="module")
def folders(blocks):
    """A folder with what the verbs read, among it names that are longer than a cell."""
    folder = blocks.parent
    blocks.rename(folder / "graph")
    write_graph(citation(60, num_features=2), folder / "types")
    (folder / "edges.csv").write_text("source,target,the number of a column\n0,1,2\n1,2,3\n")
    link = sqlite3.connect(folder / "shop.db")
    link.executescript(
        "create table customers_of_all_shops(id integer primary key, joined timestamp);"
        "create table orders(id integer primary key, "
        "customer_of_a_shop_id integer references customers_of_all_shops, placed timestamp);"
        "insert into customers_of_all_shops values (1, '2024-01-01 00:00:00');"
        "insert into orders values (1, 1, '2024-01-02 00:00:00');"
    )
    link.close()
    return folder


@pytest.fixture
def shown(monkeypatch):
    """The tables that are printed."""
    found, lines = [], Table.lines

    def noted(table, width=None):
        found.append(table)
        return lines(table, width)

    monkeypatch.setattr(Table, "lines", noted)
    return found


def check(text, tables, columns):
    """All cells are in a text that fits."""
    for line in text.splitlines():
        is_copied = line.startswith(("To set: ", "To train: "))
        assert columns is None or is_copied or columns_of(line) <= columns, line
    # Cells of text may be broken, and others beside them.
    characters = Counter("".join(text.split()))
    for table in tables:
        for row in table.rows[1:]:
            for place, cell in enumerate(row):
                assert cell.strip() in text or (columns and place in table.left), cell
        cells = "".join("".join(row) for row in table.rows)
        assert not Counter("".join(cells.split())) - characters
    assert not re.search("[\x1b…]", text)


@pytest.mark.every
@pytest.mark.parametrize("columns", [80, 100, None])
@pytest.mark.parametrize("verb", VERBS)
def test_every_table_is_whole_at_any_width(folders, shown, tmp_path, monkeypatch, verb, columns):
    if "dgl" in VERBS[verb]:
        pytest.importorskip("pagraph.dgl")
    if verb == "import --dry-run":
        pytest.importorskip("adbc_driver_sqlite", reason="needs adbc-driver-sqlite")
    # In short paths, as no path is broken.
    monkeypatch.chdir(tmp_path)
    for source in folders.iterdir():
        (tmp_path / source.name).symlink_to(source)
    done = runs.run(*VERBS[verb], columns=columns)
    assert done.exit_code == 0, done.output
    assert shown or verb in ("train", "generate", "import")
    check(done.stdout, shown, columns)


def test_a_terminal_highlights_the_total():
    table = Table([["part", "rows"], ["0", "5"], ["all", "5"]], has_total=True)
    for color, total in ((True, "\x1b[1m all     5\x1b[0m"), (False, " all     5")):
        with CliRunner().isolation(color=color) as (output, *_):
            print_table(table)
            assert output.getvalue().decode().splitlines() == ["part  rows", "   0     5", total]


@pytest.mark.parametrize("columns", [80, 100, None])
def test_printed_statistics_and_plans(folders, shown, monkeypatch, columns):
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(columns))
    graph = open_graph(folders / "graph")
    options = {"batch_size": 100, "fields": ["feat"], "cache": "50%", "memory": "4GiB"}
    loader = Loader(graph, torch.arange(600), NeighborSampler([5, 5]), **options)
    for _ in range(2):
        list(loader)
    for result in (
        loader.stats,
        loader.stats.epochs[0].reads,
        loader.cache_plan,
        loader.memory_plan,
    ):
        shown.clear()
        check(str(result), shown, columns)
