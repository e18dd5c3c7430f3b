"""Graphs, their fields, and the blocks, mini-batches and subgraphs that are sampled from them."""

from .csc import CSC
from .graph import Graph

__all__ = ["CSC", "Graph"]

__dir__ = __all__.copy
