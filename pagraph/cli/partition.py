"""``pagraph partition``: divide a graph into parts, compare methods, or verify a result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from ..datasets.paths import existing_folder, folder_form
from ..errors import FormatError, PaGraphError
from ..options.names import METHOD_NAMES, PARTITION_PLOT_FORMATS, check_method
from ..options.partitioning import FEATURES, MINIMIZED, CacheTrial, PartitionOptions
from ..system.atomic import check_absent
from ..system.budget import Budget
from .options import build, memory_option, options_of, split_option, train_fraction_option
from .settings import PartitionFiles, Source
from .terminal import check_outputs, file_option

_PATH = click.Path(path_type=Path)
FORMATS = ("native", "dgl", "pagraph")
"""Formats of parts: native, DGL's, and the original PaGraph's."""


def _choice(*names: str, among: Sequence[str], help: str) -> Callable[[Any], Any]:
    """An option with one of several values, the first by default."""
    kind = click.Choice(among)
    return click.option(*names, type=kind, default=among[0], show_default=True, help=help)


@click.command(name="verify")
@click.argument("out", metavar="OUT", type=_PATH)
@click.option(
    "--source", type=_PATH, help="The whole graph's folder.  [default: the one that OUT names]"
)
@file_option("--json", "Write the findings to this file.")
def verify(out: Path, source: Path | None, json_file: Path | None) -> None:
    """Verify the partition folder OUT against the graph that it was made from.

    Checks that every training vertex is in exactly one part, that every neighbourhood is complete,
    that ids map back, and that fields equal the source's. Faults are printed, and the exit code is
    then 1.
    """
    try:
        existing_folder(out)
        from .partition_run import verify_folder

        verify_folder(out, source, json_file)
    except FormatError as error:  # a folder that cannot be opened is wrong, too: exit code 1
        raise PaGraphError(str(error)) from error


class _WithVerify(click.Command):
    """A command that gives way to ``verify`` where its first argument is that word."""

    # Not a group: `pagraph partition DIR OUT` has no subcommand. A folder of that name can be
    # given as ./verify.

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        if args and args[0] == "verify":
            context: click.Context = verify.make_context(
                f"{info_name} verify", args[1:], parent, **extra
            )
            return context
        return super().make_context(info_name, args, parent, **extra)


def _folders(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Completions of DIR: a folder, or the word ``verify``."""
    items = [CompletionItem(incomplete, type="dir")]
    # Only once it was begun: bash offers folders where no word fits.
    if incomplete and "verify".startswith(incomplete):
        items.append(CompletionItem("verify"))
    return items


