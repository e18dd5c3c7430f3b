"""A whole Data, HeteroData or dataset as a core graph: structure, and attributes as fields."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..csc import writeable
from ..graph import Graph
from .graphs import core_graph
from .package import import_pyg

import_pyg()
from torch_geometric.data import Data, Dataset  # noqa: E402

__all__ = ["whole_graph"]


def whole_graph(data: Any) -> Graph:
    """See ``Graph.from_pyg``."""
    if isinstance(data, Dataset):
        if len(data) != 1:
            raise ValueError(f"data must be a dataset of 1 graph, or one of its graphs, got {len(data)} graphs")
        data = data[0]
    graph = core_graph(data)
    for store in data.stores:
        for name, value in list(store.items()):
            values = _rows(data, store, name, value)
            if values is None:
                continue
            if store.is_node_attr(name):
                graph.set_field(name, values, node_type=graph.node_types[0] if isinstance(data, Data) else store._key)
            elif store.is_edge_attr(name):
                graph.set_field(name, values, edge_type=graph.edge_types[0] if isinstance(data, Data) else store._key)
    return graph


def _rows(data: Any, store: Any, name: str, value: Any) -> Tensor | None:
    """An attribute as a dense tensor with a row for each vertex or edge, sharing memory; None if it is none."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value = torch.from_numpy(writeable(value))
    if not isinstance(value, Tensor) or value.layout != torch.strided or hasattr(value, "as_tensor") or not value.dim():
        return None
    return value.detach() if data.__cat_dim__(name, value, store) == 0 else None
