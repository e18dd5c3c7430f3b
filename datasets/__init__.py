"""Graph folders, importers of other people's files, and generators of graphs that look like real ones."""

from .native import write_graph
from .opening import open_graph

__all__ = ["open_graph", "write_graph"]
