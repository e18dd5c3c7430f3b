"""Kernels of random graphs and fields: every number is a hash of (key, position)."""

import numpy as np

from .._jit import allocating_kernel, kernel
from ..sampling.kernels.hop import mix

# 2**64 over the golden ratio, the step of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LOW = np.uint64(0xFFFFFFFF)
_LOW16 = np.uint64(0xFFFF)
_S16 = np.uint64(16)
_S32 = np.uint64(32)
_S48 = np.uint64(48)
# Rounds of multiplication and shift, each a bijection. With fewer, close ids stay close.
_ROUNDS = 4
# The sum of four uniform 16-bit numbers is nearly normal: mean 4 * 32767.5, variance 4 * (65536**2
# - 1) / 12.
_MEAN = np.float32(131070.0)
_DEVIATION = np.float32(37837.22)


@kernel
def draw(key, position):
    """64 random bits at ``position`` of the stream ``key``."""
    return mix(np.uint64(key) + np.uint64(position) * _GOLDEN)


@kernel
def fill_bits(key, first, out):
    """Write 63 random bits, as non-negative int64, for the positions from ``first`` on."""
    for i in range(len(out)):
        out[i] = np.int64(draw(key, first + i) >> np.uint64(1))


@kernel
def fill_below(key, first, bound, out):
    """Write integers uniform in ``[0, bound)``; ``bound`` is at most 2**32."""
    # Multiply and shift (Lemire, ACM TOMACS 2019) avoids a division. Without his rejection step,
    # the bias is at most bound / 2**32.
    for i in range(len(out)):
        out[i] = np.int64(((draw(key, first + i) >> _S32) * np.uint64(bound)) >> _S32)


@kernel
def fill_normal(key, first, out):
    """Write nearly normal numbers of mean 0 and deviation 1, bit-identical on all machines."""
    # Without logarithm or cosine: the sum is an integer below 2**18, exact in float32, and IEEE 754
    # defines the rounding of subtraction and division.
    for i in range(len(out)):
        bits = draw(key, first + i)
        total = (
            (bits & _LOW16) + ((bits >> _S16) & _LOW16) + ((bits >> _S32) & _LOW16) + (bits >> _S48)
        )
        out[i] = (np.float32(total) - _MEAN) / _DEVIATION


@kernel
def scramble(vertex, scale, constants):
    """A keyed pseudo-random bijection of ``[0, 2**scale)``."""
    # Addition, multiplication by an odd number modulo 2**scale, and xor with a shift by more than
    # half of the bits are all invertible, so ids stay distinct.
    mask = (np.uint64(1) << np.uint64(scale)) - np.uint64(1)
    shift = np.uint64(scale // 2 + 1)
    for r in range(_ROUNDS):
        vertex = ((vertex + constants[2 * r]) * constants[2 * r + 1]) & mask
        vertex ^= vertex >> shift
    return vertex


@kernel
def descend(bits, bounds, level):
    """One level of the recursion: 32 random bits choose a quadrant, as (row bit, column bit)."""
    #          column 0   column 1        The bounds are cumulative: a, a + b and a + b + c.
    # row 0       a          b            Row 1 is beyond the second. Column 1 is between the first
    # row 1       c          d            and the second, or beyond the third.
    over_a = np.uint64(bits >= bounds[level, 0])
    over_b = np.uint64(bits >= bounds[level, 1])
    over_c = np.uint64(bits >= bounds[level, 2])
    return over_b, over_a - over_b + over_c


@kernel
def fill_rmat(key, first, bounds, constants, src, dst):
    """Write the two ends of the edges from ``first`` on; two levels share one 64-bit number."""
    scale = len(bounds)
    draws = (scale + 1) // 2
    for i in range(len(src)):
        row = np.uint64(0)
        column = np.uint64(0)
        for pair in range(draws):
            bits = draw(key, (first + i) * draws + pair)
            for half in range(min(2, scale - 2 * pair)):
                down, right = descend(bits & _LOW, bounds, 2 * pair + half)
                row = (row << np.uint64(1)) | down
                column = (column << np.uint64(1)) | right
                bits >>= _S32
        src[i] = scramble(row, scale, constants)
        dst[i] = scramble(column, scale, constants)


@allocating_kernel
def build_alias(weights, threshold, alias, small, large):
    """Vose's alias table of ``weights``; ``small`` and ``large`` are scratch of the same length.

    Slot ``i`` stands for itself below ``threshold[i]``, and for its alias otherwise.
    """
    n = len(weights)
    mean = weights.sum() / n
    num_small = 0
    num_large = 0
    for i in range(n):
        alias[i] = i
        if weights[i] < mean:
            small[num_small] = i
            num_small += 1
        else:
            large[num_large] = i
            num_large += 1
    # In units of the mean, so each slot holds 1: a light one is filled up from a heavy one.
    rest = weights / mean
    while num_small > 0 and num_large > 0:
        num_small -= 1
        low = small[num_small]
        high = large[num_large - 1]
        alias[low] = high
        rest[high] -= 1.0 - rest[low]
        if rest[high] < 1.0:
            num_large -= 1
            small[num_small] = high
            num_small += 1
    # Slots left over have weight 1 up to rounding and are their own aliases. So a largest threshold
    # of 2**32 - 1 does no harm.
    for i in range(n):
        threshold[i] = np.uint32(min(max(rest[i], 0.0), 1.0) * 4294967295.0)


@kernel
def pick(bits, begin, end, threshold, alias):
    """A position in ``[begin, end)`` by its alias table, whose entries count from ``begin``."""
    slot = np.int64(((bits >> _S32) * np.uint64(end - begin)) >> _S32)
    # Strict, so that weight 0 is never picked.
    if (bits & _LOW) < np.uint64(threshold[begin + slot]):
        return begin + slot
    return begin + np.int64(alias[begin + slot])


@kernel
def fill_blocks(key, first, num_blocks, pair_table, source, target, src, dst):
    """Write the ends of block-model edges: draw a pair of blocks, then a vertex of each.

    ``pair_table`` is the alias table of the pairs. ``source`` and ``target`` have the blocks'
    bounds, the thresholds and aliases of their tables, and the vertices sorted by block.
    """
    pair_threshold, pair_alias = pair_table
    source_starts, source_threshold, source_alias, source_order = source
    target_starts, target_threshold, target_alias, target_order = target
    for i in range(len(src)):
        # Three numbers per edge: for the pair of blocks, the source and the target.
        position = (first + i) * 3
        pair = pick(draw(key, position), 0, len(pair_threshold), pair_threshold, pair_alias)
        begin = source_starts[pair // num_blocks]
        end = source_starts[pair // num_blocks + 1]
        src[i] = source_order[
            pick(draw(key, position + 1), begin, end, source_threshold, source_alias)
        ]
        begin = target_starts[pair % num_blocks]
        end = target_starts[pair % num_blocks + 1]
        dst[i] = target_order[
            pick(draw(key, position + 2), begin, end, target_threshold, target_alias)
        ]
