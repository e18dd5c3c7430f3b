"""Messy tables: each column is what pandas and DuckDB read, or the summary names it and says why."""

import csv
import io
import math
import random
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd

from pagraph import Graph
from pagraph.datasets import import_graph, open_graph, read_graph
from pagraph.datasets.manifest import Manifest
from pagraph.graph.fields import FieldNote

from .worker import Case

MISSING = -7
GAPS = ["", "NA", "N/A", "NULL", "NaN", "nan", "null", "None", "#N/A", "<NA>"]
UNITS = {"seconds": 10**9, "microseconds": 10**3, "nanoseconds": 1}


def _integers(rng: random.Random) -> str:
    return str(rng.randint(-50, 50))


def _large(rng: random.Random) -> str:
    return str(rng.choice([2**53 + 1, 2**62, -(2**63), 2**63 - 1, 5]))


def _huge(rng: random.Random) -> str:
    return str(rng.choice([2**63, 10**30, 7]))


def _fractions(rng: random.Random) -> str:
    return rng.choice([f"{rng.gauss(0, 100):.2f}", repr(rng.random()), "1e-3", "-.5", "3", "inf"])


def _large_fractions(rng: random.Random) -> str:
    return rng.choice([str(2**53 + 1), "0.5", "1.5"])


def _dates(rng: random.Random) -> str:
    return f"{rng.randint(1950, 2030)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def _times(rng: random.Random) -> str:
    clock = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    second = rng.choice(["", ":07", ":59.25", ":01.000001"])
    return f"{_dates(rng)}{rng.choice(' T')}{clock}{second}"


def _zoned(rng: random.Random) -> str:
    return _times(rng) + rng.choice(["Z", "+02:00", "-05:30"])


def _other_dates(rng: random.Random) -> str:
    return f"{rng.randint(1, 28)}/{rng.randint(1, 12)}/2024"


def _booleans(rng: random.Random) -> str:
    return rng.choice(["true", "false", "True", "FALSE"])


def _thousands(rng: random.Random) -> str:
    return f"{rng.randint(1000, 10**7):,}"


def _words(rng: random.Random) -> str:
    return rng.choice(["red", "Green", "a, b", 'say "hi"', "NA", "blå", "x;y", "true", "12", "-"])


def _names(rng: random.Random) -> str:
    return f"name {rng.random()}"


def _odd(rng: random.Random) -> str:
    return rng.choice(["1_000", "0x10", "1.2.3", "007", "+5", "1e3", " 8 ", "2024-13-45", "yes"])


COLUMNS = [
    *(_integers, _large, _huge, _fractions, _large_fractions, _dates, _times, _zoned),
    *(_other_dates, _booleans, _thousands, _words, _names, _odd),
]
"""Each draws one cell."""


def messy_column(rng: random.Random, rows: int) -> list[str]:
    """Cells of one kind, perhaps with some of another, and with gaps."""
    main = rng.choice(COLUMNS)
    other = rng.choice(COLUMNS)
    share = rng.choice([0, 0, 0, 0.05, 0.3])
    gaps = rng.choice([0, 0, 0.1, 0.5, 1])
    gap = rng.choice(GAPS)
    cells = []
    for _ in range(rows):
        cell = (other if rng.random() < share else main)(rng)
        cells.append(rng.choice([gap, rng.choice(GAPS)]) if rng.random() < gaps * 0.9 else cell)
    return cells


def messy_table(rng: random.Random) -> dict[str, list[str]]:
    """Columns of texts by name."""
    rows = rng.choice([1, 5, 30, 60])
    names = [f"c{i}" for i in range(rng.choice([1, 4, 9, 200 if rng.random() < 0.05 else 9]))]
    return {name: messy_column(rng, rows) for name in names}


def as_csv(
    table: dict[str, list[str]],
    rng: random.Random,
    lines: Sequence[str] = ("\n",),
    *,
    quoted: bool = True,
) -> bytes:
    """The text of a table, with a byte order mark or without, with blank lines, quoted or not."""
    out = io.StringIO()
    quoting = rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]) if quoted else csv.QUOTE_MINIMAL
    writer = csv.writer(out, quoting=quoting, lineterminator="\n")
    writer.writerow(table)
    for row in zip(*table.values(), strict=True):
        writer.writerow(row)
        if rng.random() < 0.05:
            out.write("\n")
    text = out.getvalue().replace("\n", rng.choice(lines))
    return (b"\xef\xbb\xbf" if rng.random() < 0.3 else b"") + text.encode()


