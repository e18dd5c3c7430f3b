"""Sampling: which neighbours a mini-batch reads, as pure functions of graph, seeds and key."""

from .block_sampler import BlockSampler, NeighborSampler
from .labor import LaborSampler
from .layerwise import LayerSampler
from .subgraph_sampler import SubgraphSampler
from .walks import RandomWalks, Walks

__all__ = ["BlockSampler", "LaborSampler", "LayerSampler", "NeighborSampler", "RandomWalks", "SubgraphSampler", "Walks"]

__dir__ = __all__.copy
