"""Subgraph: a mini-batch in which every vertex was expanded once, as PyG samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from .graph import EdgeType

__all__ = ["SampledEdges", "Subgraph"]


@dataclass(frozen=True, eq=False, repr=False)
class SampledEdges:
    """The sampled edges of one type.

    Attributes:
        edge_index: Shape ``(2, num_edges)``: local ids of the source and of the destination of each edge, contiguous.
            Destinations never decrease, unless a sampler orders edges by their sources.
        edge_ids: Shape ``(num_edges,)``, int64: the graph's id of each edge.
        hop_ends: Number of edges after each hop; 0 first, for the seeds. Induced edges belong to no hop: only the 0.
    """

    edge_index: Tensor
    edge_ids: Tensor
    hop_ends: list[int]

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.edge_ids)


@dataclass(frozen=True, eq=False, repr=False)
class Subgraph:
    """A sampled mini-batch over any number of vertex and edge types.

    A vertex has one local id in the batch, or one in each tree of disjoint sampling. The vertices of a type are in the
    order of their discovery, the seeds first; repeated seeds keep their own places, and edges lead to the first one.

    Attributes:
        output_nodes: Vertex type to the seeds, in order; only the types that have any.
        input_nodes: Vertex type to the graph's ids of the vertices, for every type.
        edges: Edge type to the sampled edges, for every type.
        hop_ends: Vertex type to how many of its vertices are known after each hop; the seeds are hop 0.
        trees: Vertex type to the seed, by number over all types in the graph's order, that each vertex was sampled for,
            shape ``(num_nodes,)``, int64; None unless the trees are disjoint.
    """

    output_nodes: dict[str, Tensor]
    input_nodes: dict[str, Tensor]
    edges: dict[EdgeType, SampledEdges]
    hop_ends: dict[str, list[int]]
    trees: dict[str, Tensor] | None = None

    @property
    def num_edges(self) -> int:
        """Number of edges, over all types."""
        return sum(edges.num_edges for edges in self.edges.values())

    def __repr__(self) -> str:
        output, inputs = ({t: len(ids) for t, ids in nodes.items()} for nodes in (self.output_nodes, self.input_nodes))
        edges = {"-".join(etype): edges.num_edges for etype, edges in self.edges.items()}
        return f"Subgraph(output={output}, nodes={inputs}, edges={edges})"
