"""Times as exact numbers, and strategies of times in every dtype with equal, missing and extreme
ones among them."""

import math
from fractions import Fraction

import torch
from hypothesis import strategies as st

INTEGERS = [
    *(torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
]
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
MISSING = -(2**63)
WINDOWS = st.sampled_from(
    [1, 2, 3, 0.5, 2.5, 5, 1e-3, 1e-300, 2**53 + 1, 2**63, 2**64 + 5, 1e300, math.inf]
)


def exact(times):
    """Python numbers without rounding, infinities as floats; None where a time is missing."""
    return [
        None if value != value or value == MISSING and not times.is_floating_point()
        else value if isinstance(value, float) and math.isinf(value)
        else Fraction(value)
        for value in times.tolist()
    ]  # fmt: skip


def within(limit, time, window=None):
    """Whether a time is in ``(limit - window, limit]``; a missing one never is, one equal to the
    limit always."""
    if time is None or time > limit:
        return False
    if window is None or window == math.inf or time == limit:
        return True
    if math.inf in (abs(time), abs(limit)):
        return False
    return limit - time < Fraction(window)


def _pool(dtype, missing):
    """Few values, so that many are equal; those at the borders of the dtype are rarer."""
    if dtype.is_floating_point:
        most = 2 / torch.finfo(dtype).eps  # larger times are refused, as they may be rounded
        rare = [
            *([] if dtype == torch.float16 else [math.inf, -math.inf]),
            most,
            -most,
            torch.finfo(dtype).tiny,
            -0.0,
            *([math.nan] * 3 if missing else []),
        ]
        return [float(value) for value in range(-2, 7)] * 2 + [0.5, 2.25] + rare
    low, high = torch.iinfo(dtype).min, min(torch.iinfo(dtype).max, 2**63 - 1)
    rare = [low + 1, high, high - 1, *([MISSING] * 3 if missing and dtype == torch.int64 else [])]
    return [value for value in range(-2, 7) if value >= low] * 2 + rare


def times(count, kind, *, missing=True):
    """Strategy of ``count`` times of one of the dtypes ``kind``."""
    return st.sampled_from(kind).flatmap(
        lambda dtype: st.lists(
            st.sampled_from(_pool(dtype, missing)), min_size=count, max_size=count
        ).map(lambda values: torch.tensor(values, dtype=dtype))
    )


KINDS = st.sampled_from([INTEGERS, FLOATS])
