"""PyG data as graphs with fields, in memory and saved."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.csc import writeable
from ..graph.graph import Graph
from .graphs import core_graph
from .package import import_pyg

import_pyg()
from torch_geometric.data import Data, Dataset, EdgeAttr, HeteroData, TensorAttr  # noqa: E402
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr  # noqa: E402
from torch_geometric.data.graph_store import EdgeLayout  # noqa: E402
from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage  # noqa: E402

__all__ = ["load_saved_data", "to_pyg", "whole_graph"]

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


# What PyG 2.0 and newer refer to in a saved Data or HeteroData; each only holds what it is given.
_CLASSES = [
    Data,
    HeteroData,
    BaseStorage,
    GlobalStorage,
    NodeStorage,
    EdgeStorage,
    DataEdgeAttr,
    DataTensorAttr,
    EdgeAttr,
    TensorAttr,
    EdgeLayout,
]


def load_saved_data(path: str | os.PathLike[str]) -> Graph:
    """Read the one graph of a file that ``torch.save`` wrote, with its attributes as fields.

    The file holds a ``Data`` or ``HeteroData``, its ``to_dict()``, or what a PyG data set keeps as
    ``processed/data.pt``. Where nothing says how many vertices a ``Data`` has, it is the largest id plus 1.

    Raises:
        FileNotFoundError: There is no such file.
        FormatError: The file is something else, holds other objects too, or not exactly 1 graph; or the graph is no
            sound one.
    """
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"file must exist, got {path}")
    content = _load(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a Data that does not say how many vertices it has
            return whole_graph(_data_of(content))
    except Exception as error:  # of a file, anything may be wrong
        raise FormatError(f"{path} must hold one sound graph of PyG's: {error}") from error


def _load(path: str) -> Any:
    allowed: AbstractContextManager[Any] = nullcontext()
    if hasattr(torch.serialization, "safe_globals"):  # from torch 2.5 on; before, only plain values can be read
        allowed = torch.serialization.safe_globals(_CLASSES)
    try:
        with allowed:
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        other = re.search(r"GLOBAL ([\w.]+)", str(error))
        if other is None:
            raise FormatError(f"{path} must be a file that torch.save wrote: {_first_line(error)}") from error
        raise FormatError(
            f"{path} must hold tensors and plain values alone, it holds {other[1]}: save data.to_dict() of such values"
        ) from error


def _first_line(error: Exception) -> str:
    kind = type(error).__name__
    if isinstance(error, KeyError):  # torch's unpickler, of a byte that begins nothing
        return kind
    return (str(error) or kind).splitlines()[0]


def _data_of(content: Any) -> Data | HeteroData:
    """The graph in a file's content, whatever it is wrapped in."""
    if isinstance(content, list) and len(content) == 1:
        return _data_of(content[0])
    if isinstance(content, tuple) and len(content) in (2, 3):  # of InMemoryDataset: what, cut where, of which class
        count = _count_graphs(content[1])
        if count != 1:
            raise ValueError(f"the file holds {count} graphs")
        return _data_of(content[0])
    if isinstance(content, Data | HeteroData):
        return content
    if isinstance(content, Mapping):
        typed = any(isinstance(value, Mapping) for value in content.values())
        if not typed and "edge_index" not in content:
            raise ValueError("the file holds a dict without edge_index")
        return (HeteroData if typed else Data).from_dict(dict(content))
    raise TypeError(f"the file holds a {type(content).__name__}")


def _count_graphs(slices: Any) -> int:
    """Of how many graphs each attribute of a data set is the concatenation; None stands for one."""
    while isinstance(slices, Mapping) and slices:
        slices = next(iter(slices.values()))
    return 1 if slices is None or isinstance(slices, Mapping) else len(slices) - 1
