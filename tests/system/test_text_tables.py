"""Tables as lines of any width and as HTML say the same."""

import fcntl
import io
import os
import pty
import struct
import sys
import termios
from collections import Counter
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagraph.system.tables import Table, Tabled, columns_of, output_width, wrapped


class Cells(HTMLParser):
    """The text of a table's cells, row by row, and of its caption; fails on tags that no table
    has."""

    def __init__(self, markup):
        super().__init__()
        self.rows, self.caption, self._tag = [], "", ""
        self.feed(markup)

    def handle_starttag(self, tag, attributes):
        assert tag in ("table", "thead", "tbody", "caption", "tr", "th", "td"), tag
        self._tag = tag
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_data(self, data):
        if self._tag == "caption":
            self.caption += data
        elif self._tag in ("th", "td"):
            self.rows[-1][-1] += data


words = st.text("ab<&>\"'/ ", min_size=1, max_size=6).map(str.strip).filter(bool)


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(words, min_size=n, max_size=n), min_size=1)
    ),
    words,
)
def test_html_is_the_same_table_escaped(rows, title):
    read = Cells(Table(rows, title, left=(0,)).html)
    assert read.rows == rows and read.caption == title


def test_lines_are_aligned():
    table = Table(
        [["name", "n", "on"], ["a", "10", "disk"], ["long name", "5", "b"]], "title", left=(0, 2)
    )
    assert str(table).splitlines() == [
        "title",
        "name        n  on",
        "a          10  disk",
        "long name   5  b",
    ]


def test_several_tables_are_one_below_the_other():
    one = Table([["a"], ["1"]])

    class Both(Tabled):
        def _tables(self):
            return [one, one]

    assert Both()._repr_html_() == f"{one.html}\n{one.html}"
    assert str(Both()) == f"{one}\n\n{one}"


LONG = Table(
    [
        ["loader", "made at", "waited s", "of the time"],
        ["NeighborLoader x 2", "examples/products/train.py:12", "0.846", "2.0%"],
        ["all", "", "10.125", "100.0%"],
    ],
    "a title of some words",
    left=(0, 1),
    caption="why it is so",
    has_total=True,
)


def test_heads_are_wrapped_before_texts_and_these_before_columns_are_moved():
    assert LONG.text(72) == LONG.text()
    assert LONG.text(66).splitlines() == [
        "a title of some words",
        "                                                   waited   of the",
        "loader              made at                             s     time",
        "NeighborLoader x 2  examples/products/train.py:12   0.846     2.0%",
        "all                                                10.125   100.0%",
        "why it is so",
    ]
    assert LONG.text(50).splitlines()[1:6] == [
        "                                    waited  of the",
        "loader          made at                  s    time",
        "NeighborLoader  examples/products/   0.846    2.0%",
        "  x 2             train.py:12",
        "all                                 10.125  100.0%",
    ]
    first, second = LONG.text(40).split("\n\n")
    assert [line.split()[-1] for line in first.splitlines()[2:4]] == ["s", "0.846"]
    assert second.splitlines() == [
        "                                  of the",
        "loader          made at             time",
        "NeighborLoader  examples/           2.0%",
        "  x 2             products/",
        "                  train.py:12",
        "all                               100.0%",
        "why it is so",
    ]


def test_highlighted_rows_are_all_of_their_lines():
    table = Table([["n", "what"], ["1", "a b"], ["2", "c"], ["3", "d"]], left=(1,), bold=[0])
    assert [line for line, is_bold in table.lines(5) if is_bold] == ["1  a b"]
    assert [line for line, is_bold in LONG.lines(50) if is_bold][0].startswith("all ")


texts = st.text("ab/ é漢,", max_size=30).map(lambda text: " ".join(text.split()))
numbers = st.integers(0, 10**9).map("{:,}".format) | st.sampled_from(["-", "", "1.5 MiB"])


