"""One numbering of the vertices of all types, under which the edges of all types are those of
one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..graph.csc import CSC, id_dtype
from ..graph.graph import EdgeType, Graph

__all__ = ["Numbering", "merged", "merged_bytes", "merged_dtype", "of_type"]

_merged: WeakKeyDictionary[Graph, Graph] = WeakKeyDictionary()


@dataclass(frozen=True)
class Numbering:
    """Numbers of a graph's vertices over all types: those of each type behind each other; for one
    type, their ids.

    Attributes:
        num_nodes: Vertex type to how many there are, in the order of the types.

    Example:
        >>> numbering = Numbering({"paper": 3, "author": 2})
        >>> numbering.begin("author")
        3
        >>> {name: ids.tolist() for name, ids in numbering.split(torch.tensor([4, 0, 3])).items()}
        {'paper': [0], 'author': [1, 0]}
    """

    num_nodes: Mapping[str, int]

    def begin(self, node_type: str) -> int:
        """Number of the first vertex of a type."""
        types = list(self.num_nodes)
        return sum(self.num_nodes[name] for name in types[: types.index(node_type)])

    def rows(self, node_type: str) -> slice:
        """Numbers of the vertices of a type."""
        begin = self.begin(node_type)
        return slice(begin, begin + self.num_nodes[node_type])

    def split(self, numbers: Tensor) -> dict[str, Tensor]:
        """Ids of the numbered vertices of each type, in their order."""
        if len(self.num_nodes) == 1:
            return dict.fromkeys(self.num_nodes, numbers)
        return {
            name: numbers[places] - self.begin(name)
            for name, places in self.places(numbers).items()
        }

    def places(self, numbers: Tensor) -> dict[str, Tensor]:
        """Places in ``numbers`` of the vertices of each type, ascending, int64."""
        found, begin = {}, 0
        for name, count in self.num_nodes.items():
            found[name] = ((numbers >= begin) & (numbers < begin + count)).nonzero().squeeze(1)
            begin += count
        return found


def of_type(graph: Graph, name: str | EdgeType) -> str:
    """Words for a vertex or edge type where a graph has several, to put behind what is of that
    type."""
    return (
        ""
        if graph.is_homogeneous
        else f" of type {name if isinstance(name, str) else '/'.join(name)!r}"
    )


def merged_dtype(graph: Graph) -> torch.dtype:
    """Dtype of ids in what :func:`merged` returns."""
    return (
        graph.csc.indptr.dtype
        if graph.is_homogeneous
        else id_dtype(graph.num_nodes, graph.num_edges)
    )


def merged_bytes(graph: Graph) -> int:
    """Bytes of the copy that :func:`merged` makes."""
    return (
        0
        if graph.is_homogeneous
        else merged_dtype(graph).itemsize * (graph.num_nodes + 1 + graph.num_edges)
    )


def merged(graph: Graph) -> Graph:
    """A graph of one type with the in-edges of all types under one :class:`Numbering`, without
    fields and edge ids.

    The graph itself where it has one type of each. Else a copy, 4 bytes an edge and vertex (8 where
    they are 2**31 or more), made once and kept as long as the graph is. A row has the edges of the
    first type first.

    Raises:
        ValueError: An id is out of range.
    """
    if graph.is_homogeneous:
        return graph
    found = _merged.get(graph)
    if found is None:
        _merged[graph] = found = Graph(_merge(graph), graph.num_nodes)
    return found


def _merge(graph: Graph) -> CSC:
    from . import _kernels

    numbering = Numbering(graph.num_nodes_by_type)
    counts = torch.zeros(graph.num_nodes, dtype=torch.int64, device="cpu")
    for edge_type in graph.edge_types:
        csc = graph.csc_of(edge_type)
        csc.validate()
        counts[numbering.rows(edge_type[2])] += torch.diff(csc.indptr)
    dtype = merged_dtype(graph)
    indptr = torch.zeros(graph.num_nodes + 1, dtype=dtype, device="cpu")
    indptr[1:] = counts.cumsum(0)
    ends, indices = indptr[:-1].clone(), torch.empty(graph.num_edges, dtype=dtype, device="cpu")
    for edge_type in graph.edge_types:
        csc, first = graph.csc_of(edge_type), numbering.begin(edge_type[0])
        own = ends[numbering.rows(edge_type[2])]
        _kernels.append_rows(
            csc.indptr.numpy(), csc.indices.numpy(), first, own.numpy(), indices.numpy()
        )
    return CSC(indptr, indices, graph.num_nodes)
