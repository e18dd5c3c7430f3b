"""Graph folders, importers of other people's files, and generators of graphs that look like real ones."""

from .block_models import citation, sbm
from .edge_list import read_edge_list
from .exporting import export_graph
from .native import write_graph
from .opening import open_graph
from .rmat import rmat
from .sources import read_graph

__all__ = ["citation", "export_graph", "open_graph", "read_edge_list", "read_graph", "rmat", "sbm", "write_graph"]
