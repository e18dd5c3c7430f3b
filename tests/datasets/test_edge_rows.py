"""Blocks of whole lines: nothing lost at the seams. Rows: DuckDB reads what Python's own int() and
float() read."""

import gzip
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import FormatError, Graph
from pagraph.datasets import edge_rows, edge_text, import_graph, read_edge_list, text_blocks
from pagraph.datasets.edge_rows import NotIntegersError
from pagraph.datasets.numbers import NumberField
from pagraph.datasets.text_blocks import Block, read_blocks

pytestmark = pytest.mark.usefixtures("kept_connection")

# What a packed file, UTF-8 with a mark and UTF-16 begin with.
MARKS = (b"\x1f", b"\xef", b"\xfe\xff", b"\xff\xfe")


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.binary(max_size=12).filter(lambda b: not b.startswith(MARKS)), max_size=20),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
    st.integers(1, 9),
)
def test_blocks_join_to_the_file(tmp_path_factory, lines, ending, zipped, size):
    content = ending.join(lines)
    path = tmp_path_factory.mktemp("text") / "file"
    path.write_bytes(gzip.compress(content) if zipped else content)
    old, text_blocks._BLOCK_BYTES = text_blocks._BLOCK_BYTES, size
    try:
        blocks = list(read_blocks(path))
    finally:
        text_blocks._BLOCK_BYTES = old
    assert b"".join(block.data for block in blocks) == content
    line = 1
    for block in blocks[:-1]:
        assert block.first_line == line
        assert block.data.endswith(b"\n")
        line += block.data.count(b"\n")


def test_line_numbers():
    block = Block(b"a\nbb\r\nccc", 10)
    assert [block.line_at(offset) for offset in (0, 2, 6)] == [(10, "a"), (11, "bb"), (12, "ccc")]
    assert block.line_at(6)[1] == "ccc"
    assert len(Block(b"x" * 500, 1).line_at(0)[1]) == 80


def test_byte_order_mark_is_dropped(tmp_path):
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbf1 2\n")
    assert [block.data for block in read_blocks(tmp_path / "a")] == [b"1 2\n"]


def test_gzip_of_several_members(tmp_path):
    (tmp_path / "a").write_bytes(gzip.compress(b"1 2\n") + gzip.compress(b"3 4\n"))
    assert b"".join(block.data for block in read_blocks(tmp_path / "a")) == b"1 2\n3 4\n"


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(b"1 2\n" * 10_000)[:-9],
        gzip.compress(b"1 2\n" * 10_000)[:30],
        b"\x1f\x8b" + os.urandom(50),
        gzip.compress(b"1 2\n" * 10_000)[:20] + bytes(200),
        gzip.compress(b"1 2\n")[:-8] + bytes(8),
    ],
    # The bytes themselves differ by run.
    ids=["cut at the end", "cut early", "noise", "zeros", "wrong checksum"],
)
def test_broken_gzip(tmp_path, content):
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises(FormatError, match=r"a\.gz is not a complete gzip file"):
        list(read_blocks(tmp_path / "a.gz"))


def test_a_line_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(text_blocks, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(text_blocks, "LINE_LIMIT", 5000)
    (tmp_path / "a").write_bytes(b"1 2\n" + bytes(100_000))
    with pytest.raises(FormatError, match="lines of at most 5000 bytes, line 2 is longer"):
        list(read_blocks(tmp_path / "a"))


@pytest.mark.parametrize("zipped", [False, True])
def test_progress_ends_at_the_size_of_the_file(tmp_path, monkeypatch, zipped):
    monkeypatch.setattr(text_blocks, "_BLOCK_BYTES", 1000)
    content = b"1 2\n" * 5000
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(content) if zipped else content)
    calls = []
    list(read_blocks(path, progress=lambda done, total: calls.append((done, total))))
    size = path.stat().st_size
    assert len(calls) == 20
    assert calls[-1] == (size, size)


