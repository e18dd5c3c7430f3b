"""Reads what ``torch.save`` wrote of PyG's data, without unpickling anything else than tensors and plain values."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ..errors import FormatError
from ..graph import Graph
from .fields import whole_graph
from .package import import_pyg

import_pyg()
from torch_geometric.data import Data, EdgeAttr, HeteroData, TensorAttr  # noqa: E402
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr  # noqa: E402
from torch_geometric.data.graph_store import EdgeLayout  # noqa: E402
from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage  # noqa: E402

__all__ = ["load_saved_data"]

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
