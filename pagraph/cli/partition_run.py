"""The work of ``pagraph partition``: divide, write, compare methods, verify."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from .._streams import print_notice
from ..datasets import open_graph
from ..datasets.manifest import MANIFEST
from ..errors import MissingDependencyError, PaGraphError
from ..graph.graph import CSC, Graph
from ..options.names import PARTITION_PLOT_FORMATS
from ..options.partitioning import CacheTrial, PartitionOptions
from ..partition import (
    Partition,
    PartitionReport,
    PlacementReport,
    describe,
    describe_placement,
    draw_train,
    partition_graph,
    place_vertices,
    train_ids,
    train_type,
    verify_dgl,
    verify_partition,
    write_dgl,
    write_pagraph_partition,
    write_partition,
)
from ..partition.cache_trial import CacheUse
from ..partition.dgl_format import check_field_names
from ..partition.dgl_verification import dgl_config
from ..partition.methods import method_bytes
from ..partition.methods.halo import LEVELS
from ..partition.partition import merged_bytes, merged_dtype
from ..partition.partitioning import check_graph
from ..partition.placement import placement_bytes
from ..partition.plot import save_comparison_plot, save_plot
from ..partition.steps import Steps
from ..partition.writing import check_fields, check_out
from ..report.style import check_plot
from ..system.atomic import check_writable, write_json
from ..system.budget import work_memory
from ..system.progress import Progress
from ..system.units import in_mebibytes
from .partition_report import (
    print_comparison,
    print_partition,
    print_placement,
    print_placements,
)
from .settings import PartitionFiles, Source
from .terminal import print_text, progress_bar

_MASK = "train_mask"
_SMALL = 64  # vertices of the graph on which kernels are compiled
# Bytes of work, measured on 4.2 M vertices, 67 M edges and 4 parts. Beyond Python, its libraries
# and kernels, one hop took 168 MiB, with the caches' trial 670. Two hops, whose largest part has
# 2.0 M vertices and 63 M edges, took 674.
_VERTEX_BYTES = 36  # a vertex, to divide
_TRIAL_BYTES = 130  # a vertex, to try caches
_OWNER_BYTES = 20  # a vertex of the graph, to write
_PART_VERTEX_BYTES = 60  # a vertex of the part, to write
# Kernels, and pieces of files: 254 MiB in all for 1.0 M vertices and 17 M edges by halo.
_REST_BYTES = 128 * 2**20


def open_source(source: Source) -> tuple[Graph, Tensor]:
    """The graph and the ids of its training vertices, by the mask or a random share."""
    graph = open_graph(source.folder, split=source.split)
    node_type = train_type(graph, source.node_type)
    if source.train_fraction is not None:
        return graph, draw_train(
            graph, source.train_fraction, seed=source.seed, node_type=node_type
        )
    if _MASK not in graph.node_fields(node_type):
        raise ValueError(
            f"--train-fraction must be given for a graph without {_MASK}, such as 0.1; got none"
        )
    return graph, train_ids(graph, node_type=node_type)


@dataclass(frozen=True)
class Work:
    """Options of a run, and the steps of the work."""

    source: Source
    options: PartitionOptions
    trial: CacheTrial | None
    form: str
    features: str
    minimize: str
    batch_size: int
    memory: str | None = None

    def open(self) -> tuple[Graph, Tensor]:
        """The graph and its training vertices, checked against the options and the format."""
        graph, train = open_source(self.source)
        check_graph(self.options, graph, len(train))
        if self.form == "pagraph" and not graph.is_homogeneous:
            raise ValueError(
                "--format must not be pagraph for a graph with several types, got pagraph and "
                f"{graph}"
            )
        if self.form == "pagraph" and "label" not in graph.ndata:
            raise ValueError("--format must not be pagraph for a graph without labels, got pagraph")
        return graph, train

    def _needed(self, graph: Graph) -> int:
        """Bytes that dividing and trying caches take."""
        # Halo search keeps a byte for each vertex, part and counted hop.
        counts = self.options.num_parts * min(self.options.hops, LEVELS)
        trial = 0 if self.trial is None else _TRIAL_BYTES
        return (
            graph.num_nodes * (counts + _VERTEX_BYTES + trial) + merged_bytes(graph) + _REST_BYTES
        )

    def check_parts(self, graph: Graph, sizes: Iterable[tuple[int, int]]) -> None:
        """Refuse to write parts whose largest does not fit into the memory.

        ``sizes`` are the vertices and edges of each part.
        """
        # One part at a time is in memory, with the sources and edge ids of its edges.
        width = 2 * max(graph.csc_of(t).indices.element_size() for t in graph.edge_types)
        largest = max(_PART_VERTEX_BYTES * vertices + width * edges for vertices, edges in sizes)
        whom = f"a part within {self.options.hops} hops, of which the largest is made in memory"
        others = _OWNER_BYTES * graph.num_nodes + merged_bytes(graph) + _REST_BYTES
        work_memory(self.memory, largest + others, whom=whom)

    def partition(self, graph: Graph, train: Tensor, method: str, steps: Steps) -> Partition:
        """Divide the training vertices by a method.

        Its kernels are loaded first, so that the memory of dividing does not include it.
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
        with steps("kernels"):
            partition_graph(
                _small(merged_dtype(graph)),
                2,
                hops=options.hops,
                method=method,
                train=torch.arange(_SMALL, device="cpu"),
            )
        with steps("dividing"), progress_bar(f"dividing by {method}") as progress:
            return partition_graph(graph, train=train, progress=progress, **vars(options))

    def report(
        self, graph: Graph, train: Tensor, method: str, steps: Steps, whole: CacheUse | None = None
    ) -> tuple[Partition, PartitionReport]:
        """Divide, and describe the parts.

        ``whole`` is the trial of a cache on the graph without parts, from another method's report.
        """
        partition = self.partition(graph, train, method, steps)
        with steps("measuring"), progress_bar("measuring the parts") as progress:
            return partition, describe(partition, cache=self.trial, whole=whole, progress=progress)

    def placed(
        self, graph: Graph, train: Tensor, method: str, steps: Steps
    ) -> tuple[Partition, PlacementReport]:
        """Divide, place all vertices, and describe what is fetched from where."""
        partition = self.partition(graph, train, method, steps)
        # Checked after dividing, whose memory is free again.
        needed = placement_bytes(graph.num_nodes, self.options.num_parts)
        whom = f"the placement of all vertices in {self.options.num_parts} parts"
        work_memory(self.memory, needed + merged_bytes(graph) + _REST_BYTES, whom=whom)
        settings: dict[str, Any] = {
            "fanout": self.options.fanout,
            "batch_size": self.batch_size,
            "seed": self.options.seed,
        }
        with steps("placing"), progress_bar("placing all vertices") as progress:
            partition = place_vertices(
                partition, minimize=self.minimize, progress=progress, **settings
            )
        with steps("measuring"), progress_bar("measuring the parts") as progress:
            return partition, describe_placement(partition, progress=progress, **settings)


