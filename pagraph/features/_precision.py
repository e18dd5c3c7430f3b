"""Kernels that gather rows into fewer bytes, or out of them.

Measured, one thread, ns a row of 1 M (float32, 64 / 128 / 512 bytes): all in a cache of float32 9 /
10 / 36, of float16 12 / 13 / 34, of bfloat16 11 / 12 / 29; all missing 8 / 9 / 35, rounded 13 / 17
/ 34.
"""

import numpy as np

from .._jit import kernel, prefetch
from ..graph._row_form import largest, narrow_run, round_levels, round_run, scale_for, widen_run
from ._gather import aimed, find_slot, located, prefetch_entry, prefetch_run

_LINE = 64
# Bytes of a row up to which 32 rows ahead are prefetched, 16 above: see _gather, where wide rows
# are asked for past the innermost cache instead.
_NARROW = 128


@kernel
def gather_narrow(rows, stride, limit, table, ids, form, out, width, head, worst):
    """``gather`` of float32 bits, written in fewer bytes; the other arguments: see gather_wide."""
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
        top = largest(rows, first, width, form)
        worst[0] = max(worst[0], top)
        narrow_run(rows, first, out, np.uint64(i * (width + head)), width, form, top)
    return -1


@kernel
def gather_wide_part(
    cached, num_cached, slots, rows, stride, limit, table, ids, stop, form, out, width, head, worst
):
    """The first ``stop`` rows of :func:`gather_wide`; returns the hits, or -1 - position of a bad
    id."""
    count = len(ids)
    ahead = 32 if 4 * width <= _NARROW else 16
    is_wide = rows.itemsize == 4  # known when this is compiled
    length = width if is_wide else width + head
    hits = 0
    for i in range(stop):
        if i + 2 * ahead < count:
            prefetch(slots, np.int64(ids[i + 2 * ahead]))
            prefetch_entry(table, np.int64(ids[i + 2 * ahead]))
        if i + ahead < count:
            row = np.int64(ids[i + ahead])
            slot = find_slot(slots, num_cached, row)
            if slot >= 0:
                prefetch_run(cached, slot * (width + head), width + head, _LINE // cached.itemsize)
            else:
                prefetch_run(rows, aimed(table, row) * stride, length, _LINE // rows.itemsize)
        slot = find_slot(slots, num_cached, np.int64(ids[i]))
        to = np.uint64(i * width)
        if slot >= 0:
            widen_run(cached, np.uint64(slot * (width + head)), out, to, width, form)
            hits += 1
            continue
        row = located(table, limit, np.int64(ids[i]))
        if row < 0:
            return -1 - i
        first = np.uint64(row * stride)
        if is_wide:
            top = largest(rows, first, width, form)
            worst[0] = max(worst[0], top)
            if head:
                round_levels(rows, first, out, to, width, scale_for(top))
            else:
                round_run(rows, first, out, to, width, form)
        else:
            widen_run(rows, first, out, to, width, form)
    return hits


@kernel
def gather_wide(
    cached,
    num_cached,
    slots,
    rows,
    stride,
    limit,
    table,
    ids,
    ends,
    form,
    out,
    width,
    head,
    hits,
    worst,
):
    """``gather_cached`` into float32 bits, of rows that the cache holds in fewer bytes.

    ``rows`` are stored as those of the cache, or float32 bits, which are rounded. ``stride`` counts
    their elements, ``width`` values of a row, ``head`` elements before them where it is stored.
    ``worst[0]`` becomes the largest magnitude that was rounded, as bits; see ``largest``.
    """
    # Rows are rounded on the way: what was just copied to ``out`` is not there yet, and reading it
    # would wait.
    begin = 0
    for part in range(len(ends)):
        found = gather_wide_part(
            cached,
            num_cached,
            slots,
            rows,
            stride,
            limit,
            table,
            ids[begin:],
            ends[part] - begin,
            form,
            out[begin * width :],
            width,
            head,
            worst,
        )
        if found < 0:
            return begin - 1 - found
        hits[part] = found
        begin = ends[part]
    return -1
