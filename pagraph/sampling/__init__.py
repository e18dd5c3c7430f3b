"""Sampling: which neighbours a mini-batch reads, as pure functions of graph, seeds and key."""

from .block_sampler import BlockSampler, NeighborSampler
from .edge_batches import EdgeBatches
from .labor import LaborSampler
from .layerwise import LayerSampler
from .negative import GlobalUniformNegatives, UniformNegatives
from .subgraph_sampler import SubgraphSampler

__all__ = [
    "BlockSampler",
    "EdgeBatches",
    "GlobalUniformNegatives",
    "LaborSampler",
    "LayerSampler",
    "NeighborSampler",
    "SubgraphSampler",
    "UniformNegatives",
]

__dir__ = __all__.copy
