"""InducedBatches: all edges among the vertices that a sampler of blocks finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from ..graph.subgraph import SampledEdges, Subgraph
from .induced import induced_subgraph
from .sampler import MiniBatchSampler, check_edge_dir

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..graph.csc import CSC
    from ..graph.graph import Graph
    from .block_sampler import BlockSampler, ExcludedEdges, SampleOptions


@dataclass(frozen=True)
class InducedBatches(MiniBatchSampler):
    """Finds vertices as a sampler of blocks does and returns one subgraph of all edges among them
    (Zeng et al., Decoupling the Depth and Scope of Graph Neural Networks, NeurIPS 2021, as DGL's
    ``ShaDowKHopSampler`` does it).

    Args:
        blocks: Finds the vertices.
        edge_dir: In which order edges lie: "in" by destination; "out" by source, see
            ``induced_subgraph``.

    Raises:
        ValueError: An unknown direction.

    Example:
        >>> import torch
        >>> from pagraph.graph import Graph
        >>> from pagraph.sampling import NeighborSampler
        >>> graph = Graph.from_coo([0, 1, 2, 3, 1], [1, 2, 0, 2, 3])
        >>> batch = InducedBatches(NeighborSampler([-1])).sample(graph, torch.tensor([2]))
        >>> batch.input_nodes["_N"].tolist(), batch.edges["_N", "_E", "_N"].edge_index.tolist()
        ([2, 1, 3], [[1, 2, 1], [0, 0, 2]])
    """

    blocks: BlockSampler
    edge_dir: str = "in"

    def __post_init__(self) -> None:
        check_edge_dir(self.edge_dir)

    @property
    def hops(self) -> BlockSampler:
        """See ``MiniBatchSampler``."""
        return self.blocks

    @property
    def num_hops(self) -> int:
        """Hops from the seeds."""
        return self.blocks.num_hops

    def with_in_edges(self) -> InducedBatches:
        """The same for graphs that are reversed already."""
        return InducedBatches(self.blocks.with_in_edges())

    def sample(
        self,
        graph: Graph,
        seeds: Tensor | Mapping[str, Tensor],
        key: int = 0,
        **options: Unpack[SampleOptions],
    ) -> Subgraph:
        """Sample one mini-batch; takes and raises what ``BlockSampler.sample`` does."""
        by_type = seeds if isinstance(seeds, Mapping) else {graph.only_node_type: seeds}
        found = self.blocks.sample(graph, by_type, key, **options)
        dtype = options.get("dtype")
        pools = options.get("pools")
        batch = induced_subgraph(
            graph, found.input_nodes, edge_dir=self.edge_dir, dtype=dtype, pools=pools
        )
        for etype, excluded in (options.get("exclude") or {}).items():
            csc = graph.adjacency(self.blocks.edge_dir, etype)  # whose positions are excluded
            batch.edges[etype] = _without(batch.edges[etype], excluded, csc)
        return Subgraph(found.output_nodes, batch.input_nodes, batch.edges, found.hop_ends)


def _without(edges: SampledEdges, excluded: ExcludedEdges, csc: CSC) -> SampledEdges:
    """The edges without the excluded ones, in order."""
    places = excluded.left_of(csc.positions_of(edges.edge_ids))
    if len(places) == edges.num_edges:
        return edges
    return SampledEdges(
        edges.edge_index.index_select(1, places), edges.edge_ids.index_select(0, places), [0]
    )
