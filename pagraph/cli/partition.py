"""``pagraph partition``: divide a graph into parts, compare methods, verify a result."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from ..datasets import open_graph
from ..errors import FormatError, MissingDependencyError, PaGraphError
from ..graph.graph import CSC, Graph
from ..partition import (
    METHODS,
    CacheTrial,
    Partition,
    PartitionOptions,
    PartitionReport,
    describe,
    draw_train,
    partition_graph,
    train_ids,
    train_type,
    verify_partition,
    write_dgl,
    write_pagraph_partition,
    write_partition,
)
from ..partition.cache_trial import CacheUse
from ..partition.dgl_format import check_field_names
from ..partition.methods import method_bytes, resolve_method
from ..partition.methods.halo import LEVELS
from ..partition.partition import merged_bytes, merged_dtype
from ..partition.plot import PLOT_FORMATS, save_comparison_plot, save_plot
from ..partition.steps import Steps
from ..partition.writing import FEATURES, check_fields, check_out
from ..system.atomic import check_absent, check_writable, write_json
from ..system.budget import Budget, memory_budget, work_memory
from ..system.progress import Progress
from ..system.units import in_mebibytes
from .options import build, memory_option, options_of, split_option, train_fraction_option
from .partition_report import print_comparison, print_partition
from .terminal import check_outputs, file_option, progress_bar

_PATH = click.Path(path_type=Path)
FORMATS = ("native", "dgl", "pagraph")
"""Formats of parts: our own, DGL's, and that of the original PaGraph."""

_MASK = "train_mask"
_SMALL = 64  # vertices of the graph on which kernels are compiled
# Bytes a vertex: to divide, and to try caches; to write, a vertex of the graph and one of the part.
# 4.2 M vertices, 67 M edges and 4 parts took, in addition to Python, its libraries and kernels, 168
# MiB for one hop, 670 with the caches' trial, and 674 for two hops, whose largest part has 2.0 M
# vertices and 63 M edges.
_VERTEX_BYTES = 36
_TRIAL_BYTES = 130
_OWNER_BYTES = 20
_PART_VERTEX_BYTES = 60
# Kernels, and pieces of files: 254 MiB in all for 1.0 M vertices and 17 M edges by halo.
_REST_BYTES = 128 * 2**20


@dataclass(frozen=True)
class Source:
    """Graph folder, and which of its vertices are trained on."""

    folder: Path
    seed: int
    split: str
    train_fraction: float | None
    node_type: str | None = None

    @property
    def title(self) -> str:
        """Name of the graph in plots."""
        return self.folder.resolve().name

    def open(self) -> tuple[Graph, Tensor]:
        """The graph and the ids of its training vertices, of the mask or a random share."""
        if self.train_fraction is not None and not 0 < self.train_fraction <= 1:
            raise ValueError(f"--train-fraction must be in (0, 1], got {self.train_fraction}")
        graph = open_graph(self.folder, split=self.split)
        node_type = train_type(graph, self.node_type)
        if self.train_fraction is not None:
            return graph, draw_train(
                graph, self.train_fraction, seed=self.seed, node_type=node_type
            )
        if _MASK not in graph.node_fields(node_type):
            raise ValueError(
                f"--train-fraction must be given for a graph without {_MASK}, such as 0.1; got none"
            )
        return graph, train_ids(graph, node_type=node_type)

    def to_json(self) -> dict[str, Any]:
        """The source as a JSON object."""
        return {**vars(self), "folder": str(self.folder)}


@dataclass(frozen=True)
class Outputs:
    """Files that the report is written to, besides the terminal."""

    json: Path | None = field(default=None, metadata={"help": "Write the report here."})
    plot: Path | None = field(default=None, metadata={"help": "Draw it here, .png, .svg or .pdf."})


