"""The work of ``pagraph train``: one run or two, and their report."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..cache.memory_plan import MemoryPlan
from ..options.training import TrainOptions
from ..stats import Tracer
from ..system.atomic import write_json
from ..system.tables import Table, output_width, wrapped
from ..train import EpochRecord, Reporter, TrainResult
from ..train.assignment import Assignment, assign, default_fanout, default_layers
from ..train.checkpoint import check_checkpoint
from ..train.distributed import (
    OtherProcessError,
    World,
    choose_device,
    end_process,
    joined_world,
    naming_lost_processes,
)
from ..train.loop import begin_training, in_turn
from ..train.meeting import DifferentProcessesError, LostProcessError
from ..train.models import framework_of
from . import BAD_INPUT, record_error, show_error
from .options import build
from .settings import check_json
from .terminal import print_table, print_text


def run(
    folder: Path,
    settings: dict[str, Any],
    *,
    names: Sequence[str],
    split: str,
    source: Path | None,
    json_file: Path | None,
    trace_file: Path | None,
    checkpoint: Path | None,
    timeout: float,
) -> None:
    """Train with each of the loaders in ``names``, and report."""
    joining = joined_world(device=settings["device"], timeout=timeout)
    with _each_prints(), joining as world, _one_prints(world):
        # Together, as a process that fails alone would leave the others waiting for its gradients.
        options = world.together(lambda: _options(folder, settings, json_file, checkpoint, world))
        work = assign(folder, options, split=split, source=source, world=world)
        if world.is_first:
            print_text("\n".join(assignment_lines(folder, work)))
        by_loader = {name: replace(options, loader=name) for name in names}
        results = _results(work, by_loader, world, trace_file, checkpoint)
        if world.is_first:
            _report(results, folder, split, work, json_file)
    # Threads of gloo that outlive the group may abort an orderly exit.
    if world.connected:
        end_process()


def _report(
    results: Mapping[str, TrainResult],
    folder: Path,
    split: str,
    work: Assignment,
    json_file: Path | None,
) -> None:
    """Print the results by loader, ours last, and write them."""
    for name, result in results.items():
        print_text(result_line(result, title=name))
    if len(results) > 1:
        print_text()
        print_table(comparison_table(*results.values()))
    if json_file is None:
        return
    reports: dict[str, Any] = {}
    for name, result in results.items():
        reports[name] = json_report(result, folder, split, work)
    # By loader if there are two, or else the report itself.
    if len(reports) == 1:
        (reports,) = reports.values()
    write_json(json_file, reports)


def _options(
    folder: Path,
    settings: dict[str, Any],
    json_file: Path | None,
    checkpoint: Path | None,
    world: World,
) -> TrainOptions:
    if world.is_first:
        check_json(json_file)
    # Before the options, whose device may be the current one.
    choose_device(settings["device"], world)
    fanout = settings["fanout"] or default_fanout(folder)
    layers = settings["layers"]
    if layers == "auto" and settings["loader"] == "pagraph" and not settings["ignore_time"]:
        layers = default_layers(folder)
    options = build(TrainOptions, {**settings, "fanout": fanout, "layers": layers})
    # Before the graph is opened, which may take minutes.
    if checkpoint is not None:
        check_checkpoint(checkpoint, options)
    framework = framework_of(options.layers)
    if options.loader != "pagraph":
        framework.check_own_loader()
    return options


def _results(
    work: Assignment,
    by_loader: Mapping[str, TrainOptions],
    world: World,
    trace_file: Path | None,
    checkpoint: Path | None,
) -> dict[str, TrainResult]:
    """The results by loader; of two, the epochs take turns."""
    runs = {}
    records: dict[str, list[EpochRecord]] = {name: [] for name in by_loader}
    with ExitStack() as stack:
        for name, options in by_loader.items():
            device = options.torch_device()
            reporter = Reporter()
            tracer = None
            if world.is_first:
                together = f", {world.size} processes" if world.size > 1 else ""
                parts = f"{options.layers}'s layers and {name}'s loader"
                print_text(f"{options.model} with {parts} on {device}{together}")
                title = f"  with {name}'s loader" if len(by_loader) > 1 else ""
                reporter = stack.enter_context(ConsoleReporter(options, title))
            # With --compare the other loader's run has no timeline.
            if trace_file is not None and name == "pagraph":
                path = rank_file(trace_file, world.rank) if world.size > 1 else trace_file
                tracer = stack.enter_context(Tracer(path))
            runs[name] = partial(
                begin_training,
                work.task,
                options,
                work.evaluation,
                world,
                reporter,
                tracer,
                checkpoint,
            )
        for name, record in in_turn(runs, device):
            records[name].append(record)
    return {name: TrainResult(by_loader[name], tuple(of)) for name, of in records.items()}


def rank_file(path: Path, rank: int) -> Path:
    """The file of one process: ``t.json.gz`` is ``t.rank3.json.gz`` for rank 3."""
    packed = ".gz" if path.name.endswith(".gz") else ""
    name = path.name.removesuffix(packed)
    stem, dot, ending = name.rpartition(".")
    if not stem:  # no ending, or a hidden file
        return path.with_name(f"{ending}.rank{rank}{packed}")
    return path.with_name(f"{stem}.rank{rank}{dot}{ending}{packed}")


_ANOTHER_SPEAKS = 5.0
"""Seconds for the first process of a machine to report a lost process, before the others end."""
_ALL_SPEAK = 0.5
"""Seconds for every process to print its error, before torchrun ends all."""
_TORCHRUN_LOOKS = 1.0
"""Seconds for torchrun to notice a killed process; it polls ten times a second."""


@contextmanager
def _each_prints() -> Iterator[None]:
    """Let every process print that they differ, or could not meet, before the first one ends."""
    try:
        yield
    except (DifferentProcessesError, LostProcessError) as error:
        code = show_error(error)
        time.sleep(_ALL_SPEAK)
        record_error(error)
        end_process(code)


@contextmanager
def _one_prints(world: World) -> Iterator[None]:
    """Let the failed process, and one of each other machine, print its error before all end."""
    if not world.connected:
        yield
        return
    try:
        with naming_lost_processes(world):
            yield
    except DifferentProcessesError:
        raise
    except OtherProcessError as error:
        if world.local_rank == 0 and not world.shares_machine(error.rank):
            show_error(error)
        # Torchrun ends all processes once one has ended, so the failed one prints first.
        world.wait_for_end()
        record_error(error)
        end_process(BAD_INPUT)
    except Exception as error:
        is_lost = isinstance(error, LostProcessError)
        if is_lost and world.local_rank:
            # The first process of this machine lost it too. That prints, and torchrun ends this
            # one.
            time.sleep(_ANOTHER_SPEAKS)
        code = show_error(error)
        if is_lost:
            # Torchrun should name the killed process, not one that missed it.
            time.sleep(_TORCHRUN_LOOKS)
        record_error(error)
        # An orderly exit would wait for the others, which may be gone or wait for this one.
        end_process(code)


class ConsoleReporter(Reporter):
    """Prints a line per epoch, with the title at its end, and on a terminal a progress bar."""

    def __init__(self, options: TrainOptions, title: str = "") -> None:
        self._epochs = options.epochs
        self._title = title
        self._console = Console(highlight=False, markup=False)
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
        return self

    def __exit__(self, *_error: Any) -> None:
        self._progress.stop()

    def resumed(self, epochs: int) -> None:
        """Print after which epoch the run resumes."""
        self._console.print(f"resuming after epoch {epochs}/{self._epochs}")

    def planned(self, plan: MemoryPlan) -> None:
        """Print the plan."""
        self._console.print(str(plan), soft_wrap=True)

    def batch(self, epoch: int, done: int, total: int) -> None:
        """Move the bar."""
        text = f"epoch {epoch + 1}/{self._epochs}{self._title}"
        self._progress.start()  # if it is not there: a terminal shows one bar at a time
        self._progress.update(self._bar, completed=done, total=total, description=text)

    def epoch(self, record: EpochRecord) -> None:
        """Print the epoch's line."""
        self._progress.live.stop()
        line = epoch_line(record, self._epochs) + self._title
        lines = wrapped(line, output_width(), "  ", at="  ")
        self._console.print("\n".join(lines), soft_wrap=True)


