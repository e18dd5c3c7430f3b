"""Tables on the terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

__all__ = ["number_table", "print_whole"]

_WIDEST = 1000


def number_table(title: str, columns: list[str], caption: str | None = None) -> Table:
    """A table of numbers, as narrow as it goes."""
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    table.box, table.show_edge, table.padding = SIMPLE_HEAD, False, (0, 0, 0, 1)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def print_whole(console: Console, table: Table) -> None:
    """Print a table wider than the terminal rather than without its last digits."""
    width = console.width
    wide = console.options.update(width=_WIDEST, max_width=_WIDEST)
    console.width = max(width, Measurement.get(console, wide, table).maximum)
    console.print(table)
    console.width = width
