"""``pagraph preaggregate``: compute the first layer's neighbour sums once, and write them as a graph folder."""

from __future__ import annotations

from pathlib import Path

import click

from ..system.atomic import check_absent
from ..train.preaggregation import SUMS
from .terminal import progress_bar
from .writing import told


@click.command(name="preaggregate")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--model",
    type=click.Choice([*SUMS]),
    default="sage",
    show_default=True,
    help="The model to train: GraphSAGE takes means, GCN normalised sums.",
)
@click.option(
    "--row-normalize", is_flag=True, help="Divide each vertex's features by their sum first; for train it is too late."
)
def command(folder: Path, out: Path, model: str, row_normalize: bool) -> None:
    """Add up every vertex's neighbours as the first layer would, and write the folder OUT, which must not exist yet.

    Training on OUT samples one hop less than on DIR: give --fanout one entry less, and partition with --hops one less.
    """
    from ..datasets import open_graph
    from ..train.preaggregation import preaggregate

    check_absent(out, name="OUT")
    graph = open_graph(folder)
    with progress_bar(f"writing {out.name}") as progress:
        preaggregate(
            graph, out, model=model, row_normalize=row_normalize, origin={"source": folder.name}, progress=progress
        )
    click.echo(told(graph, out))
    click.echo(f"{SUMS[model]}: for pagraph train --model {model}, with one entry of --fanout less")