def epoch_line(record: EpochRecord, epochs: int) -> str:
    """An epoch in one line; what was not measured is left out."""
    parts = [f"epoch {record.epoch + 1:>{len(str(epochs))}}/{epochs}", f"loss {record.loss:.4f}"]
    if record.val is not None and record.test is not None:
        parts.append(f"val {_metrics(record.val)}  test {_metrics(record.test)}")
    loading = _spread([rank.loading_seconds for rank in record.ranks], ".2f")
    computing = _spread([rank.computing_seconds for rank in record.ranks], ".2f")
    parts.append(
        f"{record.seconds:.2f} s: loading {record.loading_seconds:.2f}{loading}, "
        f"computing {record.computing_seconds:.2f}{computing}"
    )
    # Less would be shown as 0.00. Only first epochs load kernels.
    if record.kernels_seconds >= 0.005:
        parts.append(f"kernels: {record.kernels_seconds:.2f} s")
    # None without a cache.
    if record.hit_rate is not None:
        rates = [(rank.hits or 0) / max(1, rank.asked) for rank in record.ranks]
        parts.append(
            f"hit rate {record.hit_rate:.1%}{_spread(rates, '.1%')} of rows, "
            f"{record.byte_hit_rate:.1%} of bytes"
        )
    return "  ".join(parts)


_TITLES = {"accuracy": "accuracy", "auc": "AUC", "mrr": "MRR"}


def _metrics(metrics: Mapping[str, float]) -> str:
    """Metrics for an epoch's line; accuracy goes without its name."""
    texts = []
    for name, value in metrics.items():
        title = "" if name == "accuracy" else f"{_TITLES[name]} "
        texts.append(f"{title}{value:.2%}")
    return ", ".join(texts)


