"""Kernel of the concave envelope of an order's savings, for orders whose best rows do not come first."""

from .._jit import kernel


@kernel
def pool(values, means, sizes):  # type: ignore[no-untyped-def]
    """Merge neighbours until the means do not increase ("pool adjacent violators"); one pass, at most n merges.

    Args:
        values: Shape ``(n,)``, float64.
        means: Shape ``(n,)``, float64: filled with the mean of each block.
        sizes: Shape ``(n,)``, int64: filled with the values in each block.

    Returns:
        The number of blocks.
    """
    blocks = 0
    for i in range(len(values)):
        mean, size = values[i], 1
        # Equal means stay apart: each block then begins where a new slope of the envelope may begin.
        while blocks and means[blocks - 1] < mean:
            blocks -= 1
            size += sizes[blocks]
            mean += (means[blocks] - mean) * (sizes[blocks] / size)
        means[blocks], sizes[blocks] = mean, size
        blocks += 1
    return blocks
