"""Tables of text, as aligned lines for a terminal and as HTML for a notebook; HTML elements as
text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any


def element(tag: str, content: str = "", **attributes: Any) -> str:
    """Format an element.

    Args:
        tag: Name of the element.
        content: Markup inside it: escaped already.
        attributes: ``class_`` becomes ``class``, ``stroke_width`` becomes ``stroke-width``; numbers
            are written with two decimals at most; None leaves the attribute out.

    Example:
        >>> element("rect", x=1.5, stroke_width=2, class_="a<b")
        '<rect x="1.5" stroke-width="2" class="a&lt;b"></rect>'
    """
    parts = [tag]
    for name, value in attributes.items():
        if value is not None:
            text = (
                f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
            )
            parts.append(f'{name.rstrip("_").replace("_", "-")}="{escape(text)}"')
    return f"<{' '.join(parts)}>{content}</{tag}>"


def table(head: Iterable[str], rows: Iterable[str], *, caption: str = "", **attributes: Any) -> str:
    """A table of header cells and body rows, each markup already; see :func:`row`."""
    top = element("thead", element("tr", "".join(head)))
    return element("table", caption + top + element("tbody", "".join(rows)), **attributes)


def row(header: str, cells: Iterable[str], *more: str, **attributes: Any) -> str:
    """A body row: its header, plain cells, and cells that are markup already."""
    content = (
        element("th", header, scope="row")
        + "".join(element("td", cell) for cell in cells)
        + "".join(more)
    )
    return element("tr", content, **attributes)


@dataclass(frozen=True)
class Table:
    """Cells of text; ``str()`` aligns them in lines.

    Attributes:
        rows: The cells by row, the head first; all rows are as long.
        title: A line above; empty for none.
        left: Places of the columns that are flush left; the others, numbers, are flush right.

    Example:
        >>> print(Table([["field", "rows"], ["feat", "1,000"]], left=(0,)))
        field   rows
        feat   1,000
    """

    rows: Sequence[Sequence[str]]
    title: str = ""
    left: Sequence[int] = ()

    def __str__(self) -> str:
        columns = []
        for place, column in enumerate(zip(*self.rows, strict=True)):
            width = max(map(len, column))
            columns.append(
                [cell.ljust(width) if place in self.left else cell.rjust(width) for cell in column]
            )
        lines = ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]
        return "\n".join([self.title, *lines] if self.title else lines)

    @property
    def html(self) -> str:
        """The same as an HTML table, escaped."""
        head, *body = (
            [
                element(tag, escape(cell), style="text-align:left" if place in self.left else None)
                for place, cell in enumerate(cells)
            ]
            for tag, cells in zip(["th", *["td"] * len(self.rows)], self.rows, strict=False)
        )
        caption = element("caption", escape(self.title)) if self.title else ""
        return table(head, [element("tr", "".join(cells)) for cells in body], caption=caption)


def html_of(tables: Iterable[Table]) -> str:
    """Tables for a notebook, one below the other."""
    return "\n".join(table.html for table in tables)
