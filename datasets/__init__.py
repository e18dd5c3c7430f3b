"""Graph folders, importers of other people's files, and generators of graphs that look like real ones."""

from .block_models import citation, sbm
from .edge_list import read_edge_list
from .native import write_graph
from .opening import open_graph, read_graph
from .rmat import rmat

__all__ = ["citation", "open_graph", "read_edge_list", "read_graph", "rmat", "sbm", "write_graph"]


def __dir__() -> list[str]:
    return __all__
