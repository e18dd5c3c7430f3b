"""Subgraph: a mini-batch in which every vertex was expanded once, as PyG samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from .graph import EdgeType


@dataclass(frozen=True, eq=False, repr=False)
class SampledEdges:
    """The sampled edges of one type.

    Attributes:
        edge_index: Shape ``(2, num_edges)``: local ids of the source and of the destination of each
            edge, contiguous. Destinations never decrease, unless a sampler orders edges by their
            sources.
        numbers: Shape ``(num_edges,)``: the argument of ``ids_of``; if that is None, the edge ids,
            int64.
        hop_ends: Number of edges after each hop, with a first 0 for the seeds. Induced edges belong
            to no hop, so it is just the 0.
        ids_of: Looks up the edge ids, when ``edge_ids`` is first read. Few models read them, and
            for 0.75 M edges it took 2 of a batch's 12 ms.
    """

    edge_index: Tensor
    numbers: Tensor
    hop_ends: list[int]
    ids_of: Callable[[Tensor], Tensor] | None = None

    @cached_property
    def edge_ids(self) -> Tensor:
        """The graph's id of each edge, shape ``(num_edges,)``, int64."""
        return self.numbers if self.ids_of is None else self.ids_of(self.numbers)

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.numbers)


@dataclass(frozen=True, eq=False, repr=False)
class Subgraph:
    """A sampled mini-batch over any number of vertex and edge types.

    A vertex has one local id in the batch, or one in each tree of disjoint sampling. The vertices
    of a type are in order of discovery, seeds first. A repeated seed has one local id each time,
    and its edges lead to the first.

    Attributes:
        output_nodes: Vertex type to the seeds, in order; only the types that have any.
        input_nodes: Vertex type to the graph's ids of the vertices, for every type.
        edges: Edge type to the sampled edges, for every type.
        hop_ends: Vertex type to the number of its vertices after each hop; hop 0 is the seeds.
        trees: Vertex type to the seed that each vertex was sampled for, shape ``(num_nodes,)``,
            int64. Seeds are numbered over all types in the graph's order. None unless the trees
            are disjoint.
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
        output = {ntype: len(ids) for ntype, ids in self.output_nodes.items()}
        inputs = {ntype: len(ids) for ntype, ids in self.input_nodes.items()}
        edges = {"-".join(etype): edges.num_edges for etype, edges in self.edges.items()}
        return f"Subgraph(output={output}, nodes={inputs}, edges={edges})"
