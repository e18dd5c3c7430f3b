"""Summary of a graph for ``pagraph info``: counts, degree skew, fields, bytes, edges that a cache would hold."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..features.disk import on_disk
from ..graph.graph import CSC, Graph
from ..graph.indexed_rows import FieldValue

__all__ = ["CACHE_SHARES", "EdgeSummary", "FieldSummary", "GraphSummary", "summarise"]

CACHE_SHARES = (0.01, 0.05, 0.10, 0.20)
"""Shares of the vertices for which the share of the edges is told."""


@dataclass(frozen=True)
class FieldSummary:
    """Summary of a field or structure array.

    Attributes:
        owner: The vertex type, or the edge type with slashes.
        kind: "field" or "structure".
        where: "disk" (memory-mapped) or "memory".
        true: Number of true values of a mask; None for other dtypes.
    """

    owner: str
    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    where: str
    true: int | None = None


@dataclass(frozen=True)
class EdgeSummary:
    """Summary of an edge type.

    Attributes:
        type: The edge type with slashes.
        isolated: Number of vertices without any edge; None between different vertex types.
        self_loops: Number of edges from a vertex to itself; None between different vertex types.
        by_out_degree: Share of the edges that leave the vertices of highest out-degree, for each of
            ``CACHE_SHARES``: those that a degree-ranked cache holds when in-edges are sampled.
        by_in_degree: The same for edges into the vertices of highest in-degree: when out-edges are sampled.
    """

    type: str
    num_edges: int
    max_in_degree: int
    max_out_degree: int
    isolated: int | None
    self_loops: int | None
    by_out_degree: tuple[float, ...]
    by_in_degree: tuple[float, ...]


@dataclass(frozen=True)
class GraphSummary:
    """Summary of a graph, as ``pagraph info`` prints it."""

    num_nodes: dict[str, int]
    edges: list[EdgeSummary]
    arrays: list[FieldSummary]

    @property
    def total_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.bytes for array in self.arrays)

    def to_json(self) -> dict[str, Any]:
        """The summary as a JSON object."""
        return {
            "num_nodes": sum(self.num_nodes.values()),
            "num_edges": sum(edge.num_edges for edge in self.edges),
            "bytes": self.total_bytes,
            "cache_shares": list(CACHE_SHARES),
            "node_types": self.num_nodes,
            "edge_types": [asdict(edge) for edge in self.edges],
            "arrays": [asdict(array) for array in self.arrays],
        }


def summarise(graph: Graph) -> GraphSummary:
    """Summarise a graph; reads the whole structure once, and the masks, but no other fields.

    >>> summary = summarise(Graph.from_coo([0, 1, 1], [1, 1, 2]))
    >>> summary.edges[0].max_out_degree, summary.edges[0].self_loops
    (2, 1)
    """
    counts = {name: graph.num_nodes_of(name) for name in graph.node_types}
    edges = []
    arrays = []
    for name in graph.node_types:
        arrays += [_array(name, key, "field", value) for key, value in graph.node_fields(name).items()]
    for edge_type in graph.edge_types:
        label, csc = "/".join(edge_type), graph.csc_of(edge_type)
        edges.append(_edges(label, csc, same_ends=edge_type[0] == edge_type[2]))
        for key, value in (("indptr", csc.indptr), ("indices", csc.indices), ("edge_ids", csc.edge_ids)):
            if value is not None:
                arrays.append(_array(label, key, "structure", value))
        arrays += [_array(label, key, "field", value) for key, value in graph.edge_fields(edge_type).items()]
    return GraphSummary(counts, edges, arrays)


def _edges(label: str, csc: CSC, *, same_ends: bool) -> EdgeSummary:
    in_degrees, out_degrees = torch.diff(csc.indptr).long(), csc.source_counts
    isolated = self_loops = None
    if same_ends:
        isolated = int(((in_degrees == 0) & (out_degrees == 0)).sum())
        self_loops = int((csc.indices == csc.destinations()).sum())
    return EdgeSummary(
        label,
        csc.num_edges,
        int(in_degrees.max()) if len(in_degrees) else 0,
        int(out_degrees.max()) if len(out_degrees) else 0,
        isolated,
        self_loops,
        edge_shares(out_degrees),
        edge_shares(in_degrees),
    )


def edge_shares(degrees: Tensor, shares: tuple[float, ...] = CACHE_SHARES) -> tuple[float, ...]:
    """Share of the edges at the vertices of highest degree, for each share of the vertices, rounded down.

    >>> edge_shares(torch.tensor([1, 6, 2, 1]), (0.25, 0.5))
    (0.6, 0.8)
    """
    ranked = torch.sort(degrees, descending=True).values.cumsum(0)
    total = int(ranked[-1]) if len(ranked) else 0
    tops = [int(len(degrees) * share) for share in shares]
    return tuple(int(ranked[top - 1]) / total if top and total else 0.0 for top in tops)


def _array(owner: str, name: str, kind: str, value: FieldValue) -> FieldSummary:
    return FieldSummary(
        owner,
        name,
        kind,
        str(value.dtype).removeprefix("torch."),
        tuple(value.shape),
        value.numel() * value.element_size(),
        "disk" if on_disk(value) else "memory",
        int(value[:].sum()) if value.dtype == torch.bool else None,
    )