@dataclass(frozen=True)
class Work:
    """Options of a run: the graph, how to divide it, the cache trial if any, and the format."""

    source: Source
    options: PartitionOptions
    trial: CacheTrial | None
    form: str
    features: str
    memory: str | None = None

    def open(self) -> tuple[Graph, Tensor]:
        """The graph and its training vertices, checked against the options and the format."""
        graph, train = self.source.open()
        self.options.check_graph(graph, len(train))
        if self.form == "pagraph" and not graph.is_homogeneous:
            raise ValueError(
                "--format must not be pagraph for a graph with several types, got pagraph and "
                f"{graph}"
            )
        if self.form == "pagraph" and "label" not in graph.ndata:
            raise ValueError("--format must not be pagraph for a graph without labels, got pagraph")
        return graph, train

    def _needed(self, graph: Graph) -> int:
        """Bytes that dividing takes, and trying caches; measured on 4.2 M vertices."""
        # Halo search keeps a byte for each part and counted hop of a vertex.
        counts = self.options.num_parts * min(self.options.hops, LEVELS)
        trial = 0 if self.trial is None else _TRIAL_BYTES
        return (
            graph.num_nodes * (counts + _VERTEX_BYTES + trial) + merged_bytes(graph) + _REST_BYTES
        )

    def check_parts(self, graph: Graph, report: PartitionReport) -> None:
        """Refuse to write parts whose largest does not fit into the memory."""
        # One part at a time is made in memory: sources and edge ids of its edges.
        width = 2 * max(graph.csc_of(t).indices.element_size() for t in graph.edge_types)
        largest = max(
            _PART_VERTEX_BYTES * part.vertices + width * part.edges for part in report.parts
        )
        whom = f"a part within {self.options.hops} hops, of which the largest is made in memory"
        others = _OWNER_BYTES * graph.num_nodes + merged_bytes(graph) + _REST_BYTES
        work_memory(self.memory, largest + others, whom=whom)

    def report(
        self, graph: Graph, train: Tensor, method: str, steps: Steps, whole: CacheUse | None = None
    ) -> tuple[Partition, PartitionReport]:
        """Divide the training vertices by a method and describe the parts.

        The method's kernels are compiled before, so that dividing is timed alone; ``whole`` is what
        the report of another method found for the graph without parts.
        """
        more = method_bytes(graph, self.options.num_parts, self.options.hops, method)
        whom = f"{self.options.num_parts} parts of this graph"
        if more:
            whom += f" by {method} (by halo {in_mebibytes(more)} less)"
        work_memory(self.memory, self._needed(graph) + more, whom=whom)
        options = replace(
            self.options, method=method, node_type=train_type(graph, self.options.node_type)
        )
        # A ring of the graph's id type compiles all that the graph needs.
        with steps("compiling"):
            partition_graph(
                _small(merged_dtype(graph)),
                2,
                hops=options.hops,
                method=method,
                train=torch.arange(_SMALL, device="cpu"),
            )
        with steps("dividing"), progress_bar(f"dividing by {method}") as progress:
            partition = partition_graph(graph, train=train, progress=progress, **vars(options))
        with steps("measuring"), progress_bar("measuring the parts") as progress:
            return partition, describe(partition, cache=self.trial, whole=whole, progress=progress)


