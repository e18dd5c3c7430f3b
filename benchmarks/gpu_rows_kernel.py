"""The kernel that measures how fast random rows can be read: nothing but the reading and writing of
rows."""

from __future__ import annotations

import triton
import triton.language as tl

TILE_WORDS = 2048
"""Words of a program's tile: 16 KiB of 8-byte words, 64 bytes a thread, all of them under way at
once."""


@triton.jit
def read_rows(
    ids, rows, out, count, width: tl.constexpr, block: tl.constexpr, columns: tl.constexpr
):  # type: ignore[no-untyped-def]
    """Copy row ``ids[i]`` of ``rows`` to row ``i`` of ``out``; both have ``width`` words a row."""
    place = tl.program_id(0) * block + tl.arange(0, block)
    is_row = place < count
    row = tl.load(ids + place, mask=is_row, other=0).to(tl.int64)
    to = place.to(tl.int64)
    for first in range(0, width, columns):
        column = first + tl.arange(0, columns)
        mask = is_row[:, None] & (column < width)[None, :]
        words = tl.load(rows + row[:, None] * width + column[None, :], mask=mask, other=0)
        tl.store(out + to[:, None] * width + column[None, :], words, mask=mask)
