"""Trains GraphSAGE or GCN on a graph: the library side of ``pagraph train``.

DGL or PyG is imported when a run begins, and neither before: see :func:`pagraph.train.models.framework_of`.
"""

from .options import TrainOptions
from .result import EpochRecord, Reporter, TrainResult

__all__ = ["EpochRecord", "Reporter", "TrainOptions", "TrainResult"]
