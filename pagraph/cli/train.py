"""``pagraph train``: train on a graph folder or a partition, and report accuracy and times."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from ..datasets.paths import folder_form, is_partition
from ..options.training import FRAMEWORKS, TIMEOUT, TrainOptions, check_timeout
from .options import build, options_of, split_option
from .settings import check_json
from .terminal import file_option


@click.command(name="train")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@options_of(
    TrainOptions,
    fanout={
        "help": "Neighbours sampled per hop; the last serves the seeds, -1 takes all.",
        "default": None,  # it depends on the folder
        "show_default": "10,10; 10 on parts of 1 hop",
    },
)
@split_option
@click.option(
    "--source",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Graph that the parts were made from, if it was moved.  [default: the path in the parts]",
)
@click.option(
    "--baseline",
    type=click.Choice([*FRAMEWORKS]),
    help="Use DGL's own DataLoader or PyG's own NeighborLoader instead.",
)
@click.option(
    "--compare",
    type=click.Choice([*FRAMEWORKS]),
    help="Run with DGL's own DataLoader or PyG's own NeighborLoader, then with pagraph's.",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    default=None,
    help="Write the results to this file.",
)
@file_option(
    "--trace",
    "Write a timeline of the loader, for Perfetto; .gz is compressed. One file per process.",
)
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    help="File to save the run to after each epoch, and to resume from with the same bits.",
)
@click.option(
    "--timeout",
    type=float,
    default=TIMEOUT,
    show_default=True,
    help="Seconds that a process waits for the others before the run fails.",
)
def command(
    folder: Path,
    split: str,
    source: Path | None,
    baseline: str | None,
    compare: str | None,
    json_file: Path | None,
    trace_file: Path | None,
    checkpoint: Path | None,
    timeout: float,
    **settings: Any,
) -> None:
    """Train on the graph folder or partition DIR, and report accuracy and where the time of each
    epoch went.

    With several vertex types, R-GCN trains on the type that has masks; with --train-fraction, on
    the one that has labels.

    The test accuracy is that of the epoch with the best validation accuracy, both with all
    neighbours. With --task links some edges are held out, and AUC and mean reciprocal rank measure
    how well the model tells them from random pairs.

    A partition of K parts is trained by K processes that average their gradients:

        torchrun --nproc_per_node=K -m pagraph train DIR
    """
    if split and settings["train_fraction"] is not None:
        raise click.UsageError("--split and --train-fraction must not be given together")
    if baseline and compare:
        raise click.UsageError("--baseline and --compare must not be given together")
    if baseline and trace_file is not None:
        raise click.UsageError(
            f"--trace must not be given with --baseline {baseline}, whose loader has no timeline"
        )
    settings["loader"] = baseline or compare or "pagraph"
    names = (compare, "pagraph") if compare else (settings["loader"],)
    # Several processes check together later, so that one of them prints the error.
    if "RANK" not in os.environ:
        _check(folder, settings, json_file, timeout)
    from .train_run import run

    run(
        folder,
        settings,
        names=names,
        split=split,
        source=source,
        json_file=json_file,
        trace_file=trace_file,
        checkpoint=checkpoint,
        timeout=timeout,
    )


def _check(folder: Path, settings: dict[str, Any], json_file: Path | None, timeout: float) -> None:
    """Check all that can be known before torch is imported."""
    check_timeout(timeout)
    check_json(json_file)
    # Its default depends on the folder.
    fanout = settings["fanout"] or TrainOptions.fanout
    build(TrainOptions, {**settings, "fanout": fanout})
    if not is_partition(folder):
        folder_form(folder)
