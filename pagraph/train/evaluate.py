"""Predictions for whole vertex sets with all neighbours, one layer at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..dgl.graphbolt import import_dgl

__all__ = ["predict"]

_BATCH = 8192
_HIDDEN = "train_hidden"  # a field of our own on the user's graph while predicting

MakeLoader = Callable[..., Any]


@torch.no_grad()
def predict(model: Any, graph: Any, nodes: Tensor, *, make_loader: MakeLoader) -> Tensor:
    """The class scores of ``nodes``, shape ``(len(nodes), classes)``, with nothing sampled.

    Each layer is computed for all vertices before the next, so every vertex is computed once per layer,
    however many hops there are.

    Args:
        model: One of :mod:`pagraph.train.models`.
        graph: The DGL graph with the model's fields.
        nodes: Vertex ids.
        make_loader: Called as ``make_loader(ids, sampler, batch_size=..., shuffle=False)``.
    """
    full = import_dgl().dataloading.MultiLayerFullNeighborSampler
    name, *others = model.fields
    everyone = torch.arange(graph.num_nodes(), dtype=graph.idtype)
    last = len(model.layers) - 1
    training = model.training
    model.eval()
    try:
        for i in range(last + 1):
            sampler = full(1, prefetch_node_feats=[name, *others])
            ids = nodes if i == last else everyone
            loader = make_loader(ids, sampler, batch_size=_BATCH, shuffle=False)
            rows = torch.cat([model.layer(i, b[0], b[0].srcdata[name].float()).cpu() for _, _, b in loader])
            if i < last:
                name, graph.ndata[_HIDDEN] = _HIDDEN, rows
        return rows
    finally:
        graph.ndata.pop(_HIDDEN, None)
        model.train(training)
