"""What profiling asks of its arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..csc import check_range

if TYPE_CHECKING:
    from ..graph import Graph

__all__ = ["check_epochs", "check_fields", "check_seeds"]


def check_epochs(epochs: Any) -> None:
    """Refuse anything but an integer of at least 1.

    Raises:
        TypeError, ValueError: As said.
    """
    if isinstance(epochs, bool) or not isinstance(epochs, int):
        raise TypeError(f"epochs must be an integer, got {epochs!r}")
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, got {epochs}")


def check_seeds(graph: Graph, seeds: Tensor | Mapping[str, Tensor]) -> int:
    """How many seeds there are; at least 1, each a vertex of the graph.

    Raises:
        TypeError: They are not tensors of integers.
        ValueError: There is none, they are not 1-D, or of a type that the graph does not have.
        IndexError: One is outside the graph.
    """
    by_type = seeds if isinstance(seeds, Mapping) else {graph.only_node_type: seeds}
    for ntype, ids in by_type.items():
        name = f"seeds[{ntype!r}]" if isinstance(seeds, Mapping) else "seeds"
        if ntype not in graph.node_types:
            raise ValueError(f"seeds must be of vertex types among {graph.node_types}, got {ntype!r}")
        if not isinstance(ids, Tensor) or ids.dtype not in (torch.int32, torch.int64):
            got = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
            raise TypeError(f"{name} must be an int32 or int64 tensor, got {got}")
        if ids.dim() != 1:
            raise ValueError(f"{name} must be 1-D, got shape {tuple(ids.shape)}")
        check_range(name, ids, graph.num_nodes_of(ntype), IndexError)
    count = sum(len(ids) for ids in by_type.values())
    if not count:
        raise ValueError("seeds must hold at least 1 vertex, got 0")
    return count


def check_fields(graph: Graph, names: Iterable[str], node_type: str | None = None, *, argument: str = "fields") -> None:
    """Refuse fields that the graph, or a vertex type of it, does not have.

    Raises:
        ValueError: As said.
    """
    have = graph.node_fields(node_type if node_type is not None else graph.only_node_type)
    for name in names:
        if name not in have:
            of = "" if node_type is None else f" of {node_type!r} vertices"
            raise ValueError(f"{argument} must be among {sorted(have)}{of}, got {name!r}")
