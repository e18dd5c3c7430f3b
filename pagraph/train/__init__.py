"""Trains GraphSAGE or GCN on a graph: the library side of ``pagraph train``.

The options and results are here; :func:`pagraph.train.task.make_task` and :func:`pagraph.train.loop.train`
need DGL and so are imported from their own modules.
"""

from .options import TrainOptions
from .reporter import Reporter
from .result import EpochRecord, TrainResult

__all__ = ["EpochRecord", "Reporter", "TrainOptions", "TrainResult"]
