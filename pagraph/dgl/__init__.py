"""DGL's data loader replaced: ``from pagraph.dgl import DataLoader`` in place of
``dgl.dataloading``'s.

Importing it imports DGL, with a placeholder for GraphBolt where DGL's own binary does not fit the
torch in use.

All other names of ``dgl.dataloading`` (samplers, ``GraphDataLoader``, deprecated ones) can be
imported from here too, and are DGL's own objects: a script's whole import line can be swapped, one
with ``*`` too.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # For editors: at run time `__getattr__` gives these, and only those that this DGL has.
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
    """A name that DGL's package defines, not one that it happens to have imported (``np``,
    ``os``)."""
    value = None if name.startswith("_") else getattr(_dataloading, name, None)
    # A class's or function's; a module's.
    home = getattr(value, "__module__", None) or getattr(value, "__name__", "")
    return str(home).startswith(_dataloading.__name__ + ".")


def __getattr__(name: str) -> Any:
    if name == "sampling":  # a module, as that of `dgl`
        return import_module(".sampling", __name__)
    if _is_dgls(name):
        return getattr(_dataloading, name)
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r}, nor has {_dataloading.__name__!r}"
    )


__dir__ = __all__.copy


__all__ += [name for name in dir(_dataloading) if _is_dgls(name) and name not in globals()]
