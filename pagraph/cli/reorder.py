"""``pagraph reorder``: write a graph folder so that rows read together lie together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ..datasets import open_graph, reorder
from ..datasets.orders import ORDERS
from ..datasets.reordering import WINDOW, Reordered
from ..profile import training_edges
from ..sampling import NeighborSampler
from ..sampling.edge_batches import EdgeBatches
from ..sampling.negative import UniformNegatives
from ..system.atomic import check_absent, write_json
from ..system.tables import Table
from ..train.options import TrainOptions
from .options import build, options_of, split_option, train_fraction_option
from .profile import choose_seeds
from .terminal import file_option, print_table, progress_bar, summary_line


@click.command(name="reorder")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--by",
    type=click.Choice(ORDERS),
    default="both",
    show_default=True,
    help="By expected reads, what one vertex draws together, or both.",
)
@options_of(
    TrainOptions,
    ("task", "fanout", "batch_size", "seed"),
    task="What batches begin with: vertices, or edges and as many random pairs, as for link "
    "prediction.",
    fanout="Neighbours sampled per hop; the last serves the seeds, -1 takes all.",
    batch_size="Seeds per mini-batch.",
    seed="Seed of the batches that are counted.",
)
@split_option
@train_fraction_option
@click.option(
    "--node-type",
    help="Type of the training vertices, where there are several.  [default: those with "
    "train_mask]",
)
@click.option(
    "--memory", metavar="SIZE", help="Bytes to take, such as 2GiB.  [default: half of what is free]"
)
@file_option("--json", "Write all figures here.")
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

    The same graph with its vertices in another order: rows that a mini-batch reads lie together,
    and fewer pages are read. Masks and all fields move along; original_id keeps the ids. Says how
    many pages batches touch, before and after.
    """
    check_absent(out, name="OUT")
    options = build(TrainOptions, settings)
    if options.task == "links" and (node_type or split):
        raise click.UsageError(
            "--node-type and --split must be with --task nodes, got them with --task links"
        )
    graph = open_graph(folder, split=split)
    # The batches that are counted are those that `pagraph train` would draw.
    sampler: Any = NeighborSampler(list(options.fanout))
    if options.task == "links":
        seeds: Any = training_edges(graph, fraction=train_fraction, seed=options.seed)
        sampler = EdgeBatches(sampler, graph, UniformNegatives(1))
    else:
        seeds = choose_seeds(graph, node_type, train_fraction, seed=options.seed)
    origin = {
        "source": folder.name,
        "by": by,
        "fanout": list(options.fanout),
        "batch_size": options.batch_size,
    }
    with progress_bar(f"writing {out.name}") as progress:
        # Without the split: the folder is written as it is, with the masks of all splits.
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
    # Opened: what is said is what was written.
    click.echo(summary_line(open_graph(out), out))
    console = Console(highlight=False, markup=False)
    print_table(console, _pages(done))
    if json_file is not None:
        write_json(json_file, {"folder": str(folder), "out": str(out), **origin, **done.to_json()})


def _pages(done: Reordered) -> Table:
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
    return Table(rows, title, caption=caption)
