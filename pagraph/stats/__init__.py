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


def __dir__() -> list[str]:
    return __all__
