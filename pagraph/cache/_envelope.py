"""Kernel of the concave envelope of an order's savings, for orders whose best rows do not come
first."""

from .._jit import kernel


@kernel
def pool(values, means, sizes):
    """Merge neighbours until the means do not increase ("pool adjacent violators"); one pass, at
    most n merges.

    Fills ``means`` (float64) and ``sizes`` (int64), each of shape ``(n,)`` as ``values``, with the
    mean and the number of values of each block; returns the number of blocks.
    """
    blocks = 0
    for i in range(len(values)):
        mean = values[i]
        size = 1
        # Equal means stay apart: each block then begins where a new slope of the envelope may
        # begin.
        while blocks and means[blocks - 1] < mean:
            blocks -= 1
            size += sizes[blocks]
            mean += (means[blocks] - mean) * (sizes[blocks] / size)
        means[blocks], sizes[blocks] = mean, size
        blocks += 1
    return blocks
