"""Partitioning: each GPU gets its training vertices and their L-hop in-neighbourhood."""

from ..options.partitioning import CacheTrial, PartitionOptions
from .dgl_format import write_dgl
from .dgl_verification import verify_dgl
from .manifest import PartitionManifest
from .methods import METHODS
from .opening import Part, open_partition
from .pagraph_format import (
    PagraphPart,
    open_pagraph_part,
    read_pagraph_partition,
    write_pagraph_partition,
)
from .partition import Partition, PartVertices
from .partitioning import (
    draw_train,
    limit_replication,
    partition_graph,
    train_ids,
    train_type,
)
from .placement import PlacementReport, describe_placement, place_vertices
from .report import PartitionReport, describe
from .verification import Finding, Verification, verify_partition
from .writing import write_partition

__all__ = [
    "METHODS",
    "CacheTrial",
    "Finding",
    "PagraphPart",
    "Part",
    "PartVertices",
    "Partition",
    "PartitionManifest",
    "PartitionOptions",
    "PartitionReport",
    "PlacementReport",
    "Verification",
    "describe",
    "describe_placement",
    "draw_train",
    "limit_replication",
    "open_pagraph_part",
    "open_partition",
    "partition_graph",
    "place_vertices",
    "read_pagraph_partition",
    "train_ids",
    "train_type",
    "verify_dgl",
    "verify_partition",
    "write_dgl",
    "write_pagraph_partition",
    "write_partition",
]

__dir__ = __all__.copy
