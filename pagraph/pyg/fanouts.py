"""PyG's ``num_neighbors`` as the core's fan-outs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..integers import as_integer
from .package import import_pyg

import_pyg()
from torch_geometric.sampler.base import NumNeighbors  # noqa: E402

if TYPE_CHECKING:
    from ..graph import EdgeType, Graph

__all__ = ["fanouts_of", "num_neighbors_of"]


def num_neighbors_of(num_neighbors: Any) -> NumNeighbors:
    """A list, a mapping from edge type or a ``NumNeighbors`` as the last.

    Raises:
        TypeError: It is something else.
        ValueError: PyG's: a key that is no edge type.
    """
    if isinstance(num_neighbors, NumNeighbors):
        return num_neighbors
    lists = num_neighbors.values() if isinstance(num_neighbors, dict) else [num_neighbors]
    if not all(isinstance(numbers, list | tuple) for numbers in lists):
        raise TypeError(f"num_neighbors must be a list of integers, or a dict of such lists, got {num_neighbors!r}")
    return NumNeighbors(num_neighbors)


def fanouts_of(num_neighbors: NumNeighbors, graph: Graph, *, hetero: bool) -> list[dict[EdgeType, int]]:
    """Fan-outs by hop in DGL's order (the last entry serves the seeds), each by edge type.

    Args:
        num_neighbors: In PyG's order. Any negative number means all.
        graph: What is sampled.
        hetero: ``num_neighbors`` may name its edge types.

    Raises:
        TypeError: A number of neighbours is not an integer, or edge types are named where there is but one.
        ValueError: PyG's: an edge type without number, an unknown one, or different numbers of hops.
    """
    types = graph.edge_types
    values = num_neighbors.get_values(types if hetero else None)
    if isinstance(values, Mapping) and not hetero:
        raise TypeError(f"num_neighbors must be a list for a graph without edge types, got {values!r}")
    by_type = dict(values) if isinstance(values, Mapping) else dict.fromkeys(types, values)
    hops = num_neighbors.num_hops  # which are there even without edge types
    return [{etype: _number(by_type[etype][hop], hop) for etype in types} for hop in reversed(range(hops))]


def _number(value: Any, hop: int) -> int:
    return max(-1, as_integer(f"num_neighbors[{hop}]", value))
