"""Kernels that look rows up in a window and copy them into one."""

import numpy as np

from .._jit import kernel, prefetch
from ..sampling.kernels.hop import place_of
from ._gather import copy_row, find_slot, prefetch_run

_AHEAD = 32
_LINE = 64


@kernel
def locate(ids, slots, num_cached, nodes, table, shift, local_slots, places):  # type: ignore[no-untyped-def]
    """The cache's slot (else -1) and the window's place (else 0) of each row; returns how many are in neither."""
    absent = 0
    mask = len(table) - 1
    for i in range(len(ids)):
        if i + _AHEAD < len(ids):
            prefetch(slots, np.int64(ids[i + _AHEAD]))
        row = np.int64(ids[i])
        slot = find_slot(slots, num_cached, row)
        local_slots[i] = slot
        places[i] = 0
        if slot < 0:
            place = place_of(row, nodes, table, mask, shift)
            if place < 0:
                absent += 1
            else:
                places[i] = place
    return absent


@kernel
def keep(nodes, old_nodes, old_table, old_shift, old_rows, row_bytes, rows, missing):  # type: ignore[no-untyped-def]
    """Copy rows that an older window has; the places of the others go to ``missing``, whose count is returned."""
    count = 0
    mask = len(old_table) - 1
    for place in range(len(nodes)):
        old = place_of(np.int64(nodes[place]), old_nodes, old_table, mask, old_shift)
        if old < 0:
            missing[count] = place
            count += 1
        else:
            copy_row(rows, place * row_bytes, old_rows, old * row_bytes, row_bytes)
    return count


@kernel
def scatter(source, stride, row_bytes, ids, places, rows):  # type: ignore[no-untyped-def]
    """Copy row ``ids[i]`` of the source to place ``places[i]`` of ``rows``; ids are in range."""
    for i in range(len(ids)):
        if i + 16 < len(ids):
            prefetch_run(source, ids[i + 16] * stride, row_bytes, _LINE)
        copy_row(rows, places[i] * row_bytes, source, ids[i] * stride, row_bytes)
