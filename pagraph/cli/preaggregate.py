"""``pagraph preaggregate``: compute the first layer's neighbour sums, and write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..datasets.paths import folder_form
from ..options.names import SUMS
from ..system.atomic import check_absent
from .options import memory_option
from .terminal import print_text, progress_bar, summary_line


@click.command(name="preaggregate")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--model",
    type=click.Choice(tuple(SUMS)),
    default="sage",
    show_default=True,
    help="Model to train: GraphSAGE takes means, GCN normalised sums.",
)
@click.option(
    "--row-normalize",
    is_flag=True,
    help="Divide each vertex's features by their sum first. pagraph train could only do so later.",
)
@memory_option
def command(folder: Path, out: Path, model: str, row_normalize: bool, memory: str | None) -> None:
    """Sum every vertex's neighbours as the first layer would, and write the folder OUT, which must
    not exist yet.

    Training on OUT samples one hop fewer than on DIR. Pass --fanout with one entry fewer, and
    partition with --hops lower by one.
    """
    check_absent(out, name="OUT")
    folder_form(folder)
    # They import torch, which no mistake above waits for.
    from ..datasets import open_graph
    from ..train.preaggregation import preaggregate

    graph = open_graph(folder)
    origin = {"source": folder.name}
    with progress_bar(f"writing {out.name}") as progress:
        given: Any = {"model": model, "row_normalize": row_normalize, "memory": memory}
        preaggregate(graph, out, **given, origin=origin, progress=progress)
    print_text(summary_line(graph, out))
    print_text(f"{SUMS[model]}: for pagraph train --model {model}, with one entry of --fanout less")