def divide(work: Work, out: Path, outputs: PartitionFiles, *, quiet: bool) -> None:
    """Divide, measure, write."""
    _check_plot(outputs)
    source = work.source
    _check_out(out, source.folder)
    if work.form == "dgl":  # an error at once where DGL is missing
        from ..dgl.graphbolt import import_dgl

        import_dgl()
    graph, train = work.open()
    if work.form == "native":
        check_fields(graph)
    elif work.form == "dgl":
        check_field_names(graph)
    steps = Steps()
    report: PartitionReport | PlacementReport
    if work.form == "dgl":
        partition, report = work.placed(graph, train, work.options.method, steps)
        # DGL writes from memory. Each part holds the sources of its edges, too.
        work.check_parts(graph, [(part.vertices + part.halo, part.edges) for part in report.parts])
    else:
        partition, report = work.report(graph, train, work.options.method, steps)
        work.check_parts(graph, [(part.vertices, part.edges) for part in report.parts])
        if report.advice and not quiet:
            print_notice(report.advice)
    with steps("writing"), progress_bar(f"writing {out.name}") as progress:
        _write(partition, out, work, progress)
    report = replace(report, seconds=steps.seconds, memory=steps.memory)
    if isinstance(report, PartitionReport) and outputs.plot is not None:
        save_plot(report, outputs.plot, title=source.title)
    if outputs.json is not None:
        places = {
            **source.to_json(),
            "out": str(out),
            "format": work.form,
            "features": work.features,
        }
        if work.form == "dgl":
            places["minimize"] = work.minimize
        write_json(outputs.json, {**places, **report.to_json()})
    if quiet:
        return
    if isinstance(report, PartitionReport):
        print_partition(report, title=str(source.folder), out=out)
    else:
        print_placement(report, title=str(source.folder), out=out, minimize=work.minimize)


