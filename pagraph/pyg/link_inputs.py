"""The links a loader is given: checked where they enter."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..csc import check_range
from ..graph import Graph
from .links import end_types
from .package import import_pyg
from .times import check_times

import_pyg()
from torch_geometric.data import Data, HeteroData  # noqa: E402

__all__ = ["check_are_tensors", "check_links", "checked_edge_label_index"]

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def checked_edge_label_index(data: Any, edge_label_index: Any) -> Any:
    """``edge_label_index`` in a form that PyG takes: arrays as tensors, edge types whole.

    Raises:
        TypeError: Links are not integers.
        ValueError: They have not two rows; there are none, where all edges would be taken; or they have no edge type
            in data of several types.
    """
    if isinstance(data, Data):
        if edge_label_index is None and data.edge_index is None:
            raise ValueError("edge_label_index must be given where data has no edge_index, got None")
        return edge_label_index if edge_label_index is None else _checked_rows(edge_label_index)
    if not isinstance(edge_label_index, list | tuple) or len(edge_label_index) not in (2, 3):
        got = "None" if edge_label_index is None else type(edge_label_index).__name__
        raise ValueError(
            f"edge_label_index must be an edge type or a pair of an edge type and links (or None), got {got}"
        )
    if isinstance(edge_label_index[0], str):
        edge_type, links = edge_label_index, None
    elif len(edge_label_index) == 2:
        edge_type, links = edge_label_index
    else:
        raise ValueError("edge_label_index must be an edge type or a pair of an edge type and links (or None)")
    if links is not None:
        return edge_type, _checked_rows(links)
    if isinstance(data, HeteroData):
        found = data._to_canonical(*edge_type)
        if found not in data.edge_types or data[found].get("edge_index") is None:
            raise ValueError(f"edge_label_index must name an edge type that has an edge_index, got {tuple(edge_type)}")
    return edge_label_index


def _checked_rows(links: Any) -> Tensor:
    if isinstance(links, np.ndarray):
        links = torch.from_numpy(links)
    if not isinstance(links, Tensor) or links.dtype not in _INTEGERS:
        got = links.dtype if isinstance(links, Tensor) else type(links).__name__
        raise TypeError(f"edge_label_index must be a tensor of integers, got {got}")
    if links.dim() != 2 or len(links) != 2:
        raise ValueError(f"edge_label_index must have shape (2, num_links), got {tuple(links.shape)}")
    return links


def check_are_tensors(**arguments: Any) -> None:
    """Refuse what is neither a tensor nor None.

    Raises:
        TypeError: As said.
    """
    for name, value in arguments.items():
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor or None, got {type(value).__name__}")


def check_links(inputs: Any, graph: Graph | None) -> None:
    """Refuse links, labels or times that do not fit each other or the graph.

    Args:
        inputs: PyG's ``EdgeSamplerInput`` of all links.
        graph: What is sampled; None where only the user's own sampler knows.

    Raises:
        IndexError: A link leads out of the graph.
        TypeError: Times are no integers.
        ValueError: There is not one label or time per link, a time is negative, or there is no such vertex type.
    """
    if graph is not None:
        _check_ends(inputs, graph)
    count = len(inputs.row)
    if inputs.input_id is not None and len(inputs.input_id) != count:
        raise ValueError(f"input_id must have one entry per link ({count}), got {len(inputs.input_id)}")
    if inputs.label is not None and (inputs.label.dim() == 0 or len(inputs.label) != count):
        got = tuple(inputs.label.shape)
        raise ValueError(f"edge_label must have one label per link ({count}), got shape {got}")
    check_times("edge_label_time", inputs.time, count, "link")


def _check_ends(inputs: Any, graph: Graph) -> None:
    for row, ids, ntype in zip((0, 1), (inputs.row, inputs.col), end_types(inputs.input_type), strict=True):
        if ntype not in graph.node_types:
            raise ValueError(f"edge_label_index must lead from and to one of {graph.node_types}, got {ntype!r}")
        check_range(f"edge_label_index[{row}]", ids, graph.num_nodes_of(ntype), IndexError)
