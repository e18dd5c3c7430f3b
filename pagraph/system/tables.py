"""Tables as lines that fit a terminal, and as HTML for a notebook or a page."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import pairwise
from typing import Any
from unicodedata import combining, east_asian_width

from .._streams import output_descriptor
from .units import escaped

BEST = "*"
"""The last character of the best cell of a row."""
_GAP = "  "  # between columns
_INDENT = "  "  # of a cell's further lines
_NARROWEST = 12  # columns that a cell of text keeps


@dataclass(frozen=True)
class Table:
    """A table of text cells; ``str()`` aligns them, in lines as wide as the output.

    If the output is too narrow, heads and cells of left-aligned columns are wrapped, and if that is
    not enough, columns follow below the others. Cells of other columns are numbers, which stay
    whole. No character is lost.

    Attributes:
        rows: The cells by row, the head first; all rows have the same length.
        title: A line above; empty for none.
        left: Indices of the left-aligned columns, of text; the others are right-aligned.
        caption: A line below; empty for none.
        bold: Indices of highlighted rows, not counting the head.
        has_total: Whether the last row is the sum of the others.

    Example:
        >>> table = Table([["field", "rows"], ["feat", "1,000"]], left=(0,))
        >>> print(table.text())
        field   rows
        feat   1,000
    """

    rows: Sequence[Sequence[str]]
    title: str = ""
    left: Sequence[int] = ()
    caption: str = ""
    bold: Collection[int] = ()
    has_total: bool = False

    def __str__(self) -> str:
        return self.text(output_width())

    def text(self, width: int | None = None) -> str:
        """The lines, of at most ``width`` columns; None for any number."""
        return "\n".join(line for line, _ in self.lines(width))

    def lines(self, width: int | None = None) -> Iterator[tuple[str, bool]]:
        """Each line of :meth:`text`, and whether it is highlighted."""
        for line in wrapped(self.title, width):
            yield line, False
        columns = [
            _Column([escaped(cell) for cell in cells], place in self.left)
            for place, cells in enumerate(zip(*self.rows, strict=True))
        ]
        for number, block in enumerate(_blocks(columns, width)):
            if number:
                yield "", False
            yield from self._block(block, width)
        for line in wrapped(self.caption, width):
            yield line, False

    def _block(self, block: Sequence[_Column], width: int | None) -> Iterator[tuple[str, bool]]:
        widths = _widths(block, width)
        last = len(self.rows) - 2
        for number, row in enumerate(zip(*(column.cells for column in block), strict=True), -1):
            if number < 0 and not any(row):  # no head
                continue
            is_bold = number in self.bold or (self.has_total and number == last)
            indent = _INDENT if number >= 0 else ""
            cells = [
                wrapped(cell, room, indent, breaks=True)
                for cell, room in zip(row, widths, strict=True)
            ]
            height = max(map(len, cells))
            for place, cell in enumerate(cells):
                rest = [""] * (height - len(cell))
                # The last line of a head is beside those of others, above the first row.
                lines = [*cell, *rest] if number >= 0 else [*rest, *cell]
                cells[place] = [block[place].aligned(line, widths[place]) for line in lines]
            for line in zip(*cells, strict=True):
                yield _GAP.join(line).rstrip(), is_bold

    @property
    def html(self) -> str:
        """The table as escaped HTML, with classes for a page's style sheet."""
        return "".join(self._markup())

    def _markup(self) -> Iterator[str]:
        head, *body = self.rows
        words = "; ".join(filter(None, [self.title, self.caption]))
        yield "<table>"
        if words:
            yield f"<caption>{escape(words)}</caption>"
        yield f"<thead>{self._html_row('th', head)}</thead><tbody>"
        for place, cells in enumerate(body):
            yield self._html_row("td", cells, "bold" if place in self.bold else "")
        yield "</tbody></table>"

    def _html_row(self, tag: str, cells: Sequence[str], name: str = "") -> str:
        found = []
        for place, cell in enumerate(cells):
            # The style sheets of notebooks center or right-align cells.
            style = ' style="text-align:left"' if place in self.left else ""
            best = ' class="best"' if tag == "td" and cell.endswith(BEST) else ""
            found.append(f"<{tag}{style}{best}>{escape(cell)}</{tag}>")
        opening = f'<tr class="{name}">' if name else "<tr>"
        return f"{opening}{''.join(found)}</tr>"


