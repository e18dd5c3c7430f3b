"""Sampling: which neighbours a mini-batch reads, as pure functions of graph, seeds and key."""

from .block_sampler import BlockSampler, NeighborSampler
from .hard_negatives import HardNegatives
from .labor import LaborSampler
from .layerwise import LayerSampler
from .subgraph_sampler import SubgraphSampler

__all__ = ["BlockSampler", "HardNegatives", "LaborSampler", "LayerSampler", "NeighborSampler", "SubgraphSampler"]

__dir__ = __all__.copy
