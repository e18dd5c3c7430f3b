"""Output of verbs: graph folders, and files whose paths are checked before the work begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from ..graph.graph import Graph
from ..system.atomic import check_writable
from ..system.units import bytes_text

_F = TypeVar("_F", bound=Callable[..., Any])


def write_folder(graph: Graph, out: Path, *, origin: Mapping[str, Any]) -> None:
    """Write ``graph`` as the folder ``out`` and say so in one line."""
    from ..datasets import write_graph
    from .terminal import progress_bar

    with progress_bar(f"writing {out.name}") as progress:
        write_graph(graph, out, origin=origin, progress=progress)
    click.echo(summary_line(graph, out))


def summary_line(graph: Graph, out: Path) -> str:
    """Describe a written folder in one line."""
    size = sum(file.stat().st_size for file in out.iterdir())
    return f"{out}: {graph.num_nodes:,} vertices, {graph.num_edges:,} edges, {bytes_text(size)}"


def file_option(flag: str, help_text: str) -> Callable[[_F], _F]:
    """Click option for a file to write, whose path is checked at once; ``--json`` is the argument ``json_file``."""
    name = f"{flag.removeprefix('--')}_file"
    return click.option(flag, name, type=click.Path(path_type=Path), callback=_writable, help=help_text)


def _writable(_context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    if path is None:
        return None
    try:
        check_writable(parameter.opts[0], path)
    except OSError as error:
        raise click.BadParameter(str(error)) from None
    return path


def check_outputs(paths: Mapping[str, Path | None]) -> None:
    """Check paths by option (without dashes) before the long work: ClickException if one is not writable or twice."""
    seen: dict[Path, str] = {}
    for name, path in paths.items():
        if path is None:
            continue
        try:
            target = check_writable(f"--{name}", path)
        except OSError as error:
            raise click.ClickException(str(error)) from None
        if target in seen and (target.is_file() or not target.exists()):
            raise click.UsageError(f"--{name} must be another file than --{seen[target]}, got {path}")
        seen[target] = name
