"""Kernels that round float32 to what float16 or bfloat16 can hold, and turn bits into one another.

Everything is done with the bits, in plain loops that LLVM makes vectors of: numba has neither type on the CPU. All NaN
become one (of each sign), so that a row has the same bits whether or not it went through a cache.
Measured, one thread, ns a row of 1 M (float32, 64 / 128 / 512 bytes): all in a cache of float32 9 / 10 / 36, of float16
12 / 13 / 34, of bfloat16 11 / 12 / 29; all missing 8 / 9 / 35, rounded 13 / 17 / 34.
"""

import numpy as np

from .._jit import kernel, prefetch
from ._gather import aimed, find_slot, located, prefetch_entry, prefetch_run

_ABS = np.uint32(0x7FFFFFFF)
_SIGN = np.uint32(0x80000000)
_INF = np.uint32(0x7F800000)
_NAN = np.uint32(0x7FC00000)
_HALF_NORMAL = np.uint32(0x38800000)  # 2 ** -14, float16's smallest normal number
_HALF_LEAST = np.float32(2.0**-14)
_HALF_OVER = np.uint32(0x47800000)  # 2 ** 16
_HALF_SHIFT = np.uint32(0x38000000)  # 112 << 23: the difference of the two exponents' biases
_BELOW = np.float32(0.5)  # numbers beside it are 2 ** -24 apart, as float16's subnormals are
_BELOW_BITS = np.uint32(0x3F000000)
_LINE = 64
_NARROW = 128
_BLOCK = 4096


