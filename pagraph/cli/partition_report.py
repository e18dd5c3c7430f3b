"""Report of ``pagraph partition`` on the terminal: the parts, or several methods side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from ..system.units import bytes_text, percent
from .terminal import number_table, print_whole

if TYPE_CHECKING:
    from ..partition import PartitionReport
    from ..partition.report import CachesReport

_MOST_PARTS = 16  # of more, the table shows the extremes and the mean
_MOST_HOPS = 3  # columns: later hops are added up
_MOST_FANOUTS = 5  # shown one by one where they are equal


def print_partition(report: PartitionReport, *, title: str, out: Path) -> None:
    """Print a partition's report, within 80 columns; ``title`` is the graph's name, ``out`` the
    folder written."""
    console = Console(highlight=False, markup=False)
    console.print(f"{_head(report, title)} by {report.method}", soft_wrap=True)
    print_whole(console, _parts(report))
    if len(report.node_types) > 1:
        print_whole(console, _types(report))
    console.print()
    console.print(_facts(report))
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    console.print(f"written to {out}: {bytes_text(size)}", soft_wrap=True)


def print_comparison(
    reports: Sequence[PartitionReport], *, title: str, skipped: Mapping[str, str]
) -> None:
    """Print one table of several methods; ``skipped`` says why some could not run."""
    console = Console(highlight=False, markup=False)
    console.print(_head(reports[0], title), soft_wrap=True)
    print_whole(console, _methods(reports))
    console.print("replication, edges: of all parts / of the graph, * the lowest replication")
    console.print("train, vertices: largest part / mean")
    if any(report.lost for report in reports):
        console.print("lost: of the neighbours that training draws, those that parts had to drop")
    console.print("seconds, memory: of dividing, and what it added to the process")
    caches = reports[0].caches
    if caches is not None:
        console.print(
            f"hit rate: with {_caches_text(caches)}; one process with such a cache and no parts "
            f"{percent(caches.whole.hit_rate)}"
        )
    for method, reason in skipped.items():
        console.print(f"{method} was left out: {reason}", soft_wrap=True)


def _head(report: PartitionReport, title: str) -> str:
    return (
        f"{title}: {report.num_nodes:,} vertices, {report.num_edges:,} edges, {report.train:,} "
        "vertices to train on; "
        f"{report.shape_text}"
    )


def _parts(report: PartitionReport) -> Table:
    columns = _columns(report)
    table = number_table("what each part holds", ["part", *columns])
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    if report.num_parts <= _MOST_PARTS:
        for part, row in enumerate(rows):
            table.add_row(str(part), *map(_cell, columns, row))
    else:
        for name, choose in (("most", max), ("mean", fmean), ("least", min)):
            table.add_row(
                name, *(_cell(column, choose(values)) for column, values in columns.items())
            )
    totals = {column: sum(values) for column, values in columns.items()}
    if report.caches is not None:
        totals[_HIT_RATE] = report.caches.hit_rate
    table.add_section()
    table.add_row("all", *(_cell(column, total) for column, total in totals.items()), style="bold")
    return table


def _types(report: PartitionReport) -> Table:
    table = number_table("by vertex type", ["type", "in the graph", "in all parts", "replication"])
    for name, count in report.node_types.items():
        held = sum(part.types[name] for part in report.parts)
        table.add_row(name, f"{count:,}", f"{held:,}", f"{report.replication_by_type[name]:.3f}")
    return table


_HIT_RATE = "hit rate"


def _columns(report: PartitionReport) -> dict[str, list[float]]:
    """Column to the numbers of all parts."""
    parts = report.parts
    columns: dict[str, list[float]] = {"train": [part.train for part in parts]}
    if any(part.evaluated for part in parts):
        columns["val, test"] = [part.evaluated for part in parts]
    shown = report.hops if report.hops <= _MOST_HOPS else _MOST_HOPS - 1
    for hop in range(shown):
        columns[f"+ hop {hop + 1}"] = [part.halo[hop] for part in parts]
    if shown < report.hops:
        columns[f"+ hops {shown + 1}-{report.hops}"] = [sum(part.halo[shown:]) for part in parts]
    columns["= vertices"] = [part.vertices for part in parts]
    if any(part.dropped for part in parts):
        columns["dropped"] = [part.dropped for part in parts]
    columns["edges"] = [part.edges for part in parts]
    if report.caches is not None:
        columns[_HIT_RATE] = [use.hit_rate for use in report.caches.parts]
    return columns


def _cell(column: str, value: float) -> str:
    return percent(value) if column == _HIT_RATE else f"{value:,.0f}"


def _facts(report: PartitionReport) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    away = report.num_nodes - report.covered
    none = (
        f"; {away:,} vertices ({percent(away / report.num_nodes)}) are in no part" if away else ""
    )
    table.add_row(
        "replication factor",
        f"{report.replication_factor:.3f}: vertices of all parts / of the graph{none}",
    )
    table.add_row(
        "balance",
        f"largest part / mean: train vertices {report.train_balance:.3f}, vertices "
        f"{report.vertex_balance:.3f}",
    )
    table.add_row("edges kept", f"{report.edge_factor:.3f}: edges of all parts / of the graph")
    _add_dropped(table, report)
    if report.caches is not None:
        _add_caches(table, report.caches)
    if report.seconds:
        table.add_row(
            "time", ", ".join(f"{step} {seconds:.2f} s" for step, seconds in report.seconds.items())
        )
    if report.memory:
        step = max(report.memory, key=lambda name: report.memory[name].peak_bytes)
        use = report.memory[step]
        text = f"at most {bytes_text(use.peak_bytes)} resident, when {step}"
        private = (
            ""
            if use.private_bytes is None
            else f"; {bytes_text(use.private_bytes)} without pages of files"
        )
        table.add_row("memory", text + private)
    return table


def _add_dropped(table: Table, report: PartitionReport) -> None:
    dropped = sum(part.dropped for part in report.parts)
    if dropped:
        lost = (
            ""
            if report.lost is None
            else f"; {percent(report.lost)} of the neighbours that training draws are lost"
        )
        table.add_row("dropped", f"{dropped:,} vertices of halos{lost}")


def _add_caches(table: Table, caches: CachesReport) -> None:
    without = f"one process with such a cache and no parts {percent(caches.whole.hit_rate)}"
    table.add_row("hit rate", f"{percent(caches.hit_rate)} with {_caches_text(caches)}; {without}")
    if caches.jaccard is not None:
        table.add_row(
            "overlap",
            f"{percent(caches.shared)} of the cached vertices are in several caches; "
            f"two caches share {percent(caches.jaccard)} of what either holds",
        )


def _caches_text(caches: CachesReport) -> str:
    share, size = caches.trial.share, "" if caches.nbytes is None else bytes_text(caches.nbytes)
    if share is not None:
        size = f"{100 * share:.4g}% of the rows{f' ({size})' if size else ''}"
    return (
        f"a cache of {size} for each part, policy {caches.trial.policy}, fan-out "
        f"{_fanout_text(caches.fanout)}, "
        f"batches of {caches.trial.batch_size:,}"
    )


def _fanout_text(fanout: Sequence[int]) -> str:
    if len(fanout) > _MOST_FANOUTS and len(set(fanout)) == 1:
        return f"{fanout[0]} in each of {len(fanout)} hops"
    return ",".join(map(str, fanout))


def _methods(reports: Sequence[PartitionReport]) -> Table:
    columns = ["method", "replication", "train", "vertices", "edges"]
    limited = any(report.lost for report in reports)
    columns += ["lost"] if limited else []
    columns += ["hit rate"] if reports[0].caches is not None else []
    table = number_table("methods", [*columns, "seconds", "memory"])
    table.columns[0].justify = "left"
    best = min(round(report.replication_factor, 3) for report in reports)
    for report in reports:
        mark = "*" if round(report.replication_factor, 3) == best else " "
        cells = [report.method, f"{report.replication_factor:.3f}{mark}"]
        cells += [
            f"{value:.3f}"
            for value in (report.train_balance, report.vertex_balance, report.edge_factor)
        ]
        cells += [percent(report.lost)] if limited else []
        cells += [] if report.caches is None else [percent(report.caches.hit_rate)]
        cells += [
            f"{report.seconds['dividing']:.2f}",
            bytes_text(report.memory["dividing"].added_bytes),
        ]
        table.add_row(*cells)
    return table
