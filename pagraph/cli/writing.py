"""What verbs write: graph folders, and files whose paths are checked before the work begins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..graph import Graph


def write_folder(graph: Graph, out: Path, *, origin: Mapping[str, Any]) -> None:
    """Write ``graph`` as the folder ``out`` and say so in one line."""
    from rich.filesize import decimal

    from ..datasets import write_graph
    from .progress import progress_bar

    with progress_bar(f"writing {out.name}") as progress:
        write_graph(graph, out, origin=origin, progress=progress)
    size = sum(file.stat().st_size for file in out.iterdir())
    click.echo(f"{out}: {graph.num_nodes:,} vertices, {graph.num_edges:,} edges, {decimal(size)}")


def writable_file(_context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Callback of an option that names a file to write: one that cannot be written is refused at once."""
    if path is None:
        return None
    from ..atomic import check_writable

    try:
        check_writable(parameter.opts[0], path)
    except OSError as error:
        raise click.BadParameter(str(error)) from None
    return path
