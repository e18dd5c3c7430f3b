"""Types of NumPy arrays, for signatures."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

# Not in `checks`, because options are checked before NumPy is imported.
Array = npt.NDArray[Any]
"""A NumPy array of any element type."""
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]
