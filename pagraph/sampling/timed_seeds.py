"""Batches of vertices that bring a time each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from .minibatch_sampler import MiniBatchSampler

if TYPE_CHECKING:
    from ..graph import Graph
    from ..subgraph import Subgraph
    from .subgraph_sampler import SubgraphSampler

__all__ = ["TimedSeeds"]


@dataclass(frozen=True)
class TimedSeeds(MiniBatchSampler):
    """A sampler whose seeds are rows of a vertex and its time, shape ``(n, 2)``; for cache policies.

    Args:
        blocks: Samples from the vertices, by time.
        node_type: The type of the vertices.
    """

    blocks: SubgraphSampler
    node_type: str

    @property
    def hops(self) -> SubgraphSampler:
        """See :attr:`MiniBatchSampler.hops`."""
        return self.blocks

    @property
    def num_hops(self) -> int:
        """Hops from the seeds."""
        return self.blocks.num_hops

    def sample(self, graph: Graph, seeds: Tensor, key: int = 0) -> Subgraph:
        """The subgraph of one batch; safe from any thread.

        Raises:
            IndexError: A seed is outside the graph.
        """
        nodes, times = seeds.unbind(1)
        return self.blocks.sample(graph, {self.node_type: nodes}, key, seed_times={self.node_type: times})
