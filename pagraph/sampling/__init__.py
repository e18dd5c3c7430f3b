"""Samplers of mini-batches, as pure functions of graph, seeds and key."""

from .block_sampler import BlockSampler, NeighborSampler
from .edge_batches import EdgeBatches
from .hgt import HGTSampler
from .induced import ClusterSampler
from .labor import LaborSampler
from .layerwise import LayerSampler
from .negative import GlobalUniformNegatives, HardNegatives, UniformNegatives
from .saint import SaintSampler
from .subgraph_sampler import ShaDowSampler, SubgraphSampler
from .walks import RandomWalks, Walks

__all__ = [
    "BlockSampler",
    "ClusterSampler",
    "EdgeBatches",
    "GlobalUniformNegatives",
    "HGTSampler",
    "HardNegatives",
    "LaborSampler",
    "LayerSampler",
    "NeighborSampler",
    "RandomWalks",
    "SaintSampler",
    "ShaDowSampler",
    "SubgraphSampler",
    "UniformNegatives",
    "Walks",
]

__dir__ = __all__.copy
