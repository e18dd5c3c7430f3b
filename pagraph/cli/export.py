"""``pagraph export``: write a graph folder in the form of another library."""

from __future__ import annotations

from pathlib import Path

import click

from ..datasets.forms import check_target
from ..datasets.paths import folder_form
from ..options.names import EXPORT_FORMS
from .options import split_option
from .terminal import print_text


@click.command(name="export")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--form", type=click.Choice(tuple(EXPORT_FORMS)), required=True, help="Library to write for."
)
@split_option
def command(folder: Path, out: Path, form: str, split: str) -> None:
    """Write the graph folder DIR with all its fields as OUT, which must not exist yet.

    --form dgl writes a file like dgl.save_graphs (OUT ends in .bin), pyg a Data or HeteroData like
    torch.save (.pt), ogb a folder of comma-separated tables, raw/ and split/. A field that the form
    cannot hold is an error. pagraph import reads all three forms.
    """
    # Before torch is imported: a mistyped path is refused at once.
    check_target(out, form, name="OUT")
    folder_form(folder)
    from ..datasets import export_graph, open_graph

    graph = open_graph(folder, split=split)
    export_graph(graph, out, form=form)
    print_text(
        f"{out}: {graph.num_nodes:,} vertices, {graph.num_edges:,} edges, as {form} reads it"
    )
