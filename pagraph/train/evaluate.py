"""Accuracy with all neighbours: whole vertex sets, one layer at a time, by one process or several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..dgl.graphbolt import import_dgl
from ..dgl.waiting import vertex_field
from ..features.field import host_feature
from .distributed import ALONE, World
from .task import LABELS, Task

__all__ = ["Evaluation", "accuracies", "predict"]

_BATCH = 8192
_HIDDEN = "train_hidden"  # a field of our own on the user's graph while predicting

MakeLoader = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What is evaluated: the same whole graph in every process, or each one's own part.

    Attributes:
        task: Of the whole graph, or of the part.
        hop_ends: None for the whole graph, whose vertices the processes share out. For a part: its first
            ``hop_ends[h]`` vertices are those within ``h`` hops of the ones that are evaluated.
    """

    task: Task
    hop_ends: tuple[int, ...] | None = None


def accuracies(
    model: Any, evaluation: Evaluation, *, make_loader: MakeLoader, world: World = ALONE
) -> tuple[float, float]:
    """Shares of the validation and of the test vertices, of all processes together, that are classified right."""
    task, whole = evaluation.task, evaluation.hop_ends is None
    val, test = (ids[world.share(len(ids))] if whole else ids for ids in (task.val, task.test))
    nodes = torch.cat([val, test])
    scores = predict(
        model, task.graph, nodes, hop_ends=evaluation.hop_ends, make_loader=make_loader, world=world if whole else ALONE
    )
    right = scores.argmax(1) == task.graph.ndata[LABELS][nodes]
    counts = int(right[: len(val)].sum()), len(val), int(right[len(val) :].sum()), len(test)
    right_val, num_val, right_test, num_test = (sum(column) for column in zip(*world.gather(counts), strict=True))
    return right_val / num_val, right_test / num_test


@torch.no_grad()
def predict(
    model: Any,
    graph: Any,
    nodes: Tensor,
    *,
    make_loader: MakeLoader,
    hop_ends: tuple[int, ...] | None = None,
    world: World = ALONE,
) -> Tensor:
    """The class scores of ``nodes``, shape ``(len(nodes), classes)``, with nothing sampled.

    Each layer is computed for all vertices before the next, so every vertex is computed once per layer, however many
    hops there are. Several processes compute a share of the vertices each and hand the rows round, layer by layer:
    each holds two hidden matrices of the whole graph.

    Args:
        model: One of :mod:`pagraph.train.models`.
        graph: The DGL graph with the model's fields.
        nodes: Vertex ids that this process needs; processes may ask for different ones, even for none.
        make_loader: Called as ``make_loader(graph, ids, sampler, batch_size=..., shuffle=False)``.
        hop_ends: The first ``hop_ends[h]`` vertices are those within ``h`` hops of ``nodes``: only what ``nodes`` need
            is computed. Default: every vertex.
        world: The processes that share the work; all must hold the same graph.
    """
    last = len(model.layers) - 1
    name, others = model.features[0], [field for field in model.fields if field not in model.features]
    training = model.training
    model.eval()
    try:
        for i in range(last):
            needed = torch.arange(graph.num_nodes() if hop_ends is None else hop_ends[last - i], dtype=graph.idtype)
            share = world.share(len(needed))
            if i == 0 and model.preaggregated:
                rows = _first_rows(model, graph, needed[share])
            else:
                rows = _layer_rows(model, i, graph, needed[share], fields=(name, *others), make_loader=make_loader)
            hidden = rows.new_zeros(graph.num_nodes(), rows.shape[1])
            hidden[: len(needed)][share] = rows
            del rows
            world.complete(hidden[: len(needed)])
            name, graph.ndata[_HIDDEN] = _HIDDEN, hidden
        return _layer_rows(model, last, graph, nodes, fields=(name, *others), make_loader=make_loader)
    finally:
        graph.ndata.pop(_HIDDEN, None)
        model.train(training)


def _first_rows(model: Any, graph: Any, ids: Tensor) -> Tensor:
    """What the first layer gives for ``ids`` from pre-aggregated features, on the CPU: no neighbours, so no loader."""
    device = next(model.parameters()).device
    fields = [host_feature(vertex_field(graph, name), device) for name in model.features]
    chunks = ([field.read(some).to(device).float() for field in fields] for some in torch.split(ids, _BATCH))
    return torch.cat([model.first(*rows).cpu() for rows in chunks])


def _layer_rows(
    model: Any, i: int, graph: Any, ids: Tensor, *, fields: tuple[str, ...], make_loader: MakeLoader
) -> Tensor:
    """What layer ``i`` gives for ``ids``, on the CPU; no rows at all if there are no ids."""
    if len(ids) == 0:
        return torch.empty(0, 1)
    sampler = import_dgl().dataloading.MultiLayerFullNeighborSampler(1, prefetch_node_feats=[*fields])
    loader = make_loader(graph, ids, sampler, batch_size=_BATCH, shuffle=False)
    return torch.cat([model.layer(i, b[0], b[0].srcdata[fields[0]].float()).cpu() for _, _, b in loader])
