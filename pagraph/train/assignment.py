"""Assignment of a graph, or of a part of one, to a process that trains and evaluates."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from torch import Tensor

from ..datasets import open_graph
from ..datasets.opening import folder_form
from ..errors import FormatError
from ..graph.graph import Graph
from ..partition import Part, open_partition
from ..partition.manifest import is_partition
from ..partition.opening import open_manifest
from .distributed import ALONE, World
from .evaluate import LABELS, Evaluation
from .hetero import AnyTask, hetero_part_task, make_hetero_task, whole_evaluation
from .links import LinkTask, make_link_task
from .options import TrainOptions
from .task import SETS, count_classes, gcn_norm, make_task, prepare_task, split_ids, whole_norm

__all__ = ["Assignment", "assign", "default_fanout"]


@dataclass(frozen=True, eq=False)
class Assignment:
    """Task and evaluation of one process; ``part`` is the part that the task is made of, None for a
    whole graph."""

    task: AnyTask
    evaluation: Evaluation
    part: Part | None = None


def assign(
    folder: str | os.PathLike[str], options: TrainOptions, *, split: str = "", world: World = ALONE
) -> Assignment:
    """Open a graph folder for one process, or this process's part of a partition.

    All processes of ``world`` must call this. Of a partition they open the part of their rank, and
    evaluate the whole graph, or the parts where these hold the neighbourhoods of validation and
    test vertices.

    Args:
        folder: A graph folder, or a partition folder.
        options: Options of the run.
        split: Another split of a graph folder; see :func:`pagraph.datasets.open_graph`.
        world: The processes that train together: as many as there are parts.

    Raises:
        ValueError: The number of processes or of layers does not go with the folder, a field does
            not fit, or processes were given different options.
        FormatError, OSError: The folder cannot be opened.
        OtherProcessError: Another process failed.
    """
    asked = world.gather(options)
    own = world.together(lambda: _open(Path(folder), _same(options, asked), split, world))
    parts = () if own.part is None else tuple(entry.sha256 for entry in own.part.manifest.folders)
    task = own.task
    if isinstance(task, LinkTask):
        return own
    views = world.gather(
        (parts, task.num_classes, len(own.evaluation.val), len(own.evaluation.test))
    )
    num_classes = world.together(lambda: _agreed(*zip(*views, strict=True)))
    return replace(own, task=replace(task, num_classes=num_classes))


def default_fanout(folder: str | os.PathLike[str]) -> tuple[int, ...]:
    """Default fan-out: no longer than the hops of parts; FormatError for a partition that cannot be
    opened."""
    fanout = TrainOptions().fanout
    return fanout[-open_manifest(folder).hops :] if is_partition(Path(folder)) else fanout


_OWN = (
    "loader",
    "device",
    "cache",
    "cache_policy",
    "cache_dtype",
    "num_workers",
    "prefetch",
    "lookahead",
    "memory",
)
"""Options that each process may choose for itself: they change nothing of what the others wait
for."""


def _same(options: TrainOptions, asked: Sequence[TrainOptions]) -> TrainOptions:
    """The options, of which several machines may have been given different ones: some would wait
    for ever."""
    for name in (f.name for f in fields(options) if f.name not in _OWN):
        values = [getattr(each, name) for each in asked]
        if any(value != values[0] for value in values):
            raise ValueError(f"{name} must be the same in all processes, got {values} by rank")
    return options


def _agreed(
    parts: Sequence[tuple[str, ...]],
    num_classes: Sequence[int],
    num_val: Sequence[int],
    num_test: Sequence[int],
) -> int:
    """Number of classes in what all processes know: digests of the parts, classes, vertices to
    validate and to test."""
    if len(set(parts)) > 1:
        raise ValueError(
            "processes must open parts of the same partition, got different ones on several "
            "machines"
        )
    for name, counts in (("val", num_val), ("test", num_test)):
        if sum(counts) == 0:
            raise ValueError(f"{name}_mask must select at least 1 vertex of the parts, got 0")
    return max(num_classes)


def _open(folder: Path, options: TrainOptions, split: str, world: World) -> Assignment:
    if options.task == "links" and (world.size > 1 or is_partition(folder)):
        raise ValueError(
            "task must be 'nodes' for several processes and for parts, got 'links' for "
            f"{world.size} and {folder}"
        )
    if is_partition(folder):
        if split:
            raise ValueError(
                f"split must be chosen when a graph is divided, got {split!r} for the partition "
                f"{folder}"
            )
        return _open_part(folder, options, world)
    if world.size > 1:
        folder_form(folder)  # says what is wrong with one that is no graph folder either
        raise ValueError(
            f"folder must hold a partition for {world.size} processes, got the graph folder "
            f"{folder}: divide it with "
            f"pagraph partition {folder} OUT -k {world.size}"
        )
    graph = open_graph(folder, split=split)
    make: Callable[..., AnyTask] = make_link_task if options.task == "links" else make_task
    task = (make if graph.is_homogeneous else make_hetero_task)(graph, options)
    return Assignment(task, task.evaluation())


def _open_part(folder: Path, options: TrainOptions, world: World) -> Assignment:
    manifest = open_manifest(folder)
    count = manifest.num_parts
    if count != world.size:
        raise ValueError(
            f"processes must be as many as the parts of {folder}, {count}, got {world.size}: "
            f"torchrun --nproc_per_node={count} -m pagraph train {folder}"
        )
    if len(options.fanout) > manifest.hops:
        rule = f"must be no longer than the hops of the parts, {manifest.hops}"
        raise ValueError(f"fanout {rule}, got {list(options.fanout)}")
    if 0 in manifest.train_per_part:
        raise ValueError(
            f"parts must have at least 1 training vertex each, got {list(manifest.train_per_part)}"
        )
    part = open_partition(folder, world.rank)
    if not part.graph.is_homogeneous:
        return _hetero_part(part, options)
    ids = {"train": part.train, "val": part.val, "test": part.test}
    task = prepare_task(
        part.graph, options, ids, norm=_norm(part.graph) if options.model == "gcn" else None
    )
    if manifest.evaluation == "parts":
        return Assignment(task, task.evaluation(is_part=True), part)
    whole = _whole(part, options)
    known = count_classes(whole.graph.ndata[LABELS], torch.cat([whole.val, whole.test]))
    return Assignment(replace(task, num_classes=max(task.num_classes, known)), whole, part)


def _hetero_part(part: Part, options: TrainOptions) -> Assignment:
    task = hetero_part_task(part, options)
    if part.manifest.evaluation == "parts":
        return Assignment(task, task.evaluation(is_part=True), part)
    whole, known = whole_evaluation(_source(part), options, part.train_type)
    return Assignment(replace(task, num_classes=max(task.num_classes, known)), whole, part)


def _whole(part: Part, options: TrainOptions) -> Evaluation:
    """The validation and test vertices of the graph that was divided."""
    graph = _source(part)
    val, test = split_ids(graph, options, SETS[1:]).values()
    return Evaluation(graph, val, test, norm=whole_norm(graph) if options.model == "gcn" else None)


def _source(part: Part) -> Graph:
    """The graph that was divided."""
    try:
        return part.open_source()
    except FormatError as error:
        raise FormatError(
            "evaluation needs the graph that was divided, or parts that hold the neighbourhoods "
            "of the validation and "
            f"test vertices (pagraph partition --evaluation parts): {error}"
        ) from None


def _norm(graph: Graph) -> Tensor:
    """GCN's normalisation from the degrees in the whole graph, where every vertex is to have one
    self-loop."""
    known = graph.ndata
    more = 1 - known["self_loops"] if "self_loops" in known else 1
    return gcn_norm(known["in_degrees"] + more, known["out_degrees"] + more)