@kernel
def to_half(u):  # type: ignore[no-untyped-def]
    """Bits of a float32, rounded to float16's numbers, ties to even."""
    a = np.uint32(u & _ABS)
    normal = np.uint32((a + np.uint32(0xFFF) + ((a >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000))
    tiny = np.float32(np.float32(a.view(np.float32) + _BELOW) - _BELOW).view(np.uint32)
    r = normal if a >= _HALF_NORMAL else tiny
    r = _INF if r >= _HALF_OVER else r
    r = _NAN if a > _INF else r
    return np.uint32(r | (u & _SIGN))


@kernel
def to_brain(u):  # type: ignore[no-untyped-def]
    """Bits of a float32, rounded to bfloat16's numbers, ties to even."""
    a = np.uint32(u & _ABS)
    r = np.uint32((a + np.uint32(0x7FFF) + ((a >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000))
    r = _NAN if a > _INF else r
    return np.uint32(r | (u & _SIGN))


@kernel
def narrow_half(u):  # type: ignore[no-untyped-def]
    """The float16 of a float32 that :func:`to_half` has rounded."""
    a = np.uint32(u & _ABS)
    normal = np.uint32((a - _HALF_SHIFT) >> np.uint32(13))
    tiny = np.uint32(np.float32(a.view(np.float32) + _BELOW).view(np.uint32) - _BELOW_BITS)
    r = normal if a >= _HALF_NORMAL else tiny
    r = np.uint32(0x7C00) if a == _INF else r
    r = np.uint32(0x7E00) if a > _INF else r
    return np.uint16(r | ((u & _SIGN) >> np.uint32(16)))


@kernel
def widen_half(h):  # type: ignore[no-untyped-def]
    """Bits of the float32 that equals a float16."""
    m = np.uint32((np.uint32(h) & np.uint32(0x7FFF)) << np.uint32(13))
    exponent = np.uint32(m & np.uint32(0x0F800000))
    tiny = np.float32(np.uint32(m + _HALF_NORMAL).view(np.float32) - _HALF_LEAST).view(np.uint32)
    r = np.uint32(m + _HALF_SHIFT + _HALF_SHIFT) if exponent == np.uint32(0x0F800000) else np.uint32(m + _HALF_SHIFT)
    r = tiny if exponent == np.uint32(0) else r
    return np.uint32(r | ((np.uint32(h) & np.uint32(0x8000)) << np.uint32(16)))


# Runs of values begin at an unsigned place: no slices, no negative indices. Functions of two arrays return nothing and
# call none of that kind: otherwise LLVM keeps the counting of references, 22 ns a row.


@kernel
def largest(bits, start, count):  # type: ignore[no-untyped-def]
    """The largest finite magnitude in a run of float32 bits, as bits."""
    worst = np.uint32(0)
    for j in range(count):
        a = np.uint32(bits[start + np.uint64(j)] & _ABS)
        worst = np.uint32(max(worst, a if a < _INF else np.uint32(0)))
    return worst


@kernel
def round_run(source, start, out, to, count, brain):  # type: ignore[no-untyped-def]
    """Write a run of float32 bits, rounded."""
    if brain:
        for j in range(count):
            out[to + np.uint64(j)] = to_brain(source[start + np.uint64(j)])
    else:
        for j in range(count):
            out[to + np.uint64(j)] = to_half(source[start + np.uint64(j)])


@kernel
def widen_run(narrow, start, out, to, count, brain):  # type: ignore[no-untyped-def]
    """Write a run of float16 or bfloat16 bits as those of float32."""
    if brain:
        for j in range(count):
            out[to + np.uint64(j)] = np.uint32(narrow[start + np.uint64(j)]) << np.uint32(16)
    else:
        for j in range(count):
            out[to + np.uint64(j)] = widen_half(narrow[start + np.uint64(j)])


@kernel
def round_all(bits, brain):  # type: ignore[no-untyped-def]
    """Round float32 bits in place; returns the largest finite magnitude there was, as bits."""
    worst = np.uint32(0)
    for begin in range(0, len(bits), _BLOCK):
        start, count = np.uint64(begin), min(_BLOCK, len(bits) - begin)
        worst = np.uint32(max(worst, largest(bits, start, count)))
        if brain:
            for j in range(count):
                bits[start + np.uint64(j)] = to_brain(bits[start + np.uint64(j)])
        else:
            for j in range(count):
                bits[start + np.uint64(j)] = to_half(bits[start + np.uint64(j)])
    return worst


@kernel
def narrow_run(source, start, out, to, count, brain):  # type: ignore[no-untyped-def]
    """Write a run of float32 bits as those of float16 or bfloat16."""
    if brain:
        for j in range(count):
            out[to + np.uint64(j)] = to_brain(source[start + np.uint64(j)]) >> np.uint32(16)
    else:
        for j in range(count):
            out[to + np.uint64(j)] = narrow_half(to_half(source[start + np.uint64(j)]))


@kernel
def gather_narrow(rows, stride, limit, table, ids, brain, out, width, worst):  # type: ignore[no-untyped-def]
    """``gather`` of float32 bits, written half as wide; ``stride``, ``width``, ``worst``: see gather_rounded."""
    count = len(ids)
    ahead = 32 if 4 * width <= _NARROW else 16
    for i in range(count):
        if i + 2 * ahead < count:
            prefetch_entry(table, np.int64(ids[i + 2 * ahead]))
        if i + ahead < count:
            prefetch_run(rows, aimed(table, np.int64(ids[i + ahead])) * stride, width, _LINE // 4)
        row = located(table, limit, np.int64(ids[i]))
        if row < 0:
            return i
        first = np.uint64(row * stride)
        worst[0] = max(worst[0], largest(rows, first, width))
        narrow_run(rows, first, out, np.uint64(i * width), width, brain)
    return -1


@kernel
def gather_rounded_part(cached, num_cached, slots, rows, stride, limit, table, ids, stop, brain, out, width, worst):  # type: ignore[no-untyped-def]
    """The first ``stop`` rows of :func:`gather_rounded`; returns the hits, or -1 - position of a bad id."""
    count = len(ids)
    ahead = 32 if 4 * width <= _NARROW else 16
    hits = 0
    for i in range(stop):
        if i + 2 * ahead < count:
            prefetch(slots, np.int64(ids[i + 2 * ahead]))
            prefetch_entry(table, np.int64(ids[i + 2 * ahead]))
        if i + ahead < count:
            row = np.int64(ids[i + ahead])
            slot = find_slot(slots, num_cached, row)
            if slot >= 0:
                prefetch_run(cached, slot * width, width, _LINE // 2)
            else:
                prefetch_run(rows, aimed(table, row) * stride, width, _LINE // 4)
        slot = find_slot(slots, num_cached, np.int64(ids[i]))
        to = np.uint64(i * width)
        if slot >= 0:
            widen_run(cached, np.uint64(slot * width), out, to, width, brain)
            hits += 1
        else:
            row = located(table, limit, np.int64(ids[i]))
            if row < 0:
                return -1 - i
            first = np.uint64(row * stride)
            worst[0] = max(worst[0], largest(rows, first, width))
            round_run(rows, first, out, to, width, brain)
    return hits


@kernel
def gather_rounded(cached, num_cached, slots, rows, stride, limit, table, ids, ends, brain, out, width, hits, worst):  # type: ignore[no-untyped-def]
    """``gather_cached`` of float32 bits, rounded; those in the cache are half as wide.

    ``stride`` and ``width`` count values. ``worst[0]`` becomes the largest finite magnitude that was rounded, as bits.
    """
    # Rows are rounded on the way: what was just copied to ``out`` is not there yet, and reading it would wait.
    begin = 0
    for part in range(len(ends)):
        found = gather_rounded_part(
            cached,
            num_cached,
            slots,
            rows,
            stride,
            limit,
            table,
            ids[begin:],
            ends[part] - begin,
            brain,
            out[begin * width :],
            width,
            worst,
        )
        if found < 0:
            return begin - 1 - found
        hits[part] = found
        begin = ends[part]
    return -1