@pytest.fixture(autouse=True, scope="module")
def duckdb_reads_few_lines_too():
    """Short texts, as the tests have them, would not be DuckDB's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edge_text, "_FEW_BYTES", 0)
        yield


READERS = ["duckdb", "lines"]


def rows_of(path, weight=None, header=None):
    rows = edge_rows.EdgeRows(path)
    fields = [] if weight is None else [NumberField.of("weight", weight)]
    asked = edge_rows.AskedColumns(tuple(fields))
    edge_text.read_integers(edge_rows.Reading(rows, header, asked))
    return rows


def columns_of(rows):
    weights = list(rows.arrays().values())
    return rows.src.tolist(), rows.dst.tolist(), weights[0].tolist() if weights else []


@pytest.fixture(params=READERS, scope="module")
def read(request, tmp_path_factory):
    """Reads a text with DuckDB and line by line; each answer is the sources, destinations and
    weights, or the error."""

    def read(text, weight=None, header=False):
        path = tmp_path_factory.mktemp("rows") / "edges"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        with pytest.MonkeyPatch.context() as patch:
            if request.param == "lines":
                patch.setattr(edge_text, "_FEW_BYTES", 2**30)
            rows = rows_of(path, weight, header)
        return columns_of(rows)

    return read


@given(st.integers(-(2**65), 2**65), st.sampled_from(["", " ", "\t", "\n", ",", ";", "\r\n"]))
def test_integers_equal_pythons(read, value, after):
    if -(2**63) <= value < 2**63:
        assert read(f"7 {value}{after}") == ([7], [value], [])
    else:
        with pytest.raises(NotIntegersError, match="line 1 must begin with two integers"):
            read(f"7 {value}{after}")


@pytest.mark.every
@pytest.mark.parametrize(
    "text",
    ["", "-", "+", "x", "1x", "1.5", "--1", "1-", "0x10", "0X10", "1_000", "١", '"1"', "1" * 5000],
)
@pytest.mark.parametrize("line", ["{}", "{} 2", "1 {}", "1,{},3", "1;{}"])
def test_what_is_no_integer(read, text, line):
    if line.format(text).strip():
        with pytest.raises(NotIntegersError, match="line 3 must begin with two integers"):
            read(f"1 2\n5 6\n{line.format(text)}\n7 8\n")


def test_third_fields_and_the_line_that_cannot_be_read(read):
    assert read("1 2 3\n4 5 8 9\n6 7 -1e-2", weight="w") == (
        [1, 4, 6],
        [2, 5, 7],
        [3, 8, np.float32(-1e-2)],
    )
    assert read("1 2 3\n4 5\n6 7") == ([1, 4, 6], [2, 5, 7], [])
    with pytest.raises(NotIntegersError, match="line 2 must begin with two integers, got ' 3 x'"):
        read("1 2\n 3 x\n")


@pytest.mark.parametrize("end", ["", "\n"])
def test_many_short_lines(read, end):
    assert read("1 2\n" * 50 + "1 2" + end) == ([1] * 51, [2] * 51, [])


@pytest.mark.parametrize("weight", ["", "x", "1.5.2", "1" * 33, "1e", "0x1"])
def test_what_is_no_weight(read, weight):
    with pytest.raises(
        FormatError, match="line 2 must have a number of at most 32 characters as its third field"
    ):
        read(f"1,2,3\n1,2,{weight},4\n", weight="w")
    assert read(f"1,2,3\n1,2,.{'1' * 31},4\n", weight="w")[2] == [3, float("." + "1" * 31)]


IDS = st.sampled_from(
    [
        "0",
        "1",
        "12",
        "+3",
        "-4",
        "007",
        "x",
        "1.5",
        "0x10",
        "9223372036854775808",
        "",
        "#",
        "%",
        "1_0",
        "nan",
        '"',
    ]
)
SEPARATORS = st.sampled_from([" ", "\t", ",", ";", " , ", "  ", " ;", "\t ", ",,"])


@pytest.mark.many
@settings(max_examples=examples(200), deadline=None)
@given(st.data(), st.booleans())
def test_duckdb_reads_what_is_read_line_by_line(tmp_path_factory, data, weighted):
    usual = data.draw(SEPARATORS)
    lines = []
    for _ in range(data.draw(st.integers(1, 4))):
        fields = data.draw(st.lists(st.integers(0, 9).map(str) | IDS, min_size=1, max_size=4))
        separators = [data.draw(st.just(usual) | SEPARATORS) for _ in fields]
        begin = data.draw(st.sampled_from(["", "", "", " ", "#", "\t%"]))
        lines.append(
            begin + "".join(f + s for f, s in zip(fields, separators, strict=True)).strip(usual)
        )
    path = tmp_path_factory.mktemp("rows") / "edges"
    path.write_bytes(data.draw(st.sampled_from(["\n", "\r\n", "\r"])).join(lines).encode())

    def outcome():
        try:
            rows = rows_of(path, "w" if weighted else None)
        except (NotIntegersError, FormatError) as error:
            return str(error)
        return repr(columns_of(rows))

    got = outcome()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edge_text, "_FEW_BYTES", 2**30)
        assert got == outcome()


class TestWeightsOfAHeader:
    def test_are_the_column_of_that_name(self, read):
        text = "src,dst,ts,w\n1,2,77,0.5\n3,4,78,1.5\n"
        assert read(text, "w", None) == ([1, 3], [2, 4], [0.5, 1.5])
        assert read(text, "ts", None) == ([1, 3], [2, 4], [77, 78])

    @pytest.mark.parametrize("header", [None, True])
    def test_are_not_another_column(self, read, header):
        with pytest.raises(
            FormatError,
            match="must have a column 'w' for the weights after the ids', it has 'ts', 'x'",
        ):
            read("src,dst,ts,x\n1,2,77,0.5\n", "w", header)
        with pytest.raises(FormatError, match="it has no further ones"):
            read("w dst\n1 2 77\n", "w", header)

    def test_are_the_third_without_one(self, read):
        assert read("# src dst ts w\n1 2 77 5\n", "w", None) == ([1], [2], [77])
        assert read("1 2 77 5\n", "w", False) == ([1], [2], [77])

    @pytest.mark.parametrize(
        "text",
        [
            "u v name w\n1 2 x 5\n3 4 yy 6\n",
            "u v name w\n1  2 x  5\n3 4  yy 6 7\n",
            "u\tv\tname\tw\n1\t2\ta b\t5\n3\t4\t\t6\n",
            'u; v; name; "w"\n1; 2; a b, c; 5\n3; 4; ; 6 ; 7\n',
            "u,v,name,w\n# c\n1,2,a 9,5\n3,4,,6\n",
            "u  v  name  w\n1  2  x  5\n3  4  yy  6\n",
            "u v name w\n1 2 x 5 7 8\n3 4  yy 6 7\n",
            "u v name w\n1 2 x 5 7\n3 4 yy\t6 7\n",
        ],
    )
    def test_whatever_stands_in_between(self, read, text):
        assert read(text, "w", None) == ([1, 3], [2, 4], [5, 6])

    @pytest.mark.parametrize("line", ["1,2,3", "1,2,3,", "1,2,3,x", "1,2,3," + "1" * 33])
    def test_must_be_there(self, read, line):
        with pytest.raises(
            FormatError, match="line 3 must have a number of at most 32 characters as its 4th field"
        ):
            read(f"u,v,t,w\n1,2,3,4\n{line}\n", "w", None)


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_duckdb_finds_the_named_column_that_is_found_line_by_line(tmp_path_factory, data):
    separator = data.draw(st.sampled_from([",", ";", "\t", " ", "  ", ", "]))
    words = st.sampled_from(["1", "2.5", "", "a", "a b", "7 8", "#", "nan", "1,2"])
    lines = [
        separator.join(["1", "2", *data.draw(st.lists(words, min_size=1, max_size=4))])
        for _ in range(data.draw(st.integers(1, 3)))
    ]
    path = tmp_path_factory.mktemp("rows") / "edges"
    path.write_text("\n".join([separator.join(["u", "v", "t", "w"]), *lines]))

    def outcome():
        try:
            rows = rows_of(path, "w")
        except (NotIntegersError, FormatError) as error:
            return str(error)
        return repr(columns_of(rows))

    got = outcome()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edge_text, "_FEW_BYTES", 2**30)
        assert got == outcome()


PLAIN = st.sampled_from(["3", "-4", "0", "-0", "1.5", "-0.25", ".5", "7.", "1.0", "2" * 19])
ODD = st.sampled_from(
    ["", "-", "1-2", "1.2.3", ".", "00000000000000000000001", "1e3", "3" * 20, "x"]
)


@pytest.mark.many
@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_plain_numbers_are_those_line_by_line(tmp_path_factory, data):
    separator = data.draw(st.sampled_from([",", ";", "\t", " "]))
    named = data.draw(st.booleans())
    odd = data.draw(st.sampled_from([PLAIN, PLAIN, PLAIN | ODD]))
    ids = st.integers(0, 9).map(str) | data.draw(st.sampled_from([PLAIN, st.just("8")]))
    lines = [
        separator.join([data.draw(ids), data.draw(ids), data.draw(PLAIN), data.draw(odd)])
        for _ in range(data.draw(st.integers(1, 5)))
    ]
    text = "\n".join([separator.join(["u", "v", "w", "x"])] * named + lines).encode()
    path = tmp_path_factory.mktemp("rows") / data.draw(st.sampled_from(["edges", "edges.gz"]))
    path.write_bytes(gzip.compress(text) if path.suffix else text)
    asked = edge_rows.AskedColumns(every=named)

    def outcome():
        rows = edge_rows.EdgeRows(path)
        try:
            edge_text.read_integers(edge_rows.Reading(rows, asked=asked))
        except FormatError as error:
            return str(error)
        fields = {name: (values.dtype, values.tolist()) for name, values in rows.arrays().items()}
        return repr((rows.src, rows.dst, fields))

    got = outcome()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edge_text, "_LOOK_LINES", 1)  # points may come where none was expected
        later = outcome()
        patch.setattr(edge_text, "_FEW_BYTES", 2**30)
        assert got == later == outcome()


def test_lines_with_different_numbers_of_fields_are_read_quickly(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("# c\n1 2 3 4\n 5 6\n7,8;9\n")
    monkeypatch.delattr(edge_text, "read_integer_lines")
    assert columns_of(rows_of(tmp_path / "a.txt")) == ([1, 5, 7], [2, 6, 8], [])


class TestParquet:
    @pytest.fixture
    def write(self, tmp_path):
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")

        def write(columns, **options):
            parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet", **options)
            return tmp_path / "a.parquet"

        return write

    @pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64, np.uint64])
    def test_integers_and_weights_across_batches(self, write, monkeypatch, dtype):
        ends = np.arange(40, dtype=dtype).reshape(2, 20)
        path = write(
            {"a": ends[0], "b": ends[1], "w": np.arange(20) / 4, "rest": ["x"] * 20},
            row_group_size=11,
        )
        calls = []
        graph = read_edge_list(
            path, weight="w", progress=lambda done, size: calls.append((done, size))
        )
        csc = graph.csc
        assert csc.indices.tolist() == ends[0].tolist()
        assert csc.destinations().tolist() == ends[1].tolist()
        assert graph.edata["w"].tolist() == (np.arange(20) / 4).tolist()
        assert calls[-1] == (path.stat().st_size,) * 2 and calls == sorted(calls)
        assert read_edge_list(path, undirected=True).num_edges == 40

    def test_words(self, write):
        path = write({"a": ["carl", "alice", "carl"], "b": ["alice", "Zoë", "carl"]})
        graph = read_edge_list(path, relabel=True)
        names = [bytes(row).rstrip(b"\0").decode() for row in graph.ndata["original_id"].tolist()]
        assert names == ["Zoë", "alice", "carl"]
        assert graph.csc.indices.tolist() == [1, 2, 2]
        with pytest.raises(
            FormatError,
            match="column 'a' must hold integers, got VARCHAR; relabel=True takes any words",
        ):
            read_edge_list(path)

    def test_integers_and_words_together(self, write):
        graph = read_edge_list(write({"a": [10, 9], "b": ["x", "10"]}), relabel=True)
        assert [bytes(row).rstrip(b"\0") for row in graph.ndata["original_id"].tolist()] == [
            b"10",
            b"9",
            b"x",
        ]

    def test_relabelled_integers(self, write):
        graph = read_edge_list(write({"a": [10**12, 5], "b": [-5, 5]}), relabel=True)
        assert graph.ndata["original_id"].tolist() == [-5, 5, 10**12]

    @pytest.mark.parametrize(
        ("columns", "options", "message"),
        [
            ({"a": [1]}, {}, "must have at least 2 columns, got 1"),
            (
                {"a": [1], "b": [2]},
                {"weight": "w"},
                "must have a column 'w' for the weights.*, it has no further ones",
            ),
            (
                {"a": [1], "b": [2], "t": [3]},
                {"weight": "w"},
                "must have a column 'w' for the weights.*, it has 't'",
            ),
            ({"a": [1.5], "b": [2]}, {}, "column 'a' must hold integers or words, got DOUBLE"),
            ({"a": [1, 2], "b": [2, None]}, {}, "row 2 must have a value in column 'b', got none"),
            (
                {"a": ["x", ""], "b": ["y", "z"]},
                {"relabel": True},
                "row 2 must have a value in column 'a', got none",
            ),
            (
                {"a": [1], "b": [2], "w": ["x"]},
                {"weight": "w"},
                "column 'w' must hold numbers, got VARCHAR",
            ),
            (
                {"a": [1, 2], "b": [2, 3], "w": [None, 1.5]},
                {"weight": "w"},
                "row 1 must have a value in column 'w'",
            ),
            (
                {"a": np.array([2**63], dtype=np.uint64), "b": [2]},
                {},
                "9223372036854775808",
            ),
            (
                {"a": np.array([], dtype=int), "b": np.array([], dtype=int)},
                {},
                "must hold at least 1 edge, got none",
            ),
            ({"a": [1], "b": [-2]}, {}, "must be at least 0, got -2; relabel=True takes any ids"),
            ({"a": [1], "b": [2]}, {"header": True}, "header must be None for Parquet.*, got True"),
        ],
    )
    def test_refuses(self, write, columns, options, message):
        with pytest.raises(ValueError, match=message):
            read_edge_list(write(columns), **options)

    def test_typed_columns(self, write, caplog, tmp_path):
        when = np.array(["2024-01-02", "1969-12-31"] * 2, dtype="datetime64[us]")
        columns = {
            "src": [0, 1, 2, 2],
            "dst": [1, 2, 0, 1],
            "when": when,
            "kind": ["b", "a", "b", "a"],
            "new": [True, False, True, False],
            "note": ["x", "y", "z", "u"],
            "deep": [[1], [2], [3], [4]],
        }
        path = write(columns)
        for graph in (
            read_edge_list(path),
            import_graph(path, tmp_path / "g", memory="1GiB"),
            Graph.open(tmp_path / "g"),
        ):
            fields = graph.edge_fields(("_N", "_E", "_N"))
            assert fields["when"].tolist() == when.astype("datetime64[s]").astype(int).tolist()
            assert fields.notes["when"].unit == "seconds"
            assert fields["kind"].tolist() == [1, 0, 1, 0]
            assert fields.notes["kind"].words == ("a", "b")
            assert fields["new"].tolist() == [True, False, True, False]
            assert sorted(fields) == ["kind", "new", "when"]
        assert "left out: note (its texts differ from row to row)" in caplog.text
        assert "left out: deep (its rows are lists)" in caplog.text
        graph = read_edge_list(path, time="when", undirected=True)
        assert graph.edata["time"].tolist() == [*fields["when"].tolist()] * 2
        with pytest.raises(FormatError, match="column 'note' must hold numbers, got VARCHAR: its"):
            read_edge_list(path, field="note")

    def test_each_column_has_words_of_its_own(self, write):
        columns = {"src": [0, 1, 2, 2], "dst": [1, 2, 0, 1]}
        words = {"size": ["s", "m", "s", "m"], "kind": ["m", "a", "m", "a"]}
        fields = read_edge_list(write(columns | words)).edge_fields(("_N", "_E", "_N"))
        for name, expected in words.items():
            known = fields.notes[name].words
            assert [known[code] for code in fields[name].tolist()] == expected

    def test_missing_values(self, write):
        when = np.array(["2024-01-02", "NaT"], dtype="datetime64[us]")
        path = write({"src": [0, 1], "dst": [1, 2], "w": [None, 7], "when": when})
        assert not read_edge_list(path).edata
        fields = read_edge_list(path, missing=-1).edata
        assert fields["w"].tolist() == [-1, 7] and fields["w"].dtype == torch.int64
        assert fields["when"].tolist() == [1704153600, -1]
        with pytest.raises(FormatError, match="when must have a value in every row, .* row 2"):
            read_edge_list(path, time="when")

    @pytest.mark.parametrize("names", [("src", "dst"), ("source", "target"), ("From", "TO")])
    def test_columns_of_well_known_names_wherever_they_are(self, write, names):
        source, target = names
        path = write({"w": [0.5, 1.5], target: [1, 2], "x": [7, 8], source: [3, 0]})
        graph = read_edge_list(path, weight="w")
        assert graph.csc.indices.tolist() == [3, 0] and graph.csc.destinations().tolist() == [1, 2]
        assert graph.edata["w"].tolist() == [0.5, 1.5]

    def test_broken_files(self, write):
        path = write({"a": [1, 2], "b": [3, 4]})
        content = path.read_bytes()
        for broken in (b"", b"0 1\n", content[:-20], content[: len(content) // 2]):
            path.write_bytes(broken)
            with pytest.raises(FormatError, match=r"a\.parquet is not a complete Parquet file"):
                read_edge_list(path)
        path.unlink()
        with pytest.raises(FileNotFoundError):
            read_edge_list(path)


def test_pieces_of_both_widths(tmp_path, monkeypatch):
    monkeypatch.setattr(text_blocks, "_BLOCK_BYTES", 8)
    (tmp_path / "a.txt").write_text("1 2\n3 4\n1 99999999999\n5 6\n")
    rows = rows_of(tmp_path / "a.txt")
    src, dst = rows.src, rows.dst
    assert (src.dtype, dst.dtype) == (np.int32, np.int64)
    assert (src.tolist(), dst.tolist()) == ([1, 3, 1, 5], [2, 4, 99999999999, 6])
