"""Sampling: which neighbours a mini-batch reads, as pure functions of graph, seeds and key."""

from .block_sampler import BlockSampler, NeighborSampler
from .labor import LaborSampler
from .layerwise import LayerSampler
from .subgraph_sampler import SubgraphSampler

__all__ = ["BlockSampler", "LaborSampler", "LayerSampler", "NeighborSampler", "SubgraphSampler"]

__dir__ = __all__.copy
