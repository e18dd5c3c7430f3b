"""``pagraph partition``: divide a graph into self-contained parts, compare methods, verify a result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .parsing import integers
from .partition_options import EVALUATION, FEATURES, FORMATS, Outputs, Settings, Source

_PATH = click.Path(path_type=Path)


class _WithVerify(click.Command):
    """A command whose first argument may be the word ``verify``, which is a command of its own."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and args[0] == "verify":
            from .partition_verify import command as verify

            context: click.Context = verify.make_context(f"{info_name} verify", args[1:], parent, **extra)
            return context
        return super().make_context(info_name, args, parent, **extra)


@click.command(name="partition", cls=_WithVerify)
@click.argument("folder", metavar="DIR", type=_PATH)
@click.argument("out", metavar="[OUT]", type=_PATH, required=False)
@click.option("-k", "--parts", "num_parts", type=int, required=True, help="Number of parts: one for each process.")
@click.option("--hops", default=2, show_default=True, help="As many as the model has layers that sample.")
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
@click.option(
    "--features",
    type=click.Choice(FEATURES),
    default=FEATURES[0],
    show_default=True,
    help="Parts hold their rows and may be moved; or they read those of DIR.",
)
@click.option(
    "--evaluation",
    type=click.Choice(EVALUATION),
    default=EVALUATION[0],
    show_default=True,
    help="Validate and test on the whole graph; or on the parts, which then hold what that takes.",
)
@click.option(
    "--max-replication",
    type=float,
    help="Drop the halo vertices that are least often drawn, until the replication factor is at most this.",
)
@click.option("--split", default="", metavar="PREFIX", help="Use another split of the folder, such as pub_.")
@click.option("--train-fraction", type=float, help="Train on a random share of the vertices, for graphs without masks.")
@click.option("--seed", default=0, show_default=True, help="Of all random choices.")
@click.option(
    "--cache",
    default="10%",
    show_default=True,
    help="Report what a cache of each part would serve: 2GiB, or a share of all rows; 0 saves sampling for that.",
)
@click.option(
    "--cache-policy", default="auto", show_default=True, help="auto, adaptive, degree, presample[:K], vip or random."
)
@click.option("--fanout", callback=integers, help="Neighbours that training samples per hop.  [default: 10 in each]")
@click.option("--batch-size", default=1000, show_default=True, help="Seeds per mini-batch.")
@click.option("--json", "json_file", type=_PATH, help="Write the report here.")
@click.option("--plot", type=_PATH, help="Draw it here, .png, .svg or .pdf.")
@click.option("--quiet", "-q", is_flag=True, help="Print no report.")
def command(
    folder: Path,
    out: Path | None,
    compare: bool,
    split: str,
    train_fraction: float | None,
    json_file: Path | None,
    plot: Path | None,
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
    options = Settings(**settings)
    outputs = Outputs(json_file, plot)
    source = Source(folder, split, train_fraction, options.seed)
    outputs.check()
    options.check(compare=compare)
    if out is None:
        from .partition_compare import compare_methods

        compare_methods(source, options, outputs, quiet=quiet)
    else:
        from .partition_divide import divide

        divide(source, options, outputs, out, quiet=quiet)
