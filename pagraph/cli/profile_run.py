"""The work of ``pagraph profile``: curves, a recommendation, epochs measured, and their report."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Any

import click
from torch import Tensor

from ..datasets import open_graph
from ..graph.graph import Graph
from ..options.names import PLOT_FORMATS
from ..options.training import TrainOptions
from ..profile import (
    DEFAULT_BUDGETS,
    HitRateCurve,
    LoadingTimes,
    Recommendation,
    hit_rate_curve,
    measure_loading,
    recommend,
)
from ..profile.arguments import FieldNames
from ..profile.loading import SageStep
from ..report import html_page, save_plot
from ..report.style import check_plot
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
from ..system.atomic import new_file, write_json
from ..system.units import escaped, percent
from .seeds import seeds_and_sampler
from .settings import Compared, ProfileFiles
from .terminal import print_table, print_text, progress_bar


def profile(
    folder: Path,
    split: str,
    options: TrainOptions,
    compared: Compared,
    outputs: ProfileFiles,
    *,
    train_fraction: float | None,
    node_type: str | None,
    measure: bool,
) -> None:
    """Profile the graph folder, print the report, and write the requested files."""
    if outputs.plot is not None:
        check_plot(outputs.plot, PLOT_FORMATS)
    graph = open_graph(folder, split=split)
    if measure and not graph.is_homogeneous:
        raise click.UsageError(
            f"--measure needs a graph with one vertex type and one edge type, got {graph}"
        )
    seeds, sampler = seeds_and_sampler(graph, options, node_type, train_fraction)
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
    # Not known earlier: the curve leaves out default policies that do not suit the sampler.
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


def choose_fields(graph: Graph, option: str, names: tuple[str, ...]) -> FieldNames:
    """Look fields up: ``NAME`` in all vertex types that have it, ``TYPE/NAME`` in one.

    Raises:
        ValueError: No type has a field of that name.
    """
    if len(graph.node_types) == 1:  # checked by the library
        return names
    known = [(ntype, own) for ntype in graph.node_types for own in graph.node_fields(ntype)]
    chosen: dict[str, list[str]] = {}
    for name in names:
        found = [(ntype, own) for ntype, own in known if name in (own, f"{ntype}/{own}")]
        if not found:
            have = ", ".join(map("/".join, known))
            raise ValueError(f"--{option} must be among {have}, got {name!r}")
        for ntype, own in found:
            chosen.setdefault(ntype, []).append(own)
    return chosen


def _measured(
    graph: Graph,
    seeds: Tensor,
    options: TrainOptions,
    compared: Compared,
    cache: tuple[str, str],
    outputs: ProfileFiles,
) -> tuple[LoadingTimes, list[Span]]:
    """Time real epochs with a cache (size, policy) and a model's step, after a warm-up epoch."""
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
        # The page has a timeline, also where no trace was requested.
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
    outputs: ProfileFiles,
    curve: HitRateCurve,
    recommendation: Recommendation,
    loading: LoadingTimes | None,
    spans: list[Span],
    source: dict[str, Any],
    command: str | None,
) -> None:
    """Write the requested files, each whole or not at all."""
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
    """Print a profile.

    ``loading`` has the times of real epochs. ``command`` is a shell command that trains with the
    recommended cache.
    """
    best = curve.at(recommendation.policy, recommendation.budget_rows)
    print_text(
        f"{title}: {curve.num_nodes:,} vertices; an epoch has {curve.batches:,} "
        f"batch{'es' * (curve.batches != 1)} "
        f"and reads {curve.reads:,.0f} rows"
    )
    first, advice, *details = answer(curve, recommendation)
    print_text(first)
    print_text(advice)
    print_text()
    print_table(rate_table(curve, recommendation))
    print_text()
    print_table(hop_table(curve, best))
    if loading is not None:
        print_text()
        print_table(stage_table(loading))
        print_text(verdict(loading))
        step = loading.settings.get("step")
        if step:
            print_text(f"Computing is {step}, a stand-in for your model.")
    print_text()
    for sentence in details:
        print_text(sentence)
    print_text(_smallest(recommendation))
    # What is to be copied is not broken.
    click.echo(f"To set: {settings_words(curve, recommendation)}")
    if command is not None:
        click.echo(f"To train: {escaped(command)}")


def train_command(
    folder: Path,
    split: str,
    options: TrainOptions,
    curve: HitRateCurve,
    recommendation: Recommendation,
) -> str:
    """Shell command that trains with the profiled options and the recommended cache."""
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
