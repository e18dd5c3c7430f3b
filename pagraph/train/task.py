"""Task: what is learned on a graph. The base learns classes of vertices of one type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..framework import Batch, Field, Framework, Seeds
from ..graph.csc import CSC
from ..graph.fields import mask_of, materialized
from ..graph.graph import NODE_TYPE, Graph
from ..options.names import SUMS
from ..options.training import TrainOptions
from ..seeds.order import drawn_order, share_size
from ..system.units import shortened
from .evaluate import LABELS, Evaluation
from .models import GAT, GCN, NORM, GraphSAGE, check_matrix
from .preaggregation import FEATURES, gcn_degrees, preaggregated_for

SETS = ("train", "val", "test")
"""The vertex sets of a task. A graph has a mask of each as a field."""

MASKS_COME = "train_fraction=0.6 draws the sets, pagraph import --train 0.6 stores them"
"""Advice in errors about missing masks."""

_MODELS = {"sage": GraphSAGE, "gcn": GCN, "gat": GAT}

_MOST_CLASSES = 100_000
"""Labels above this, and above the number of labelled vertices, are taken for ids or fill values. A
model has a row of weights for each class."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """Classification of the vertices of one type; base of the other tasks.

    Attributes:
        graph: Graph to sample, with the fields that the model reads and the labels. For GCN it has
            one self-loop on every vertex.
        source: The given graph, to evaluate on.
        train: Ids of the training vertices, int64.
        val: Ids of the validation vertices, int64.
        test: Ids of the test vertices, int64.
        widths: Width of the features by vertex type.
        num_outputs: Width of the model's last layer: the number of classes.
        node_type: Vertex type of the seeds.
        preaggregated: Whether the first layer's neighbour sums are among the fields.
        norm: GCN's normalisation, see :func:`gcn_norm`; None for other models.
    """

    label: ClassVar[str | None] = LABELS
    _evaluation: ClassVar[type[Evaluation]] = Evaluation

    graph: Graph
    source: Graph
    train: Tensor
    val: Tensor
    test: Tensor
    widths: Mapping[str, int]
    num_outputs: int
    node_type: str = NODE_TYPE
    preaggregated: bool = False
    norm: Tensor | None = None

    @property
    def inputs(self) -> str:
        """Inputs of the first layer, in words."""
        kind = "pre-aggregated features" if self.preaggregated else "features"
        return f"{self.widths[self.node_type]} {kind}"

    def evaluation(self, *, is_part: bool = False) -> Evaluation:
        """The evaluation on validation and test vertices."""
        return self._evaluation(self.source, self.val, self.test, self.norm, is_part)

    def model(self, options: TrainOptions, framework: Framework) -> Any:
        """A new model on the CPU."""
        # With pre-aggregated features no hop is sampled for the first layer.
        hidden = len(options.fanout) - 1 + int(self.preaggregated)
        sizes = [self.widths[self.node_type], *[options.hidden] * hidden, self.num_outputs]
        return _MODELS[options.model](
            sizes,
            framework,
            dropout=options.dropout,
            preaggregated=self.preaggregated,
            row_normalize=options.row_normalize,
            heads=options.heads,
        )

    def seeds(self, fields: Sequence[Field]) -> Seeds:
        """What training batches start from, and the fields that they hold."""
        return Seeds(self.graph, self.train, tuple(fields), self.label, self.node_type)

    def loss(
        self, framework: Framework, batch: Batch, model: Callable[..., Tensor]
    ) -> tuple[Tensor, int]:
        """The loss of a batch, and its number of seeds."""
        (labels,) = batch.answers
        return cross_entropy(model(batch.blocks, *batch.rows), labels), len(labels)

    def __str__(self) -> str:
        train = f"{len(self.train):,} {self._described_seeds()} to train on"
        # The last dimension, as links have two ends.
        val = f"{self.val.shape[-1]:,} to validate"
        test = f"{self.test.shape[-1]:,} to test"
        return f"{self._described_graph()}; {train}, {val}, {test}"

    def _described_graph(self) -> str:
        graph = self.graph
        size = f"{graph.num_nodes:,} vertices, {graph.num_edges:,} edges"
        return f"{size}, {self.inputs}, {self.num_outputs} classes"

    def _described_seeds(self) -> str:
        return "vertices"


def make_task(graph: Graph, options: TrainOptions) -> Task:
    """Prepare a graph for the model; ValueError if a field is missing or does not fit, or the graph
    has several types."""
    return prepare_task(graph, options, split_ids(graph, options))


def split_ids(graph: Graph, options: TrainOptions, sets: Sequence[str] = SETS) -> dict[str, Tensor]:
    """The ids that a graph's masks select, or that ``train_fraction`` draws, int64.

    Raises:
        ValueError: As for :func:`make_task`, or a mask selects nothing, or there are too few
            vertices to draw from.
    """
    if options.train_fraction is None:
        _check(graph, options, sets)
        return selected(graph.ndata, sets)
    _check(graph, options)
    return drawn_sets(graph.ndata, options.train_fraction)


def drawn_sets(fields: Mapping[str, Any], fraction: float) -> dict[str, Tensor]:
    """Draw a share of the labelled vertices to train on, and divide the others in halves.

    The sets are the same in every run.

    Raises:
        ValueError: There are no labels, or fewer than three of them.
    """
    known = (labels_of(fields) >= 0).nonzero().squeeze(1)
    count = len(known)
    if count < len(SETS):
        raise ValueError(f"graph must have at least {len(SETS)} labelled vertices, got {count}")
    # By a fixed seed, so that accuracies of several runs are of the same vertices.
    order = known[torch.from_numpy(drawn_order(count, seed=0))]
    size = min(share_size(count, fraction), count - 2)
    val, test = order[size:].tensor_split(2)
    return {
        "train": order[:size].sort().values,
        "val": val.sort().values,
        "test": test.sort().values,
    }


def selected(fields: Mapping[str, Any], sets: Sequence[str]) -> dict[str, Tensor]:
    """The ids that the masks of a vertex type select, int64.

    Raises:
        ValueError: A mask is missing, or selects nothing.
    """
    ids = {}
    for name in sets:
        mask = mask_of(fields, f"{name}_mask")
        if mask is None:
            raise ValueError(
                f"graph must have the field {name}_mask, it has {shortened(', '.join(fields))}: "
                f"{MASKS_COME}"
            )
        ids[name] = mask.nonzero().squeeze(1)
    for name in sets:
        if len(ids[name]) == 0:
            raise ValueError(f"{name}_mask must select at least 1 vertex, got 0")
    return ids


def prepare_task(
    graph: Graph, options: TrainOptions, ids: Mapping[str, Tensor], *, norm: Tensor | None = None
) -> Task:
    """Make the task of a graph of one type and three sets of its vertices.

    Args:
        graph: The graph, whose features and labels are checked.
        options: Options of the run.
        ids: Vertex ids, int64, by the names of :data:`SETS`. At least one set is not empty.
        norm: For GCN on a part, the :func:`gcn_norm` of its vertices in the whole graph with one
            self-loop each. Default: by the graph's own degrees.

    Raises:
        ValueError: A field is missing or does not fit, the graph has several vertex or edge types,
            or its features were pre-aggregated for another model.
    """
    names = _check(graph, options)
    fields = {name: graph.ndata[name] for name in names}
    fields[LABELS] = labels_of(graph.ndata)
    source = Graph(graph.csc, ndata=fields)
    if options.model == "gcn" and norm is None:
        norm = whole_norm(graph)
    every = torch.cat([ids[name] for name in SETS])
    return Task(
        graph=sampled_graph(source, norm),
        source=source,
        train=ids["train"],
        val=ids["val"],
        test=ids["test"],
        widths={NODE_TYPE: fields[names[0]].shape[1]},
        num_outputs=count_classes(fields[LABELS], every),
        preaggregated=names != [FEATURES],
        norm=norm,
    )


def sampled_graph(source: Graph, norm: Tensor | None) -> Graph:
    """The graph to sample: ``source``, or for GCN with ``norm`` and a self-loop on every vertex."""
    if norm is None:
        return source
    return Graph(looped(source.csc), ndata={**source.ndata, NORM: norm})


def check_labels(fields: Mapping[str, Any]) -> None:
    """Raise ValueError unless the labels of a vertex type are integers."""
    labels = fields.get(LABELS)
    if labels is None or labels.dim() != 1 or labels.is_complex() or not _are_classes(labels):
        got = "none" if labels is None else f"{labels.dtype} {tuple(labels.shape)}"
        raise ValueError(f"{LABELS} must be a 1-D field of integers, got {got}")


def _are_classes(labels: Any) -> bool:
    """Whether labels are integers, or floats because some are missing, as in OGB's graphs."""
    if not labels.is_floating_point():
        return True
    values = materialized(labels)
    missing = values.isnan()
    return bool(missing.any()) and bool((missing | (values == values.round())).all())