@click.command(name="partition", cls=_WithVerify)
@click.argument("folder", metavar="DIR", type=_PATH, shell_complete=_folders)
@click.argument("out", metavar="[OUT]", type=_PATH, required=False)
@options_of(PartitionOptions)
@click.option(
    "--method",
    "methods",
    metavar="NAME",
    multiple=True,
    help="auto, halo, pagraph, metis or hash; may be repeated with --compare.  [default: auto, or "
    "all]",
)
@click.option(
    "--compare", is_flag=True, help="Try several methods, write no parts, and print one table."
)
@_choice(
    "--format",
    "form",
    among=FORMATS,
    help="Native, or for dgl.distributed.load_partition, or for the original PaGraph.",
)
@_choice(
    "--features",
    among=FEATURES,
    help="copy: parts store their rows and may be moved. reference: parts read the rows of DIR.",
)
@_choice(
    "--minimize",
    among=MINIMIZED,
    help="With --format dgl: minimize rows fetched from other parts, or edges cut.",
)
@split_option
@train_fraction_option
@options_of(CacheTrial)
@memory_option
@options_of(PartitionFiles)
@click.option("--quiet", "-q", is_flag=True, help="Print no report.")
def command(
    out: Path | None,
    methods: tuple[str, ...],
    compare: bool,
    form: str,
    features: str,
    minimize: str,
    quiet: bool,
    **settings: Any,
) -> None:
    """Divide the graph folder DIR into self-contained parts, one for each process, and write them
    as the folder OUT.

    A part holds its training vertices and everything that they reach within --hops, so that no
    process needs data from another. With --format dgl every vertex is in exactly one part, placed
    so that few rows are fetched from other parts. With --compare no parts are written. "pagraph
    partition verify OUT" checks a result.
    """
    if compare and out is not None:
        raise click.UsageError(
            f"OUT must not be given with --compare, which writes no parts, got {out}"
        )
    if not compare and out is None:
        raise click.UsageError("Missing argument 'OUT' (optional only with --compare)")
    # All checks come before the graph is opened, which may take minutes.
    outputs = build(PartitionFiles, settings)
    source = build(Source, settings)
    check_outputs(vars(outputs), PARTITION_PLOT_FORMATS)
    _check(settings, methods, compare)
    _check_form(form, features, minimize, settings)
    names = methods or (METHOD_NAMES if compare else (PartitionOptions.method,))
    options = build(PartitionOptions, {**settings, "method": names[0]})
    trial = None if Budget.parse(settings["budget"]) is None else build(CacheTrial, settings)
    # Also where no cache is tried, as vertices are placed for these batches.
    (trial or build(CacheTrial, {**settings, "budget": "10%"})).fanout_of(options.hops)
    if out is not None:
        check_absent(out, name="OUT")
    folder_form(source.folder)
    # It imports torch, which no mistake above waits for.
    from .partition_run import Work, compare_methods, divide

    work = Work(
        source,
        options,
        trial,
        form=form,
        features=features,
        minimize=minimize,
        batch_size=settings["batch_size"],
        memory=settings["memory"],
    )
    if out is None:
        compare_methods(work, names, outputs, named=bool(methods), quiet=quiet)
    else:
        divide(work, out, outputs, quiet=quiet)


def _check(settings: dict[str, Any], methods: tuple[str, ...], compare: bool) -> None:
    """Check what the library does not check, or would report without the option's name."""
    seed = settings["seed"]
    limit = settings["max_replication"]
    fanout = settings["fanout"]
    hops = settings["hops"]
    if not 0 <= seed < 2**32:
        raise ValueError(f"--seed must be in [0, 2**32), got {seed}")
    for method in methods:
        check_method(method)
    if len(set(methods)) < len(methods):
        raise click.UsageError(f"--method must name each method once, got {', '.join(methods)}")
    if not compare and len(methods) > 1:
        raise click.UsageError(
            f"--method must be given once without --compare, got {', '.join(methods)}"
        )
    if limit is not None and not 0 < limit < math.inf:
        raise ValueError(f"--max-replication must be positive and finite, got {limit}")
    if limit is not None and fanout is not None and len(fanout) != hops:
        got = ",".join(map(str, fanout))
        raise ValueError(f"--fanout must have {hops} entries with --max-replication, got {got}")


def _check_form(form: str, features: str, minimize: str, settings: dict[str, Any]) -> None:
    evaluation = settings["evaluation"]
    if form != "dgl" and minimize != MINIMIZED[0]:
        raise click.UsageError(
            f"--minimize must be {MINIMIZED[0]} with --format {form}, got {minimize}"
        )
    if form != "native" and features != "copy":
        raise click.UsageError(f"--features must be copy with --format {form}, got {features}")
    # Each vertex has one owner: nothing is replicated, and parts have no hops to plot.
    for name in ("max_replication", "plot"):
        if form == "dgl" and settings[name] is not None:
            flag = f"--{name.replace('_', '-')}"
            raise click.UsageError(
                f"{flag} must not be given with --format dgl, whose vertices have one owner each"
            )
    if form == "pagraph" and evaluation != "source":
        raise click.UsageError(
            f"--evaluation must be source with --format pagraph, got {evaluation}"
        )
