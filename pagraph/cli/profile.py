"""``pagraph profile``: hit rates of feature caches on a graph, and a recommended one."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from torch import Tensor

from ..datasets import open_graph
from ..graph.graph import Graph
from ..profile import (
    DEFAULT_BUDGETS,
    HitRateCurve,
    LoadingTimes,
    Recommendation,
    hit_rate_curve,
    measure_loading,
    recommend,
    training_edges,
    training_seeds,
)
from ..profile.arguments import FieldNames
from ..profile.loading import SageStep
from ..report import html_page, save_plot
from ..report.plot import PLOT_FORMATS
from ..report.times import Span, read_spans, verdict
from ..report.words import (
    answer,
    hop_table,
    rate_table,
    recommended_cache,
    settings_words,
    stage_table,
)
from ..sampling import NeighborSampler
from ..sampling.edge_batches import EdgeBatches
from ..sampling.negative import UniformNegatives
from ..system.atomic import new_file, write_json
from ..system.units import percent
from ..train.options import TrainOptions
from .options import build, options_of, split_option, train_fraction_option
from .terminal import check_outputs, print_table, progress_bar

_FEATURES = "feat"
_MASK = "train_mask"

Seeds = Tensor | Mapping[str, Tensor]


def _documented(text: str, default: Any = None) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Outputs:
    """Files for the results, besides the terminal."""

    json: Path | None = _documented("Write all figures here.")
    plot: Path | None = _documented("Draw the curves here, .png or .svg.")
    html: Path | None = _documented("Write a report for the browser here.")
    trace: Path | None = _documented("With --measure: write a timeline for Perfetto here.")


@dataclass(frozen=True)
class Compared:
    """Policies, budgets and fields of a curve."""

    policies: tuple[str, ...] | None = _documented(
        "Names with commas between: auto, adaptive, degree, presample[:K], vip, random, and for "
        "comparison oracle, "
        "ideal[:N].  [default: auto, degree, presample, vip, random, oracle]"
    )
    budgets: tuple[str, ...] | None = _documented(
        "Rows (1000), shares (10%) or bytes (2GiB), with commas between.  [default: 20 from 1% to "
        "100%]"
    )
    fields: tuple[str, ...] | None = _documented(
        "Fields read for the input nodes.  [default: feat, if it is there]"
    )
    labels: tuple[str, ...] = _documented("Fields read for the seeds.", ())

    def inputs(self, graph: Graph) -> tuple[str, ...]:
        """The input fields; by default ``feat``, if there is one."""
        if self.fields is not None:
            return self.fields
        if any(_FEATURES in graph.node_fields(ntype) for ntype in graph.node_types):
            return (_FEATURES,)
        return ()


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
@options_of(Outputs)
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
    outputs = build(Outputs, settings)
    compared = build(Compared, settings)
    if outputs.trace is not None and not measure:
        raise click.UsageError("--trace must come with --measure, which runs what is traced")
    options = build(TrainOptions, settings)
    if options.task == "links":
        _refuse_for_links(node_type=node_type, split=split, measure=measure)
    check_outputs(vars(outputs), PLOT_FORMATS)
    graph = open_graph(folder, split=split)
    if measure and not graph.is_homogeneous:
        raise click.UsageError(
            f"--measure must be for a graph with one vertex type and one edge type, got {graph}"
        )
    sampler: Any = NeighborSampler(list(options.fanout))
    if options.task == "links":
        seeds: Any = training_edges(graph, fraction=train_fraction, seed=options.seed)
        sampler = EdgeBatches(sampler, graph, UniformNegatives(1))
    else:
        seeds = choose_seeds(graph, node_type, train_fraction, seed=options.seed)
    budgets = DEFAULT_BUDGETS if compared.budgets is None else compared.budgets
    with progress_bar("sampling") as progress:
        curve = hit_rate_curve(
            graph,
            seeds,
            sampler,
            batch_size=options.batch_size,
            epochs=options.epochs,
            policies=compared.policies,
            budgets=budgets,
            seed=options.seed,
            threads=options.num_workers or None,
            fields=choose_fields(graph, "fields", compared.inputs(graph)),
            labels=choose_fields(graph, "labels", compared.labels),
            memory=options.memory,
            progress=progress,
        )
    # Known only now: default policies that do not suit the sampler are left out.
    if not curve.usable:
        raise click.UsageError(
            f"--policies must name one that training can use, got {', '.join(curve.policies)}"
        )
    recommendation = recommend(curve)
    loading: LoadingTimes | None = None
    spans: list[Span] = []
    if measure:
        assert isinstance(seeds, Tensor)  # one vertex type
        cache = (recommended_cache(curve, recommendation), recommendation.policy)
        loading, spans = _measured(graph, seeds, options, compared, cache, outputs)
    train = None
    # What `pagraph train` can train on.
    if options.task == "nodes" and graph.is_homogeneous and train_fraction is None:
        train = train_command(folder, split, options, curve, recommendation)
    print_profile(curve, recommendation, loading, title=str(folder), command=train)
    source = {
        "folder": str(folder),
        "task": options.task,
        "split": split,
        "train_fraction": train_fraction,
        "node_type": node_type,
    }
    _write(outputs, curve, recommendation, loading, spans, source, train)


def _refuse_for_links(**options: Any) -> None:
    """Refuse options that say which vertices are trained on, or measure a loader of vertices."""
    for name, given in options.items():
        if given:
            raise click.UsageError(
                f"--{name.replace('_', '-')} must be with --task nodes, got it with --task links"
            )


def choose_seeds(
    graph: Graph, node_type: str | None, fraction: float | None, *, seed: int
) -> Seeds:
    """Training vertices, or a random share of the vertices, of ``node_type``.

    By default of all types with a ``train_mask``, or of the only type.
    """
    # Checked here as well as in the library, to name the options as they are typed.
    if fraction is not None and not 0 < fraction <= 1:
        raise ValueError(f"--train-fraction must be in (0, 1], got {fraction}")
    types = graph.node_types
    if node_type is not None and node_type not in types:
        raise ValueError(f"--node-type must be one of {', '.join(types)}, got {node_type!r}")
    if len(types) == 1:
        if fraction is None and _MASK not in graph.node_fields(types[0]):
            raise ValueError(
                f"--train-fraction must be given for a graph without {_MASK}, such as 0.1; got none"
            )
        return training_seeds(graph, fraction=fraction, seed=seed)
    # By default all masked types, as some graphs train on several.
    masked = [ntype for ntype in types if _MASK in graph.node_fields(ntype)]
    chosen = masked if node_type is None else [node_type]
    if not chosen:
        raise ValueError(
            f"--node-type must be given where no vertices have a {_MASK}: {', '.join(types)}"
        )
    if fraction is None and chosen[0] not in masked:
        raise ValueError(
            f"--train-fraction must be given where {chosen[0]!r} vertices have no {_MASK}; got none"
        )
    return {
        ntype: training_seeds(graph, node_type=ntype, fraction=fraction, seed=seed)
        for ntype in chosen
    }


def choose_fields(graph: Graph, option: str, names: tuple[str, ...]) -> FieldNames:
    """Look fields up: ``NAME`` in all vertex types that have it, ``TYPE/NAME`` in one.

    Raises:
        ValueError: No type has one of them.
    """
    if len(graph.node_types) == 1:  # checked by the library
        return names
    of_types = {ntype: graph.node_fields(ntype) for ntype in graph.node_types}
    chosen: dict[str, list[str]] = {}
    for name in names:
        is_known = False
        for ntype, fields in of_types.items():
            for own in fields:
                if name in (own, f"{ntype}/{own}"):
                    is_known = True
                    chosen.setdefault(ntype, []).append(own)
        if not is_known:
            have = [f"{ntype}/{own}" for ntype, fields in of_types.items() for own in fields]
            raise ValueError(f"--{option} must be among {', '.join(have)}, got {name!r}")
    return chosen


def _measured(
    graph: Graph,
    seeds: Tensor,
    options: TrainOptions,
    compared: Compared,
    cache: tuple[str, str],
    outputs: Outputs,
) -> tuple[LoadingTimes, list[Span]]:
    """Time real epochs with a cache (size, policy) and a step, after one epoch to warm up."""
    device = options.torch_device()
    fields = compared.inputs(graph)
    width = sum(graph.ndata[name][0].numel() for name in fields)
    step = None
    if width:  # without input fields there is nothing to compute with
        step = SageStep(fields, width=width, hops=len(options.fanout), device=device)
    size, policy = cache
    with (
        tempfile.TemporaryDirectory(prefix="pagraph-") as scratch,
        progress_bar("measuring") as progress,
    ):
        # The page draws a timeline also for those who keep none.
        trace = outputs.trace
        if trace is None and outputs.html:
            trace = Path(scratch) / "trace.json"
        loading = measure_loading(
            graph,
            seeds,
            NeighborSampler(list(options.fanout)),
            fields=fields,
            labels=compared.labels,
            batch_size=options.batch_size,
            cache=size,
            policy=policy,
            device=device,
            num_workers=options.num_workers,
            lookahead=options.batches_ahead(),
            memory=options.memory,
            epochs=options.epochs + 1,  # the first compiles, and fills the cache
            seed=options.seed,
            compute=step,
            trace=trace,
            progress=progress,
        )
        spans: list[Span] = []
        if trace and outputs.html:
            spans = read_spans(trace, copies=device.type != "cpu")
        return loading, spans


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
        advice = recommendation.to_json() | {"cache": recommended_cache(curve, recommendation)}
        write_json(outputs.json, {**source, **curve.to_json(), "recommendation": advice, **times})


def print_profile(
    curve: HitRateCurve,
    recommendation: Recommendation,
    loading: LoadingTimes | None,
    *,
    title: str,
    command: str | None = None,
) -> None:
    """Print a profile; the table of rates fits into 80 columns with the default policies.

    ``loading`` are times of real epochs, ``command`` is a shell command that trains with the
    recommended cache.
    """
    console = Console(highlight=False, markup=False)
    best = curve.at(recommendation.policy, recommendation.budget_rows)
    console.print(
        f"{title}: {curve.num_nodes:,} vertices; an epoch has {curve.batches:,} "
        f"batch{'es' * (curve.batches != 1)} "
        f"and reads {curve.reads:,.0f} rows",
        soft_wrap=True,
    )
    first, advice, *details = answer(curve, recommendation)
    console.print(first)
    console.print(advice)
    console.print()
    print_table(console, rate_table(curve, recommendation))
    console.print()
    print_table(console, hop_table(curve, best))
    if loading is not None:
        console.print()
        print_table(console, stage_table(loading))
        console.print(verdict(loading), soft_wrap=True)
        step = loading.settings.get("step")
        if step:
            console.print(f"Computing is {step}, a stand-in for your model.", soft_wrap=True)
    console.print()
    for sentence in details:
        console.print(sentence)
    console.print(_smallest(recommendation))
    console.print(f"To set: {settings_words(curve, recommendation)}", soft_wrap=True)
    if command is not None:
        console.print(f"To train: {command}", soft_wrap=True)


def train_command(
    folder: Path,
    split: str,
    options: TrainOptions,
    curve: HitRateCurve,
    recommendation: Recommendation,
) -> str:
    """Shell command that trains as was profiled, with the recommended cache."""
    fanout = ",".join(map(str, options.fanout))
    words = [
        "pagraph",
        "train",
        str(folder),
        f"--fanout={fanout}",
        f"--batch-size={options.batch_size}",
    ]
    if split:
        words.append(f"--split={split}")
    words.append(f"--cache={recommended_cache(curve, recommendation)}")
    if recommendation.worth_it:
        words.append(f"--cache-policy={recommendation.policy}")
    return shlex.join(words)


def _smallest(recommendation: Recommendation) -> str:
    parts = []
    for share, choice in recommendation.smallest_for.items():
        if choice is not None:
            vertices = percent(choice.budget_fraction)
            parts.append(f"{vertices} of the vertices for {share:.0%}")
    if not parts:
        return ""
    return f"To save a given share of all that can be saved takes {', '.join(parts)}."
