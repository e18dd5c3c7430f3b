"""Training of GraphSAGE, GCN and GAT, the library side of ``pagraph train``.

DGL or PyG is imported when a run begins.
"""

from ..options.training import TrainOptions
from .inference import OneHop
from .result import EpochRecord, Reporter, TrainResult

__all__ = ["EpochRecord", "OneHop", "Reporter", "TrainOptions", "TrainResult"]

__dir__ = __all__.copy
