"""Output of verbs: graph folders, and files whose paths are checked before the work begins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..system.atomic import check_writable
from ..system.units import bytes_text

if TYPE_CHECKING:
    from ..graph.graph import Graph


def write_folder(graph: Graph, out: Path, *, origin: Mapping[str, Any]) -> None:
    """Write ``graph`` as the folder ``out`` and say so in one line."""
    from ..datasets import write_graph
    from .terminal import progress_bar

    with progress_bar(f"writing {out.name}") as progress:
        write_graph(graph, out, origin=origin, progress=progress)
    click.echo(told(graph, out))


def told(graph: Graph, out: Path) -> str:
    """Describe a written folder in one line."""
    size = sum(file.stat().st_size for file in out.iterdir())
    return f"{out}: {graph.num_nodes:,} vertices, {graph.num_edges:,} edges, {bytes_text(size)}"


def writable_file(_context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Option callback that refuses a path that cannot be written."""
    if path is None:
        return None
    try:
        check_writable(parameter.opts[0], path)
    except OSError as error:
        raise click.BadParameter(str(error)) from None
    return path


def check_outputs(paths: Mapping[str, Path | None]) -> None:
    """Check that files can be written, before the long work.

    Args:
        paths: Name of an option, without dashes, to its path.

    Raises:
        ClickException: A path cannot be written, or is given twice.
    """
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
