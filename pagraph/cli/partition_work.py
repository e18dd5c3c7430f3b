"""Work of ``pagraph partition``: divide a graph folder and write the parts, or compare several methods."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from ..datasets import open_graph
from ..errors import MissingDependencyError
from ..graph.graph import CSC, Graph
from ..partition import (
    CacheTrial,
    Partition,
    PartitionOptions,
    PartitionReport,
    describe,
    draw_train,
    partition_graph,
    train_ids,
    write_dgl,
    write_pagraph_partition,
    write_partition,
)
from ..partition.cache_trial import CacheUse
from ..partition.dgl_format import check_field_names
from ..partition.plot import PLOT_FORMATS, save_comparison_plot, save_plot
from ..partition.steps import Steps
from ..partition.writing import check_fields, check_out
from ..report.plot import check_plot
from ..system.atomic import check_absent, check_writable, write_json
from .options import naming_options
from .partition_report import print_comparison, print_partition
from .terminal import progress_bar
from .writing import check_outputs

__all__ = ["FORMATS", "Outputs", "Source", "Work", "compare_methods", "divide"]

FORMATS = ("native", "dgl", "pagraph")
"""Formats of parts: our own, DGL's, and that of the original PaGraph."""

_MASK = "train_mask"
_SMALL = 64


@dataclass(frozen=True)
class Source:
    """Graph folder, and which of its vertices are trained on."""

    folder: Path
    seed: int
    split: str
    train_fraction: float | None

    @property
    def title(self) -> str:
        """Name of the graph in plots."""
        return self.folder.resolve().name

    def open(self) -> tuple[Graph, Tensor]:
        """The graph and the ids of its training vertices: those of the mask, or a share that is drawn."""
        if self.train_fraction is not None and not 0 < self.train_fraction <= 1:
            raise ValueError(f"--train-fraction must be in (0, 1], got {self.train_fraction}")
        graph = open_graph(self.folder, split=self.split)
        if not graph.is_homogeneous:
            raise ValueError(f"DIR must hold a graph with one vertex type and one edge type, got {graph}")
        if self.train_fraction is not None:
            return graph, draw_train(graph, self.train_fraction, seed=self.seed)
        if _MASK not in graph.ndata:
            raise ValueError(f"--train-fraction must be given for a graph without {_MASK}, such as 0.1; got none")
        return graph, train_ids(graph)

    def to_json(self) -> dict[str, Any]:
        """The source as a JSON object."""
        return {**vars(self), "folder": str(self.folder)}


@dataclass(frozen=True)
class Outputs:
    """Files that the report is written to, besides the terminal."""

    json: Path | None = field(default=None, metadata={"help": "Write the report here."})
    plot: Path | None = field(default=None, metadata={"help": "Draw it here, .png, .svg or .pdf."})

    def check(self) -> None:
        """Refuse a path that cannot be written or is given twice, and a plot that cannot be drawn."""
        if self.plot is not None:
            check_plot(self.plot, PLOT_FORMATS)
        check_outputs(vars(self))


@dataclass(frozen=True)
class Work:
    """Options of a run: the graph, how to divide it, the cache trial (None: none), and the format of the parts."""

    source: Source
    options: PartitionOptions
    trial: CacheTrial | None
    form: str
    features: str

    def open(self) -> tuple[Graph, Tensor]:
        """The graph and its training vertices, checked to go with the options and the format."""
        graph, train = self.source.open()
        with naming_options(PartitionOptions):
            self.options.check_graph(graph, len(train))
        if self.form == "pagraph" and "label" not in graph.ndata:
            raise ValueError("--format must not be pagraph for a graph without labels, got pagraph")
        return graph, train

    def report(
        self, graph: Graph, train: Tensor, method: str, steps: Steps, whole: CacheUse | None = None
    ) -> tuple[Partition, PartitionReport]:
        """Divide the training vertices by a method and describe the parts.

        The method's kernels are compiled before, so that dividing is timed alone; ``whole`` is what the report of
        another method found for the graph without parts.
        """
        options = replace(self.options, method=method)
        with steps("compiling"):
            partition_graph(_small(graph), 2, hops=options.hops, method=method, train=torch.arange(_SMALL))
        with steps("dividing"), progress_bar(f"dividing by {method}") as progress:
            partition = partition_graph(graph, train=train, progress=progress, **vars(options))
        with steps("measuring"), progress_bar("measuring the parts") as progress:
            return partition, describe(partition, cache=self.trial, whole=whole, progress=progress)


