"""Kernels that round float32 rows to float16, bfloat16 or int8 (a scale per row), and widen them.

They work on the bits, since numba has neither 16-bit float on the CPU. LLVM vectorises the loops.
All NaN become one (of each sign), so that a row has the same bits with and without a cache.
"""

import numpy as np

from .._jit import inlined, kernel
from .row_form import BFLOAT16, FLOAT16, HEAD, INT8

_ABS = np.uint32(0x7FFFFFFF)
_SIGN = np.uint32(0x80000000)
_INF = np.uint32(0x7F800000)
_NAN = np.uint32(0x7FC00000)
_HALF_NORMAL = np.uint32(0x38800000)  # 2 ** -14, float16's smallest normal number
_HALF_LEAST = np.float32(2.0**-14)
_HALF_OVER = np.uint32(0x47800000)  # 2 ** 16
_HALF_SHIFT = np.uint32(0x38000000)  # 112 << 23: the difference of the two exponents' biases
_BELOW = np.float32(0.5)  # numbers just above it are 2 ** -24 apart, as float16's subnormals are
_BELOW_BITS = np.uint32(0x3F000000)
_HALF_BITS = np.uint32(13)  # lowest bits of the fraction that float16 has not
_HALF_INF = np.uint32(0x7C00)
_HALF_NAN = np.uint32(0x7E00)
_TOP_EXPONENT = np.uint32(0x0F800000)  # float16's exponent 31, where float32's exponent is
_HIGH = np.uint32(16)  # shift to the upper half of a word, which bfloat16 has
_LEVELS = 127.0  # of int8, on each side of 0


@inlined
def float_of(bits):
    """The float32 that has these bits."""
    return np.uint32(bits).view(np.float32)


@kernel
def to_half(u):
    """Bits of a float32, rounded to float16's numbers, ties to even."""
    a = np.uint32(u & _ABS)
    # The 13 lowest bits of the fraction go. Add half a unit of the last bit that stays, less one,
    # plus that bit itself: so a tie rounds up only from an odd number.
    last = (a >> _HALF_BITS) & np.uint32(1)
    normal = np.uint32((a + np.uint32(0xFFF) + last) & np.uint32(0xFFFFE000))
    # The addition rounds to the units of numbers near 0.5, and the subtraction is exact.
    shifted = np.float32(float_of(a) + _BELOW)
    tiny = np.float32(shifted - _BELOW).view(np.uint32)
    r = normal if a >= _HALF_NORMAL else tiny
    r = _INF if r >= _HALF_OVER else r
    r = _NAN if a > _INF else r
    return np.uint32(r | (u & _SIGN))


@kernel
def to_brain(u):
    """Bits of a float32, rounded to bfloat16's numbers, ties to even."""
    a = np.uint32(u & _ABS)
    # As in to_half, but 16 bits go. bfloat16 has float32's exponents.
    last = (a >> _HIGH) & np.uint32(1)
    r = np.uint32((a + np.uint32(0x7FFF) + last) & np.uint32(0xFFFF0000))
    r = _NAN if a > _INF else r
    return np.uint32(r | (u & _SIGN))


@kernel
def narrow_half(u):
    """The float16 of a float32 that :func:`to_half` has rounded."""
    a = np.uint32(u & _ABS)
    normal = np.uint32((a - _HALF_SHIFT) >> _HALF_BITS)
    # Above 0.5, float32's last bits count units of float16's subnormals.
    shifted = np.float32(float_of(a) + _BELOW)
    tiny = np.uint32(shifted.view(np.uint32) - _BELOW_BITS)
    r = normal if a >= _HALF_NORMAL else tiny
    r = _HALF_INF if a == _INF else r
    r = _HALF_NAN if a > _INF else r
    sign = (u & _SIGN) >> _HIGH
    return np.uint16(r | sign)


@kernel
def widen_half(h):
    """Bits of the float32 that equals a float16."""
    word = np.uint32(h)
    m = np.uint32((word & np.uint32(0x7FFF)) << _HALF_BITS)
    # Infinities and NaN have exponent 31, and 255 in float32: twice the shift. Subnormals have
    # exponent 0 and no implicit 1, so the 1 that float32 adds is subtracted again.
    exponent = np.uint32(m & _TOP_EXPONENT)
    normal = np.uint32(m + _HALF_SHIFT)
    tiny = np.float32(float_of(m + _HALF_NORMAL) - _HALF_LEAST).view(np.uint32)
    r = np.uint32(normal + _HALF_SHIFT) if exponent == _TOP_EXPONENT else normal
    r = tiny if exponent == np.uint32(0) else r
    sign = (word & np.uint32(0x8000)) << _HIGH
    return np.uint32(r | sign)


# Rows are given by an unsigned start, not by a slice: so numba checks for no negative index.
# Functions of two arrays return nothing and call no other such function. Otherwise LLVM keeps the
# counting of references, 22 ns a row.


@kernel
def largest(bits, start, count, form):
    """The largest magnitude in a run of float32 bits, as bits.

    Infinities and NaN are skipped, but not for int8.
    """
    worst = np.uint32(0)
    limit = _INF
    if form == INT8:
        # An int8 row cannot hold infinities and NaN: the caller refuses what is found here.
        limit = np.uint32(0xFFFFFFFF)
    for j in range(count):
        a = np.uint32(bits[start + np.uint64(j)] & _ABS)
        counted = a if a < limit else np.uint32(0)
        worst = np.uint32(max(worst, counted))
    return worst


