"""Kernels that count the hits of a curve."""

from .._jit import kernel, prefetch

# Prefetch distance. Ranked ids are scattered, so that without prefetch each write waits for memory.
# This distance covers the wait, and the lines still fit into the first-level cache.
_AHEAD = 64


@kernel
def number_segments(ids, ends, out):
    """Write to ``out[ids[i]]`` the number of the segment that place ``i`` is in.

    ``ends`` are ascending; places after the last end are left as they are.
    """
    begin = 0
    for segment in range(len(ends)):
        for i in range(begin, ends[segment]):
            prefetch(out, ids[min(i + _AHEAD, len(ids) - 1)])
            out[ids[i]] = segment
        begin = ends[segment]


@kernel
def add_segments(segments, counts, out):
    """Add each vertex's ``counts`` to the row of ``out`` that its segment names."""
    for vertex in range(len(segments)):
        segment = segments[vertex]
        for column in range(counts.shape[1]):
            out[segment, column] += counts[vertex, column]


@kernel
def add_columns(counts, out):
    """Add the sums of the columns of ``counts`` to ``out``, shape ``(columns,)``."""
    # NumPy takes ten times as long, as it first converts every value to int64.
    for row in range(counts.shape[0]):
        for column in range(counts.shape[1]):
            out[column] += counts[row, column]