def _spread(values: Sequence[float], form: str) -> str:
    """The least and the most of several processes; "" for one."""
    if len(values) < 2:
        return ""
    return f" ({min(values):{form}} to {max(values):{form}})"


def assignment_lines(folder: Path, work: Assignment) -> list[str]:
    """Lines that name the graph or part, and the vertices to train on and to evaluate."""
    part = work.part
    task = work.task
    if part is None:
        return [f"{folder}: {task}"]
    manifest = part.manifest
    parts = f"{part.num_parts} part{'s' if part.num_parts > 1 else ''}"
    hops = f"{part.hops} hop{'s' if part.hops > 1 else ''}"
    # Some validation and test vertices may be in no part: the source has them.
    val = sum(manifest.val_per_part) + manifest.outside["val"]
    test = sum(manifest.test_per_part) + manifest.outside["test"]
    where = "on the whole graph" if work.evaluated_on == "source" else "on the parts"
    graph = part.graph
    lines = [
        f"{folder}: {parts} of {hops}, {sum(manifest.train_per_part):,} vertices to train on; "
        f"{val:,} to validate and {test:,} to test, evaluated {where}",
        f"part {part.index}: {graph.num_nodes:,} vertices, {graph.num_edges:,} edges, "
        f"{task.inputs}, {task.num_outputs} classes; {len(task.train):,} vertices to train on",
    ]
    if work.sourceless:
        ranks = ", ".join(map(str, work.sourceless))
        outside = manifest.outside["val"] + manifest.outside["test"]
        lines.append(
            f"rank {ranks} does not have the graph that was divided: each part evaluates its own "
            f"vertices with the neighbours that it holds, and the {outside:,} vertices outside of "
            "all parts are not evaluated. Give the graph with --source, or divide it with "
            "--evaluation parts, so that parts hold all that evaluation needs"
        )
    return lines


def json_report(result: TrainResult, folder: Path, split: str, work: Assignment) -> dict[str, Any]:
    """JSON object of one run, for ``--json``."""
    report = {"folder": str(folder), "split": split, **result.to_json()}
    if work.part is not None:
        manifest = work.part.manifest
        for i, rank in enumerate(report["ranks"]):
            rank |= {
                "part": i,
                "vertices": manifest.vertices_per_part[i],
                "edges": manifest.edges_per_part[i],
            }
        report["partition"] = {
            "method": manifest.method,
            "parts": manifest.num_parts,
            "hops": manifest.hops,
            "evaluation": work.evaluated_on,
        }
    return report


def result_line(result: TrainResult, *, title: str) -> str:
    """The summary of one run."""
    best = result.best
    # The first metric decides which epoch is the best.
    name, val = next(iter((best.val or {}).items()))
    tested = (best.test or {}).items()
    shown = ", ".join(f"test {_TITLES[metric]} {value:.2%}" for metric, value in tested)
    at = f"at the best validation {_TITLES[name]} {val:.2%} (epoch {best.epoch + 1})"
    line = f"{title}: {shown} {at}"
    if result.options.torch_device().type == "cuda":
        # Clocks are read when the device has done its work: it had none while a batch was awaited.
        line += f", the GPU waited {_waiting(result):.1%} of the time"
    if result.hit_rate is None:
        return line
    rates = f"{result.hit_rate:.1%} of rows, {result.byte_hit_rate:.1%} of bytes"
    return f"{line}, cache hit rate {rates}"


def _waiting(result: TrainResult) -> float:
    """Share of the epochs in which batches were waited for; medians."""
    return result.median_seconds("loading_seconds") / result.median_seconds("seconds")


def comparison_table(peer: TrainResult, ours: TrainResult) -> Table:
    """The table of two runs that differ in the loader alone; times are medians over the epochs."""
    rows = [["", peer.options.loader, "pagraph", "ratio"]]
    times = {"loading": "loading_seconds", "computing": "computing_seconds", "epoch": "seconds"}
    for name, field in times.items():
        theirs = peer.median_seconds(field)
        mine = ours.median_seconds(field)
        # The batches of a tiny graph may all be ready, with no waiting to compare.
        ratio = f"{theirs / mine:.2f}" if mine > 0 else "-"
        rows.append([f"{name}, s per epoch (median)", f"{theirs:.3f}", f"{mine:.3f}", ratio])
    kernels = [sum(e.kernels_seconds for e in run.epochs) for run in (peer, ours)]
    rows.append(["kernels, s", *(f"{seconds:.3f}" for seconds in kernels), ""])
    for title, of in (("test", "test"), ("validation", "val")):
        now = getattr(ours.best, of)
        for name, before in getattr(peer.best, of).items():
            rows.append([f"{title} {_TITLES[name]}", f"{before:.2%}", f"{now[name]:.2%}", ""])
    for what, rate in (("rows", ours.hit_rate), ("bytes", ours.byte_hit_rate)):
        shown = "-" if rate is None else f"{rate:.1%}"
        rows.append([f"cache hit rate, {what}", "-", shown, ""])
    return Table(rows, left=(0,))
