"""Output of verbs: tables and progress bars on the terminal, graph folders, checked files."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..options.names import check_plot_name
from ..system.atomic import check_writable
from ..system.progress import Progress
from ..system.tables import Table
from ..system.units import bytes_text

if TYPE_CHECKING:
    from rich.console import Console

    from ..graph.graph import Graph

_F = TypeVar("_F", bound=Callable[..., Any])
_WIDEST = 1000  # columns of the terminal that rich is told of to measure a table
_LINE_SECONDS = 10.0  # between two lines of progress in a log


@contextlib.contextmanager
def progress_bar(description: str, *, console: Console | None = None) -> Iterator[Progress]:
    """Show the progress of long work, and the time left, on standard error or on ``console``.

    A bar on a terminal, elsewhere a line every 10 seconds, so that short work says nothing in a
    pipe or a log. Yields what library functions take as ``progress``: a function of the work done
    and all the work, for any thread.
    """
    is_terminal = sys.stderr.isatty() if console is None else console.is_terminal
    if not is_terminal:
        yield _Lines(description)
        return
    # Rich takes a twentieth of a second to import, which a log does not wait for.
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = console or Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console, transient=True) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _Lines:
    """Progress as plain lines, for logs; the time left assumes that the speed stays."""

    def __init__(self, description: str) -> None:
        self._description = description
        # Threads of the work call: held over the printing, so that lines come in order. Nothing
        # that prints takes another lock of ours.
        self._lock = threading.Lock()
        self._begin = time.monotonic()
        self._shown = self._begin

    def __call__(self, done: int, total: int) -> None:
        with self._lock:
            now = time.monotonic()
            # Some work knows its total late: 0 of 0 says nothing.
            if now - self._shown < _LINE_SECONDS or not 0 < done <= total:
                return
            self._shown = now
            left = round((now - self._begin) * (total - done) / done)
            text = f"{self._description}: {done / total:.0%}, {timedelta(seconds=left)} left"
            click.echo(text, err=True)


def plain_console() -> Console:
    """The terminal, for texts that are printed as they are."""
    from rich.console import Console

    return Console(highlight=False, markup=False)


def print_table(console: Console, table: Table) -> None:
    """Print a table, wider than the terminal rather than without the last digits of numbers."""
    import rich.table
    from rich.box import SIMPLE_HEAD
    from rich.measure import Measurement

    head, *body = table.rows
    drawn = rich.table.Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 0, 0, 1),
    )
    for place, name in enumerate(head):
        justify: Any = "left" if place in table.left else "right"
        drawn.add_column(name, justify=justify, no_wrap=True)
    for place, cells in enumerate(body):
        is_total = table.has_total and place == len(body) - 1
        if is_total:
            drawn.add_section()
        style = "bold" if is_total or place in table.bold else None
        drawn.add_row(*cells, style=style)
    # Rich shortens cells that do not fit. It is told of a terminal in which they do.
    width = console.width
    wide = console.options.update(width=_WIDEST, max_width=_WIDEST)
    console.width = max(width, Measurement.get(console, wide, drawn).maximum)
    # Titles and captions of rich would be broken at the table's width.
    if table.title:
        console.print(table.title, style="italic")
    console.print(drawn)
    if table.caption:
        console.print(table.caption, style="dim")
    console.width = width


# Objects made between two looks for garbage. Torch's import makes half a million that stay; with
# Python's 700 the looks take a twentieth of the time of a small import.
_OBJECTS = 100_000


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """A block, with the imports of its work, in which Python looks for garbage less often."""
    before = gc.get_threshold()
    gc.set_threshold(_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def write_folder(
    graph: Graph, out: Path, *, origin: Mapping[str, Any], store: str | None = None
) -> None:
    """Write ``graph`` as the folder ``out`` and say so in one line."""
    from ..datasets import write_graph  # it imports torch, which `pagraph info` does not wait for

    with progress_bar(f"writing {out.name}") as progress:
        write_graph(graph, out, origin=origin, store=store, progress=progress)
    click.echo(summary_line(graph, out))


def summary_line(graph: Graph, out: Path) -> str:
    """Describe a written folder in one line."""
    size = sum(file.stat().st_size for file in out.iterdir())
    return f"{out}: {graph.num_nodes:,} vertices, {graph.num_edges:,} edges, {bytes_text(size)}"


def fields_line(graph: Graph, out: Path) -> str:
    """Say in one line which fields a written folder has."""
    from ..graph.fields import rows_text  # late: it imports torch

    stores = [("", graph.node_fields(name)) for name in graph.node_types]
    stores += [("of edges: ", graph.edge_fields(name)) for name in graph.edge_types]
    found = [(of, fields) for of, fields in stores if fields]
    if len(stores) > 2:
        count = sum(len(fields) for _, fields in found)
        return f"{count} fields: pagraph info {out} lists them"
    shown = [of + rows_text(fields) for of, fields in found]
    return f"fields: {'; '.join(shown) or 'none'}"


def file_option(flag: str, help_text: str) -> Callable[[_F], _F]:
    """Click option for a file to write; the command's argument for ``--json`` is ``json_file``.

    The path is checked before any work.
    """
    name = f"{flag.removeprefix('--')}_file"
    return click.option(
        flag, name, type=click.Path(path_type=Path), callback=_writable, help=help_text
    )


def _writable(
    _context: click.Context, parameter: click.Parameter, path: Path | None
) -> Path | None:
    if path is None:
        return None
    try:
        check_writable(parameter.opts[0], path)
    except OSError as error:
        raise click.BadParameter(str(error)) from None
    return path


def check_outputs(paths: Mapping[str, Path | None], plot_formats: Sequence[str]) -> None:
    """Check the paths of options, named without dashes, before the long work.

    That of ``plot`` must end in one of the formats.

    Raises:
        ClickException: A path cannot be written, or is given twice.
        ValueError: The plot ends in something else.
    """
    plot = paths.get("plot")
    if plot is not None:
        check_plot_name(plot, plot_formats)
    seen: dict[Path, str] = {}
    for name, path in paths.items():
        if path is None:
            continue
        try:
            target = check_writable(f"--{name}", path)
        except OSError as error:
            raise click.ClickException(str(error)) from None
        # /dev/null and pipes may be given twice.
        if target in seen and (target.is_file() or not target.exists()):
            raise click.UsageError(
                f"--{name} must be another file than --{seen[target]}, got {path}"
            )
        seen[target] = name
