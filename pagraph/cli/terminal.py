"""Tables and progress bars on the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

__all__ = ["number_table", "print_whole", "progress_bar"]

_WIDEST = 1000


@contextlib.contextmanager
def progress_bar(description: str, *, console: Console | None = None) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar on standard error, or on ``console``; nothing in a pipe.

    Yields what library functions take as ``progress``: a function of the work done and the whole; None where
    there is no terminal to draw on.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


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
