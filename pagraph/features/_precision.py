"""Kernels that gather rows and round them to fewer bytes, or widen them.

Measured with 1 M rows on one thread, in ns a row of float32::

    bytes of a row               64   128   512
    all in a float32 cache        9    10    36
    all in a float16 cache       12    13    34
    all in a bfloat16 cache      11    12    29
    all missed                    8     9    35
    all missed, rounded          13    17    34
"""

import numpy as np

from .._jit import kernel, prefetch
from ..graph._row_form import largest, narrow_run, round_levels, round_run, scale_for, widen_run
from ._gather import aimed, find_slot, located, prefetch_entry, prefetch_run

_LINE = 64
# Rows of up to this many bytes are prefetched 32 ahead, wider ones 16 ahead.
_NARROW = 128


@kernel
def gather_narrow(rows, stride, limit, table, ids, form, out, width, head, worst):
    """``gather`` of float32 bits into rows of fewer bytes; see gather_wide for the arguments."""
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
    """Gather the first ``stop`` rows of :func:`gather_wide`.

    Returns the number of hits, or -1 - position of a bad id.
    """
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
    """``gather_cached`` into float32 bits, from a cache with rows in fewer bytes.

    ``rows`` are in the cache's form, or float32 bits, which are rounded to it. ``stride`` counts
    elements of ``rows``, ``width`` the values of a row, and ``head`` the elements before the values
    of a stored row. ``worst[0]`` becomes the largest rounded magnitude, as bits; see ``largest``.
    """
    # Rows are rounded while they are copied, since reading ``out`` back would wait for the stores.
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
