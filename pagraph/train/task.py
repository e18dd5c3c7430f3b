"""Node classification on one graph: its features and labels, and the three vertex sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..graph.csc import CSC
from ..graph.fields import mask_of, materialized
from ..graph.graph import Graph
from ..system.units import shortened
from .evaluate import LABELS, Evaluation
from .models import NORM, Framework
from .options import TrainOptions
from .preaggregation import FEATURES, SUMS, gcn_degrees, preaggregated_for

__all__ = [
    "FEATURES",
    "LABELS",
    "SETS",
    "Compute",
    "Task",
    "check_features",
    "check_labels",
    "count_classes",
    "gcn_norm",
    "looped",
    "make_task",
    "prepare_task",
    "selected",
    "split_ids",
    "whole_norm",
]

SETS = ("train", "val", "test")
"""The vertex sets of a task; in a graph the mask of each is a field."""

Compute = Callable[[Sequence[Any], Mapping[str, Tensor]], Tensor]
"""Runs a model on blocks and the rows of the first one's sources."""


@dataclass(frozen=True, eq=False)
class Task:
    """Node classification on one graph; ``train``, ``val`` and ``test`` are vertex ids, int64.

    Attributes:
        graph: Graph to sample, with the fields that the model reads, and ``label``; for GCN with
            one self-loop on every vertex.
        source: Graph it was made of, with the features and labels.
        num_features: Width of the features.
        num_classes: Largest label plus 1.
        preaggregated: Whether the first layer's neighbour sums are among the fields.
        norm: GCN's normalisation, see :func:`gcn_norm`; None for GraphSAGE.
    """

    graph: Graph
    source: Graph
    train: Tensor
    val: Tensor
    test: Tensor
    num_features: int
    num_classes: int
    preaggregated: bool = False
    norm: Tensor | None = None

    @property
    def num_outputs(self) -> int:
        """Width of the model's last layer."""
        return self.num_classes

    @property
    def inputs(self) -> str:
        """Inputs of the first layer, in words."""
        return (
            f"{self.num_features} {'pre-aggregated features' if self.preaggregated else 'features'}"
        )

    def evaluation(self, *, is_part: bool = False) -> Evaluation:
        """The validation and test vertices, with their graph."""
        return Evaluation(self.source, self.val, self.test, self.norm, is_part)

    def loader(
        self, framework: Framework, fanout: Sequence[int], fields: Sequence[str], **more: Any
    ) -> Any:
        """A loader over the training vertices; ``more`` is that of ``Framework.loader``."""
        return framework.loader(self.graph, self.train, fanout, fields, LABELS, **more)

    def loss(
        self, framework: Framework, item: Any, num_hops: int, compute: Compute
    ) -> tuple[Tensor, int]:
        """The loss of a batch of the loader, and its number of seeds; ``compute`` runs the
        model."""
        blocks, rows, labels = framework.batch(item, num_hops, LABELS)
        return cross_entropy(compute(blocks, rows), labels), len(labels)

    def __str__(self) -> str:
        graph = self.graph
        return (
            f"{graph.num_nodes:,} vertices, {graph.num_edges:,} edges, {self.inputs}, "
            f"{self.num_classes} classes; {len(self.train):,} vertices to train on, "
            f"{len(self.val):,} to "
            f"validate, {len(self.test):,} to test"
        )


def make_task(graph: Graph, options: TrainOptions) -> Task:
    """Prepare a graph for the model; ValueError if a field is missing or does not fit, or there are
    several types."""
    return prepare_task(graph, options, split_ids(graph, options))


def split_ids(graph: Graph, options: TrainOptions, sets: Sequence[str] = SETS) -> dict[str, Tensor]:
    """The ids that a graph's masks select, int64; ValueError as :func:`make_task`, or if a mask
    selects nothing."""
    _check(graph, options, sets)
    return selected(graph.ndata, sets)


def selected(fields: Mapping[str, Any], sets: Sequence[str]) -> dict[str, Tensor]:
    """The ids that masks among the fields of a vertex type select, int64; ValueError if one is
    missing or empty."""
    ids = {}
    for name in sets:
        mask = mask_of(fields, f"{name}_mask")
        if mask is None:
            raise ValueError(
                f"graph must have the field {name}_mask beside {shortened(', '.join(fields))}, it "
                "lacks it"
            )
        ids[name] = mask.nonzero().squeeze(1)
    for name in sets:
        if len(ids[name]) == 0:
            raise ValueError(f"{name}_mask must select at least 1 vertex, got 0")
    return ids


