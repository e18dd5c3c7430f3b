"""Ranking by degree, and the direction in which degrees count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .policy import Ranking, descending

if TYPE_CHECKING:
    from ..graph.graph import Graph

__all__ = ["degree", "out_degrees", "turned"]


def degree(graph: Graph, seeds: Any, sampler: object, seed: int) -> Tensor | dict[str, Ranking]:
    """Rank by out-degree: how often a vertex can be drawn (PaGraph's policy). Ties go by id.

    With several types, by the edges of all types that leave a vertex; the scores are these degrees.
    """
    if graph.is_homogeneous:
        return descending(graph.csc.source_counts)
    return {
        ntype: Ranking(order := descending(counts), counts[order])
        for ntype, counts in out_degrees(graph).items()
    }


def out_degrees(graph: Graph) -> dict[str, Tensor]:
    """Edges of all types that leave each vertex, by vertex type, int64."""
    degrees = {
        ntype: torch.zeros(graph.num_nodes_of(ntype), dtype=torch.int64, device="cpu")
        for ntype in graph.node_types
    }
    for etype in graph.edge_types:
        degrees[etype[0]] += graph.csc_of(etype).source_counts
    return degrees


def turned(graph: Graph, edge_dir: str) -> Graph:
    """The graph whose in-edges are what a sampler with this ``edge_dir`` draws from; "in" gives the
    graph itself.

    Arrays are shared, also with :meth:`Graph.adjacency`. Edge fields stay, for weighted samplers;
    vertex fields do not.

    Raises:
        ValueError: ``"out"``, and an edge type has ends of different types.
    """
    if edge_dir == "in":
        return graph
    csc = {etype: graph.adjacency(edge_dir, etype) for etype in graph.edge_types}
    fields = {etype: graph.edge_fields(etype) for etype in graph.edge_types}
    return type(graph)(
        csc,
        graph.num_nodes_by_type,
        edata=next(iter(fields.values())) if len(fields) == 1 else fields,
    )