def texts_of(path: Path) -> dict[str, list[str]]:
    """The cells as pandas reads them, which must be as DuckDB reads them."""
    frame = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    with duckdb.connect() as link:
        found = link.sql(
            f"select * from read_csv('{path}', all_varchar=true, header=true, auto_detect=false, "
            "delim=',', quote='\"', escape='\"', columns={"
            + ", ".join(f"'{name}': 'VARCHAR'" for name in frame)
            + "})"
        ).fetchall()
    assert [["" if cell is None else cell for cell in row] for row in found] == [
        [str(cell) for cell in row] for row in frame.itertuples(index=False)
    ]
    return {name: [str(cell) for cell in frame[name]] for name in frame}


def is_gap(cell: Any) -> bool:
    """Whether a cell among numbers is missing, by pandas."""
    if cell is None or cell is pd.NaT or (isinstance(cell, float) and math.isnan(cell)):
        return True
    text = str(cell).strip()
    # In any case, of which pandas knows two.
    forms = [text, text.upper(), text.lower(), text.title()]
    read = pd.read_csv(io.StringIO("x\n" + "\n".join(f'"{form}"' for form in forms)))
    return not text or bool(read["x"].isna().any())


_KNOWN_GAPS: dict[str, bool] = {}


def gap(cell: Any) -> bool:
    """The same, remembered for texts."""
    if not isinstance(cell, str):
        return is_gap(cell)
    if len(cell) > 10 or '"' in cell:
        return False
    if cell not in _KNOWN_GAPS:
        _KNOWN_GAPS[cell] = is_gap(cell)
    return _KNOWN_GAPS[cell]


def check_field(cells: Sequence[Any], rows: Any, note: FieldNote, name: str) -> None:
    """Compare a field with the cells of its column, one by one."""
    assert len(cells) == len(rows), name
    values = rows.tolist()
    if note.words:
        for cell, code in zip(cells, values, strict=True):
            text = "" if cell is None or cell is pd.NaT or cell != cell else str(cell)
            # Blanks around a cell of an edge list do not count.
            forms = {text, text.strip(" \t")}
            is_rest = code == len(note.words) - 1 and not forms & {*note.words[:-1]}
            # In a column of numbers and words, both readings of a gap are right.
            is_none = code == -1 and (not text.strip() or gap(text))
            assert is_none or note.words[code] in forms or is_rest, (name, cell, code)
        return
    known = [not gap(cell) for cell in cells]
    if note.unit:
        texts = [str(cell).strip() for cell, there in zip(cells, known, strict=True) if there]
        moments = pd.to_datetime(pd.Series(texts), format="ISO8601", utc=True)
        numbers = moments.astype("datetime64[ns, UTC]").astype("int64") // UNITS[note.unit]
        expected = iter(numbers.tolist())
    elif rows.dtype.is_floating_point:
        expected = (float(c) for c, there in zip(cells, known, strict=True) if there)
    else:
        expected = (_integer(c) for c, there in zip(cells, known, strict=True) if there)
    for there, value, row in zip(known, values, rows.numpy(), strict=True):
        if not there:
            assert value == MISSING or math.isnan(value), (name, value)
            continue
        wanted = next(expected)
        # A decimal is the one that float32 prints.
        assert value == wanted or float(str(row)) == wanted, (name, value, wanted)


def _integer(cell: Any) -> int:
    text = str(cell).strip().lower()
    if text in ("true", "false"):
        return int(text == "true")
    number = float(text)
    return int(text) if text.lstrip("+-").isdigit() else int(number)


def check_graph(columns: dict[str, Sequence[Any]], entries: Any, fields: Any, owner: str) -> int:
    """Each column is a field that equals it, or has a line that says why not; returns the fields."""
    listed = {entry.column: entry for entry in entries if entry.table == owner}
    assert set(columns) <= set(listed), set(columns) - set(listed)
    count = 0
    for name, cells in columns.items():
        entry = listed[name]
        if entry.becomes == "nothing":
            assert entry.notes, entry
            continue
        assert entry.becomes.split(" ", 1)[1] == name, entry
        note = fields.notes.get(name, FieldNote())
        check_field(cells, fields[name], note, name)
        if not note.words:
            gaps = sum(map(gap, cells))
            assert entry.missing == gaps, (entry, gaps)
        count += 1
    return count


