"""The pipeline: stages and the threads between them, epochs, statistics, traces."""

from .epochs import Epochs, PipelineOptions, Steps
from .stage import SerialStage, Stage
from .stats import EpochStats, LoaderStats
from .trace import Tracer
from .trace_file import merge_traces, read_trace

__all__ = [
    "EpochStats",
    "Epochs",
    "LoaderStats",
    "PipelineOptions",
    "SerialStage",
    "Stage",
    "Steps",
    "Tracer",
    "merge_traces",
    "read_trace",
]
