"""The PyG face: ``from pagraph.pyg import NeighborLoader`` in place of ``from torch_geometric.loader import ...``.

Needs PyG alone: neither pyg-lib nor torch-sparse, which PyPI does not offer as wheels.
"""

from .graphs import core_graph
from .link_neighbor_loader import LinkNeighborLoader
from .neighbor_loader import NeighborLoader
from .sampler import NeighborSampler

__all__ = ["LinkNeighborLoader", "NeighborLoader", "NeighborSampler", "core_graph"]
