"""InducedBatches: all edges among the vertices that a sampler of blocks finds."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..graph.subgraph import SampledEdges, Subgraph
from .induced import induced_subgraph
from .sampler import MiniBatchSampler

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..graph.graph import EdgeType, Graph
    from .block_sampler import BlockSampler, ExcludedEdges, SampleOptions

__all__ = ["InducedBatches"]


@dataclass(frozen=True, eq=False)
class InducedBatches(MiniBatchSampler):
    """Finds vertices as a sampler of blocks does and returns one subgraph of all edges among them (Zeng et al.,
    Decoupling the Depth and Scope of Graph Neural Networks, NeurIPS 2021, as DGL's ``ShaDowKHopSampler`` does it).

    Args:
        blocks: Finds the vertices.
        turned: The edges turned round: those of a subgraph lie in the order of their sources, and within a source's in
            the order of this graph. Edge types are turned, too: (a, r, b) is (b, r, a).

    Example:
        >>> from pagraph.graph import Graph
        >>> from pagraph.sampling import NeighborSampler
        >>> graph = Graph.from_coo([0, 1, 2, 3, 1], [1, 2, 0, 2, 3])
        >>> batch = InducedBatches(NeighborSampler([-1]), graph.reverse()).sample(graph, torch.tensor([2]))
        >>> batch.input_nodes["_N"].tolist(), batch.edges["_N", "_E", "_N"].edge_index.tolist()
        ([2, 1, 3], [[0, 2, 0], [1, 1, 2]])
    """

    blocks: BlockSampler
    turned: Graph

    @property
    def hops(self) -> BlockSampler:
        """See ``MiniBatchSampler``."""
        return self.blocks

    @property
    def num_hops(self) -> int:
        """Hops from the seeds."""
        return self.blocks.num_hops

    @property
    def cache_key(self) -> Hashable:
        """That of the hops; the edges are those of the same graph."""
        return type(self), self.blocks.cache_key

    def sample(
        self,
        graph: Graph,
        seeds: Tensor | Mapping[str, Tensor],
        key: int = 0,
        **options: Unpack[SampleOptions],
    ) -> Subgraph:
        """Sample one mini-batch; takes and raises what ``BlockSampler.sample`` does.

        Returns:
            The subgraph; by turned edge types, ``edge_index`` having destinations in its first row.
        """
        by_type = seeds if isinstance(seeds, Mapping) else {graph.only_node_type: seeds}
        found = self.blocks.sample(graph, by_type, key, **options)
        batch = induced_subgraph(
            self.turned, found.input_nodes, dtype=options.get("dtype"), pools=options.get("pools")
        )
        edges = batch.edges
        for etype, excluded in (options.get("exclude") or {}).items():
            edges[etype[::-1]] = _without(edges[etype[::-1]], excluded, graph, etype)
        return Subgraph(found.output_nodes, batch.input_nodes, edges, found.hop_ends)


def _without(edges: SampledEdges, excluded: ExcludedEdges, graph: Graph, etype: EdgeType) -> SampledEdges:
    """The edges without the excluded ones, in order."""
    places = excluded.left_of(graph.csc_of(etype).positions_of(edges.edge_ids))
    if len(places) == edges.num_edges:
        return edges
    return SampledEdges(edges.edge_index.index_select(1, places), edges.edge_ids.index_select(0, places), [0])
