"""What ``pagraph partition`` prints: a table of the parts, or of several methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from ..system.tables import BEST, Table
from ..system.units import bytes_text, percent
from .terminal import folder_bytes, print_table, print_text

if TYPE_CHECKING:
    from ..partition import PartitionReport, PlacementReport
    from ..partition.report import CachesReport

_MOST_PARTS = 16  # with more, the table shows the extremes and the mean
_MOST_HOPS = 3  # columns; later hops are added up
_MOST_FANOUTS = 5  # equal ones beyond this number are written as one
# Values of `--minimize` in words.
_AIMS = {"rows": "fetch few rows", "cut": "cut few edges"}


def print_partition(report: PartitionReport, *, title: str, out: Path) -> None:
    """Print the report of a partition."""
    print_text(f"{_head(report, title)} by {report.method}")
    print_table(_parts(report))
    if len(report.node_types) > 1:
        print_table(_types(report))
    print_text()
    print_table(_facts(_fact_words(report)))
    print_text(f"written to {out}: {bytes_text(folder_bytes(out))}")


def print_comparison(
    reports: Sequence[PartitionReport], *, title: str, skipped: Mapping[str, str]
) -> None:
    """Print one table of several methods. ``skipped`` is the reason of each that could not run."""
    print_text(_head(reports[0], title))
    print_table(_methods(reports))
    print_text("largest: vertices of the largest part / the graph's, and / of hash's largest")
    print_text("all parts: their vertices / the graph's (replication factor); edges likewise")
    if any(report.lost for report in reports):
        print_text("lost: share of the neighbours that training draws and parts had to drop")
    print_text("seconds, memory: time of dividing, and memory that it added to the process")
    caches = reports[0].caches
    if caches is not None:
        print_text(
            f"hit rate: with {_caches_text(caches)}; one process with such a cache and no parts "
            f"{percent(caches.whole.hit_rate)}"
        )
    _print_skipped(skipped)


def print_placement(report: PlacementReport, *, title: str, out: Path, minimize: str) -> None:
    """Print the report of a placement."""
    head = f"{report.num_parts} parts by {report.method}, placed to {_AIMS[minimize]}"
    print_text(f"{_size(report, title)}; {head}")
    rows = [["part", "train", "owned vertices", "their in-edges", "+ halo of 1 hop"]]
    for number, part in enumerate(report.parts):
        counts = (part.train, part.vertices, part.edges, part.halo)
        rows.append([str(number), *(f"{count:,}" for count in counts)])
    print_table(Table(rows, "what each part owns"))
    print_text()
    print_table(_facts(_placement_words(report)))
    print_text(f"written to {out}: {bytes_text(folder_bytes(out))}")


def print_placements(
    reports: Sequence[PlacementReport], *, title: str, skipped: Mapping[str, str], minimize: str
) -> None:
    """Print one table of placements that began with several methods.

    ``skipped`` is that of :func:`print_comparison`.
    """
    aim = f"{reports[0].num_parts} parts, placed to {_AIMS[minimize]}"
    print_text(f"{_size(reports[0], title)}; {aim}")
    rows = [["method", "training", "evaluation", "cut", "vertices", "edges", "train", "seconds"]]

    def minimized(report: PlacementReport) -> float:
        return report.cut if minimize == "cut" else report.train.share

    for report in sorted(reports, key=minimized):
        balances = [f"{report.balance(name):.3f}" for name in ("vertices", "edges", "train")]
        shares = [percent(share) for share in (report.train.share, report.evaluated.share)]
        seconds = f"{report.seconds['dividing'] + report.seconds['placing']:.2f}"
        rows.append([report.method, *shares, percent(report.cut), *balances, seconds])
    print_table(Table(rows, "methods to begin with", left=(0,)))
    print_text("training, evaluation: share of an epoch's rows that other parts own")
    print_text("cut: edges between parts; vertices, edges, train: largest part / mean")
    _print_skipped(skipped)


def _print_skipped(skipped: Mapping[str, str]) -> None:
    for method, reason in skipped.items():
        print_text(f"{method} was left out: {reason}")


def _placement_words(report: PlacementReport) -> dict[str, str]:
    trial = f"fan-out {_fanout_text(report.fanout)}, batches of {report.batch_size:,}"
    balances = [f"{name} {report.balance(name):.3f}" for name in ("vertices", "edges", "train")]
    words = {
        "rows from others": f"{percent(report.train.share)} of an epoch of training, "
        f"{percent(report.evaluated.share)} of one of evaluation ({trial}); at random "
        f"{percent(report.random_share)}",
        "cut": f"{percent(report.cut)} of the edges are between parts",
        "balance": f"largest part / mean: {', '.join(balances)}",
    }
    return words | _step_words(report)


def _head(report: PartitionReport, title: str) -> str:
    return f"{_size(report, title)}, {report.train:,} vertices to train on; {report.shape_text}"


def _size(report: PartitionReport | PlacementReport, title: str) -> str:
    return f"{title}: {report.num_nodes:,} vertices, {report.num_edges:,} edges"


def _parts(report: PartitionReport) -> Table:
    columns = _columns(report)
    rows = [["part", *columns]]
    if report.num_parts <= _MOST_PARTS:
        for part, values in enumerate(zip(*columns.values(), strict=True)):
            rows.append([str(part), *map(_cell, columns, values)])
    else:
        for name, choose in (("most", max), ("mean", fmean), ("least", min)):
            rows.append([name, *(_cell(column, choose(columns[column])) for column in columns)])
    totals = {column: sum(values) for column, values in columns.items()}
    # A rate has no sum.
    if report.caches is not None:
        totals[_HIT_RATE] = report.caches.hit_rate
    rows.append(["all", *map(_cell, totals, totals.values())])
    return Table(rows, "what each part holds", has_total=True)


def _types(report: PartitionReport) -> Table:
    rows = [["type", "in the graph", "in all parts", "replication"]]
    for name, count in report.node_types.items():
        held = sum(part.types[name] for part in report.parts)
        rows.append([name, f"{count:,}", f"{held:,}", f"{report.replication_by_type[name]:.3f}"])
    return Table(rows, "by vertex type", left=(0,))


_HIT_RATE = "hit rate"


def _columns(report: PartitionReport) -> dict[str, list[float]]:
    """Column to the numbers of all parts."""
    parts = report.parts
    columns: dict[str, list[float]] = {"train": [part.train for part in parts]}
    # Columns of zeros are left out, so that the table fits into 80 columns.
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


def _facts(sentences: Mapping[str, str]) -> Table:
    """Subjects, and sentences in a second column."""
    return Table([("", ""), *sentences.items()], left=(0, 1))


def _fact_words(report: PartitionReport) -> dict[str, str]:
    away = report.num_nodes - report.covered
    replication = f"{report.replication_factor:.3f}: vertices of all parts / of the graph"
    if away:
        share = percent(away / report.num_nodes)
        replication += f"; {away:,} vertices ({share}) are in no part"
    words = {
        "largest part": f"{report.largest_share:.3f} of the graph's vertices; "
        f"{report.largest_over_hash:.3f} of what a random division (hash) needs",
        "replication factor": replication,
        "balance": f"largest part / mean: train vertices {report.train_balance:.3f}, "
        f"vertices {report.vertex_balance:.3f}",
        "edges kept": f"{report.edge_factor:.3f}: edges of all parts / of the graph",
    }
    dropped = sum(part.dropped for part in report.parts)
    if dropped:
        words["dropped"] = f"{dropped:,} vertices of halos"
        if report.lost is not None:
            share = percent(report.lost)
            words["dropped"] += f"; {share} of the neighbours that training draws are lost"
    if report.caches is not None:
        words |= _cache_words(report.caches)
    return words | _step_words(report)


def _step_words(report: PartitionReport | PlacementReport) -> dict[str, str]:
    """Time and memory of the steps that were measured."""
    words = {}
    if report.seconds:
        steps = report.seconds.items()
        words["time"] = ", ".join(f"{step} {seconds:.2f} s" for step, seconds in steps)
    if report.memory:
        # The step that needs most decides which machine is large enough.
        step = max(report.memory, key=lambda name: report.memory[name].peak_bytes)
        use = report.memory[step]
        doing = "loading kernels" if step == "kernels" else step
        words["memory"] = f"at most {bytes_text(use.peak_bytes)} resident, when {doing}"
        if use.private_bytes is not None:
            words["memory"] += f"; {bytes_text(use.private_bytes)} without pages of files"
    return words


def _cache_words(caches: CachesReport) -> dict[str, str]:
    whole = f"one process with such a cache and no parts {percent(caches.whole.hit_rate)}"
    words = {"hit rate": f"{percent(caches.hit_rate)} with {_caches_text(caches)}; {whole}"}
    if caches.jaccard is not None:
        words["overlap"] = (
            f"{percent(caches.shared)} of the cached vertices are in several caches; "
            f"two caches share {percent(caches.jaccard)} of what either holds"
        )
    return words


def _caches_text(caches: CachesReport) -> str:
    trial = caches.trial
    # There are bytes, or a share, or both: a share is known in bytes only for fields of rows.
    size = "" if caches.nbytes is None else bytes_text(caches.nbytes)
    if trial.share is not None:
        rows = f"{100 * trial.share:.4g}% of the rows"
        size = f"{rows} ({size})" if size else rows
    return (
        f"a cache of {size} for each part, policy {trial.policy}, "
        f"fan-out {_fanout_text(caches.fanout)}, batches of {trial.batch_size:,}"
    )


def _fanout_text(fanout: Sequence[int]) -> str:
    if len(fanout) > _MOST_FANOUTS and len(set(fanout)) == 1:
        return f"{fanout[0]} in each of {len(fanout)} hops"
    return ",".join(map(str, fanout))


def _methods(reports: Sequence[PartitionReport]) -> Table:
    # Rounded as shown, so that two that look equal are both marked as the best.
    best = min(round(report.largest_share, 3) for report in reports)
    limited = any(report.lost for report in reports)
    rows: list[list[str]] = []
    head: list[str] = []
    for report in sorted(reports, key=lambda report: (report.largest, report.replication_factor)):
        mark = BEST if round(report.largest_share, 3) == best else " "
        cells = {
            "method": report.method,
            "largest": f"{report.largest_share:.3f}{mark}",
            "/ hash": f"{report.largest_over_hash:.3f}",
            "all parts": f"{report.replication_factor:.3f}",
            "train": f"{report.train_balance:.3f}",
            "edges": f"{report.edge_factor:.3f}",
        }
        if limited:
            cells["lost"] = percent(report.lost)
        if report.caches is not None:
            cells["hit rate"] = percent(report.caches.hit_rate)
        cells["seconds"] = f"{report.seconds['dividing']:.2f}"
        cells["memory"] = bytes_text(report.memory["dividing"].added_bytes)
        head = list(cells)
        rows.append(list(cells.values()))
    return Table([head, *rows], "methods", left=(0,))
