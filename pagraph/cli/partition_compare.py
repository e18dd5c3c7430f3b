"""Divides a graph folder by several methods, and shows them side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .partition_options import Outputs, Settings, Source
from .partition_steps import divided, measured

if TYPE_CHECKING:
    from torch import Tensor

    from ..graph import Graph
    from ..partition import PartitionReport

__all__ = ["compare_methods"]


def compare_methods(source: Source, options: Settings, outputs: Outputs, *, quiet: bool) -> None:
    """Try the methods that are named, or all that can run; no parts are written.

    Raises:
        ValueError: The source does not go with the settings.
        MissingDependencyError: A method that is named needs what is not installed.
    """
    from ..atomic import write_json
    from ..partition.plot import save_comparison_plot
    from .partition_report import print_comparison

    graph, train = source.open()
    options.check_graph(graph, train)
    reports, skipped = _reports(graph, train, options)
    if outputs.plot is not None:
        save_comparison_plot(reports, outputs.plot, title=source.title)
    if outputs.json is not None:
        comparison = [report.to_json() for report in reports]
        write_json(outputs.json, {**source.to_json(), "comparison": comparison, "skipped": skipped})
    if not quiet:
        print_comparison(reports, title=str(source.folder), skipped=skipped)


def _reports(graph: Graph, train: Tensor, options: Settings) -> tuple[list[PartitionReport], dict[str, str]]:
    """A report for each method; and the methods that cannot run here, with the reason."""
    from ..errors import MissingDependencyError
    from ..partition import METHODS
    from ..partition.steps import Steps

    reports: list[PartitionReport] = []
    skipped: dict[str, str] = {}
    whole = None
    for method in options.methods or METHODS:
        steps = Steps()
        try:
            partition = divided(graph, train, method, options, steps)
        except MissingDependencyError as error:
            if options.methods:
                raise
            skipped[method] = str(error)
            continue
        report = measured(partition, options, steps, whole=whole)
        whole = None if report.caches is None else report.caches.whole
        reports.append(replace(report, seconds=steps.seconds, memory=steps.memory))
    return reports, skipped
