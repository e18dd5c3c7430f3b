"""The engine behind every loader: fields, batches, statistics and threads, wired in one place."""

from ..options.pipeline import PipelineOptions, parse_lookahead
from .epochs import Epochs
from .steps import Steps

__all__ = ["Epochs", "PipelineOptions", "Steps", "parse_lookahead"]

__dir__ = __all__.copy
