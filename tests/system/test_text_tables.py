"""Tables as lines and as HTML say the same."""

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from pagraph.system.tables import Table, Tabled


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