@st.composite
def tables(draw):
    kinds = draw(st.lists(st.booleans(), min_size=1, max_size=9))
    head = [draw(texts) for _ in kinds]
    row = st.tuples(*(texts if is_text else numbers for is_text in kinds))
    rows = draw(st.lists(row, max_size=4))
    left = [place for place, is_text in enumerate(kinds) if is_text]
    return Table([head, *rows], draw(texts), left=left, caption=draw(texts))


@given(tables(), st.integers(1, 120) | st.none())
def test_no_width_loses_a_character_or_breaks_a_number(table, width):
    text = table.text(width)
    whole = table.text()
    assert not Counter(whole.replace(" ", "")) - Counter(text.replace(" ", ""))
    places = set(range(len(table.rows[0]))) - set(table.left)
    assert all(row[place] in text for row in table.rows[1:] for place in places)


@given(tables(), st.integers(80, 120))
def test_lines_are_no_wider_than_they_may_be(table, width):
    """Nor with a name of each row beside the widest number, which takes less than 80 columns here."""
    assert all(columns_of(line) <= width for line in table.text(width).splitlines())


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("", 5, []),
        ("one two three", None, ["one two three"]),
        ("one two three", 9, ["one two", "  three"]),
        ("one /a/long/path two", 9, ["one", "  /a/long/path", "  two"]),
        ("  a b c d", 6, ["  a b", "    c", "    d"]),
        ("a\nbc de", 4, ["a", "bc", "  de"]),
        ("漢字 漢字", 6, ["漢字", "  漢字"]),
    ],
)
def test_sentences_are_broken_at_blanks(text, width, lines):
    assert wrapped(text, width, "  ") == lines


@pytest.mark.parametrize("width", [None, 20])
def test_control_characters_are_escaped(width):
    table = Table([["file", "rows"], ["a\x1b[31m\rb", "1"]], "of\x07", left=(0,), caption="\x85")
    text = table.text(width)
    assert text.replace("\n", "").isprintable()
    assert all(shown in text for shown in ("of\\x07", "a\\x1b[31m\\rb", "\\x85"))
    assert wrapped("é\x1b[2J\nnext", width) == ["é\\x1b[2J", "next"]


def test_a_line_of_parts_is_broken_between_them_first():
    line = "epoch 1/2  loss 6.2194  2.61 s: loading 1.08, computing 1.51"
    assert wrapped(line, 50, "  ", at="  ") == [
        "epoch 1/2  loss 6.2194",
        "  2.61 s: loading 1.08, computing 1.51",
    ]


class TestWidthOfTheOutput:
    @pytest.fixture
    def terminal(self):
        """The two ends of a terminal of 100 columns."""
        ends = pty.openpty()
        fcntl.ioctl(ends[1], termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        yield ends[1]
        for end in ends:
            os.close(end)

    def test_is_the_terminals(self, monkeypatch, terminal):
        monkeypatch.delenv("COLUMNS", raising=False)
        assert output_width(terminal) == 100
        with open(terminal, "w", closefd=False) as output:
            monkeypatch.setattr(sys, "stdout", output)
            assert output_width() == 100
            wide = str(Table([["word " * 30]], left=(0,)))
            assert [len(line) for line in wide.splitlines()] == [99, 49]

    def test_is_columns_if_that_is_a_number(self, monkeypatch, terminal):
        for columns, width in (("80", 80), ("0", 100), ("wide", 100), ("", 100)):
            monkeypatch.setenv("COLUMNS", columns)
            assert output_width(terminal) == width

    @pytest.mark.parametrize("output", [io.StringIO(), None])
    def test_pipes_and_what_is_no_output_have_none(self, monkeypatch, output):
        monkeypatch.delenv("COLUMNS", raising=False)
        monkeypatch.setattr(sys, "stdout", output)
        assert output_width() is None
        with open(os.devnull, "w") as nowhere:
            assert output_width(nowhere.fileno()) is None
        assert len(str(LONG).splitlines()) == 5
