"""Kernels that sort edges by destination: into buckets of id ranges, then within each bucket."""

import numpy as np

from .._jit import kernel
from ..graph._csc import check_id


@kernel
def count_buckets(rows, column, low, shift, counts):
    """Add each bucket's rows to ``counts``; the bucket is ``(rows[i, column] - low) >> shift``."""
    for i in range(len(rows)):
        bucket = (rows[i, column] - low) >> shift
        # The file of rows may have been changed meanwhile: never write out of bounds.
        check_id(bucket, len(counts))
        counts[bucket] += 1


@kernel
def fill_buckets(rows, column, low, shift, cursor, moved):
    """Copy rows to their buckets, in order; ``cursor`` has the buckets' starts and is consumed."""
    # No check of ids here and in `fill_bucket`: `count_buckets` has checked the same array, which
    # is a copy in memory.
    width = rows.shape[1]
    for i in range(len(rows)):
        bucket = (rows[i, column] - low) >> shift
        slot = cursor[bucket]
        cursor[bucket] = slot + 1
        for c in range(width):
            moved[slot, c] = rows[i, c]


@kernel
def fill_bucket(rows, low, cursor, src, numbers):
    """Stable counting sort of a bucket by destination; ``numbers`` is empty for two columns."""
    numbered = rows.shape[1] == 3
    for i in range(len(rows)):
        slot = cursor[rows[i, 0] - low]
        cursor[rows[i, 0] - low] = slot + 1
        src[slot] = rows[i, 1]
        if numbered:
            numbers[slot] = rows[i, 2]


@kernel
def fill_keys(rows, low, num_src, keys):
    """Write the sort key ``(dst - low) * num_src + src`` of each row."""
    # `check_simple` allows at most 2**31 vertices, so keys are below 2**62.
    for i in range(len(rows)):
        keys[i] = (np.int64(rows[i, 0]) - low) * num_src + rows[i, 1]


@kernel
def take_distinct(keys, num_src, counts, src):
    """Write the sources of the distinct sorted ``keys`` and count them by destination.

    Returns the number of distinct keys.
    """
    found = 0
    row = np.int64(0)
    begin = np.int64(0)  # the first key of the row
    for i in range(len(keys)):
        if i > 0 and keys[i] == keys[i - 1]:
            continue
        # Divide only at a new row: division is the slowest operation here.
        if keys[i] - begin >= num_src:
            row = keys[i] // num_src
            begin = row * num_src
        src[found] = keys[i] - begin
        check_id(row, len(counts))
        counts[row] += 1
        found += 1
    return found