@kernel
def scale_for(worst):
    """The bits of the scale of an int8 row whose largest magnitude has the bits ``worst``.

    The scale is the float32 nearest to magnitude / 127, with two exceptions. It is one step larger
    where rounding to a subnormal left the magnitude above 127.5 scales. It is one step smaller
    where 127 scales would be infinite.
    """
    magnitude = np.float64(float_of(worst))
    nearest = np.float32(magnitude / _LEVELS)
    is_low = 127.5 * np.float64(nearest) < magnitude
    bits = nearest.view(np.uint32) + np.uint32(is_low)
    top = np.float32(np.float32(_LEVELS) * float_of(bits))
    is_infinite = top == np.float32(np.inf)
    return np.uint32(bits - np.uint32(is_infinite))


@inlined
def divisor_of(scale):
    """What an int8 row is divided by; ``scale`` is given as bits, and 0 for a row of zeros."""
    return np.float64(float_of(scale)) if scale else np.float64(1)


@kernel
def to_level(u, scale):
    """A float32, given as bits, in multiples of a scale that is not 0; ties to even."""
    # In float64 the quotient is exact enough to recognise ties. A scale that was rounded down may
    # give more than 127.
    value = np.float64(float_of(u))
    steps = np.rint(value / scale)
    return np.int32(min(max(steps, -_LEVELS), _LEVELS))


@kernel
def read_scale(row, start):
    """The scale of an int8 row."""
    bits = np.uint32(0)
    for j in range(HEAD):
        byte = np.uint32(row[start + np.uint64(j)])
        bits |= np.uint32(byte << np.uint32(8 * j))
    return float_of(bits)


@kernel
def narrow_run(source, start, out, to, count, form, worst):
    """Write a run of float32 bits, whose :func:`largest` is ``worst``, as a row of fewer bytes."""
    if form == BFLOAT16:
        for j in range(count):
            rounded = to_brain(source[start + np.uint64(j)])
            out[to + np.uint64(j)] = rounded >> _HIGH
    elif form == FLOAT16:
        for j in range(count):
            rounded = to_half(source[start + np.uint64(j)])
            out[to + np.uint64(j)] = narrow_half(rounded)
    else:
        bits = scale_for(worst)
        divisor = divisor_of(bits)
        for j in range(HEAD):
            out[to + np.uint64(j)] = (bits >> np.uint32(8 * j)) & np.uint32(0xFF)
        for j in range(count):
            level = to_level(source[start + np.uint64(j)], divisor)
            out[to + np.uint64(HEAD + j)] = np.uint8(level)


@kernel
def widen_run(row, start, out, to, count, form):
    """Write the ``count`` values of a row of fewer bytes as the bits of float32."""
    if form == BFLOAT16:
        for j in range(count):
            out[to + np.uint64(j)] = np.uint32(row[start + np.uint64(j)]) << _HIGH
    elif form == FLOAT16:
        for j in range(count):
            out[to + np.uint64(j)] = widen_half(row[start + np.uint64(j)])
    else:
        scale = read_scale(row, start)
        for j in range(count):
            level = np.float32(np.int8(row[start + np.uint64(HEAD + j)]))
            out[to + np.uint64(j)] = np.float32(level * scale).view(np.uint32)


@kernel
def round_run(source, start, out, to, count, form):
    """Write a run of float32 bits, rounded to float16 or bfloat16."""
    if form == BFLOAT16:
        for j in range(count):
            out[to + np.uint64(j)] = to_brain(source[start + np.uint64(j)])
    else:
        for j in range(count):
            out[to + np.uint64(j)] = to_half(source[start + np.uint64(j)])


@kernel
def round_levels(source, start, out, to, count, scale):
    """Write a run of float32 bits, rounded to int8 levels; ``scale`` is given as bits."""
    factor = float_of(scale)
    divisor = divisor_of(scale)
    for j in range(count):
        level = np.float32(to_level(source[start + np.uint64(j)], divisor))
        out[to + np.uint64(j)] = np.float32(level * factor).view(np.uint32)


@kernel
def narrow_rows(source, width, form, out, narrow_width, limit, worst):
    """Write rows of float32 bits in fewer bytes, up to the first with a magnitude of ``limit``.

    Returns that row, or -1. ``worst[0]`` becomes the largest magnitude, as bits.
    """
    for row in range(len(out) // narrow_width):
        start = np.uint64(row * width)
        to = np.uint64(row * narrow_width)
        top = largest(source, start, width, form)
        worst[0] = max(worst[0], top)
        if top >= limit:
            return row
        narrow_run(source, start, out, to, width, form, top)
    return -1


@kernel
def widen_rows(rows, narrow_width, form, out, width):
    """Write rows of fewer bytes as the bits of float32."""
    for row in range(len(rows) // narrow_width):
        start = np.uint64(row * narrow_width)
        to = np.uint64(row * width)
        widen_run(rows, start, out, to, width, form)
