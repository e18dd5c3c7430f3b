"""Partitioning: each GPU gets its own train vertices and everything they reach in L hops."""

from .cache_trial import CacheTrial
from .closure import PartVertices
from .description import describe
from .methods import METHODS
from .partition import Partition
from .partitioning import draw_train, partition_graph, train_ids
from .report import PartitionReport

__all__ = [
    "METHODS",
    "CacheTrial",
    "PartVertices",
    "Partition",
    "PartitionReport",
    "describe",
    "draw_train",
    "partition_graph",
    "train_ids",
]
