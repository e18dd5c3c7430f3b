"""The DGL face: ``from pagraph.dgl import DataLoader`` in place of ``from dgl.dataloading import DataLoader``.

Importing it imports DGL, with a placeholder for GraphBolt where DGL's own binary does not fit the torch in use.
"""

from .convert import core_graph, load_saved_graph, to_dgl
from .graphbolt import GraphBoltMissingError, import_dgl
from .loader import DataLoader

__all__ = [
    "DataLoader",
    "GraphBoltMissingError",
    "core_graph",
    "import_dgl",
    "load_saved_graph",
    "to_dgl",
]
