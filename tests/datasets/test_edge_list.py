"""Edge lists: every spelling of the same graph reads alike, every broken one gets one clear
error."""

import bz2
import gzip
import lzma
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import FormatError
from pagraph.datasets import edge_text, read_edge_list, text_blocks

pytestmark = pytest.mark.usefixtures("kept_connection")


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "edges.txt"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def ends(graph):
    """(source, destination) by edge id."""
    csc = graph.csc
    ids = range(csc.num_edges) if csc.edge_ids is None else csc.edge_ids.tolist()
    found = zip(ids, csc.indices.tolist(), csc.destinations().tolist(), strict=True)
    return [(u, v) for _, u, v in sorted(found)]


def words(graph):
    return [bytes(row).rstrip(b"\0").decode() for row in graph.ndata["original_id"].tolist()]


class TestNumbers:
    @pytest.mark.parametrize(
        "text",
        [
            "0 1\n1 2\n2 0\n",
            "0\t1\n1\t2\n2\t0",
            "0,1\n1,2\n2,0\n",
            "0, 1\n1 ,2\n 2 , 0 \n",
            "0;1\n1;2\n2;0\n",
            "0 1\r\n1 2\r\n2 0\r\n",
            "0 1\r1 2\r2 0\r",
            "# comment\n% another, 5 6\n\n0 1\n   \n1 2\n\t# 7 8\n2 0\n\n",
            "\n\n0   1\n1 \t 2\n2 0",
            "src,dst\n0,1\n1,2\n2,0\n",
            "# SNAP\nFromNodeId\tToNodeId\n0\t1\n1\t2\n2\t0\n",
            "0 1 0.5\n1 2 7 more words\n2 0\n",
            "+0 1\n1 002\n2 -0\n",
            b"\xef\xbb\xbf0 1\n1 2\n2 0\n",
        ],
    )
    @pytest.mark.parametrize("zipped", [False, True])
    def test_spellings(self, write, text, zipped):
        content = text.encode() if isinstance(text, str) else text
        graph = read_edge_list(write(gzip.compress(content) if zipped else content))
        assert ends(graph) == [(0, 1), (1, 2), (2, 0)]

    @settings(max_examples=examples(60), deadline=None)
    @given(
        st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), min_size=1, max_size=60),
        st.integers(1, 40),
        st.sampled_from([" ", "\t", ",", " , "]),
    )
    def test_seams_between_blocks(self, tmp_path_factory, pairs, size, separator):
        path = tmp_path_factory.mktemp("edges") / "edges.csv"
        path.write_text("".join(f"{u}{separator}{v}\n" for u, v in pairs))
        old, text_blocks._BLOCK_BYTES = text_blocks._BLOCK_BYTES, size
        try:
            graph = read_edge_list(path)
        finally:
            text_blocks._BLOCK_BYTES = old
        assert ends(graph) == pairs

    def test_loops_repeated_edges_and_isolated_vertices_stay(self, write):
        graph = read_edge_list(write("0 0\n3 1\n3 1\n"), num_nodes=6)
        assert ends(graph) == [(0, 0), (3, 1), (3, 1)]
        assert graph.num_nodes == 6

    def test_no_edges_need_a_number_of_vertices(self, write):
        assert read_edge_list(write("# nothing\n"), num_nodes=3).num_edges == 0
        with pytest.raises(FormatError, match="must hold at least 1 edge, got none"):
            read_edge_list(write("# nothing\n"))

    def test_header_can_be_forced(self, write):
        path = write("5 6\n0 1\n")
        assert ends(read_edge_list(path, header=True)) == [(0, 1)]
        assert ends(read_edge_list(path, header=False)) == [(5, 6), (0, 1)]
        with pytest.raises(FormatError, match="line 1 must begin with two integers, got 'a b'"):
            read_edge_list(write("a b\n0 1\n"), header=False)

    def test_undirected(self, write):
        graph = read_edge_list(write("0 1 5\n2 2 6\n1 2 7\n"), undirected=True, weight="w")
        assert ends(graph) == [(0, 1), (2, 2), (1, 2), (1, 0), (2, 1)]
        assert graph.edata["w"].tolist() == [5, 6, 7, 5, 7]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("0 1\n1\n", "line 2 must begin with two integers, got '1'"),
            ("0 1\n\n# x\n1 x\n", "line 4 must begin with two integers, got '1 x'"),
            ("0 1\n1.0 2\n", "line 2 must begin with two integers, got '1.0 2'"),
            ("0 1\n1,,2\n", "line 2 must begin with two integers, got '1,,2'"),
            ("0 1\n,1,2\n", "line 2 must begin"),
            ("0 1\n1e3 2\n", "line 2 must begin"),
            ("0 1\n- 2\n", "line 2 must begin"),
            ("0 9223372036854775808\n", "line 1 must begin"),
            ("x 1\n", "line 1 must begin with two integers, got 'x 1'"),
            ("head er\nmore words\n0 1\n", "line 2 must begin with two integers, got 'more words'"),
            (b"0 1\n\xff\xfe 3\n", "line 2 must begin"),
        ],
    )
    def test_lines_that_cannot_be_read(self, write, text, message):
        path = write(text)
        with pytest.raises(FormatError, match="relabel=True takes any words as ids") as caught:
            read_edge_list(path)
        assert message in str(caught.value)
        assert str(path) in str(caught.value)

    def test_line_numbers_go_on_in_later_blocks(self, write, monkeypatch):
        monkeypatch.setattr(text_blocks, "_BLOCK_BYTES", 50)
        with pytest.raises(FormatError, match="line 77 must begin"):
            read_edge_list(write("source target\n" + "10 20\n" * 75 + "bad\n"))

    @pytest.mark.parametrize(
        ("text", "num_nodes", "message"),
        [
            ("0 -1\n", None, "must be at least 0, got -1; relabel=True takes any ids"),
            ("0 5\n", 5, "must be below num_nodes=5, got 5"),
            (
                "0 9223372036854775807\n",
                None,
                "must be below 10000000 for 1 edges, got 9223372036854775807; relabel=True",
            ),
            ("0 10000000\n", None, "must be below 10000000 for 1 edges, got 10000000"),
        ],
    )
    def test_ids_out_of_range(self, write, text, num_nodes, message):
        with pytest.raises(ValueError, match=message):
            read_edge_list(write(text), num_nodes=num_nodes)

    def test_large_ids_by_request(self, write):
        assert read_edge_list(write("0 10000000\n"), num_nodes=10_000_001).num_nodes == 10_000_001

    def test_truncated_gzip(self, write):
        with pytest.raises(FormatError, match="is not a complete gzip file"):
            read_edge_list(write(gzip.compress(b"0 1\n" * 1000)[:-5]))


