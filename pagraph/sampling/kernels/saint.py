"""Kernels of GraphSAINT's draws."""

import numpy as np

from ..._jit import kernel
from .weighted import draw_unit


@kernel
def draw_places(count, key, out):  # type: ignore[no-untyped-def]
    """``out[j]``: independent draws, uniform in ``[0, count)`` up to ``count / 2**52``."""
    for j in range(len(out)):
        out[j] = min(np.int64(draw_unit(key, j) * np.float64(count)), count - 1)
