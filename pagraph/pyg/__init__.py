"""Drop-in replacements for PyG's loaders, such as ``from pagraph.pyg import NeighborLoader``.

Needs only PyG, but not pyg-lib or torch-sparse, which have no wheels on PyPI.

All other classes of ``torch_geometric.loader`` can be imported from here, too, so that a script's
whole import line can be swapped, even with ``*``. These are PyG's own. ``NeighborSampler`` and
``HGTSampler`` replace those of ``torch_geometric.sampler``, ``Node2Vec`` and ``MetaPath2Vec`` those
of ``torch_geometric.nn``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # For editors. At run time `__getattr__` provides those that this PyG has.
    from torch_geometric.loader import *  # noqa: F403

from .clusters import ClusterData, ClusterLoader
from .graphs import core_graph, to_pyg
from .hgt import HGTLoader, HGTSampler
from .links import HardNegatives
from .loaders import LinkNeighborLoader, NeighborLoader
from .package import import_pyg
from .saint import (
    GraphSAINTEdgeSampler,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
    GraphSAINTSampler,
)
from .sampler import NeighborSampler
from .subgraphs import ShaDowKHopSampler
from .walks import MetaPath2Vec, Node2Vec, random_walk

__all__ = [
    "ClusterData",
    "ClusterLoader",
    "GraphSAINTEdgeSampler",
    "GraphSAINTNodeSampler",
    "GraphSAINTRandomWalkSampler",
    "GraphSAINTSampler",
    "HGTLoader",
    "HGTSampler",
    "HardNegatives",
    "LinkNeighborLoader",
    "MetaPath2Vec",
    "NeighborLoader",
    "NeighborSampler",
    "Node2Vec",
    "ShaDowKHopSampler",
    "core_graph",
    "random_walk",
    "to_pyg",
]

_loader = import_pyg().loader


def _is_pygs(name: str) -> bool:
    """Whether this is a public class of PyG's package."""
    return not name.startswith("_") and isinstance(getattr(_loader, name, None), type)


def __getattr__(name: str) -> Any:
    if _is_pygs(name):
        return getattr(_loader, name)
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}, nor has {_loader.__name__!r}"
    )


def __dir__() -> list[str]:
    return sorted({*__all__, *filter(_is_pygs, dir(_loader))})  # adds a deprecated class


__all__ += [name for name in _loader.__all__ if name not in globals()]