class TestWeights:
    def test_values(self, write):
        graph = read_edge_list(write("0 1 .5\n1,2,-3e-2\n2\t0\tnan\n0 0 1 8\n"), weight="w")
        assert graph.edata["w"].dtype.itemsize == 4
        assert np.allclose(graph.edata["w"].numpy(), [0.5, -0.03, np.nan, 1], equal_nan=True)

    @settings(max_examples=examples(50), deadline=None)
    @given(st.lists(st.floats(width=32), min_size=1, max_size=20))
    def test_every_float_survives(self, tmp_path_factory, values):
        path = tmp_path_factory.mktemp("edges") / "edges.txt"
        path.write_text("".join(f"0 1 {value!r}\n" for value in values))
        got = read_edge_list(path, weight="w").edata["w"].numpy()
        assert np.array_equal(got, np.array(values, dtype=np.float32), equal_nan=True)

    @pytest.mark.parametrize("line", ["0 1", "0 1 x", "0 1 1.5.2", "0 1 " + "1" * 40, "0 1,,3"])
    def test_lines_without_one(self, write, line):
        with pytest.raises(
            FormatError, match="line 3 must have a number of at most 32 characters as its third"
        ):
            read_edge_list(write(f"0 1 1\n# x\n{line}\n0 1 2\n"), weight="w")

    def test_without_a_name_they_are_left_out(self, write):
        assert read_edge_list(write("0 1 x\n")).edata == {}


