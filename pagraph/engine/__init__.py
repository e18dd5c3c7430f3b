"""The engine behind every loader: fields, batches, statistics and threads, wired in one place."""

from ..options.pipeline import PipelineOptions, parse_lookahead
from .epochs import Epochs
from ..system.stage import SerialStage, Stage
from .steps import Steps

__all__ = ["Epochs", "PipelineOptions", "SerialStage", "Stage", "Steps", "parse_lookahead"]

__dir__ = __all__.copy
