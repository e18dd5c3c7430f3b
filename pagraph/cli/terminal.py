"""Output of verbs: tables, progress bars, graph folders, and checks of files to write."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .._streams import is_terminal, print_notice
from ..options.names import check_plot_name
from ..system.atomic import check_writable
from ..system.progress import Progress
from ..system.tables import Table, output_width, wrapped
from ..system.units import bytes_text, escaped

if TYPE_CHECKING:
    from rich.console import Console

    from ..graph.graph import Graph

_F = TypeVar("_F", bound=Callable[..., Any])
_LINE_SECONDS = 10.0  # between two lines of progress in a log


@contextlib.contextmanager
def progress_bar(description: str, *, console: Console | None = None) -> Iterator[Progress]:
    """Show the progress of long work, and the time left, on standard error or on ``console``.

    A terminal shows a bar. Elsewhere a line is printed every 10 seconds, so that short work prints
    nothing into a pipe or a log. Yields the ``progress`` that library functions take: a
    function of the work done and the total, which any thread may call.
    """
    description = escaped(description)
    shows_bar = is_terminal() if console is None else console.is_terminal
    if not shows_bar:
        yield _Lines(description)
        return
    # Rich takes 50 ms to import, which only a terminal waits for.
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
    """Progress as plain lines, for logs. The time left assumes a constant speed."""

    def __init__(self, description: str) -> None:
        self._description = description
        # Any thread of the work may call. Held while a line is printed, so that lines come in
        # order; printing takes no other lock of ours.
        self._lock = threading.Lock()
        self._begin = time.monotonic()
        self._shown = self._begin

    def __call__(self, done: int, total: int) -> None:
        with self._lock:
            now = time.monotonic()
            # Some work learns its total late, and reports 0 of 0 until then.
            if now - self._shown < _LINE_SECONDS or not 0 < done <= total:
                return
            self._shown = now
            left = round((now - self._begin) * (total - done) / done)
            text = f"{self._description}: {done / total:.0%}, {timedelta(seconds=left)} left"
            print_notice(text)


def print_table(table: Table) -> None:
    """Print a table; a terminal highlights some of its rows."""
    for line, is_bold in table.lines(output_width()):
        click.echo(click.style(line, bold=True) if is_bold else line)


def print_text(text: str = "") -> None:
    """Print sentences, broken at blanks where the output has a width."""
    click.echo("\n".join(wrapped(text, output_width())))


# Objects made between two garbage collections. Torch's import makes half a million that stay. With
# Python's 700, collecting takes a twentieth of the time of a small import.
_OBJECTS = 100_000


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """Collect garbage less often in this block, which imports torch."""
    before = gc.get_threshold()
    gc.set_threshold(_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def write_folder(
    graph: Graph, out: Path, *, origin: Mapping[str, Any], store: str | None = None
) -> None:
    """Write ``graph`` as the folder ``out`` and print one line about it."""
    from ..datasets import write_graph  # it imports torch, which `pagraph info` does not wait for

    with progress_bar(f"writing {out.name}") as progress:
        write_graph(graph, out, origin=origin, store=store, progress=progress)
    print_text(summary_line(graph, out))


def summary_line(graph: Graph, out: Path) -> str:
    """Describe a written folder in one line."""
    counts = f"{graph.num_nodes:,} vertices, {graph.num_edges:,} edges"
    return f"{out}: {counts}, {bytes_text(folder_bytes(out))}"


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in a folder and in those below it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def fields_line(graph: Graph, out: Path) -> str:
    """Name the fields of a written folder in one line."""
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
    """Click option for a file to write, which is checked before any work.

    The command's argument for ``--json`` is ``json_file``.
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
    """Check the paths of options before the long work.

    Args:
        paths: Option, without dashes, to the file that it names.
        plot_formats: Endings that the file of ``plot`` may have.

    Raises:
        ClickException: A path cannot be written, or is given twice.
        ValueError: The plot has another ending.
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