def compare_methods(
    work: Work, methods: tuple[str, ...], outputs: PartitionFiles, *, named: bool, quiet: bool
) -> None:
    """Report on several methods without writing parts.

    Methods that cannot run are skipped unless they were ``named``.
    """
    _check_plot(outputs)
    graph, train = work.open()
    reports: list[Any] = []
    skipped: dict[str, str] = {}
    whole = None
    for method in methods:
        steps = Steps()
        report: PartitionReport | PlacementReport
        try:
            if work.form == "dgl":
                _, report = work.placed(graph, train, method, steps)
            else:
                _, report = work.report(graph, train, method, steps, whole)
                # The trial without parts is the same for all methods: the first one's is kept.
                whole = None if report.caches is None else report.caches.whole
        except MissingDependencyError as error:
            if named:
                raise
            skipped[method] = str(error)
            continue
        reports.append(replace(report, seconds=steps.seconds, memory=steps.memory))
    if outputs.plot is not None:
        save_comparison_plot(reports, outputs.plot, title=work.source.title)
    if outputs.json is not None:
        found = work.source.to_json()
        if work.form == "dgl":
            found["minimize"] = work.minimize
        found["comparison"] = [report.to_json() for report in reports]
        write_json(outputs.json, {**found, "skipped": skipped})
    if quiet:
        return
    shown: dict[str, Any] = {"title": str(work.source.folder), "skipped": skipped}
    if work.form == "dgl":
        print_placements(reports, minimize=work.minimize, **shown)
        return
    best = min(reports, key=lambda report: report.largest)
    if best.advice:
        print_notice(best.advice)
    print_comparison(reports, **shown)


def _small(dtype: torch.dtype) -> Graph:
    """A ring with ids of this dtype."""
    places = torch.arange(_SMALL + 1, dtype=dtype, device="cpu")
    return Graph(CSC(places, (places[:-1] + 1) % _SMALL, _SMALL))


def _check_out(out: Path, folder: Path) -> None:
    """Refuse a folder that could not be made, before the long work."""
    check_out(out, folder)
    place = out.resolve()
    while not os.path.lexists(place.parent):  # missing parents are created
        place = place.parent
    try:
        check_writable("OUT", place)
    except OSError as error:
        raise click.ClickException(str(error)) from None


def _write(partition: Partition, out: Path, work: Work, progress: Progress | None) -> None:
    """Write the parts in the wanted format, whole or not at all."""
    place: dict[str, Any] = {"source": work.source.folder, "split": work.source.split}
    if work.form == "dgl":
        write_dgl(partition, out, progress=progress, **place)
        return
    if work.form == "pagraph":
        write_pagraph_partition(partition, out, progress=progress)
        return
    write_partition(
        partition,
        out,
        features=work.features,
        **place,
        seed=work.options.seed,
        max_replication=work.options.max_replication,
        origin=work.source.to_json(),
        progress=progress,
    )


def _check_plot(outputs: PartitionFiles) -> None:
    """Raise an error before the long work if matplotlib is missing."""
    if outputs.plot is not None:
        check_plot(outputs.plot, PARTITION_PLOT_FORMATS)


def verify_folder(out: Path, source: Path | None, json_file: Path | None) -> None:
    """Verify a partition folder and print the findings; PaGraphError if there are any."""
    # DGL's folders have a JSON file of any name in place of manifest.json.
    is_dgl = not (out / MANIFEST).is_file() and dgl_config(out) is not None
    verify = verify_dgl if is_dgl else verify_partition
    with progress_bar(f"verifying {out.name}") as progress:
        found = verify(out, source=source, progress=progress)
    if json_file is not None:
        write_json(json_file, {"folder": str(out), "ok": found.ok, **asdict(found)})
    for finding in found.findings:
        print_text(str(finding))
    if not found.ok:
        count = len(found.findings)
        raise PaGraphError(f"{out} is wrong: {'1 finding' if count == 1 else f'{count} findings'}")
    without = ""
    if found.missing:
        without = f"; {found.missing:,} in-edges are missing, because replication was limited"
    print_text(
        f"{out} is right: {found.train:,} training vertices, each in exactly one of "
        f"{found.num_parts} parts; "
        f"{found.vertices:,} vertices and {found.edges:,} edges equal the source's{without}"
    )
