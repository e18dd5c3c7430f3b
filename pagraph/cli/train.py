"""``pagraph train``: train GraphSAGE or GCN on a graph folder, through pagraph's loader or DGL's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..train import TrainOptions
from ..train.options import LOADERS, MODELS
from .writing import writable_file

if TYPE_CHECKING:
    from ..train import TrainResult
    from ..train.task import Task

_DEFAULTS = TrainOptions()


def _fanout(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"fanout must be integers with commas between, got {value!r}") from None


def _option(name: str, text: str, **settings: Any) -> Any:
    """An option whose default is that of ``TrainOptions``."""
    default = getattr(_DEFAULTS, name)
    return click.option(
        f"--{name.replace('_', '-')}",
        name,
        default=default,
        show_default=default is not None,
        help=text,
        **settings,
    )


@click.command(name="train")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@_option("model", "GraphSAGE with mean aggregation, or GCN.", type=click.Choice(MODELS))
@click.option(
    "--fanout",
    default=",".join(map(str, _DEFAULTS.fanout)),
    show_default=True,
    callback=_fanout,
    help="Neighbours sampled per hop; the last serves the seeds, -1 takes all.",
)
@_option("batch_size", "Seeds per mini-batch.")
@_option("epochs", "Passes over the training vertices.")
@_option("hidden", "Width of the hidden layers.")
@_option("lr", "Learning rate of Adam.")
@_option("dropout", "Share of hidden values dropped.")
@_option("weight_decay", "L2 penalty.")
@_option(
    "row_normalize",
    "Divide each vertex's features by their sum, usual for bags of words.",
    is_flag=True,
)
@_option("device", "auto, cpu, or cuda[:N].")
@_option("cache", "Budget of the feature cache: 2GiB, bytes, a share such as 10%, or auto.")
@_option("cache_policy", "What the cache holds: auto, adaptive, degree, presample[:K], vip or random.")
@_option("cache_dtype", "Cache float features as float16 or bfloat16, twice as many.", type=str)
@_option("num_workers", "Sampling threads, 0: the loader's choice; DGL's loader: processes.")
@_option("prefetch", "Batches made ahead.", type=int)
@_option("eval_every", "Epochs between evaluations.")
@_option("seed", "Of weights, dropout, shuffling and sampling.")
@click.option("--split", default="", metavar="PREFIX", help="Use another split of the folder, such as pub_.")
@click.option(
    "--baseline",
    type=click.Choice(["dgl"]),
    default=None,
    help="The same run through DGL's own DataLoader instead.",
)
@click.option(
    "--compare",
    type=click.Choice(["dgl"]),
    default=None,
    help="Run with DGL's DataLoader, then with pagraph's.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), default=None, help="Write the figures here.")
@click.option(
    "--trace",
    "trace_file",
    type=click.Path(path_type=Path),
    default=None,
    callback=writable_file,
    help="Write a timeline of the loader here, for Perfetto; .gz is compressed.",
)
def command(
    folder: Path,
    split: str,
    baseline: str | None,
    compare: str | None,
    json_file: Path | None,
    trace_file: Path | None,
    **settings: Any,
) -> None:
    """Train on the graph folder DIR and report accuracy, and where the time of each epoch went.

    The test accuracy is that of the epoch with the best validation accuracy, both with all neighbours.
    """
    if baseline and compare:
        raise click.UsageError("--baseline and --compare must not be given together")
    if json_file is not None and not json_file.parent.is_dir():
        raise click.BadParameter(f"--json must be in a folder that exists, got {json_file}")
    if baseline and trace_file is not None:
        raise click.UsageError(f"--trace must not be given with --baseline {baseline}, whose loader has no timeline")
    options = TrainOptions(**settings, loader=baseline or "pagraph")
    from ..atomic import write_json
    from ..datasets import open_graph
    from ..train.task import make_task
    from .train_report import comparison_lines, result_line

    task = make_task(open_graph(folder, split=split), options)
    click.echo(f"{folder}: {task}")
    names = LOADERS[::-1] if compare else (options.loader,)
    results = {name: _run(task, replace(options, loader=name), trace_file) for name in names}
    for name, result in results.items():
        click.echo(result_line(result, title=name))
    if compare:
        click.echo("\n".join(["", *comparison_lines(results["dgl"], results["pagraph"])]))
    if json_file is not None:
        source = {"folder": str(folder), "split": split}
        reports = {name: {**source, **result.to_json()} for name, result in results.items()}
        write_json(json_file, reports if compare else reports[options.loader])


def _run(task: Task, options: TrainOptions, trace_file: Path | None) -> TrainResult:
    from ..pipeline import Tracer
    from ..train.loop import train
    from .train_report import ConsoleReporter

    click.echo(f"{options.model} with {options.loader}'s loader on {options.torch_device()}")
    with ConsoleReporter(options) as reporter:
        if trace_file is None or options.loader == "dgl":
            return train(task, options, reporter=reporter)
        with Tracer(trace_file) as tracer:
            return train(task, options, reporter=reporter, tracer=tracer)
