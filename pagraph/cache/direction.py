"""The graph as a sampler draws from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..graph import Graph

__all__ = ["turned"]


def turned(graph: Graph, edge_dir: str) -> Graph:
    """The graph whose in-edges are what a sampler with this ``edge_dir`` draws from; "in" gives the graph itself.

    Arrays are shared, also with :meth:`Graph.adjacency`. Edge fields stay, since edge ids do: weighted samplers need
    them. Vertex fields do not; policies have no use for them.

    Raises:
        ValueError: ``"out"``, and an edge type has ends of different types.
    """
    if edge_dir == "in":
        return graph
    csc = {etype: graph.adjacency(edge_dir, etype) for etype in graph.edge_types}
    fields = {etype: graph.edge_fields(etype) for etype in graph.edge_types}
    return type(graph)(csc, graph.num_nodes_by_type, edata=next(iter(fields.values())) if len(fields) == 1 else fields)
