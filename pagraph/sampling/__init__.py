"""Sampling: which neighbours a mini-batch reads, as pure functions of graph, seeds and key."""

from .block_sampler import BlockSampler, NeighborSampler
from .clusters import ClusterSampler
from .hgt import HGTSampler
from .labor import LaborSampler
from .layerwise import LayerSampler
from .saint import SaintSampler
from .shadow import ShaDowSampler
from .subgraph_sampler import SubgraphSampler

__all__ = [
    "BlockSampler",
    "ClusterSampler",
    "HGTSampler",
    "LaborSampler",
    "LayerSampler",
    "NeighborSampler",
    "SaintSampler",
    "ShaDowSampler",
    "SubgraphSampler",
]

__dir__ = __all__.copy
