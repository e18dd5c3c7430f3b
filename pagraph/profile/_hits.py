"""The kernel behind hit-rate curves."""

from .._jit import kernel, prefetch

_AHEAD = 24


@kernel
def add_segments(ids, ends, counts, out):  # type: ignore[no-untyped-def]
    """Add up the counts of each segment of a ranking.

    Args:
        ids: Shape ``(n,)``, vertices in the order of the ranking.
        ends: Shape ``(num_segments,)``, ascending, at most ``n``: where each segment ends.
        counts: Shape ``(num_nodes, columns)``.
        out: Shape ``(num_segments, columns)``; added to.
    """
    begin = 0
    for segment in range(len(ends)):
        for i in range(begin, ends[segment]):
            if i + _AHEAD < len(ids):
                prefetch(counts, ids[i + _AHEAD] * counts.shape[1])
            for column in range(counts.shape[1]):
                out[segment, column] += counts[ids[i], column]
        begin = ends[segment]


@kernel
def add_columns(counts, out):  # type: ignore[no-untyped-def]
    """Add the sums of the columns of ``counts`` to ``out``, shape ``(columns,)``; NumPy takes ten times as long."""
    for row in range(counts.shape[0]):
        for column in range(counts.shape[1]):
            out[column] += counts[row, column]
