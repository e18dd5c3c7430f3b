"""``pagraph preaggregate``: compute the first layer's neighbour sums once, and write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..datasets import open_graph
from ..system.atomic import check_absent
from ..train.preaggregation import SUMS, preaggregate
from .options import memory_option, options_of
from .terminal import progress_bar, summary_line


@click.command(name="preaggregate")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@options_of(
    preaggregate,
    model={
        "default": "sage",
        "choices": tuple(SUMS),
        "help": "The model to train: GraphSAGE takes means, GCN normalised sums.",
    },
    row_normalize="Divide each vertex's features by their sum first; for train it is too late.",
)
@memory_option
def command(folder: Path, out: Path, model: str, row_normalize: bool, memory: str | None) -> None:
    """Add up every vertex's neighbours as the first layer would, and write the folder OUT, which
    must not exist yet.

    Training on OUT samples one hop less than on DIR: give --fanout one entry less, and partition
    with --hops one less.
    """
    check_absent(out, name="OUT")
    graph = open_graph(folder)
    origin = {"source": folder.name}
    with progress_bar(f"writing {out.name}") as progress:
        given: Any = {"model": model, "row_normalize": row_normalize, "memory": memory}
        preaggregate(graph, out, **given, origin=origin, progress=progress)
    click.echo(summary_line(graph, out))
    click.echo(f"{SUMS[model]}: for pagraph train --model {model}, with one entry of --fanout less")
