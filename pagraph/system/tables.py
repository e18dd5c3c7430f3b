"""Tables as aligned text, and as HTML for a notebook or a page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

BEST = "*"
"""The last character of the best cell of a row."""


@dataclass(frozen=True)
class Table:
    """A table of text cells; ``str()`` aligns them.

    Attributes:
        rows: The cells by row, the head first; all rows have the same length.
        title: A line above; empty for none.
        left: Indices of the left-aligned columns; the others are right-aligned.
        caption: A line below; empty for none.
        bold: Indices of highlighted rows, not counting the head.
        has_total: Whether the last row is the sum of the others.

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


class Tabled:
    """Base of results that are shown as tables, by ``str()`` and as HTML in notebooks."""

    def _tables(self) -> Iterable[Table]:
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n\n".join(map(str, self._tables()))

    def _repr_html_(self) -> str:
        return "\n".join(table.html for table in self._tables())


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
