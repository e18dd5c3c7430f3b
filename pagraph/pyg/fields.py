"""Whole graphs between PyG's Data, HeteroData or dataset and the core: structure, and attributes as fields."""

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
from torch_geometric.data import Data, Dataset, HeteroData  # noqa: E402

__all__ = ["to_pyg", "whole_graph"]

_NAMES = {"feat": "x", "label": "y"}
"""What PyG calls a field of vertices that DGL and our graph folders call otherwise."""


def to_pyg(graph: Graph) -> Data | HeteroData:
    """A ``Data``, or for several types a ``HeteroData``, with the same vertices, edges and fields.

    Edge ``i`` of ``edge_index``, int64, is the one with the id ``i``. Fields share memory, but for ``IndexedRows``,
    which are gathered. Fields of vertices called ``feat`` and ``label`` become ``x`` and ``y``, unless these are there.

    Raises:
        TypeError: ``graph`` is something else.
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"graph must be a pagraph.Graph, got {type(graph).__name__}")
    data = Data() if graph.is_homogeneous else HeteroData()
    for ntype in graph.node_types:
        store = data if isinstance(data, Data) else data[ntype]
        store.num_nodes = graph.num_nodes_of(ntype)
        fields = graph.node_fields(ntype)
        for name, values in fields.items():
            theirs = _NAMES.get(name, name)
            store[name if theirs in fields else theirs] = _dense(values)
    for etype in graph.edge_types:
        store = data if isinstance(data, Data) else data[etype]
        csc = graph.csc_of(etype)
        store.edge_index = torch.empty((2, csc.num_edges), dtype=torch.int64)
        ids = slice(None) if csc.edge_ids is None else csc.edge_ids.long()
        store.edge_index[0, ids], store.edge_index[1, ids] = csc.indices.long(), csc.destinations().long()
        for name, values in graph.edge_fields(etype).items():
            store[name] = _dense(values)
    return data


def _dense(values: Any) -> Tensor:
    result: Tensor = values if isinstance(values, Tensor) else values[torch.arange(values.shape[0])]
    return result


def whole_graph(data: Any) -> Graph:
    """See ``Graph.from_pyg``."""
    if isinstance(data, Dataset):
        if len(data) != 1:
            raise ValueError(f"data must be a dataset of 1 graph, or one of its graphs, got {len(data)} graphs")
        data = data[0]
    if not isinstance(data, Data | HeteroData):
        raise TypeError(f"data must be a Data or HeteroData, got {type(data).__name__}")
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
