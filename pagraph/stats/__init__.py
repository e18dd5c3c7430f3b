"""Statistics of reads and epochs, device times, timelines."""

from .reads import CacheStats, FieldStats, ReadCounters
from .stats import EpochStats, LoaderStats
from .trace import Tracer
from .trace_file import merge_traces, read_trace

__all__ = [
    "CacheStats",
    "EpochStats",
    "FieldStats",
    "LoaderStats",
    "ReadCounters",
    "Tracer",
    "merge_traces",
    "read_trace",
]

__dir__ = __all__.copy