@click.command(name="verify")
@click.argument("out", metavar="OUT", type=_PATH)
@click.option(
    "--source", type=_PATH, help="The whole graph's folder.  [default: the one that OUT names]"
)
@file_option("--json", "Write what was found here.")
def verify(out: Path, source: Path | None, json_file: Path | None) -> None:
    """Prove that the partition folder OUT is right, against the graph that it was made from.

    Every training vertex is in exactly one part, every neighbourhood is complete, ids map back, and
    fields equal the source's. If anything is wrong, that is printed, and the exit code is 1.
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
    without = ""
    if found.missing:
        without = f"; {found.missing:,} in-edges are missing, because replication was limited"
    click.echo(
        f"{out} is right: {found.train:,} training vertices, each in exactly one of "
        f"{found.num_parts} parts; "
        f"{found.vertices:,} vertices and {found.edges:,} edges equal the source's{without}"
    )


class _WithVerify(click.Command):
    """A command whose first argument may be the word ``verify``, which is another command."""

    # Not a group: `pagraph partition DIR OUT` is the verb itself, without a subcommand. A folder
    # that is called so can be given as ./verify.

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


@click.command(name="partition", cls=_WithVerify)
@click.argument("folder", metavar="DIR", type=_PATH)
@click.argument("out", metavar="[OUT]", type=_PATH, required=False)
@options_of(PartitionOptions)
@click.option(
    "--method",
    "methods",
    metavar="NAME",
    multiple=True,
    help="auto, halo, pagraph, metis or hash; with --compare several times.  [default: auto, or "
    "all]",
)
@click.option(
    "--compare", is_flag=True, help="Try several methods, write no parts, and print one table."
)
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
    features={
        "help": "Parts hold their rows and may be moved; or they read those of DIR.",
        "choices": FEATURES,
    },
)
@split_option
@train_fraction_option
@options_of(CacheTrial)
@memory_option
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
    """Divide the graph folder DIR into self-contained parts, one for each process, and write them
    as the folder OUT.

    A part holds its own training vertices and everything they reach in so many hops: no process
    ever asks another. With --compare no parts are written. "pagraph partition verify OUT" proves a
    result.
    """
    if compare and out is not None:
        raise click.UsageError(
            f"OUT must not be given with --compare, which writes no parts, got {out}"
        )
    if not compare and out is None:
        raise click.UsageError("Missing argument 'OUT' (only --compare goes without)")
    # All checks come before the graph is opened, which may take minutes.
    outputs = build(Outputs, settings)
    source = build(Source, settings)
    check_outputs(vars(outputs), PLOT_FORMATS)
    _check(settings, methods, compare)
    _check_form(form, features, settings["evaluation"])
    names = methods or (tuple(METHODS) if compare else (PartitionOptions.method,))
    options = build(PartitionOptions, {**settings, "method": names[0]})
    trial = None if Budget.parse(settings["budget"]) is None else build(CacheTrial, settings)
    if trial is not None:
        trial.fanout_of(options.hops)
    memory_budget(settings["memory"])
    work = Work(source, options, trial, form, features, settings["memory"])
    if out is None:
        compare_methods(work, names, outputs, named=bool(methods), quiet=quiet)
    else:
        divide(work, out, outputs, quiet=quiet)


def _check(settings: dict[str, Any], methods: tuple[str, ...], compare: bool) -> None:
    """Check what the library does not, or would say in other words."""
    seed = settings["seed"]
    limit = settings["max_replication"]
    fanout = settings["fanout"]
    hops = settings["hops"]
    if not 0 <= seed < 2**32:
        raise ValueError(f"--seed must be in [0, 2**32), got {seed}")
    for method in methods:
        resolve_method(method)
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


def _check_form(form: str, features: str, evaluation: str) -> None:
    if form != "native" and features != "copy":
        raise click.UsageError(f"--features must be copy with --format {form}, got {features}")
    if form == "pagraph" and evaluation != "source":
        raise click.UsageError(
            f"--evaluation must be source with --format pagraph, got {evaluation}"
        )
    if form == "dgl":
        from ..dgl.graphbolt import import_dgl

        import_dgl()


def divide(work: Work, out: Path, outputs: Outputs, *, quiet: bool) -> None:
    """Divide, measure, write."""
    # The folder comes after all other work: a run that is stopped leaves nothing.
    source = work.source
    _check_out(out, source.folder)
    graph, train = work.open()
    if work.form == "native":
        check_fields(graph)
    elif work.form == "dgl":
        check_field_names(graph)
    steps = Steps()
    partition, report = work.report(graph, train, work.options.method, steps)
    work.check_parts(graph, report)
    with steps("writing"), progress_bar(f"writing {out.name}") as progress:
        _write(partition, out, work, progress)
    report = replace(report, seconds=steps.seconds, memory=steps.memory)
    if outputs.plot is not None:
        save_plot(report, outputs.plot, title=source.title)
    if outputs.json is not None:
        places = {
            **source.to_json(),
            "out": str(out),
            "format": work.form,
            "features": work.features,
        }
        write_json(outputs.json, {**places, **report.to_json()})
    if not quiet:
        print_partition(report, title=str(source.folder), out=out)


def compare_methods(
    work: Work, methods: tuple[str, ...], outputs: Outputs, *, named: bool, quiet: bool
) -> None:
    """Report on several methods without writing parts.

    Methods that cannot run are skipped unless they were ``named``.
    """
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
        # The trial without parts is the same for all methods: the first one's is kept.
        whole = None if report.caches is None else report.caches.whole
        reports.append(replace(report, seconds=steps.seconds, memory=steps.memory))
    if outputs.plot is not None:
        save_comparison_plot(reports, outputs.plot, title=work.source.title)
    if outputs.json is not None:
        comparison = [report.to_json() for report in reports]
        write_json(
            outputs.json, {**work.source.to_json(), "comparison": comparison, "skipped": skipped}
        )
    if not quiet:
        print_comparison(reports, title=str(work.source.folder), skipped=skipped)


def _small(dtype: torch.dtype) -> Graph:
    """A ring with ids of a dtype."""
    places = torch.arange(_SMALL + 1, dtype=dtype, device="cpu")
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


def _write(partition: Partition, out: Path, work: Work, progress: Progress | None) -> None:
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
