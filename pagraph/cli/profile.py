"""``pagraph profile``: what caches of several sizes would serve on a graph folder, and which one to take."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .parsing import integers, names
from .profile_options import Outputs, Settings, choose_fields, choose_seeds
from .terminal import progress_bar

if TYPE_CHECKING:
    from ..graph import Graph
    from ..profile import HitRateCurve, Recommendation
    from ..profile.loading import LoadingTimes
    from ..report.times import Span
    from ..sampling import NeighborSampler
    from .profile_options import Seeds

_PATH = click.Path(path_type=Path)
_FEATURES = "feat"


@click.command(name="profile")
@click.argument("folder", metavar="DIR", type=_PATH)
@click.option(
    "--fanout",
    default="10,10",
    show_default=True,
    callback=integers,
    help="Neighbours sampled per hop; the last serves the seeds, -1 takes all.",
)
@click.option("--batch-size", default=1000, show_default=True, help="Seeds per mini-batch.")
@click.option("--epochs", default=1, show_default=True, help="Epochs to measure.")
@click.option(
    "--policies",
    callback=names,
    help="Names with commas between: auto, adaptive, degree, presample[:K], vip, random, and for comparison oracle, "
    "ideal[:N].  [default: auto, degree, presample, vip, random, oracle]",
)
@click.option(
    "--budgets",
    callback=names,
    help="Rows (1000), shares (10%) or bytes (2GiB), with commas between.  [default: 20 from 1% to 100%]",
)
@click.option("--fields", callback=names, help="Fields read for the input nodes.  [default: feat, if it is there]")
@click.option("--labels", callback=names, default="", help="Fields read for the seeds.")
@click.option("--split", default="", metavar="PREFIX", help="Use another split of the folder, such as pub_.")
@click.option("--train-fraction", type=float, help="Train on a random share of the vertices, for graphs without masks.")
@click.option(
    "--node-type", help="Of the training vertices, where there are several.  [default: those with train_mask]"
)
@click.option("--seed", default=0, show_default=True, help="Of shuffling and sampling.")
@click.option("--device", default="auto", show_default=True, help="Where --measure delivers: auto, cpu, or cuda[:N].")
@click.option("--num-workers", default=0, show_default=True, help="Sampling threads, 0: as many as are useful.")
@click.option("--measure", is_flag=True, help="Also time real loading with the recommended cache.")
@click.option("--trace", type=_PATH, help="With --measure: write a timeline for Perfetto here.")
@click.option("--json", "json_file", type=_PATH, help="Write all figures here.")
@click.option("--plot", type=_PATH, help="Draw the curves here, .png or .svg.")
@click.option("--html", type=_PATH, help="Write a report for the browser here.")
def command(
    folder: Path,
    split: str,
    train_fraction: float | None,
    node_type: str | None,
    measure: bool,
    trace: Path | None,
    json_file: Path | None,
    plot: Path | None,
    html: Path | None,
    **settings: Any,
) -> None:
    """Say what a feature cache would save on the graph folder DIR, how large it should be, and by which policy.

    Samples real epochs once, without reading features, and works out the hit rate of every policy with every
    budget.
    """
    options = Settings(**settings)
    outputs = Outputs(json_file, plot, html, trace)
    if trace is not None and not measure:
        raise click.UsageError("--trace must come with --measure, which runs what is traced")
    outputs.check()
    options.check()
    from ..datasets import open_graph
    from ..profile import recommend
    from ..profile.curve import is_usable
    from ..sampling import NeighborSampler
    from .profile_report import print_profile, train_command

    graph = open_graph(folder, split=split)
    if measure and not graph.is_homogeneous:
        raise click.UsageError(f"--measure must be for a graph with one vertex type and one edge type, got {graph}")
    seeds = choose_seeds(graph, node_type, train_fraction, seed=options.seed)
    sampler = NeighborSampler(list(options.fanout))
    curve = _curve(graph, seeds, sampler, options)
    if not any(map(is_usable, curve.policies)):
        raise click.UsageError(f"--policies must name one that training can use, got {', '.join(curve.policies)}")
    recommendation = recommend(curve)
    loading: LoadingTimes | None = None
    spans: list[Span] = []
    if measure:
        loading, spans = _measured(graph, seeds, sampler, options, curve, recommendation, outputs)
    command = None
    if graph.is_homogeneous and train_fraction is None:  # what `pagraph train` can train on
        command = train_command(folder, split, options, curve, recommendation)
    print_profile(curve, recommendation, loading, title=str(folder), command=command)
    source = {"folder": str(folder), "split": split, "train_fraction": train_fraction, "node_type": node_type}
    _write(outputs, curve, recommendation, loading, spans, source, command)


def _curve(graph: Graph, seeds: Seeds, sampler: NeighborSampler, options: Settings) -> HitRateCurve:
    from ..profile import hit_rate_curve
    from ..profile.budgets import DEFAULT_BUDGETS

    with progress_bar("sampling") as progress:
        return hit_rate_curve(
            graph,
            seeds,
            sampler,
            batch_size=options.batch_size,
            epochs=options.epochs,
            policies=options.policies,
            budgets=options.budgets if options.budgets is not None else DEFAULT_BUDGETS,
            seed=options.seed,
            threads=options.num_workers or None,
            fields=choose_fields(graph, "fields", _input_fields(graph, options)),
            labels=choose_fields(graph, "labels", options.labels),
            progress=progress,
        )


def _input_fields(graph: Graph, options: Settings) -> tuple[str, ...]:
    """By default ``feat``, if there is one."""
    if options.fields is not None:
        return options.fields
    return (_FEATURES,) if any(_FEATURES in graph.node_fields(ntype) for ntype in graph.node_types) else ()


def _measured(
    graph: Graph,
    seeds: Seeds,
    sampler: NeighborSampler,
    options: Settings,
    curve: HitRateCurve,
    recommendation: Recommendation,
    outputs: Outputs,
) -> tuple[LoadingTimes, list[Span]]:
    """Real epochs with the recommended cache; one more than is measured, the first to warm up."""
    from torch import Tensor

    from ..profile import measure_loading
    from ..report.times import read_spans
    from ..report.words import cache_argument
    from ..train.options import TrainOptions

    device = TrainOptions(device=options.device).torch_device()
    fields = _input_fields(graph, options)
    assert isinstance(seeds, Tensor)  # one vertex type
    with tempfile.TemporaryDirectory(prefix="pagraph-") as scratch, progress_bar("measuring") as progress:
        trace = outputs.trace or (Path(scratch) / "trace.json" if outputs.html else None)
        loading = measure_loading(
            graph,
            seeds,
            sampler,
            fields=fields,
            labels=options.labels,
            batch_size=options.batch_size,
            cache=cache_argument(recommendation.budget_rows, curve.num_nodes),
            policy=recommendation.policy,
            device=device,
            num_workers=options.num_workers,
            epochs=options.epochs + 1,
            seed=options.seed,
            compute=_step(graph, fields, options, device),
            trace=trace,
            progress=progress,
        )
        return loading, read_spans(trace, copies=device.type != "cpu") if trace and outputs.html else []


def _step(graph: Graph, fields: tuple[str, ...], options: Settings, device: Any) -> Callable[[Any], object] | None:
    """A training step on the fields; None where there are none to train on."""
    from ..profile.loading import SageStep

    width = sum(graph.ndata[name][0].numel() for name in fields)
    return SageStep(fields, width=width, hops=len(options.fanout), device=device) if width else None


def _write(
    outputs: Outputs,
    curve: HitRateCurve,
    recommendation: Recommendation,
    loading: LoadingTimes | None,
    spans: list[Span],
    source: dict[str, Any],
    command: str | None,
) -> None:
    """Write the files that are wanted, each whole or not at all."""
    from ..atomic import new_file, write_json
    from ..report import html_page, save_plot

    title = Path(source["folder"]).resolve().name
    if outputs.plot is not None:
        save_plot(curve, outputs.plot, recommendation=recommendation, title=title)
    if outputs.html is not None:
        facts = {name.replace("_", " "): value for name, value in source.items()}
        page = html_page(
            curve,
            title=title,
            recommendation=recommendation,
            loading=loading,
            spans=spans,
            facts=facts,
            command=command,
        )
        with new_file(outputs.html) as file:
            file.write(page.encode())
    if outputs.json is not None:
        times = {} if loading is None else {"loading": loading.to_json()}
        write_json(outputs.json, {**source, **curve.to_json(), "recommendation": recommendation.to_json(), **times})
