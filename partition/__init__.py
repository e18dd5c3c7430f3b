"""Partitioning: each GPU gets its own train vertices and everything they reach in L hops."""

from .closure import PartVertices
from .methods import METHODS
from .partition import Partition
from .partitioning import draw_train, partition_graph, train_ids

__all__ = ["METHODS", "PartVertices", "Partition", "draw_train", "partition_graph", "train_ids"]