class TestRelabel:
    def test_numbers(self, write):
        graph = read_edge_list(write("99999999999 -5\n7 99999999999\n"), relabel=True)
        assert graph.ndata["original_id"].tolist() == [-5, 7, 99999999999]
        assert ends(graph) == [(2, 0), (1, 2)]

    @pytest.mark.parametrize(
        "text",
        [
            "carl alice\nalice bob\n",
            "carl\talice\nalice\tbob\n",
            "carl,alice\nalice,bob\n",
            "# c\n\nsource target\ncarl alice\r\n  alice bob x\n",
        ],
    )
    def test_words(self, write, text):
        graph = read_edge_list(write(text), relabel=True)
        assert words(graph) == ["alice", "bob", "carl"]
        assert ends(graph) == [(2, 0), (0, 1)]

    def test_words_with_spaces_quotes_and_letters_of_any_kind(self, write):
        text = 'Zoë,"a, b"\n"a, b","say ""hi"""\n"""",Zoë\n'
        graph = read_edge_list(write(text), relabel=True)
        names = words(graph)
        assert names == ['"', "Zoë", "a, b", 'say "hi"']
        assert [(names[u], names[v]) for u, v in ends(graph)] == [
            ("Zoë", "a, b"),
            ("a, b", 'say "hi"'),
            ('"', "Zoë"),
        ]

    def test_the_line_of_a_quotation_mark_that_is_not_closed(self, write):
        text = 'source,target,note\n# "a\n0,1,"a"\n\n2,3,b\n4,5,"a, b"\n6,7,"c\n8,9,d"\n'
        with pytest.raises(FormatError, match="line 7 must close the quotation mark"):
            read_edge_list(write(text))

    def test_a_single_line_of_words_is_no_header(self, write):
        assert words(read_edge_list(write("alice bob\n"), relabel=True)) == ["alice", "bob"]

    def test_a_first_line_of_words_that_may_be_a_header_or_an_edge(self, write):
        path = write("person,friend\nalice,bob\nbob,carol\n")
        with pytest.raises(
            FormatError,
            match="'person,friend' may be a header or an edge.*set header=True or header=False",
        ):
            read_edge_list(path, relabel=True)
        assert words(read_edge_list(path, relabel=True, header=True)) == ["alice", "bob", "carol"]
        assert len(words(read_edge_list(path, relabel=True, header=False))) == 5
        # Alice is an id.
        assert len(words(read_edge_list(write("alice bob\ncarol alice\n"), relabel=True))) == 3
        assert words(read_edge_list(write("source,target\nalice,bob\n"), relabel=True)) == [
            "alice",
            "bob",
        ]

    def test_the_weights_of_words_are_the_column_of_that_name(self, write):
        path = write("source,target,since,w\nalice,bob,1999,0.5\n")
        assert read_edge_list(path, relabel=True, weight="w").edata["w"].tolist() == [0.5]
        with pytest.raises(
            FormatError, match="must have a column 'x' for the weights.*, it has 'since', 'w'"
        ):
            read_edge_list(path, relabel=True, weight="x")
        path = write("who,whom,w\nalice,bob,0.5\n")
        assert read_edge_list(path, relabel=True, weight="w", header=True).edata["w"].tolist() == [
            0.5
        ]

    def test_words_and_numbers_together(self, write):
        graph = read_edge_list(write("1 a\n2 b\n"), relabel=True)
        assert words(graph) == ["1", "2", "a", "b"]

    def test_words_with_weights_in_both_directions(self, write):
        graph = read_edge_list(write("a b 1\nb c 2.5\n"), relabel=True, weight="w", undirected=True)
        assert graph.edata["w"].tolist() == [1, 2.5, 1, 2.5]
        with pytest.raises(FormatError, match="line 2 must have a number as its third field"):
            read_edge_list(write("a b 1\nb c\n"), relabel=True, weight="w")

    def test_words_across_blocks(self, write, monkeypatch):
        pairs = [(f"v{i % 17}", f"w{i % 13}") for i in range(200)]
        path = write("".join(f"{u} {v}\n" for u, v in pairs))
        monkeypatch.setattr(text_blocks, "_BLOCK_BYTES", 31)
        graph = read_edge_list(path, relabel=True)
        names = words(graph)
        assert names == sorted(names)
        assert [(names[u], names[v]) for u, v in ends(graph)] == pairs

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("a b\nc\n", "line 2 must hold two ids, got 'c'"),
            ("a,b\nc,,d\n", "line 2 must hold two ids, got 'c,,d'"),
            (b"a b\n\xff\xfe c\n", "must be UTF-8 text"),
            ("", "must hold at least 1 edge"),
        ],
    )
    def test_lines_that_cannot_be_read(self, write, content, message):
        with pytest.raises(FormatError, match=message):
            read_edge_list(write(content), relabel=True)

    def test_number_of_vertices_is_what_there_is(self, write):
        with pytest.raises(ValueError, match="num_nodes must be None with relabel=True, got 5"):
            read_edge_list(write("0 1\n"), relabel=True, num_nodes=5)


