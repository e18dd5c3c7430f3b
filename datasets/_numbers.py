"""Kernel that finds numbers of a column that float32 cannot represent."""

import numpy as np

from .._jit import kernel

_LEAST = -14
_MOST = 31
_POWERS = np.array([float(f"1e{i}") for i in range(_LEAST, _MOST + 1)])
_EXACT = np.array([float(10**i) for i in range(23)])  # the powers of 10 that float64 holds


@kernel
def first_unsure(values, begin):
    """Find the first place from ``begin`` on whose number may not survive float32; returns the
    length if all do.

    A number survives if float32 holds it exactly, or if it is a decimal of 6 to 9 digits and the
    nearest float32 prints as these digits. The answer errs on the safe side: decimals below 1e-14
    and from 1e31 on are always reported.
    """
    # Kept from one number to the next: those of a column are mostly of the same size, so that the
    # loops below end at once.
    exponent = 0
    for i in range(begin, len(values)):
        value = values[i]
        held = np.float64(np.float32(value))
        if held == value or value != value:  # NaN is missing in either dtype
            continue
        size = abs(held)
        # Infinity, where float32 overflows, and 0, where it underflows, end here too.
        if not (size >= _POWERS[0] and size < _POWERS[-1]):
            return i
        while size < _POWERS[exponent - _LEAST]:
            exponent -= 1
        while size >= _POWERS[exponent + 1 - _LEAST]:
            exponent += 1
        # The decimal of 9 digits: its quotient or product by an exact power of 10 is the double
        # nearest to it.
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
        if whole % 10 == 0:  # one test where there are 9, which is faster
            if whole % 1000 == 0:
                unit = 1000.0
            elif whole % 100 == 0:
                unit = 100.0
            else:
                unit = 10.0
        # Less than a half, since near a half the rounding of ``away`` may have decided which way it
        # went.
        if away > 0.499999 * unit:
            return i
    return len(values)
