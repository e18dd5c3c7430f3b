"""Kernel that finds numbers of a column that float32 may not represent."""

import numpy as np

from .._jit import kernel

_LEAST = -14
_MOST = 31
_POWERS = np.array([float(f"1e{i}") for i in range(_LEAST, _MOST + 1)])
_EXACT = np.array([float(10**i) for i in range(23)])  # the powers of 10 that float64 holds


@kernel
def first_unsure(values, begin):
    """Find the first position from ``begin`` whose number may not survive float32, or the length.

    A number survives if float32 holds it exactly, or if it is a decimal of 6 to 9 digits and the
    nearest float32 prints as these digits. The test is conservative: decimals below 1e-14 and from
    1e31 on are always reported.
    """
    # Kept between numbers: those of a column are mostly of one magnitude, so the loops below end at
    # once.
    exponent = 0
    for i in range(begin, len(values)):
        value = values[i]
        held = np.float64(np.float32(value))
        if held == value or value != value:  # NaN is missing in either dtype
            continue
        size = abs(held)
        # Overflow (infinity) and underflow (0) of float32 end here, too.
        if not (size >= _POWERS[0] and size < _POWERS[-1]):
            return i
        while size < _POWERS[exponent - _LEAST]:
            exponent -= 1
        while size >= _POWERS[exponent + 1 - _LEAST]:
            exponent += 1
        # The 9-digit decimal: multiplying or dividing by an exact power of 10 gives the nearest
        # double.
        shift = 8 - exponent
        if shift >= 0:
            digits = np.rint(value * _EXACT[shift])
            decimal = digits / _EXACT[shift]
            away = abs(held * _EXACT[shift] - digits)
        else:
            digits = np.rint(value / _EXACT[-shift])
            decimal = digits * _EXACT[-shift]
            away = abs(held / _EXACT[-shift] - digits)
        if decimal != value:
            return i
        whole = np.int64(digits)
        unit = 1.0  # the last of 6 to 9 digits
        if whole % 10 == 0:  # a single test for 9 digits, which is faster
            if whole % 1000 == 0:
                unit = 1000.0
            elif whole % 100 == 0:
                unit = 100.0
            else:
                unit = 10.0
        # Less than a half: near it, the rounding of `away` itself may have decided.
        if away > 0.499999 * unit:
            return i
    return len(values)