@pytest.mark.memory
def test_memory_does_not_grow_with_the_text(write, monkeypatch):
    """Long lines of which only the ids are kept."""
    import tracemalloc

    # 40 MB of text.
    path = write("0 1 " + "x" * 4000 + "\n" + ("1 2 " + "y" * 4000 + "\n") * 10_000)
    monkeypatch.setattr(text_blocks, "_BLOCK_BYTES", 2**18)
    read_edge_list(path)
    tracemalloc.start()
    graph = read_edge_list(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert graph.num_edges == 10_001
    assert peak < 8e6


@pytest.mark.parametrize(("ending", "module"), [("gz", gzip), ("bz2", bz2), ("xz", lzma)])
def test_packed_files(tmp_path, ending, module):
    path = tmp_path / f"a.txt.{ending}"
    packed = module.compress(b"0 1\n" * 2000 + b"1 2\n")
    path.write_bytes(packed)
    assert read_edge_list(path).num_edges == 2001
    path.write_bytes(packed[:-8])
    with pytest.raises(FormatError, match="is not a complete (gzip|bz2|lzma) file"):
        read_edge_list(path)
    damaged = bytearray(packed)
    damaged[len(packed) // 2] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(FormatError):
        read_edge_list(path)


@pytest.mark.processes
def test_a_process_that_ends_after_a_refusal_ends_in_order(tmp_path):
    """Arrow's threads aborted in one of four such processes."""
    (tmp_path / "ids.txt").write_text("1 4000000000\n")
    (tmp_path / "words.csv").write_text("person,friend\na,b\nb,c\n")
    script = (
        "from pagraph.datasets import read_graph\n"
        "for name, options in (('ids.txt', {}), ('words.csv', {'relabel': True})):\n"
        "    try:\n        read_graph(name, **options)\n"
        "    except ValueError:\n        pass\n"
    )
    runs = [
        subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    assert [(run.communicate()[1], run.returncode) for run in runs] == [(b"", 0)] * 4


WORDS = st.sampled_from(
    [
        "a",
        "Zoë",
        "b b",
        '"q"',
        'say ""hi""',
        '"a, b"',
        '"',
        "#",
        "%x",
        "1",
        "-7",
        "",
        " c ",
        "\u00a0",
        "x" * 40,
    ]
)
NUMBERS = st.sampled_from(
    ["1", "2.5", "nan", "-0", "+3", "1e3", "x", "", "1_0", "9007199254740993"]
)


@pytest.mark.many
@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_words_are_numbered_by_duckdb_as_they_are_line_by_line(tmp_path_factory, data):
    separator = data.draw(st.sampled_from([",", ";", "\t", " ", "  ", ", "]))
    width = data.draw(st.integers(2, 4))
    lines = (
        [] if data.draw(st.booleans()) else [separator.join(["source", "target", "w", "u"][:width])]
    )
    for _ in range(data.draw(st.integers(1, 5))):
        fields = [
            data.draw(WORDS),
            data.draw(WORDS),
            *(data.draw(NUMBERS) for _ in range(width - 2)),
        ]
        lines.append(separator.join(fields))
        if data.draw(st.integers(0, 9)) == 0:
            lines.append(data.draw(st.sampled_from(["", "# c", "  ", "a", '"'])))
    path = tmp_path_factory.mktemp("words") / "edges.txt"
    end = data.draw(st.sampled_from(["\n", "\r\n", "\r"]))
    path.write_bytes(end.join(lines).encode())
    options = {"relabel": True, "weight": data.draw(st.sampled_from([None, "w", "w:float32"]))}
    options["header"] = data.draw(st.sampled_from([None, True, False]))

    assert outcome(path, 0, **options) == outcome(path, 2**30, **options)


def outcome(path, few_bytes, **options):
    """What a file gives where texts below ``few_bytes`` are read line by line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edge_text, "_FEW_BYTES", few_bytes)
        try:
            graph = read_edge_list(path, **options)
        except ValueError as error:
            return str(error)
    # -0 in a column of fractions may become -0.0 or 0.0, which are equal.
    fields = {name: (str(v.dtype), (v + 0).tolist()) for name, v in graph.edata.items()}
    kept = {name: v.tolist() for name, v in graph.ndata.items()}
    return repr((ends(graph), kept, fields))


QUOTED = st.sampled_from(['"x"', '"a, 7, b"', '"7"', '"say ""hi"""', "text", '"', 'a"b', "", "7"])


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_columns_of_integer_edges_are_read_by_duckdb_as_line_by_line(tmp_path_factory, data):
    separator = data.draw(st.sampled_from([",", ";", "\t", " "]))
    names = ["source", "target", "note", "w", "u"]
    lines = [separator.join(names)] if data.draw(st.booleans()) else []
    for _ in range(data.draw(st.integers(1, 5))):
        fields = ["1", data.draw(st.sampled_from(["2", "+3", " 4", "007"]))]
        fields += [data.draw(st.one_of(QUOTED, NUMBERS)), data.draw(NUMBERS), data.draw(NUMBERS)]
        lines.append(separator.join(fields[: data.draw(st.sampled_from([5, 5, 5, 5, 4, 6]))]))
        if data.draw(st.integers(0, 9)) == 0:
            lines.append(data.draw(st.sampled_from(["", "# c", "  ", "% x"])))
    path = tmp_path_factory.mktemp("columns") / "edges.txt"
    path.write_bytes(data.draw(st.sampled_from(["\n", "\r\n"])).join(lines).encode())
    options = data.draw(
        st.sampled_from([{}, {"weight": "w"}, {"field": ["u", "w:float32"]}, {"time": "u"}])
    )
    assert outcome(path, 0, **options) == outcome(path, 2**30, **options)


class TestColumns:
    """All columns with names become fields, or those that are asked for."""

    TEXT = (
        'src,dst,amount,year,note,w\n0,1,1.5,2019,hi,3\n1,2,2.5,2020,"a, 7, b",4\n'
        "2,0,0.25,2021,x,5\n"
    )

    @pytest.fixture(params=[0, 2**30], ids=["DuckDB", "lines"])
    def read(self, request, write, monkeypatch):
        monkeypatch.setattr(edge_text, "_FEW_BYTES", request.param)
        return lambda **options: read_edge_list(write(self.TEXT), **options)

    def test_all_that_hold_numbers(self, read, caplog):
        fields = read().edata
        assert {name: str(v.dtype) for name, v in fields.items()} == {
            "amount": "torch.float32",
            "year": "torch.int64",
            "w": "torch.int64",
        }
        # A separator in a quoted text separates nothing.
        assert fields["w"].tolist() == [3, 4, 5]
        assert "left out: note (its texts differ from row to row)" in caplog.text

    def test_those_that_are_asked_for(self, read):
        fields = read(weight=["amount", "w:float32"], field="year:int32", time=None).edata
        assert {name: str(v.dtype) for name, v in fields.items()} == {
            "amount": "torch.float32",
            "w": "torch.float32",
            "year": "torch.int32",
        }

    def test_the_time(self, read):
        fields = read(time="year", field="w").edata
        assert (fields["time"].tolist(), fields["w"].tolist()) == ([2019, 2020, 2021], [3, 4, 5])

    def test_all_but_some(self, read, caplog):
        assert list(read(skip_columns=["year", "note"]).edata) == ["amount", "w"]
        assert "left out" not in caplog.text

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"field": "note"}, "line 2 must have a number"),
            ({"field": ["w", "w:int32"]}, "must name different fields, got 'w' twice"),
            ({"weight": "w", "time": "x"}, "must have a column 'x' for the time"),
            ({"skip_columns": ["x"]}, "must have a column 'x' to skip"),
            ({"skip_columns": "w", "field": "w"}, "skip_columns must not be given with field"),
        ],
    )
    def test_what_is_refused(self, read, options, message):
        with pytest.raises(ValueError, match=message):
            read(**options)

    MISSING = "src,dst,w,u\n0,1,5,\n1,2,,0.5\n2,0,7, \n"

    def test_missing_numbers(self, write, read, caplog):
        path = write(self.MISSING)
        fields = read_edge_list(path).edata
        assert list(fields) == ["u"] and fields["u"].isnan().tolist() == [1, 0, 1]
        assert "left out: w (1 row has no value: missing=-1 fills them)" in caplog.text
        fields = read_edge_list(path, missing=-1).edata
        assert (fields["w"].tolist(), fields["w"].dtype) == ([5, -1, 7], torch.int64)
        assert fields["u"].tolist() == [-1, 0.5, -1]
        fields = read_edge_list(path, field="w", missing=float("nan")).edata
        assert fields["w"].dtype == torch.float32 and fields["w"].isnan().tolist() == [0, 1, 0]
        with pytest.raises(ValueError, match="line 3 must have a number"):
            read_edge_list(path, weight="w")
        with pytest.raises(TypeError, match="missing must be a number for an edge list, got 'x'"):
            read_edge_list(path, missing="x")

    TYPED = (
        "src,dst,when,new,kind,zip,day\n0,1,2024-01-02 10:00,true,b,7,\n"
        '1,2,2024-01-02T10:00:01.5Z,FALSE,"a, c",N/A,2020-02-29\n'
        "2,0,2024-01-03,True,b,x,1969-12-31\n2,1,2024-01-04 00:00,false, a, 3,\n"
        '0,2,1969-12-31 23:59:59,true,"a, c",4,1970-01-01\n1,0,2000-01-01,true,a,5,\n'
    )

    @pytest.mark.parametrize("ids", ["numbers", "words", "renumbered"])
    @pytest.mark.parametrize("form", ["{}", "# a comment\n{}\n\n", "\n{}  \n%x,y,z,u,v,w,a\n"])
    def test_columns_of_other_types(self, read, write, caplog, ids, form):
        text = self.TYPED.replace("T10:00:01.5Z", " 10:00:01.5")
        if ids == "words":
            text = re.sub("^([0-9]),([0-9])", r"v\1,v\2", text, flags=re.M)
        path = write(form.format(text))
        graph = read_edge_list(path, relabel=ids != "numbers", missing=-1)
        fields = graph.edge_fields(("_N", "_E", "_N"))
        assert sorted(fields) == ["day", "kind", "new", "when"]
        # All times have one unit.
        days = [-1, 18321 * 86400 * 10**6, -86400 * 10**6, -1, 0, -1]
        assert fields["day"].tolist() == days
        assert fields["when"].tolist()[:2] == [1704189600000000, 1704189601500000]
        assert {fields.notes[name].unit for name in ("day", "when")} == {"microseconds"}
        assert fields["new"].tolist() == [True, False, True, False, True, True]
        assert fields.notes["kind"].words == ("a", "a, c", "b")
        assert fields["kind"].tolist() == [2, 1, 2, 0, 1, 0]
        assert "left out: zip ('x' is no number, as 4 of its 5 texts are)" in caplog.text
        shown = str(graph.schema())
        assert "3 missing ones are -1" in shown and "'x' is no number" in shown

    def test_columns_of_other_types_that_are_asked_for(self, read, write, caplog):
        path = write(self.TYPED)
        options = {"time": "day", "field": "kind", "missing": 0}
        fields = read_edge_list(path, **options).edge_fields(("_N", "_E", "_N"))
        assert fields["time"].tolist() == [0, 18321 * 86400, -86400, 0, 0, 0]
        assert fields.notes["kind"].words == ("a", "a, c", "b")
        read_edge_list(path)
        assert "left out: when (some of its times have a zone ('2024-01-02T10:00:01.5Z')" in (
            caplog.text
        )
        assert "left out: day (3 rows have no value: missing=-1 fills them)" in caplog.text
        for name, message in (("zip", "line 3 must have a number"), ("when", "line 2 must have")):
            with pytest.raises(FormatError, match=message):
                read_edge_list(path, field=name)
        with pytest.raises(FormatError, match="column 'zip' must hold .*: 'x' is no number, as 4"):
            read_edge_list(path, field="zip", missing=-1)
        with pytest.raises(FormatError, match="line 2 must have a number"):
            read_edge_list(path, field="kind:int64")

    def test_blanks_between_columns(self, write):
        path = write("src dst  kind\n0 1 a\n1\t2   b\n 2 0 a\n0 2 b\n")
        fields = read_edge_list(path).edge_fields(("_N", "_E", "_N"))
        assert fields.notes["kind"].words == ("a", "b")
        assert fields["kind"].tolist() == [0, 1, 0, 1]
        # Without names, the third column.
        path.write_text("0 1 a\n1,2 b\n2 0 a\n0 2 b\n1 0 a\n0 0\n")
        fields = read_edge_list(path, field="kind").edge_fields(("_N", "_E", "_N"))
        assert fields["kind"].tolist() == [0, 1, 0, 1, 0, -1]

    def test_the_most_frequent_words(self, write):
        texts = ["a", "b", "b", "c", "c", "c", "d", "e"]
        path = write("src,dst,t\n" + "".join(f"0,1,{text}\n" for text in texts))
        fields = read_edge_list(path, words=2).edge_fields(("_N", "_E", "_N"))
        assert fields.notes["t"].words == ("b", "c", "other")
        assert fields["t"].tolist() == [2, 0, 0, 1, 1, 1, 2, 2]

    def test_gaps_among_numbers(self, write):
        path = write(f"src,dst,a,b,c\n0,1,,1.5,{2**53 + 1}\n1,0,3,,\n0,0,{2**60},NA,4\n")
        fields = read_edge_list(path, missing=-7).edata
        assert fields["a"].tolist() == [-7, 3, 2**60]
        assert fields["b"].tolist() == [1.5, -7, -7]
        assert fields["c"].tolist() == [2**53 + 1, -7, 4]
        graph = read_edge_list(path, missing=float("nan"))
        assert list(graph.edata) == ["b"]
        assert "integers of 2**53 and more would be rounded beside fractions" in str(graph.schema())

    def test_without_names_there_is_one_column_at_most(self, write):
        with pytest.raises(ValueError, match="must have a line of column names, as 'a', 'b' are"):
            read_edge_list(write("0 1 2 3\n"), weight=["a", "b"])
        with pytest.raises(ValueError, match="as some are skipped"):
            read_edge_list(write("0 1 2 3\n"), skip_columns="a")
