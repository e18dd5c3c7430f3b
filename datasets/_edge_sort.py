"""Kernels that sort edges by destination: into buckets of a range of ids, then inside a bucket."""

import numpy as np

from .._jit import kernel
from ..graph._csc import check_id


@kernel
def count_buckets(rows, column, low, shift, counts):
    """Add the number of rows of each bucket, ``(rows[i, column] - low) >> shift``, to
    ``counts``."""
    for i in range(len(rows)):
        bucket = (rows[i, column] - low) >> shift
        # A file of rows may have been changed while it was there: never count outside.
        check_id(bucket, len(counts))
        counts[bucket] += 1


@kernel
def fill_buckets(rows, column, low, shift, cursor, moved):
    """Copy each row behind those of the same bucket; ``cursor`` starts as each bucket's begin and
    is consumed."""
    # No check of ids here and in `fill_bucket`: both get the very array that `count_buckets` has
    # checked, a copy in memory and not the file.
    width = rows.shape[1]
    for i in range(len(rows)):
        bucket = (rows[i, column] - low) >> shift
        slot = cursor[bucket]
        cursor[bucket] = slot + 1
        for c in range(width):
            moved[slot, c] = rows[i, c]


@kernel
def fill_bucket(rows, low, cursor, src, numbers):
    """Stable counting sort of a bucket's rows by destination; ``numbers`` is empty where rows have
    two columns."""
    numbered = rows.shape[1] == 3
    for i in range(len(rows)):
        slot = cursor[rows[i, 0] - low]
        cursor[rows[i, 0] - low] = slot + 1
        src[slot] = rows[i, 1]
        if numbered:
            numbers[slot] = rows[i, 2]


@kernel
def fill_keys(rows, low, num_src, keys):
    """Write ``(dst - low) * num_src + src`` of each row: the order of rows is that of these
    numbers."""
    # `check_simple` allows at most 2**31 vertices, so that a key is below 2**62.
    for i in range(len(rows)):
        keys[i] = (np.int64(rows[i, 0]) - low) * num_src + rows[i, 1]


@kernel
def take_distinct(keys, num_src, counts, src):
    """Write the source of each distinct one of the sorted ``keys`` and count them by destination;
    returns how many."""
    found = 0
    row = np.int64(0)
    begin = np.int64(0)  # the first key of the row
    for i in range(len(keys)):
        if i > 0 and keys[i] == keys[i - 1]:
            continue
        # Division takes longer than anything else here, and keys of a row follow each other.
        if keys[i] - begin >= num_src:
            row = keys[i] // num_src
            begin = row * num_src
        src[found] = keys[i] - begin
        check_id(row, len(counts))
        counts[row] += 1
        found += 1
    return found
