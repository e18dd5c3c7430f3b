"""What ``pagraph train`` prints: progress, a line per epoch, a summary, the comparison of two loaders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..train import EpochRecord, Reporter, TrainOptions, TrainResult

if TYPE_CHECKING:
    from ..train.assignment import Assignment

__all__ = ["ConsoleReporter", "assignment_lines", "comparison_lines", "json_report", "result_line"]


class ConsoleReporter(Reporter):
    """One line per epoch; on a terminal also a progress bar over the batches, none in a pipe.

    Args:
        options: Of the run that is reported on.
        console: Where to write. Default: standard output.
    """

    def __init__(self, options: TrainOptions, *, console: Console | None = None) -> None:
        self._epochs = options.epochs
        self._console = console or Console(highlight=False, markup=False)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._bar = self._progress.add_task("batches", total=None)

    def __enter__(self) -> ConsoleReporter:
        self._progress.start()
        return self

    def __exit__(self, *_error: Any) -> None:
        self._progress.stop()

    def batch(self, epoch: int, done: int, total: int) -> None:
        """Move the bar."""
        text = f"epoch {epoch + 1}/{self._epochs}"
        self._progress.update(self._bar, completed=done, total=total, description=text)

    def epoch(self, record: EpochRecord) -> None:
        """Print the epoch's line."""
        self._console.print(epoch_line(record, self._epochs), soft_wrap=True)


def epoch_line(record: EpochRecord, epochs: int) -> str:
    """An epoch in one line; what was not measured is left out."""
    parts = [f"epoch {record.epoch + 1:>{len(str(epochs))}}/{epochs}", f"loss {record.loss:.4f}"]
    if record.val_accuracy is not None and record.test_accuracy is not None:
        parts.append(f"val {record.val_accuracy:.2%}  test {record.test_accuracy:.2%}")
    loading, computing = record.loading_seconds, record.computing_seconds
    loadings, computings = (
        [getattr(r, name) for r in record.ranks] for name in ("loading_seconds", "computing_seconds")
    )
    parts.append(
        f"{record.seconds:.2f} s: loading {loading:.2f}{_spread(loadings, '.2f')}, "
        f"computing {computing:.2f}{_spread(computings, '.2f')}"
    )
    if record.hit_rate is not None:
        rates = [(r.hits or 0) / max(1, r.asked) for r in record.ranks]
        parts.append(f"hit rate {record.hit_rate:.1%}{_spread(rates, '.1%')}")
    return "  ".join(parts)


def _spread(values: Sequence[float], form: str) -> str:
    """The least and the most of several processes; nothing for one."""
    return f" ({min(values):{form}} to {max(values):{form}})" if len(values) > 1 else ""


def assignment_lines(folder: Path, work: Assignment) -> list[str]:
    """What is trained on and what is evaluated."""
    part = work.part
    if part is None:
        return [f"{folder}: {work.task}"]
    manifest, task = part.manifest, work.task
    parts = f"{part.num_parts} part{'s' if part.num_parts > 1 else ''}"
    hops = f"{part.hops} hop{'s' if part.hops > 1 else ''}"
    val, test = (sum(getattr(manifest, f"{name}_per_part")) + manifest.outside[name] for name in ("val", "test"))
    where = "on the whole graph" if manifest.evaluation == "source" else "on the parts"
    how = "pre-aggregated features" if task.preaggregated else "features"
    graph = part.graph
    return [
        f"{folder}: {parts} of {hops}, {sum(manifest.train_per_part):,} vertices to train on; {val:,} to validate and "
        f"{test:,} to test, evaluated {where}",
        f"part {part.index}: {graph.num_nodes:,} vertices, {graph.num_edges:,} edges, {task.num_features} {how}, "
        f"{task.num_classes} classes; {len(task.train):,} vertices to train on",
    ]


def json_report(result: TrainResult, folder: Path, split: str, work: Assignment) -> dict[str, Any]:
    """What ``--json`` writes of one run."""
    report = {"folder": str(folder), "split": split, **result.to_json()}
    if work.part is not None:
        manifest = work.part.manifest
        for i, rank in enumerate(report["ranks"]):
            rank |= {"part": i, "vertices": manifest.vertices_per_part[i], "edges": manifest.edges_per_part[i]}
        report["partition"] = {
            "method": manifest.method,
            "parts": manifest.num_parts,
            "hops": manifest.hops,
            "evaluation": manifest.evaluation,
        }
    return report


def result_line(result: TrainResult, *, title: str) -> str:
    """The summary of one run."""
    line = (
        f"{title}: test accuracy {result.test_accuracy:.2%} at the best validation accuracy "
        f"{result.val_accuracy:.2%} (epoch {result.best.epoch + 1})"
    )
    return line if result.hit_rate is None else f"{line}, cache hit rate {result.hit_rate:.1%}"


def comparison_lines(dgl: TrainResult, ours: TrainResult) -> list[str]:
    """The table of two runs that differ in the loader alone; times are medians over the epochs."""
    rows = [["", "dgl", "pagraph", "ratio"]]
    times = {"loading": "loading_seconds", "computing": "computing_seconds", "epoch": "seconds"}
    for name, field in times.items():
        theirs, mine = dgl.median_seconds(field), ours.median_seconds(field)
        ratio = f"{theirs / mine:.2f}" if mine > 0 else "-"
        rows.append([f"{name}, s per epoch (median)", f"{theirs:.3f}", f"{mine:.3f}", ratio])
    rows.append(["test accuracy", f"{dgl.test_accuracy:.2%}", f"{ours.test_accuracy:.2%}", ""])
    rows.append(["validation accuracy", f"{dgl.val_accuracy:.2%}", f"{ours.val_accuracy:.2%}", ""])
    rows.append(["cache hit rate", "-", "-" if ours.hit_rate is None else f"{ours.hit_rate:.1%}", ""])
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = []
    for name, *cells in rows:
        right = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *right]).rstrip())
    return lines
