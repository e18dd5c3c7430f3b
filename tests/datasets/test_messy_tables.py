"""Ten messy tables, as they are found: each column is what pandas and DuckDB read, or is named."""

import sqlite3

import pandas as pd
import pytest

from pagraph import Graph
from pagraph.datasets import import_graph, open_graph, read_graph
from pagraph.datasets.manifest import Manifest

pytest.importorskip("yaml")
from chaos.tables import MISSING, check_graph, texts_of

ROWS = 24


def rows_of(*columns):
    """Columns of cells, repeated to the same length, as lines."""
    long = [list(cells) * (ROWS // len(cells)) for cells in columns]
    return [",".join(cells) for cells in zip(*long, strict=True)]


def table(names, *columns, end="\n"):
    return end.join([names, *rows_of(*columns)]) + end


WIDE = [f"w{i}" for i in range(200)]
TABLES = {
    # Name: text, and the columns that no field can hold.
    "types that are mixed": (
        table(
            "age,score,code",
            ["31", "unknown", "45", "NA", "27", "58"],
            ["1.5", "2", "low", "2.25", "-1e3", "4"],
            ["A1", "7", "B2", "A1"],
        ),
        {"age", "score"},
    ),
    "thousands": (
        table(
            "population,area,density",
            ['"1,234"', '"12,345,678"', "987", '"1,234"'],
            ["1 234", "5 678"],
            ["10.5", "N/A", "3.25"],
        ),
        set(),
    ),
    "dates of two forms": (
        table(
            "iso,us,both,stamp",
            ["2024-01-05", "1999-12-31", ""],
            ["1/5/2024", "12/31/1999"],
            ["2024-01-05", "2024-01-06", "1/7/2024"],
            ["2024-01-05 10:00:00", "2024-01-05T10:00:00.5"],
        ),
        {"both"},
    ),
    "a byte order mark and Windows lines": (
        "\ufeff"
        + table("id2,Größe,café", ["1", "2", "3"], ["1.5", "2.5"], ["ja", "nein"], end="\r\n"),
        set(),
    ),
    "quotes in quotes": (
        table(
            "title,said,n",
            ['"A ""new"" hope"', '"x, y"', "plain"],
            ['"""hi"""', '"a;b"'],
            ['"1"', '"2"', '"3"'],
        ),
        set(),
    ),
    "keys that come twice": (
        table("key,value", ["k1", "k1", "k2"], ["1", "1", "2", "3"]),
        set(),
    ),
    "blank lines": (
        table("a,b", ["1", "2"], ["x", "y"]).replace("\n1,x", "\n\n\n1,x") + "\n\n",
        set(),
    ),
    "200 columns": (
        table(",".join(WIDE), *[[str(i), str(i + 1), ""][: 2 + i % 2] for i in range(200)]),
        set(),
    ),
    "NaN, NULL and N/A": (
        table(
            "a,b,c,d,e",
            ["NaN", "1.5", "2.5"],
            ["NULL", "1", "2"],
            ["N/A", "true", "false"],
            ["null", "2024-01-01", "None"],
            ["NA", "DE", "FR"],
        ),
        set(),
    ),
    "integers above 2**53": (
        table(
            "big,huge,beside,long",
            ["9007199254740993", "-9223372036854775808", "9223372036854775807"],
            ["9223372036854775808", "1"],
            ["9007199254740993", "0.5"],
            ["1700000000123456789", "NA"],
        ),
        {"huge", "beside"},
    ),
}


# So many columns take 4 to 31 s of CPU time, the other tables less than one.
LARGE = {"200 columns": pytest.mark.many}


@pytest.fixture(params=[pytest.param(name, marks=LARGE.get(name, ())) for name in TABLES])
def messy(request):
    text, unfit = TABLES[request.param]
    return text, unfit


def with_ends(text):
    """The lines with the ids of an edge before them."""
    begin = "\ufeff" if text.startswith("\ufeff") else ""
    lines = text.removeprefix("\ufeff").split("\n")
    lines[1:] = [f"{i % 3},0,{line}" if line.strip() else line for i, line in enumerate(lines[1:])]
    return f"{begin}src,dst,{lines[0]}" + "\n" + "\n".join(lines[1:])


def test_as_an_edge_list(messy, tmp_path):
    text, unfit = messy
    path = tmp_path / "edges.csv"
    path.write_bytes(with_ends(text).encode())
    cells = texts_of(path)
    for ids in (cells.pop("src"), cells.pop("dst")):
        assert len(ids) == ROWS
    import_graph(path, tmp_path / "out", missing=MISSING)
    entries = Manifest.read(tmp_path / "out").columns
    fields = open_graph(tmp_path / "out", verify=True).edge_fields(("_N", "_E", "_N"))
    check_graph(cells, entries, fields, "")
    assert {entry.column for entry in entries if entry.becomes == "nothing"} == unfit


def test_as_a_table_in_yaml(messy, tmp_path):
    text, unfit = messy
    path = tmp_path / "t.csv"
    path.write_bytes(with_ends(text).encode())
    cells = texts_of(path)
    names = [name for name in cells if name not in unfit | {"src", "dst"}]
    (tmp_path / "graph.yaml").write_text(
        "nodes: {u: {}}\n"
        f"edges: {{'u:to:u': {{file: t.csv, src: src, dst: dst, fields: [{', '.join(names)}]}}}}"
    )
    import_graph(tmp_path / "graph.yaml", tmp_path / "out", missing=MISSING)
    entries = Manifest.read(tmp_path / "out").columns
    fields = open_graph(tmp_path / "out", verify=True).edge_fields(("u", "to", "u"))
    wanted = {name: cells[name] for name in names}
    assert check_graph(wanted, entries, fields, "u/to/u") == len(names)


def test_as_a_database(messy, tmp_path):
    """Of columns whose declared types pandas finds."""
    text, _ = messy
    (tmp_path / "t.csv").write_bytes(text.encode())
    frame = pd.read_csv(tmp_path / "t.csv", encoding="utf-8-sig")
    link = sqlite3.connect(tmp_path / "some.db")
    kinds = {
        name: "real" if kind.kind == "f" else "integer" if kind.kind in "iu" else "text"
        for name, kind in frame.dtypes.items()
    }
    columns = ", ".join(f'"{name}" {kind}' for name, kind in kinds.items())
    link.execute(f"create table t(no integer primary key, up integer references t, {columns})")
    for number, row in enumerate(
        pd.read_csv(tmp_path / "t.csv", dtype=str).itertuples(index=False)
    ):
        # As texts, of which SQLite makes numbers where it can.
        cells = [None if cell != cell else str(cell) for cell in row]
        link.execute(
            f"insert into t values ({', '.join('?' * (2 + len(cells)))})", [number, 0, *cells]
        )
    link.commit()
    found = link.execute("select * from t order by no").fetchall()
    link.close()
    cells = dict(zip(frame, map(list, list(zip(*found, strict=True))[2:]), strict=True))
    import_graph(tmp_path / "some.db", tmp_path / "out", missing=MISSING)
    entries = Manifest.read(tmp_path / "out").columns
    check_graph(cells, entries, open_graph(tmp_path / "out").node_fields("t"), "t")


def test_as_a_dataframe(messy, tmp_path):
    text, _ = messy
    (tmp_path / "t.csv").write_bytes(text.encode())
    frame = pd.read_csv(tmp_path / "t.csv", encoding="utf-8-sig")
    if "huge" in frame:
        with pytest.raises(ValueError, match="t.huge must hold integers of 64 bits, got 922337203"):
            Graph.from_tables({"t": frame}, missing=MISSING)
        frame = frame.drop(columns="huge")
    graph = Graph.from_tables({"t": frame}, missing=MISSING)
    cells = {name: frame[name].tolist() for name in frame}
    check_graph(cells, graph.schema().entries(), graph.node_fields("t"), "t")


def test_keys_that_come_twice_are_named(tmp_path):
    text, _ = TABLES["keys that come twice"]
    (tmp_path / "t.csv").write_text(text)
    (tmp_path / "graph.yaml").write_text(
        "nodes: {u: {file: t.csv, id: key}}\nedges: {'u:to:u': {file: t.csv, src: key, dst: key}}"
    )
    with pytest.raises(ValueError, match=r"t.csv: keys in key must be unique, got k1 \(16 times\)"):
        read_graph(tmp_path / "graph.yaml")
