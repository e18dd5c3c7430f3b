"""``pagraph import``: write a graph from elsewhere as a native folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..datasets import read_graph
from ..system.atomic import check_absent
from .options import options_of
from .terminal import progress_bar, write_folder


@click.command(name="import")
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@options_of(
    read_graph,
    split={"metavar": "PREFIX", "help": "Folders: use another split, such as pub_."},
    num_nodes="Edge lists: vertices.  [default: largest id + 1]",
    relabel="Edge lists: take any numbers or words as ids.",
    undirected="Edge lists, .npz: store both directions of every edge.",
    weight={"metavar": "NAME", "help": "Edge lists, .npz: keep the weights as this field."},
    header={
        "flags": ("--header/--no-header",),
        "help": "Edge lists: the first line names the fields.  [default: look]",
    },
)
def command(source: Path, out: Path, **settings: Any) -> None:
    """Read the graph SRC and write it as the folder OUT, which must not exist yet.

    SRC is a folder in PaGraph's form, a sparse matrix of scipy (.npz), an edge list (.txt, .tsv or .csv,
    plain or with .gz, or .parquet), or a graph that DGL (.bin) or PyG (.pt) saved.
    """
    check_absent(out, name="OUT")
    with progress_bar(f"reading {source.name}") as progress:
        graph = read_graph(source, **settings, progress=progress)
    write_folder(graph, out, origin={"source": source.name})
