"""``pagraph profile``: hit rates of feature caches on a graph, and a recommended one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..datasets.paths import folder_form
from ..options.names import PLOT_FORMATS
from ..options.training import TrainOptions
from .options import build, options_of, split_option, train_fraction_option
from .settings import Compared, ProfileFiles
from .terminal import check_outputs


@click.command(name="profile")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@options_of(
    TrainOptions,
    (
        "task",
        "fanout",
        "batch_size",
        "epochs",
        "device",
        "num_workers",
        "lookahead",
        "memory",
        "seed",
    ),
    task="What batches begin with: vertices, or edges and as many random pairs, as for link "
    "prediction.",
    fanout="Neighbours sampled per hop; the last serves the seeds, -1 takes all.",
    batch_size="Seeds per mini-batch.",
    epochs={"help": "Epochs to measure.", "default": 1},
    device="Where --measure delivers: auto, cpu, or cuda[:N].",
    num_workers="Sampling threads, 0: as many as are useful.",
    lookahead="With --measure: batches sampled ahead, to read what they miss of a file once; 0 for "
    "none.",
    memory="Host memory for caches, graph and batches: 4GiB or bytes; auto: what is free.",
    seed="Seed of shuffling and sampling.",
)
@options_of(Compared)
@split_option
@train_fraction_option
@click.option(
    "--node-type",
    help="Type of the training vertices, where there are several.  [default: those with "
    "train_mask]",
)
@click.option("--measure", is_flag=True, help="Also time real loading with the recommended cache.")
@options_of(ProfileFiles)
def command(
    folder: Path,
    split: str,
    train_fraction: float | None,
    node_type: str | None,
    measure: bool,
    **settings: Any,
) -> None:
    """Say what a feature cache would save on the graph folder DIR, how large it should be, and by
    which policy.

    Samples real epochs once, without reading features, and works out the hit rate of every policy
    with every budget.
    """
    # Checks come before the graph is opened, which may take minutes.
    outputs = build(ProfileFiles, settings)
    compared = build(Compared, settings)
    if outputs.trace is not None and not measure:
        raise click.UsageError("--trace must come with --measure, which runs what is traced")
    options = build(TrainOptions, settings)
    if options.task == "links":
        _refuse_for_links(node_type=node_type, split=split, measure=measure)
    check_outputs(vars(outputs), PLOT_FORMATS)
    folder_form(folder)
    # Not before: it imports torch, which no mistake above waits for.
    from .profile_run import profile

    profile(
        folder,
        split,
        options,
        compared,
        outputs,
        train_fraction=train_fraction,
        node_type=node_type,
        measure=measure,
    )


def _refuse_for_links(**options: Any) -> None:
    """Refuse options that say which vertices are trained on, or measure a loader of vertices."""
    for name, given in options.items():
        if given:
            raise click.UsageError(
                f"--{name.replace('_', '-')} must be with --task nodes, got it with --task links"
            )
