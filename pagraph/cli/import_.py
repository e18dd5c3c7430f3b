"""``pagraph import``: write a graph from elsewhere as a native folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..system.atomic import check_absent
from .terminal import progress_bar
from .writing import write_folder


@click.command(name="import")
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--split", default="", metavar="PREFIX", help="Folders: use another split, such as pub_.")
@click.option("--num-nodes", type=int, default=None, help="Edge lists: vertices.  [default: largest id + 1]")
@click.option("--relabel", is_flag=True, help="Edge lists: take any numbers or words as ids.")
@click.option("--undirected", is_flag=True, help="Edge lists, .npz: store both directions of every edge.")
@click.option("--weight", metavar="NAME", default=None, help="Edge lists, .npz: keep the weights as this field.")
@click.option(
    "--header/--no-header", default=None, help="Edge lists: the first line names the fields.  [default: look]"
)
def command(source: Path, out: Path, **settings: Any) -> None:
    """Read the graph SRC and write it as the folder OUT, which must not exist yet.

    SRC is a folder in PaGraph's form, a sparse matrix of scipy (.npz), an edge list (.txt, .tsv or .csv,
    plain or with .gz, or .parquet), or a graph that DGL (.bin) or PyG (.pt) saved.
    """
    from ..datasets import read_graph

    check_absent(out, name="OUT")
    with progress_bar(f"reading {source.name}") as progress:
        graph = read_graph(source, **settings, progress=progress)
    write_folder(graph, out, origin={"source": source.name})
