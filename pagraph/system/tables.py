"""Tables of text: aligned lines, and HTML for a notebook or a page; the command line draws them
with rich."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

BEST = "*"
"""The last character of a cell that is the best of its row."""


@dataclass(frozen=True)
class Table:
    """Cells of text; ``str()`` aligns them in lines.

    Attributes:
        rows: The cells by row, the head first; all rows have the same length.
        title: A line above; empty for none.
        left: Places of the columns that are flush left; the others, numbers, are flush right.
        caption: A line below; empty for none.
        bold: Places of the rows that stand out, counted without the head.
        has_total: Whether the last row sums up the others.

    Example:
        >>> print(Table([["field", "rows"], ["feat", "1,000"]], left=(0,)))
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
        columns = [self._aligned(*place) for place in enumerate(zip(*self.rows, strict=True))]
        lines = ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]
        return "\n".join(filter(None, [self.title, *lines, self.caption]))

    def _aligned(self, place: int, column: Sequence[str]) -> list[str]:
        width = max(map(len, column))
        if place in self.left:
            return [cell.ljust(width) for cell in column]
        return [cell.rjust(width) for cell in column]

    @property
    def html(self) -> str:
        """The same as an HTML table, escaped; its classes are for a page's style sheet."""
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
            # Notebooks center or right-align cells by a style sheet of their own.
            style = ' style="text-align:left"' if place in self.left else ""
            best = ' class="best"' if tag == "td" and cell.endswith(BEST) else ""
            found.append(f"<{tag}{style}{best}>{escape(cell)}</{tag}>")
        opening = f'<tr class="{name}">' if name else "<tr>"
        return f"{opening}{''.join(found)}</tr>"


class Tabled:
    """Base of results that are shown as tables: by ``str()``, and as HTML in a notebook."""

    def _tables(self) -> Iterable[Table]:
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n\n".join(map(str, self._tables()))

    def _repr_html_(self) -> str:
        return "\n".join(table.html for table in self._tables())


def page_template(package: str) -> Any:
    """The template ``page.html`` of a package; what is filled in is escaped."""
    import jinja2

    # StrictUndefined: a name that the template misspells is an error, not a gap in the page.
    environment = jinja2.Environment(
        autoescape=True,
        loader=jinja2.PackageLoader(package, ""),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")
