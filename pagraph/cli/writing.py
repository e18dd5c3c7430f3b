"""The last step of the verbs that make a graph folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.filesize import decimal

from .progress import progress_bar

if TYPE_CHECKING:
    from ..graph import Graph


def write_folder(graph: Graph, out: Path, *, origin: Mapping[str, Any]) -> None:
    """Write ``graph`` as the folder ``out`` and say so in one line."""
    from ..datasets import write_graph

    with progress_bar(f"writing {out.name}") as progress:
        write_graph(graph, out, origin=origin, progress=progress)
    size = sum(file.stat().st_size for file in out.iterdir())
    click.echo(f"{out}: {graph.num_nodes:,} vertices, {graph.num_edges:,} edges, {decimal(size)}")
