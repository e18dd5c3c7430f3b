"""Drop-in for ``dgl.dataloading``: ``from pagraph.dgl import DataLoader``.

Importing it imports DGL, with a placeholder for GraphBolt if DGL has no binary for this torch.

All other names of ``dgl.dataloading`` (samplers, ``GraphDataLoader``, deprecated ones) can be
imported from here too, and are DGL's own objects. So a script's whole import line can be swapped,
even one with ``*``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # For editors. At run time `__getattr__` gives the names that this DGL has.
    from dgl.dataloading import *  # noqa: F403

    from .typing import as_edge_prediction_sampler as as_edge_prediction_sampler

from .convert import core_graph, load_saved_graph, to_dgl
from .dist_loaders import DistEdgeDataLoader, DistNodeDataLoader
from .graphbolt import GraphBoltMissingError, import_dgl
from .loader import DataLoader
from .samplers import HardNegatives, LayerSampler

__all__ = [
    "DataLoader",
    "DistEdgeDataLoader",
    "DistNodeDataLoader",
    "GraphBoltMissingError",
    "HardNegatives",
    "LayerSampler",
    "core_graph",
    "import_dgl",
    "load_saved_graph",
    "to_dgl",
]

_dataloading = import_dgl().dataloading


def _is_dgls(name: str) -> bool:
    """Whether DGL's package defines a name, and does not just import it (``np``, ``os``)."""
    value = None if name.startswith("_") else getattr(_dataloading, name, None)
    # Classes and functions have __module__, modules have __name__.
    home = getattr(value, "__module__", None) or getattr(value, "__name__", "")
    return str(home).startswith(_dataloading.__name__ + ".")


def __getattr__(name: str) -> Any:
    if name == "sampling":  # a module, like `dgl.sampling`
        return import_module(".sampling", __name__)
    if _is_dgls(name):
        return getattr(_dataloading, name)
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}, nor has {_dataloading.__name__!r}"
    )


__dir__ = __all__.copy


__all__ += [name for name in dir(_dataloading) if _is_dgls(name) and name not in globals()]