def divide(work: Work, out: Path, outputs: Outputs, *, quiet: bool) -> None:
    """Divide, measure, write. The folder comes after all other work: a run that is stopped leaves nothing."""
    source = work.source
    _check_out(out, source.folder)
    graph, train = work.open()
    if work.form == "native":
        check_fields(graph)
    elif work.form == "dgl":
        check_field_names(graph)
    steps = Steps()
    partition, report = work.report(graph, train, work.options.method, steps)
    with steps("writing"), progress_bar(f"writing {out.name}") as progress:
        _write(partition, out, work, progress)
    report = replace(report, seconds=steps.seconds, memory=steps.memory)
    if outputs.plot is not None:
        save_plot(report, outputs.plot, title=source.title)
    if outputs.json is not None:
        places = {**source.to_json(), "out": str(out), "format": work.form, "features": work.features}
        write_json(outputs.json, {**places, **report.to_json()})
    if not quiet:
        print_partition(report, title=str(source.folder), out=out)


def compare_methods(work: Work, methods: tuple[str, ...], outputs: Outputs, *, named: bool, quiet: bool) -> None:
    """Report on several methods, writing no parts; those that cannot run are skipped unless they are ``named``."""
    graph, train = work.open()
    reports: list[PartitionReport] = []
    skipped: dict[str, str] = {}
    whole = None
    for method in methods:
        steps = Steps()
        try:
            _, report = work.report(graph, train, method, steps, whole)
        except MissingDependencyError as error:
            if named:
                raise
            skipped[method] = str(error)
            continue
        whole = None if report.caches is None else report.caches.whole
        reports.append(replace(report, seconds=steps.seconds, memory=steps.memory))
    if outputs.plot is not None:
        save_comparison_plot(reports, outputs.plot, title=work.source.title)
    if outputs.json is not None:
        comparison = [report.to_json() for report in reports]
        write_json(outputs.json, {**work.source.to_json(), "comparison": comparison, "skipped": skipped})
    if not quiet:
        print_comparison(reports, title=str(work.source.folder), skipped=skipped)


def _small(graph: Graph) -> Graph:
    """A ring with ids of the same type as the graph's."""
    places = torch.arange(_SMALL + 1, dtype=graph.csc.indptr.dtype)
    return Graph(CSC(places, (places[:-1] + 1) % _SMALL, _SMALL))


def _check_out(out: Path, folder: Path) -> None:
    """Refuse a folder that could not be made, before the long work."""
    check_absent(out, name="OUT")
    check_out(out, folder)
    place = out.resolve()
    while not os.path.lexists(place.parent):  # folders above it are created
        place = place.parent
    try:
        check_writable("OUT", place)
    except OSError as error:
        raise click.ClickException(str(error)) from None


def _write(partition: Partition, out: Path, work: Work, progress: Callable[[int, int], None] | None) -> None:
    """Write the parts in the wanted format, whole or not at all."""
    if work.form != "native":
        write = write_dgl if work.form == "dgl" else write_pagraph_partition
        write(partition, out, progress=progress)
        return
    write_partition(
        partition,
        out,
        features=work.features,
        source=work.source.folder,
        split=work.source.split,
        seed=work.options.seed,
        max_replication=work.options.max_replication,
        origin=work.source.to_json(),
        progress=progress,
    )
