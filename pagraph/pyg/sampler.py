"""NeighborSampler: the core's subgraph sampler as one of PyG's, for its own loaders and for ours."""

from __future__ import annotations

from typing import Any

import torch

from ..buffers import BufferPools
from ..graph import NODE_TYPE, Graph
from ..sampling import SubgraphSampler
from ..subgraph import Subgraph
from .fanouts import fanouts_of, num_neighbors_of
from .graphs import core_graph
from .package import import_pyg

import_pyg()
from torch_geometric.data import HeteroData  # noqa: E402
from torch_geometric.sampler import (  # noqa: E402
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.sampler.base import NumNeighbors, SubgraphType  # noqa: E402

__all__ = ["NeighborSampler"]


class NeighborSampler(BaseSampler):
    """Takes what ``torch_geometric.sampler.NeighborSampler`` takes, and needs neither pyg-lib nor torch-sparse.

    For PyG's ``NodeLoader`` and ``LinkLoader``, and Lightning's data modules; ``pagraph.pyg.NeighborLoader`` makes one
    itself. Random numbers come from torch's global generator, one for each call.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        subgraph_type: SubgraphType | str = "directional",
        replace: bool = False,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        is_sorted: bool = False,
        share_memory: bool = False,
        directed: bool = True,
    ) -> None:
        self.graph: Graph = core_graph(data)
        self.is_hetero = isinstance(data, HeteroData)
        self.replace, self.disjoint = replace, disjoint
        self.subgraph_type = SubgraphType(subgraph_type)
        self.num_neighbors = num_neighbors

    @property
    def num_neighbors(self) -> NumNeighbors:
        """Neighbours by hop, in PyG's order."""
        return self._num_neighbors

    @num_neighbors.setter
    def num_neighbors(self, num_neighbors: Any) -> None:
        self._num_neighbors = num_neighbors_of(num_neighbors)
        fanouts = fanouts_of(self._num_neighbors, self.graph, hetero=self.is_hetero)
        self.core = SubgraphSampler(fanouts, replace=self.replace, disjoint=self.disjoint)

    def sample_from_nodes(self, inputs: NodeSamplerInput, **kwargs: Any) -> SamplerOutput | HeteroSamplerOutput:
        """See ``BaseSampler.sample_from_nodes``."""
        return self.sample_nodes(inputs, int(torch.empty((), dtype=torch.int64).random_()))[0]

    def sample_from_edges(
        self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        """See ``BaseSampler.sample_from_edges``."""
        raise NotImplementedError

    def sample_nodes(
        self, inputs: NodeSamplerInput, key: int, pools: BufferPools | None = None
    ) -> tuple[SamplerOutput | HeteroSamplerOutput, dict[str, list[int]]]:
        """The subgraph of some vertices; a pure function of inputs and key, safe from any thread.

        Args:
            inputs: The vertices.
            key: Any 64-bit number.
            pools: Where the memory comes from. Default: fresh memory.

        Returns:
            What PyG's samplers return, and vertex type to how many of its vertices are known after each hop.
        """
        seeds = {inputs.input_type or NODE_TYPE: inputs.node}
        subgraph = self.core.sample(self.graph, seeds, key, dtype=torch.int64, pools=pools)
        output = self._output(subgraph)
        output.metadata = (inputs.input_id, inputs.time)
        return output, subgraph.hop_ends

    def _output(self, subgraph: Subgraph) -> SamplerOutput | HeteroSamplerOutput:
        """As PyG's samplers return it; ``edge`` holds the user's edge ids, there is no permutation."""
        nodes, trees = subgraph.input_nodes, subgraph.trees
        sizes = {ntype: _steps(ends) for ntype, ends in subgraph.hop_ends.items()}
        counts = {etype: _steps(edges.hop_ends)[1:] for etype, edges in subgraph.edges.items()}
        if self.is_hetero:
            return HeteroSamplerOutput(
                node=nodes,
                row={etype: edges.edge_index[0] for etype, edges in subgraph.edges.items()},
                col={etype: edges.edge_index[1] for etype, edges in subgraph.edges.items()},
                edge={etype: edges.edge_ids for etype, edges in subgraph.edges.items()},
                batch=trees,
                num_sampled_nodes=sizes,
                num_sampled_edges=counts,
            )
        (edges,) = subgraph.edges.values()
        return SamplerOutput(
            node=nodes[NODE_TYPE],
            row=edges.edge_index[0],
            col=edges.edge_index[1],
            edge=edges.edge_ids,
            batch=None if trees is None else trees[NODE_TYPE],
            num_sampled_nodes=sizes[NODE_TYPE],
            num_sampled_edges=next(iter(counts.values())),
        )


def _steps(ends: list[int]) -> list[int]:
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