def prepare_task(
    graph: Graph, options: TrainOptions, ids: Mapping[str, Tensor], *, norm: Tensor | None = None
) -> Task:
    """The task of a graph and three sets of vertices; GCN gets a self-loop on every vertex and its
    normalisation.

    Args:
        graph: Its features and labels are checked.
        options: Options of the run.
        ids: Vertex ids, int64, by the names of :data:`SETS`; one of them is not empty.
        norm: For GCN on a part of a graph, the :func:`gcn_norm` of these vertices of the whole,
            with one self-loop each. Default: the graph's own.

    Raises:
        ValueError: A field is missing or does not fit; the graph has several vertex or edge types;
            its features were pre-aggregated for another model.
    """
    names = _check(graph, options)
    fields = {name: graph.ndata[name] for name in names}
    fields[LABELS] = materialized(graph.ndata[LABELS]).long().clone()
    sampled = source = Graph(graph.csc, ndata=fields)
    if options.model == "gcn":
        norm = whole_norm(graph) if norm is None else norm
        sampled = Graph(looped(graph.csc), ndata={**fields, NORM: norm})
    return Task(
        sampled,
        source,
        **ids,
        num_features=fields[names[0]].shape[1],
        num_classes=count_classes(source.ndata[LABELS], torch.cat([ids[name] for name in SETS])),
        preaggregated=names != [FEATURES],
        norm=norm,
    )


_MOST_CLASSES = 100_000  # more than the vertices and this many cannot be numbers of classes


def count_classes(labels: Tensor, ids: Tensor) -> int:
    """Largest label of these vertices plus 1; ValueError if one is negative."""
    known = labels[ids]
    limit = max(_MOST_CLASSES, len(known))
    if int(known.min()) < 0:
        raise ValueError(f"{LABELS} must be at least 0 where a mask is set, got {int(known.min())}")
    if int(known.max()) >= limit:
        raise ValueError(
            f"{LABELS} must be below {limit}, the numbers of classes from 0 on, got "
            f"{int(known.max())}"
        )
    return int(known.max()) + 1


def whole_norm(graph: Graph) -> Tensor:
    """GCN's normalisation of a whole graph whose vertices are to have one self-loop each."""
    return gcn_norm(*gcn_degrees(graph))


def gcn_norm(in_degrees: Tensor, out_degrees: Tensor) -> Tensor:
    """``1 / sqrt(out-degree)`` and ``sqrt(in-degree)`` of every vertex, shape ``(num_nodes, 2)``,
    float32."""
    return torch.stack([out_degrees.float().clamp(min=1).rsqrt(), in_degrees.float().sqrt()], dim=1)


def looped(csc: CSC) -> CSC:
    """The edges with exactly one self-loop on every vertex, behind its other in-edges; they are
    numbered anew."""
    loops = torch.arange(csc.num_dst, dtype=csc.indices.dtype, device="cpu")
    src, dst = csc.indices, csc.destinations()
    kept = src != dst
    looped = CSC.from_coo(torch.cat([src[kept], loops]), torch.cat([dst[kept], loops]), csc.num_dst)
    return CSC(looped.indptr, looped.indices, csc.num_src)


def _check(graph: Graph, options: TrainOptions, sets: Sequence[str] = ()) -> list[str]:
    """Names of the fields that are the features, all of one width; the masks of ``sets`` must be
    there too."""
    features = check_features(graph, options, [LABELS, *(f"{name}_mask" for name in sets)])
    check_labels(graph.ndata)
    return features


def check_labels(fields: Mapping[str, Any]) -> None:
    """Raise ValueError unless the labels among the fields of a vertex type are integers."""
    labels = fields.get(LABELS)
    if labels is None or labels.dim() != 1 or labels.is_floating_point() or labels.is_complex():
        got = "none" if labels is None else f"{labels.dtype} {tuple(labels.shape)}"
        raise ValueError(f"{LABELS} must be a 1-D field of integers, got {got}")


def check_features(graph: Graph, options: TrainOptions, more: Sequence[str] = ()) -> list[str]:
    """Names of the fields that are the features; ValueError unless they and ``more`` fields are
    there and fit."""
    if not graph.is_homogeneous:
        raise ValueError(
            f"graph must have one vertex type and one edge type, got {graph}; for several types "
            "see make_hetero_task, "
            f"or write a loop around a loader"
        )
    features = _feature_names(graph, options)
    wanted = [*features, *more]
    missing = [name for name in wanted if name not in graph.ndata]
    if missing:
        raise ValueError(
            f"graph must have the fields {', '.join(wanted)} to be trained on, it lacks "
            f"{', '.join(missing)} and has "
            f"{shortened(', '.join(graph.ndata) or 'none')}"
        )
    width = graph.ndata[features[0]].shape[1:]
    for name in features:
        rows = graph.ndata[name]
        if len(rows.shape) != 2 or rows.dtype.is_complex or rows.shape[1:] != width:
            of_width = f" {width[0]} wide" if name != features[0] else ""
            raise ValueError(
                f"{name} must be a 2-D real field{of_width}, got {rows.dtype} {tuple(rows.shape)}"
            )
    return features


def _feature_names(graph: Graph, options: TrainOptions) -> list[str]:
    model = preaggregated_for(graph)
    if model is None:
        return [FEATURES]
    if model != options.model:
        raise ValueError(
            f"model must be {model!r}, for which the features are pre-aggregated, got "
            f"{options.model!r}"
        )
    if options.row_normalize:
        raise ValueError(
            "row_normalize must be asked for before features are pre-aggregated, got True on such "
            "features"
        )
    return [FEATURES, SUMS[model]] if model == "sage" else [SUMS[model]]
