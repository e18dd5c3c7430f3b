"""Graphs and what is sampled of them: CSC, typed graphs, fields by reference, blocks, mini-batches,
subgraphs."""

from .csc import CSC
from .graph import Graph

__all__ = ["CSC", "Graph"]

__dir__ = __all__.copy
