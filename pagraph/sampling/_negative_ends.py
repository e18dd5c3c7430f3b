"""CPU kernels that draw vertices, from the first of a list on; random numbers as in ``_weighted``."""

import numpy as np

from .._jit import kernel
from ._weighted import draw_unit


@kernel
def uniform_places(key, limits, out):  # type: ignore[no-untyped-def]
    """``out[i]``: uniform in ``[0, limits[i])``, or 0 where that is empty."""
    for i in range(len(out)):
        out[i] = np.int64(draw_unit(key, i) * np.float64(limits[i]))


@kernel
def weighted_places(key, limits, sums, out):  # type: ignore[no-untyped-def]
    """``out[i]``: a place below ``limits[i]`` in proportion to the steps of ``sums``, or 0 where there is no weight."""
    for i in range(len(out)):
        limit = limits[i]
        out[i] = 0
        if limit == 0 or sums[limit - 1] <= 0.0:
            continue
        point = draw_unit(key, i) * sums[limit - 1]
        low, high = np.int64(0), np.int64(limit - 1)
        while low < high:  # the first place whose running sum is above the point: never one without weight
            middle = (low + high) >> 1
            if sums[middle] > point:
                high = middle
            else:
                low = middle + 1
        out[i] = low
