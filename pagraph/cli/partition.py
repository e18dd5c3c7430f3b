"""``pagraph partition``: divide a graph into self-contained parts, compare methods, verify a result."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ..errors import FormatError, PaGraphError
from ..partition import METHODS, CacheTrial, PartitionOptions, verify_partition, write_partition
from ..partition.methods import resolve_method
from ..partition.writing import FEATURES
from ..system.atomic import write_json
from ..system.budget import Budget
from .options import build, naming_options, options_of, split_option, train_fraction_option
from .partition_work import FORMATS, Outputs, Source, Work, compare_methods, divide
from .terminal import progress_bar
from .writing import file_option

_PATH = click.Path(path_type=Path)


@click.command(name="verify")
@click.argument("out", metavar="OUT", type=_PATH)
@click.option("--source", type=_PATH, help="The whole graph's folder.  [default: the one that OUT names]")
@file_option("--json", "Write what was found here.")
def verify(out: Path, source: Path | None, json_file: Path | None) -> None:
    """Prove that the partition folder OUT is right, against the graph that it was made from.

    Every training vertex is in exactly one part, every neighbourhood is complete, ids map back, and fields equal the
    source's. If anything is wrong, that is printed, and the exit code is 1.
    """
    try:
        with progress_bar(f"verifying {out.name}") as progress:
            found = verify_partition(out, source=source, progress=progress)
    except FormatError as error:  # what cannot be opened is wrong, too
        raise PaGraphError(str(error)) from error
    if json_file is not None:
        write_json(json_file, {"folder": str(out), "ok": found.ok, **asdict(found)})
    for finding in found.findings:
        click.echo(str(finding))
    if not found.ok:
        count = len(found.findings)
        raise PaGraphError(f"{out} is wrong: {'1 finding' if count == 1 else f'{count} findings'}")
    without = f"; {found.missing:,} in-edges are missing, because replication was limited" if found.missing else ""
    click.echo(
        f"{out} is right: {found.train:,} training vertices, each in exactly one of {found.num_parts} parts; "
        f"{found.vertices:,} vertices and {found.edges:,} edges equal the source's{without}"
    )


class _WithVerify(click.Command):
    """A command whose first argument may be the word ``verify``, which is a command of its own."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and args[0] == "verify":
            context: click.Context = verify.make_context(f"{info_name} verify", args[1:], parent, **extra)
            return context
        return super().make_context(info_name, args, parent, **extra)


@click.command(name="partition", cls=_WithVerify)
@click.argument("folder", metavar="DIR", type=_PATH)
@click.argument("out", metavar="[OUT]", type=_PATH, required=False)
@options_of(PartitionOptions)
@click.option(
    "--method",
    "methods",
    metavar="NAME",
    multiple=True,
    help="auto, halo, pagraph, metis or hash; with --compare several times.  [default: auto, or all]",
)
@click.option("--compare", is_flag=True, help="Try several methods, write no parts, and print one table.")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default=FORMATS[0],
    show_default=True,
    help="Ours; what dgl.distributed.load_partition opens; or the original PaGraph's.",
)
@options_of(
    write_partition,
    features={"help": "Parts hold their rows and may be moved; or they read those of DIR.", "choices": FEATURES},
)
@split_option
@train_fraction_option
@options_of(CacheTrial)
@options_of(Outputs)
@click.option("--quiet", "-q", is_flag=True, help="Print no report.")
def command(
    out: Path | None,
    methods: tuple[str, ...],
    compare: bool,
    form: str,
    features: str,
    quiet: bool,
    **settings: Any,
) -> None:
    """Divide the graph folder DIR into self-contained parts, one for each process, and write them as the folder OUT.

    A part holds its own training vertices and everything they reach in so many hops: no process ever asks another.
    With --compare no parts are written. "pagraph partition verify OUT" proves a result.
    """
    if compare and out is not None:
        raise click.UsageError(f"OUT must not be given with --compare, which writes no parts, got {out}")
    if not compare and out is None:
        raise click.UsageError("Missing argument 'OUT' (only --compare goes without)")
    outputs, source = build(Outputs, settings), build(Source, settings)
    outputs.check()
    _check(settings, methods, compare)
    _check_form(form, features, settings["evaluation"])
    names = methods or (tuple(METHODS) if compare else (PartitionOptions.method,))
    with naming_options(PartitionOptions):
        options = build(PartitionOptions, {**settings, "method": names[0]})
    trial = None if Budget.parse(settings["budget"]) is None else build(CacheTrial, settings)
    if trial is not None:
        trial.fanout_of(options.hops)
    work = Work(source, options, trial, form, features)
    if out is None:
        compare_methods(work, names, outputs, named=bool(methods), quiet=quiet)
    else:
        divide(work, out, outputs, quiet=quiet)


def _check(settings: dict[str, Any], methods: tuple[str, ...], compare: bool) -> None:
    """Check what the library leaves open, or says in other words."""
    seed, limit, fanout, hops = (settings[name] for name in ("seed", "max_replication", "fanout", "hops"))
    if not 0 <= seed < 2**32:
        raise ValueError(f"--seed must be in [0, 2**32), got {seed}")
    for method in methods:
        resolve_method(method)
    if len(set(methods)) < len(methods):
        raise click.UsageError(f"--method must name each method once, got {', '.join(methods)}")
    if not compare and len(methods) > 1:
        raise click.UsageError(f"--method must be given once without --compare, got {', '.join(methods)}")
    if limit is not None and not 0 < limit < math.inf:
        raise ValueError(f"--max-replication must be positive and finite, got {limit}")
    if limit is not None and fanout is not None and len(fanout) != hops:
        got = ",".join(map(str, fanout))
        raise ValueError(f"--fanout must have {hops} entries with --max-replication, got {got}")


def _check_form(form: str, features: str, evaluation: str) -> None:
    if form != "native" and features != "copy":
        raise click.UsageError(f"--features must be copy with --format {form}, got {features}")
    if form == "pagraph" and evaluation != "source":
        raise click.UsageError(f"--evaluation must be source with --format pagraph, got {evaluation}")
    if form == "dgl":
        from ..dgl.graphbolt import import_dgl

        import_dgl()
