"""``pagraph profile``: show hit rates of feature caches on a graph, and recommend one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..datasets.paths import folder_form
from ..options.names import PLOT_FORMATS
from ..options.training import TrainOptions
from .options import build, node_type_option, options_of, split_option, train_fraction_option
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
    task="What batches start from: vertices, or edges with a random pair each, as for link "
    "prediction.",
    fanout="Neighbours sampled per hop; the last serves the seeds, -1 takes all.",
    batch_size="Seeds per mini-batch.",
    epochs={"help": "Epochs to measure.", "default": 1},
    device="Device that --measure delivers batches to: auto, cpu, or cuda[:N].",
    num_workers="Sampling threads; 0 for half the cores, up to 4.",
    lookahead="With --measure: batches sampled ahead, to read rows missing from the cache once; 0 "
    "for none.",
    memory="Host memory for caches, graph and batches: 4GiB or bytes; auto: what is free.",
    seed="Seed of shuffling and sampling.",
)
@options_of(Compared)
@split_option
@train_fraction_option
@node_type_option
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
    """Measure what a feature cache would save on the graph folder DIR, and recommend its size and
    policy.

    Samples real epochs once, without reading features, and computes the hit rate of every policy
    with every budget.
    """
    # Checks come before the graph is opened, which may take minutes.
    outputs = build(ProfileFiles, settings)
    compared = build(Compared, settings)
    if outputs.trace is not None and not measure:
        raise click.UsageError("--trace needs --measure, which runs what is traced")
    options = build(TrainOptions, settings)
    if options.task == "links":
        _refuse_for_links(node_type=node_type, split=split, measure=measure)
    check_outputs(vars(outputs), PLOT_FORMATS)
    folder_form(folder)
    # It imports torch, which no mistake above waits for.
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
    """Refuse options that choose training vertices, or measure a loader of vertices."""
    for name, given in options.items():
        if given:
            raise click.UsageError(
                f"--{name.replace('_', '-')} needs --task nodes, got --task links"
            )