def of_edge_list(case: Case, table: dict[str, list[str]], words: int | None) -> int:
    """The table as columns of edges, of numbers or of words."""
    rows = len(next(iter(table.values())))
    prefix = case.choose("ids", ["", "v"])
    ends = {"src": [f"{prefix}{i % 3}" for i in range(rows)], "dst": [f"{prefix}0"] * rows}
    path = case.folder / "edges.csv"
    # Integers that are ids are not quoted.
    text = as_csv({**ends, **table}, case.rng, ["\n", "\r\n"], quoted=bool(prefix))
    path.write_bytes(text)
    cells = texts_of(path)
    out = case.folder / "out"
    import_graph(path, out, relabel=bool(prefix), missing=MISSING, words=words)
    fields = open_graph(out, verify=True).edge_fields(("_N", "_E", "_N"))
    return check_graph({n: cells[n] for n in table}, Manifest.read(out).columns, fields, "")


def of_yaml(case: Case, table: dict[str, list[str]], words: int | None) -> int:
    """The table of a YAML file, with those fields that an edge list has."""
    kept = {}
    path = case.folder / "t.csv"
    path.write_bytes(as_csv({"key": [str(i) for i in range(len(table["c0"]))], **table}, case.rng))
    cells = texts_of(path)
    for name in table:
        (case.folder / "graph.yaml").write_text(
            f"nodes: {{t: {{file: t.csv, id: key, fields: [{', '.join([*kept, name])}]}}}}\n"
            "edges: {'t:to:t': {file: t.csv, src: key, dst: key}}\n"
        )
        with case.refusing():
            read_graph(case.folder / "graph.yaml", missing=MISSING, words=words)
            kept[name] = cells[name]
        if len(kept) > 3:
            break
    (case.folder / "graph.yaml").write_text(
        f"nodes: {{t: {{file: t.csv, id: key, fields: [{', '.join(kept)}]}}}}\n"
        "edges: {'t:to:t': {file: t.csv, src: key, dst: key}}\n"
    )
    out = case.folder / "out"
    import_graph(case.folder / "graph.yaml", out, missing=MISSING, words=words)
    fields = open_graph(out, verify=True).node_fields("t")
    return check_graph(kept, Manifest.read(out).columns, fields, "t")


def of_sqlite(case: Case, table: dict[str, list[str]], words: int | None) -> int:
    """The cells in SQLite's columns of any declared type, where each cell has a type of its own."""
    path = case.folder / "some.db"
    link = sqlite3.connect(path)
    kinds = ["text", "integer", "real", "numeric", ""]
    declared = {name: case.rng.choice(kinds) for name in table}
    columns = ", ".join(f'"{name}" {kind}' for name, kind in declared.items())
    link.execute(f"create table t(id integer primary key, up integer references t, {columns})")
    places = ", ".join("?" * (len(table) + 2))
    for number, row in enumerate(zip(*table.values(), strict=True)):
        link.execute(f"insert into t values ({places})", [number, 0, *row])
    link.commit()
    names = ", ".join(f'"{name}"' for name in table)
    found = link.execute(f"select {names} from t order by id").fetchall()
    link.close()
    columns_of = dict(zip(table, map(list, zip(*found, strict=True)), strict=True))
    out = case.folder / "out"
    count = 0
    with case.refusing():
        import_graph(path, out, missing=MISSING, words=words)
        fields = open_graph(out, verify=True).node_fields("t")
        count = check_graph(columns_of, Manifest.read(out).columns, fields, "t")
    return count


def of_frame(case: Case, table: dict[str, list[str]], words: int | None) -> int:
    """The table as pandas reads it, with types of its own."""
    frame = pd.read_csv(io.BytesIO(as_csv(table, case.rng)), encoding="utf-8-sig")
    columns = {name: frame[name].tolist() for name in frame}
    count = 0
    with case.refusing():
        graph = Graph.from_tables({"t": frame}, missing=MISSING, words=words)
        entries = graph.schema().entries()
        count = check_graph(columns, entries, graph.node_fields("t"), "t")
    return count


def trial(case: Case) -> None:
    table = messy_table(case.rng)
    form = case.choose("form", [of_edge_list, of_yaml, of_sqlite, of_frame])
    words = case.choose("words", [None, None, 3])
    case.figures["columns"] = len(table)
    case.figures["fields"] = form(case, table, words)
