"""Assignment: the graph, or the part of one, that a process trains on and evaluates."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from torch import Tensor

from ..datasets import open_graph
from ..datasets.manifest import Manifest
from ..datasets.paths import folder_form, is_partition
from ..errors import FormatError
from ..graph.graph import Graph
from ..options.training import FRAMEWORKS, TrainOptions
from ..partition import Part, open_partition
from ..partition.opening import open_manifest
from ..partition.source import has_source
from ..system.checks import StrPath
from .distributed import ALONE, World
from .evaluate import Evaluation
from .hetero import TIME, hetero_part_task, make_hetero_task, whole_evaluation
from .links import LinkTask, make_link_task
from .meeting import DifferentProcessesError
from .task import (
    SETS,
    Task,
    count_classes,
    gcn_norm,
    labels_of,
    make_task,
    prepare_task,
    split_ids,
    whole_norm,
)


@dataclass(frozen=True, eq=False)
class Assignment:
    """What one process trains on and evaluates.

    Attributes:
        task: Vertices or links to train on.
        evaluation: Vertices or links to evaluate.
        part: The part that the task is made of; None for a whole graph.
        sourceless: Ranks of the processes that do not have the graph that was divided. If there are
            any, all processes evaluate on their parts, where neighbours may be missing.
    """

    task: Task
    evaluation: Evaluation
    part: Part | None = None
    sourceless: tuple[int, ...] = ()

    @property
    def evaluated_on(self) -> str:
        """Where validation and test vertices of a partition are evaluated: "source" or "parts"."""
        return "parts" if self.evaluation.is_part else "source"


@dataclass(frozen=True)
class _View:
    """What processes tell each other about their folders.

    Attributes:
        digests: SHA-256 of all parts of the partition; empty for a graph.
        num_classes: Largest label plus 1.
        val: Number of validation vertices to evaluate.
        test: Number of test vertices to evaluate.
    """

    digests: tuple[str, ...]
    num_classes: int
    val: int
    test: int


def assign(
    folder: StrPath,
    options: TrainOptions,
    *,
    split: str = "",
    source: StrPath | None = None,
    world: World = ALONE,
) -> Assignment:
    """Open a graph folder for one process, or this process's part of a partition.

    All processes of ``world`` must call this. Each opens the part of its rank. They evaluate on the
    whole graph. If the parts hold the neighbourhoods of validation and test vertices, or a process
    does not have the whole graph, they evaluate on the parts.

    Args:
        folder: A graph folder, or a partition folder.
        options: Options of the run.
        split: Another split of a graph folder; see :func:`pagraph.datasets.open_graph`.
        source: Folder of the graph that a partition was made from, on this machine. Default: the
            path in the partition.
        world: The processes that train together, one for each part.

    Raises:
        ValueError: The number of processes or of layers does not suit the folder, or a field does
            not fit.
        DifferentProcessesError: Processes were given different options or partitions.
        FormatError, OSError: The folder cannot be opened.
        OtherProcessError: Another process failed.
    """
    place = None if source is None else Path(source)
    views_of_source = world.gather(_is_sourceless(Path(folder), place))
    sourceless = tuple(rank for rank, missing in enumerate(views_of_source) if missing)
    _check_same(world.gather(options))
    own = world.together(lambda: _open(Path(folder), options, split, place, world, sourceless))
    if isinstance(own.task, LinkTask):  # `_open` allows it for one process only
        return own
    digests: tuple[str, ...] = ()
    if own.part is not None:
        digests = tuple(entry.sha256 for entry in own.part.manifest.folders)
    evaluation = own.evaluation
    view = _View(digests, own.task.num_outputs, len(evaluation.val), len(evaluation.test))
    views = world.gather(view)
    _check_same_partition(views)
    num_classes = world.together(lambda: _agreed_classes(views))
    return replace(own, task=replace(own.task, num_outputs=num_classes))


def default_fanout(folder: StrPath) -> tuple[int, ...]:
    """Default fan-out, with no more entries than parts have hops.

    Raises:
        FormatError: The partition cannot be opened.
    """
    fanout = TrainOptions().fanout
    return fanout[-open_manifest(folder).hops :] if is_partition(Path(folder)) else fanout


def default_layers(folder: StrPath) -> str:
    """The framework of "auto" for a folder, or "auto" if any will do.

    It is PyG, if installed, for seeds with times in a graph of several types. DGL's loaders do not
    sample these in time.
    """
    path = Path(folder)
    if is_partition(path) or folder_form(path) != "native":
        return "auto"
    manifest = Manifest.read(path)
    in_time = any({TIME, "label"} <= set(node.fields) for node in manifest.node_types)
    has_types = len(manifest.edge_types) > 1
    has_pyg = importlib.util.find_spec(FRAMEWORKS["pyg"]) is not None
    return "pyg" if in_time and has_types and has_pyg else "auto"


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
"""Options that may differ between processes, as they change nothing that the others wait for."""


def _check_same(asked: Sequence[TrainOptions]) -> None:
    """Raise DifferentProcessesError if the processes were given different options.

    Each machine has a separate command line. With different numbers of steps or of parameters, some
    processes would wait for collectives that others never call.
    """
    for name in (f.name for f in fields(TrainOptions) if f.name not in _OWN):
        values = [getattr(each, name) for each in asked]
        if any(value != values[0] for value in values):
            raise DifferentProcessesError(
                f"{name} must be the same in all processes, got {values} by rank"
            )


def _check_same_partition(views: Sequence[_View]) -> None:
    """Raise DifferentProcessesError if machines have parts of different partitions."""
    others = [rank for rank, view in enumerate(views) if view.digests != views[0].digests]
    if others:
        ranks = ", ".join(map(str, others))
        raise DifferentProcessesError(
            "processes must open parts of the same partition, got a different one than rank 0's "
            f"on rank {ranks}: copy the whole folder again"
        )


def _agreed_classes(views: Sequence[_View]) -> int:
    """The number of classes of all processes together."""
    for name in ("val", "test"):
        # A part may have none, but not all parts, as accuracies divide by their total.
        if sum(getattr(view, name) for view in views) == 0:
            raise ValueError(f"{name}_mask must select at least 1 vertex of the parts, got 0")
    return max(view.num_classes for view in views)


def _is_sourceless(folder: Path, source: Path | None) -> bool:
    """Whether evaluation needs a whole graph that is not on this machine."""
    # A named one is opened, which raises an error with the reason.
    if source is not None or not is_partition(folder):
        return False
    try:
        manifest = open_manifest(folder)
    except (FormatError, OSError):
        return False  # opening the part raises the error
    if manifest.evaluation == "parts":
        return False
    return manifest.source is None or not has_source(manifest.source, folder)


def _open(
    folder: Path,
    options: TrainOptions,
    split: str,
    source: Path | None,
    world: World,
    sourceless: tuple[int, ...],
) -> Assignment:
    if options.task == "links" and (world.size > 1 or is_partition(folder)):
        raise ValueError(
            "task must be 'nodes' for several processes and for parts, got 'links' for "
            f"{world.size} and {folder}"
        )
    if is_partition(folder):
        if options.train_fraction is not None:
            raise ValueError(
                "train_fraction must be given when a graph is divided (pagraph partition "
                f"--train-fraction), got {options.train_fraction} for the partition {folder}"
            )
        if split:
            raise ValueError(
                f"split must be chosen when a graph is divided, got {split!r} for the partition "
                f"{folder}"
            )
        return _open_part(folder, options, source, world, sourceless)
    if source is not None:
        raise ValueError(
            f"source must be given for the parts of a partition only, got {str(source)!r} for the "
            f"graph folder {folder}"
        )
    if world.size > 1:
        folder_form(folder)  # raises a better error if the folder holds no graph at all
        raise ValueError(
            f"folder must hold a partition for {world.size} processes, got the graph folder "
            f"{folder}: divide it with pagraph partition {folder} OUT -k {world.size}"
        )
    graph = open_graph(folder, split=split)
    task: Task
    if not graph.is_homogeneous:
        task = make_hetero_task(graph, options)
    elif options.task == "links":
        task = make_link_task(graph, options)
    else:
        task = make_task(graph, options)
    return Assignment(task, task.evaluation())


def _open_part(
    folder: Path,
    options: TrainOptions,
    source: Path | None,
    world: World,
    sourceless: tuple[int, ...],
) -> Assignment:
    manifest = open_manifest(folder)
    count = manifest.num_parts
    if count != world.size:
        raise ValueError(
            f"the number of processes must equal the {count} parts of {folder}, got "
            f"{world.size}: torchrun --nproc_per_node={count} -m pagraph train {folder}"
        )
    if len(options.fanout) > manifest.hops:
        rule = f"must be no longer than the hops of the parts, {manifest.hops}"
        raise ValueError(f"fanout {rule}, got {list(options.fanout)}")
    if 0 in manifest.train_per_part:
        raise ValueError(
            f"parts must have at least 1 training vertex each, got {list(manifest.train_per_part)}"
        )
    part = open_partition(folder, world.rank, source=source)
    task = _part_task(part, options)
    if manifest.evaluation == "parts" or sourceless:
        return Assignment(task, task.evaluation(is_part=True), part, sourceless)
    whole, num_classes = _whole_evaluation(part, options)
    # Some classes may have no vertex in this part.
    task = replace(task, num_outputs=max(task.num_outputs, num_classes))
    return Assignment(task, whole, part)


def _part_task(part: Part, options: TrainOptions) -> Task:
    if not part.graph.is_homogeneous:
        return hetero_part_task(part, options)
    norm = _part_norm(part.graph) if options.model == "gcn" else None
    ids = {"train": part.train, "val": part.val, "test": part.test}
    return prepare_task(part.graph, options, ids, norm=norm)


def _whole_evaluation(part: Part, options: TrainOptions) -> tuple[Evaluation, int]:
    """The evaluation on the graph that was divided, and its number of classes."""
    graph = part.open_source()
    if not graph.is_homogeneous:
        return whole_evaluation(graph, options, part.train_type)
    val, test = split_ids(graph, options, SETS[1:]).values()
    norm = whole_norm(graph) if options.model == "gcn" else None
    num_classes = count_classes(labels_of(graph.ndata), torch.cat([val, test]))
    return Evaluation(graph, val, test, norm), num_classes


def _part_norm(graph: Graph) -> Tensor:
    """GCN's normalisation by the degrees in the whole graph with one self-loop on every vertex."""
    known = graph.ndata
    # The model's self-loop replaces the graph's own; a graph without any has no such field.
    more = 1 - known["self_loops"] if "self_loops" in known else 1
    return gcn_norm(known["in_degrees"] + more, known["out_degrees"] + more)
