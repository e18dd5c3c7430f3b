"""A progress bar on a terminal, nothing in a pipe."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

__all__ = ["progress_bar"]


@contextlib.contextmanager
def progress_bar(description: str, *, console: Console | None = None) -> Iterator[Callable[[int, int], None] | None]:
    """Show how far some work is, on standard error.

    Yields what library functions take as ``progress``: a function of the work done and the whole; None where
    there is no terminal to draw on.

    Args:
        description: What is being done.
        console: Where to draw. Default: standard error.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
