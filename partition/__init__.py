"""Partitioning: each GPU gets its own train vertices and everything they reach in L hops."""

from .checking.findings import Finding, Verification
from .checking.verify import verify_partition
from .closure import PartVertices
from .formats.dgl_format import write_dgl
from .formats.pagraph_format import PagraphPart, open_pagraph_part, write_pagraph_partition
from .formats.pagraph_reading import read_pagraph_partition
from .limit import limit_replication
from .methods import METHODS
from .partition import Partition
from .partitioning import draw_train, partition_graph, train_ids
from .parts.manifest import PartitionManifest
from .parts.opening import open_partition
from .parts.part import Part
from .parts.writing import write_partition
from .reporting.cache_trial import CacheTrial
from .reporting.description import describe
from .reporting.report import PartitionReport

__all__ = [
    "METHODS",
    "CacheTrial",
    "Finding",
    "PagraphPart",
    "Part",
    "PartVertices",
    "Partition",
    "PartitionManifest",
    "PartitionReport",
    "Verification",
    "describe",
    "draw_train",
    "limit_replication",
    "open_pagraph_part",
    "open_partition",
    "partition_graph",
    "read_pagraph_partition",
    "train_ids",
    "verify_partition",
    "write_dgl",
    "write_pagraph_partition",
    "write_partition",
]