def labels_of(fields: Mapping[str, Any]) -> Tensor:
    """The labels of a vertex type, int64, with -1 for missing ones (NaN); ValueError unless they
    are integers."""
    check_labels(fields)
    labels = materialized(fields[LABELS])
    if labels.is_floating_point():
        return labels.nan_to_num(nan=-1).long()
    # int64 for the loss, as files may be narrower. A copy, which no cache or writer shares.
    return labels.long().clone()


def count_classes(labels: Tensor, ids: Tensor) -> int:
    """The largest label of these vertices plus 1.

    Raises:
        ValueError: A label is negative, or too large for a class.
    """
    known = labels[ids]
    least = int(known.min())
    most = int(known.max())
    if least < 0:
        raise ValueError(f"{LABELS} must be at least 0 where a mask is set, got {least}")
    limit = max(_MOST_CLASSES, len(known))
    if most >= limit:
        raise ValueError(
            f"{LABELS} must be below {limit}, as classes are numbered from 0, got {most}"
        )
    return most + 1


def whole_norm(graph: Graph) -> Tensor:
    """GCN's normalisation of a whole graph with exactly one self-loop on every vertex."""
    return gcn_norm(*gcn_degrees(graph))


def gcn_norm(in_degrees: Tensor, out_degrees: Tensor) -> Tensor:
    """``1 / sqrt(out-degree)`` and ``sqrt(in-degree)`` of every vertex, shape ``(num_nodes, 2)``,
    float32."""
    # Kipf and Welling (2017), equation 2: the sum of h_u / sqrt(d_u d_v) over the in-neighbours u
    # of v. The models take means, which divide by d_v, so the remaining factor is sqrt(d_v).
    sent = out_degrees.float().clamp(min=1).rsqrt()
    received = in_degrees.float().sqrt()
    return torch.stack([sent, received], dim=1)


