"""Kernel of the concave envelope of an order's savings."""

from .._jit import kernel


@kernel
def pool(values, means, sizes):
    """Merge adjacent values until the means do not increase ("pool adjacent violators"), in O(n).

    Fills ``means`` (float64) and ``sizes`` (int64), both of shape ``(n,)`` like ``values``, with
    the mean and the size of each block. Returns the number of blocks.
    """
    blocks = 0
    for i in range(len(values)):
        mean = values[i]
        size = 1
        # Equal means stay apart, so that a budget can end between their blocks.
        while blocks and means[blocks - 1] < mean:
            blocks -= 1
            size += sizes[blocks]
            mean += (means[blocks] - mean) * (sizes[blocks] / size)
        means[blocks], sizes[blocks] = mean, size
        blocks += 1
    return blocks
