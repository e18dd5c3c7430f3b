"""``pagraph import``: write a graph from elsewhere as a native folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..datasets.forms import import_graph, read_graph
from ..system.atomic import check_absent
from .options import memory_option, options_of, store_option
from .terminal import few_collections, progress_bar, summary_line


@click.command(name="import")
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@options_of(
    read_graph,
    split={"metavar": "PREFIX", "help": "Folders: use another split, such as pub_."},
    num_nodes="Edge lists, edge_index: vertices.  [default: largest id + 1]",
    relabel="Edge lists: take any numbers or words as ids; vertices are sorted by them.",
    undirected="Each edge is named once: store both directions.",
    weight={
        "metavar": "NAME[:DTYPE]",
        "once": True,
        "help": "Edge lists, matrices: keep the weights as this field, in the dtype that holds "
        "all, or as "
        "float32, float64, int32 or int64.",
    },
    header={
        "flags": ("--header/--no-header",),
        "help": "Edge lists: the first line names the fields.  [default: look]",
    },
    features={
        "metavar": "FILE",
        "once": True,
        "help": "A row per vertex, for the field feat: .npy, .npz, .csv, .parquet, .pt.",
    },
    labels={"metavar": "FILE", "once": True, "help": "A row per vertex, for the field label."},
    train={
        "metavar": "FILE|FRACTION",
        "once": True,
        "help": "Ids or a mask, or a share such as 60%: the field train_mask.",
    },
    val={"metavar": "FILE|FRACTION", "once": True, "help": "The same for val_mask."},
    test={"metavar": "FILE|FRACTION", "once": True, "help": "The same for test_mask."},
)
@store_option
@memory_option
def command(
    source: Path, out: Path, memory: str | None, store: str | None, **settings: Any
) -> None:
    """Read the graph SRC and write it as the folder OUT, which must not exist yet.

    SRC is an edge list (.txt, .tsv, .csv, also packed, or .parquet), Matrix Market (.mtx), GraphML,
    GML, KONECT's out.NAME, an .npz of scipy or of a GNN benchmark, an edge_index (.npz, .npy, .pt),
    a graph that DGL (.bin) or PyG (.pt) saved, a folder of PaGraph's, OGB's or GraphBolt's, or a
    YAML file that describes tables.
    """
    check_absent(out, name="OUT")
    with few_collections(), progress_bar(f"importing {source.name}") as progress:
        origin = {"source": source.name}
        graph = import_graph(
            source, out, **settings, memory=memory, store=store, origin=origin, progress=progress
        )
    click.echo(summary_line(graph, out))
    # Rows in the file's order would be silently wrong: the user is told once.
    if settings["relabel"] and (settings["features"] or settings["labels"]):
        click.echo(
            "note: rows of --features and --labels were taken in the order of the sorted ids",
            err=True,
        )
