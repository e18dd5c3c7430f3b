"""``pagraph train``: train GraphSAGE or GCN on a graph folder or a partition, through pagraph's loader or DGL's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..train import TrainOptions
from ..train.options import COMPRESSIONS, LOADERS, MODELS
from . import BAD_INPUT, show_error
from .options import options_of
from .writing import writable_file

if TYPE_CHECKING:
    from ..train import TrainResult
    from ..train.assignment import Assignment
    from ..train.distributed import World


@click.command(name="train")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@options_of(
    TrainOptions,
    model={"help": "GraphSAGE with mean aggregation, or GCN.", "choices": MODELS},
    fanout={
        "help": "Neighbours sampled per hop; the last serves the seeds, -1 takes all.  "
        "[default: 10,10; 10 on parts of 1 hop]",
        "default": None,
    },
    batch_size="Seeds per mini-batch, of each process.",
    epochs="Passes over the training vertices.",
    hidden="Width of the hidden layers.",
    lr="Learning rate of Adam.",
    dropout="Share of hidden values dropped.",
    weight_decay="L2 penalty.",
    row_normalize="Divide each vertex's features by their sum, usual for bags of words.",
    device="auto, cpu, or cuda[:N]; of several processes each takes its own.",
    cache="Budget of the feature cache: 2GiB, bytes, a share such as 10%, or auto.",
    cache_policy="What the cache holds: auto, adaptive, degree, presample[:K], vip or random.",
    cache_dtype="Cache float features as float16 or bfloat16, twice as many.",
    num_workers="Sampling threads, 0: the loader's choice; DGL's loader: processes.",
    prefetch="Batches made ahead.",
    eval_every="Epochs between evaluations.",
    seed="Seed of weights, dropout, shuffling and sampling.",
    grad_compression={"help": "How several processes send gradients.", "choices": COMPRESSIONS},
)
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
    help="Write a timeline of the loader here, for Perfetto; .gz is compressed. Several processes: a file each.",
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
    """Train on the graph folder or partition DIR and report accuracy, and where the time of each epoch went.

    The test accuracy is that of the epoch with the best validation accuracy, both with all neighbours.

    A partition of K parts is trained by K processes that average their gradients:

        torchrun --nproc_per_node=K -m pagraph train DIR
    """
    if baseline and compare:
        raise click.UsageError("--baseline and --compare must not be given together")
    if baseline and trace_file is not None:
        raise click.UsageError(f"--trace must not be given with --baseline {baseline}, whose loader has no timeline")
    settings["loader"] = baseline or "pagraph"
    from ..atomic import write_json
    from ..train.assignment import assign
    from ..train.distributed import end_process, joined_world
    from .train_report import assignment_lines, comparison_lines, json_report, result_line

    with joined_world(device=settings["device"]) as world, _one_voice(world):
        options = world.together(lambda: _options(folder, settings, json_file, world))
        work = assign(folder, options, split=split, world=world)
        say = click.echo if world.is_first else _say_nothing
        say("\n".join(assignment_lines(folder, work)))
        names = LOADERS[::-1] if compare else (options.loader,)
        results = {name: _run(work, replace(options, loader=name), world, trace_file) for name in names}
        for name, result in results.items():
            say(result_line(result, title=name))
        if compare:
            say("\n".join(["", *comparison_lines(results["dgl"], results["pagraph"])]))
        if json_file is not None and world.is_first:
            reports = {name: json_report(result, folder, split, work) for name, result in results.items()}
            write_json(json_file, reports if compare else reports[options.loader])
    if world.connected:
        end_process()


def _options(folder: Path, settings: dict[str, Any], json_file: Path | None, world: World) -> TrainOptions:
    from ..train.assignment import default_fanout
    from ..train.distributed import choose_device

    if json_file is not None and world.is_first and not json_file.parent.is_dir():
        raise click.BadParameter(f"--json must be in a folder that exists, got {json_file}")
    choose_device(settings["device"], world)
    return TrainOptions(**{**settings, "fanout": settings["fanout"] or default_fanout(folder)})


def _run(work: Assignment, options: TrainOptions, world: World, trace_file: Path | None) -> TrainResult:
    from ..pipeline import Tracer
    from ..train import Reporter
    from ..train.loop import train
    from .train_report import ConsoleReporter

    with ExitStack() as stack:
        reporter, tracer = Reporter(), None
        if world.is_first:
            together = f", {world.size} processes" if world.size > 1 else ""
            click.echo(f"{options.model} with {options.loader}'s loader on {options.torch_device()}{together}")
            reporter = stack.enter_context(ConsoleReporter(options))
        if trace_file is not None and options.loader != "dgl":
            path = rank_file(trace_file, world.rank) if world.size > 1 else trace_file
            tracer = stack.enter_context(Tracer(path))
        return train(work.task, options, evaluation=work.evaluation, world=world, reporter=reporter, tracer=tracer)


def rank_file(path: Path, rank: int) -> Path:
    """The file of one process: ``t.json.gz`` is ``t.rank3.json.gz`` for rank 3."""
    name = path.name.removesuffix(".gz")
    stem, dot, ending = name.rpartition(".")
    packed = path.name[len(name) :]
    return path.with_name(f"{stem or ending}.rank{rank}{dot + ending if stem else ''}{packed}")


@contextmanager
def _one_voice(world: World) -> Iterator[None]:
    """Of several processes, let the one that failed say why before the others end, and no other say so too."""
    from ..train.distributed import OtherProcessError, end_process, naming_lost_processes

    if not world.connected:
        yield
        return
    try:
        with naming_lost_processes(world):
            yield
    except OtherProcessError:
        world.wait_for_end()
        end_process(BAD_INPUT)
    except Exception as error:
        # At once: leaving the others in order would mean to wait for them, and they may be gone, or wait for this one.
        end_process(show_error(error))


def _say_nothing(_text: str) -> None:
    """Only one of several processes reports."""
