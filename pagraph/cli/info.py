"""``pagraph info``: show counts, degree skew, fields and bytes of a graph folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..datasets.paths import folder_form
from ..system.tables import Table
from ..system.units import bytes_text, shortened, words_text
from .options import memory_option
from .terminal import file_option, print_table, print_text, progress_bar

if TYPE_CHECKING:
    from ..datasets.summary import EdgeSummary, FieldSummary, GraphSummary


_LONGEST_ORIGIN = 1000  # characters; notes in others' folders may be of any length


@click.command(name="info")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--verify", is_flag=True, help="Compare every checksum and check every id.")
@file_option("--json", "Also write the figures to this file.")
@memory_option
def command(folder: Path, verify: bool, json_file: Path | None, memory: str | None) -> None:
    """Show counts, degree skew, fields and bytes of the graph folder DIR.

    The first table shows the share of the edges that lead from (or to) the 1, 5, 10 and 20 % of
    the vertices with the highest degrees. It is the hit rate of a degree-ranked cache of them.
    """
    form = folder_form(folder)
    # Not before: the summary reads files with NumPy.
    from ..datasets.manifest import Manifest
    from ..datasets.summary import summarise, summarise_folder
    from ..system.atomic import write_json

    # From the folder's files where possible, without waiting for torch. `verify` and folders of
    # PaGraph's form need the graph itself.
    summary = None
    if not verify:
        summary = summarise_folder(folder, memory=memory)
    if summary is None:
        from ..datasets.opening import open_graph

        with progress_bar(f"verifying {folder.name}") as progress:
            graph = open_graph(folder, verify=verify, progress=progress)
        summary = summarise(graph, memory=memory)
    origin = Manifest.read(folder).origin if form == "native" else {}
    _print(folder, form, origin, summary)
    if verify:
        # Only native folders have checksums.
        checked = "every checksum and every id" if form == "native" else "every id"
        click.echo(f"verified: {checked}")
    if json_file is not None:
        write_json(
            json_file, {"folder": str(folder), "form": form, "origin": origin, **summary.to_json()}
        )


def _print(folder: Path, form: str, origin: dict[str, Any], summary: GraphSummary) -> None:
    counts = []
    for name, count in summary.num_nodes.items():
        of_type = f" of {shortened(name)}" if len(summary.num_nodes) > 1 else ""
        counts.append(f"{count:,} vertices{of_type}")
    edges = sum(edge.num_edges for edge in summary.edges)
    print_text(
        f"{folder} ({form}): {', '.join(counts)}, {edges:,} edges, "
        f"{bytes_text(summary.total_bytes)}"
    )
    if origin:
        origins = ", ".join(f"{key}={value}" for key, value in origin.items())
        if not origins.isprintable():  # control characters could drive the terminal
            origins = ascii(origins)
        print_text(f"from {shortened(origins, _LONGEST_ORIGIN)}")
    if summary.edges:
        print_table(_edge_table(summary.edges))
        print_text()
    print_table(_array_table(summary.arrays, several=len(summary.edges) > 1))


def _edge_table(edges: list[EdgeSummary]) -> Table:
    """Two rows for each edge type: its in-edges and its out-edges."""
    from ..datasets.summary import CACHE_SHARES

    several = len(edges) > 1
    title = "share of the edges that a cache of the vertices of highest degree holds"
    names = ["edge type", "edges"] if several else []
    tops = [f"top {share:.0%}" for share in CACHE_SHARES]
    rows = [[*names, "", "max degree", *tops]]
    captions = []
    for edge in edges:
        name = shortened(edge.type)
        known = [name, f"{edge.num_edges:,}"]
        # Crossed: sampling in-edges reads a vertex once for each of its out-edges.
        for label, most, shares in (
            ("in-edges sampled", edge.max_out_degree, edge.by_out_degree),
            ("out-edges sampled", edge.max_in_degree, edge.by_in_degree),
        ):
            of_type = known if several else []
            rows.append([*of_type, label, f"{most:,}", *(f"{share:.1%}" for share in shares)])
            known = ["", ""]
        if oddities := _oddities(edge):
            owner = f"{name}: " if several else ""
            captions.append(f"{owner}{oddities}")
    # The names of types and directions; all else is a number.
    left = (0, 2) if several else (0,)
    return Table(rows, title, left=left, caption="\n".join(captions))


def _oddities(edge: EdgeSummary) -> str:
    found = ((edge.isolated, "isolated vertices"), (edge.self_loops, "self-loops"))
    words = [f"{count:,} {what}" for count, what in found if count]
    if edge.num_edges and edge.both_ways is not None:
        every = "every edge" if edge.both_ways else "not every edge"
        words.insert(0, f"{every} goes both ways")
    return ", ".join(words)


def _array_table(arrays: list[FieldSummary], *, several: bool) -> Table:
    rows = [["array", "dtype", "shape", "bytes", "where", "holds"]]
    for array in arrays:
        name = shortened(array.name)
        if array.kind != "field":
            name = f"({name})"
        if several:
            name = f"{shortened(array.owner)}: {name}"
        dtype = array.dtype
        if array.stored is not None:
            dtype = f"{dtype} as {array.stored}"
        cells = [
            name,
            dtype,
            " x ".join(f"{size:,}" for size in array.shape),
            bytes_text(array.bytes),
            array.where,
            _content(array),
        ]
        rows.append(cells)
    return Table(rows, left=(0, 1, 2, 4, 5))


def _content(array: FieldSummary) -> str:
    parts = []
    if array.classes is not None:
        parts.append(f"{array.classes:,} classes")
    if array.true is not None:
        parts.append(f"{array.true:,} true")
    if array.unit:
        parts.append(f"{array.unit} since 1970")
    if array.words:
        parts.append(words_text(array.words))
    return "; ".join(parts)