def looped(csc: CSC) -> CSC:
    """The edges with exactly one self-loop on every vertex, after its other in-edges.

    Edges are numbered anew.
    """
    loops = torch.arange(csc.num_dst, dtype=csc.indices.dtype, device="cpu")
    src = csc.indices
    dst = csc.destinations()
    kept = src != dst
    src = torch.cat([src[kept], loops])
    dst = torch.cat([dst[kept], loops])
    looped = CSC.from_coo(src, dst, csc.num_dst)
    # Without the ids of `from_coo`. Edges are then numbered by position, which needs no read.
    return CSC(looped.indptr, looped.indices, csc.num_src)


def _check(graph: Graph, options: TrainOptions, sets: Sequence[str] = ()) -> list[str]:
    """Names of the features' fields, all of one width. The masks of ``sets`` are checked, too."""
    features = check_features(graph, options, [LABELS, *(f"{name}_mask" for name in sets)])
    check_labels(graph.ndata)
    return features


def check_features(graph: Graph, options: TrainOptions, more: Sequence[str] = ()) -> list[str]:
    """Names of the features' fields.

    Raises:
        ValueError: One of them or of ``more`` is missing, or the features do not fit.
    """
    if not graph.is_homogeneous:
        raise ValueError(
            f"graph must have one vertex type and one edge type, got {graph}; for several types "
            "see make_hetero_task, or write a loop around a loader"
        )
    features = _feature_names(graph, options)
    wanted = [*features, *more]
    missing = [name for name in wanted if name not in graph.ndata]
    if missing:
        # Drawing masks helps only if nothing else is missing.
        only_masks = all(name.endswith("_mask") for name in missing)
        advice = f": {MASKS_COME}" if only_masks else ""
        raise ValueError(
            f"graph must have the fields {', '.join(wanted)} to be trained on, it lacks "
            f"{', '.join(missing)} and has {shortened(', '.join(graph.ndata) or 'none')}{advice}"
        )
    width = None
    for name in features:
        width = check_matrix(name, graph.ndata[name], width)
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
            "row_normalize must be False for pre-aggregated features, got True: normalise them "
            "before (pagraph preaggregate --row-normalize)"
        )
    return [FEATURES, SUMS[model]] if model == "sage" else [SUMS[model]]