@dataclass(frozen=True)
class _Column:
    """The cells of one column, the head first. ``is_text`` says that they may be wrapped."""

    cells: Sequence[str]
    is_text: bool

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Widths, narrower and narrower: of whole cells, with the heads of numbers wrapped, with
        texts wrapped at blanks, within words, and where they are narrow already."""
        head, *cells = self.cells
        most = max(map(columns_of, self.cells))
        if not self.is_text:
            least = max([_longest_word(head), *map(columns_of, cells)])
            return most, least, least, least, least
        words = max([_longest_word(head), *(_longest_word(cell, _INDENT) for cell in cells)])
        narrow = min(most, _NARROWEST)
        return most, most, max(words, narrow), narrow, min(words, narrow)

    def aligned(self, line: str, width: int) -> str:
        """A line of a cell, filled up with blanks."""
        blanks = " " * (width - columns_of(line))
        return line + blanks if self.is_text else blanks + line


def _blocks(columns: Sequence[_Column], width: int | None) -> Sequence[Sequence[_Column]]:
    """The columns that are beside each other, in as few blocks as possible, of equal numbers.

    Each block begins with the columns that name the rows.
    """
    if width is None or _fit(columns, width):
        return [columns]
    names = 1
    while names + 1 < len(columns) and columns[0].is_text and columns[names].is_text:
        names += 1
    rest = columns[names:]
    filled = [columns[:names]]
    for column in rest:
        if len(filled[-1]) > names and not _fit([*filled[-1], column], width):
            filled.append(columns[:names])
        filled[-1] = [*filled[-1], column]
    count = len(filled)
    ends = [len(rest) * number // count for number in range(count + 1)]
    even = [[*columns[:names], *rest[begin:end]] for begin, end in pairwise(ends)]
    return even if all(_fit(block, width) for block in even) else filled


def _fit(columns: Sequence[_Column], width: int) -> bool:
    """Whether columns fit beside each other, as narrow as can be."""
    return sum(column.sizes[-1] for column in columns) <= _room(len(columns), width)


def _room(count: int, width: int) -> int:
    """Columns of a terminal for the cells of ``count`` columns of a table."""
    return width - len(_GAP) * (count - 1)


def _widths(columns: Sequence[_Column], width: int | None) -> list[int]:
    """Widths with which the columns fit, if they can; the widest are made narrower first."""
    widths = [column.sizes[0] for column in columns]
    if width is None:
        return widths
    excess = sum(widths) - _room(len(columns), width)
    for size in range(1, len(columns[0].sizes)):
        wider = [
            place for place, column in enumerate(columns) if widths[place] > column.sizes[size]
        ]
        while excess > 0 and wider:
            widest = max(wider, key=widths.__getitem__)
            widths[widest] -= 1
            excess -= 1
            if widths[widest] == columns[widest].sizes[size]:
                wider.remove(widest)
    return widths


class Tabled:
    """Base of results that are shown as tables, by ``str()`` and as HTML in notebooks."""

    def _tables(self) -> Iterable[Table]:
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n\n".join(map(str, self._tables()))

    def _repr_html_(self) -> str:
        return "\n".join(table.html for table in self._tables())


def output_width(descriptor: int | None = None) -> int | None:
    """Columns for lines of an output: ``COLUMNS``, or the terminal's; None if it has no width.

    Args:
        descriptor: The output; None for ``sys.stdout``.
    """
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        number = output_descriptor() if descriptor is None else descriptor
        return os.get_terminal_size(number).columns or None
    except (OSError, ValueError):  # no terminal
        return None


def wrapped(
    text: str, width: int | None, indent: str = "", *, at: str = " ", breaks: bool = False
) -> list[str]:
    """The lines of a text, broken where they are wider than ``width``; control characters are
    escaped.

    Args:
        text: The text; no lines if it is empty, unless ``breaks``.
        width: Columns; None for any number.
        indent: Before lines that go on, besides the blanks that the text begins with.
        at: Where to break: at blanks, or before that at other separators.
        breaks: Whether words that are wider are broken, too, as in a cell of a table.
    """
    text = escaped(text)
    found: list[str] = []
    for whole in text.split("\n") if text or breaks else ():
        line = whole
        begin = whole[: len(whole) - len(whole.lstrip(" "))]
        while width is not None and columns_of(line) > width:
            end = _end_of_line(line, width, at, breaks=breaks)
            rest = line[end:].lstrip(" ")
            line = line[:end].rstrip(" ")
            if not rest:
                break
            found.append(line)
            line = begin + indent + rest
        found.append(line)
    return found


def _end_of_line(text: str, width: int, at: str, *, breaks: bool) -> int:
    """Where to break a text that is wider than ``width``."""
    begin = len(text) - len(text.lstrip(" "))
    fits = begin
    while columns_of(text[: fits + 1]) <= width:
        fits += 1
    for separator in dict.fromkeys((at, " ")):
        end = text.rfind(separator, begin, fits + len(separator))
        if end > begin:
            return end
    if breaks:
        folder = text.rfind("/", begin, fits) + 1
        return folder or max(fits, begin + 1)
    end = text.find(" ", begin)
    return len(text) if end < 0 else end


def columns_of(text: str) -> int:
    """Columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    wide = sum(east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(combining(character) > 0 for character in text)


def _longest_word(text: str, indent: str = "") -> int:
    first, *others = map(columns_of, text.split(" "))
    return max([first, *(len(indent) + other for other in others)])


def page_template(package: str) -> Any:
    """The template ``page.html`` of a package, which escapes what is filled in."""
    import jinja2

    # StrictUndefined makes a misspelt name in the template an error, not a gap in the page.
    environment = jinja2.Environment(
        autoescape=True,
        loader=jinja2.PackageLoader(package, ""),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")
