"""``pagraph reorder``: write a graph folder so that rows read together lie together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..datasets.paths import folder_form
from ..options.names import ORDERS
from ..options.training import TrainOptions
from ..system.atomic import check_absent, write_json
from ..system.tables import Table
from .options import (
    build,
    memory_option,
    node_type_option,
    options_of,
    split_option,
    train_fraction_option,
)
from .terminal import file_option, print_table, print_text, progress_bar, summary_line

if TYPE_CHECKING:
    from ..datasets.reordering import Reordered


@click.command(name="reorder")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--by",
    type=click.Choice(ORDERS),
    default="both",
    show_default=True,
    help="By expected reads, by communities of vertices drawn together, or both.",
)
@options_of(
    TrainOptions,
    ("task", "fanout", "batch_size", "seed"),
    task="What batches start from: vertices, or edges with a random pair each, as for link "
    "prediction.",
    fanout="Neighbours sampled per hop; the last serves the seeds, -1 takes all.",
    batch_size="Seeds per mini-batch.",
    seed="Seed of the batches that are counted.",
)
@split_option
@train_fraction_option
@node_type_option
@memory_option
@file_option("--json", "Write all figures to this file.")
def command(
    folder: Path,
    out: Path,
    by: str,
    split: str,
    train_fraction: float | None,
    node_type: str | None,
    memory: str | None,
    json_file: Path | None,
    **settings: Any,
) -> None:
    """Write the graph folder DIR as OUT, which must not exist yet, for training from disk.

    OUT is the same graph with its vertices in another order. Rows that a mini-batch reads are close
    together, so that fewer pages are read. Masks and all fields are reordered, too; original_id
    keeps the old ids. Prints how many pages batches touch, before and after.
    """
    check_absent(out, name="OUT")
    options = build(TrainOptions, settings)
    if options.task == "links" and (node_type or split):
        raise click.UsageError("--node-type and --split need --task nodes, got --task links")
    folder_form(folder)
    # They import torch, which no mistake above waits for.
    from ..datasets import open_graph, reorder
    from .seeds import seeds_and_sampler

    graph = open_graph(folder, split=split)
    # The batches that are counted are those that `pagraph train` would draw.
    seeds, sampler = seeds_and_sampler(graph, options, node_type, train_fraction)
    origin = {
        "source": folder.name,
        "by": by,
        "fanout": list(options.fanout),
        "batch_size": options.batch_size,
    }
    with progress_bar(f"writing {out.name}") as progress:
        # Opened without the split, so that the masks of all splits are written.
        done = reorder(
            open_graph(folder),
            out,
            by=by,
            seeds=seeds,
            sampler=sampler,
            batch_size=options.batch_size,
            memory=memory,
            seed=options.seed,
            origin=origin,
            progress=progress,
        )
    # Opened again, to report what was written.
    print_text(summary_line(open_graph(out), out))
    print_table(_pages(done))
    if json_file is not None:
        write_json(json_file, {"folder": str(folder), "out": str(out), **origin, **done.to_json()})


def _pages(done: Reordered) -> Table:
    from ..datasets.reordering import WINDOW

    caption = f"bytes of pages read over bytes of rows needed, of a batch and of {WINDOW} together"
    columns = [
        "",
        *("pages a batch", "after"),
        *("batch", "after"),
        *(f"{WINDOW} batches", "after"),
    ]
    rows = [columns]
    for what, before in done.before.items():
        after = done.after[what]
        name = what
        if what == "features":
            fields = ", ".join(sorted(set(done.fields.values()))) or "no fields"
            name = f"{what} ({fields})"
        cells = [
            f"{before.pages:,.0f}",
            f"{after.pages:,.0f}",
            f"{before.batch_ratio:.2f}",
            f"{after.batch_ratio:.2f}",
            f"{before.window_ratio:.2f}",
            f"{after.window_ratio:.2f}",
        ]
        rows.append([name, *cells])
    title = f"{done.batches} batches of {done.batch_size:,} seeds, by {done.by}"
    return Table(rows, title, left=(0,), caption=caption)
