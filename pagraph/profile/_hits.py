"""The kernels behind hit-rate curves."""

from .._jit import kernel, prefetch

# Places asked for before they are written. Ranked ids are scattered: without the prefetch each
# write waits for memory; the distance covers that wait and keeps the lines in the first cache.
_AHEAD = 64


@kernel
def number_segments(ids, ends, out):
    """Write to ``out[ids[i]]`` the segment that place ``i`` is in, up to the last of the ascending
    ``ends``."""
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
    # NumPy takes ten times as long: it converts every value to int64 first.
    for row in range(counts.shape[0]):
        for column in range(counts.shape[1]):
            out[column] += counts[row, column]
