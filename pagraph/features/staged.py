"""Host rows sent to a device: gathered into a recycled pinned ring, copied piece by piece, put in place on arrival."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..accelerator import Accelerator, StagingRing
from ..cache.store import FeatureCache
from .feature import Array
from .host import HostFeature
from .narrow import NarrowFeature
from .words import as_words, word_bytes

__all__ = ["place_hits", "send"]

_ALIGN = 256
_PLACE_BYTES = 8


def send(
    source: HostFeature | NarrowFeature,
    ids: Array,
    places: Array | None,
    out: Tensor,
    accelerator: Accelerator,
    ring: StagingRing,
) -> None:
    """Read rows on the CPU and write them on the device, on the current stream.

    While one piece is copied the next is gathered; the device may still be at it when this returns.

    Args:
        source: The rows.
        ids: Those to read.
        places: The row of ``out`` where each goes, int64; None: row ``i``.
        out: On the device, contiguous; its values may be wider than the source's.
        accelerator: The device.
        ring: What the rows go through.

    Raises:
        IndexError: An id is out of range.
        ValueError: A value is too large for the 16 bits of a narrow source.
    """
    step = (ring.slot_bytes - _ALIGN) // (source.row_bytes + _PLACE_BYTES)
    if step < 1:
        _send_large(source, ids, places, out, ring)
        return
    plain = out.dtype == source.dtype
    for begin in range(0, len(ids), step):
        part = torch.from_numpy(ids[begin : begin + step])
        count, nbytes = len(part), len(part) * source.row_bytes
        with ring.slot() as memory:
            source.read(part, memory[:nbytes].view(source.dtype).view(count, *source.row_shape))
            if places is None and plain:
                target = out[begin : begin + count]
                as_words(target, 1).copy_(memory[:nbytes], non_blocking=True)
                continue
            start = -(-nbytes // _ALIGN) * _ALIGN
            used = start + count * _PLACE_BYTES
            into = np.arange(begin, begin + count) if places is None else places[begin : begin + count]
            memory[start:used].view(torch.int64).copy_(torch.from_numpy(into))
            arrived = accelerator.empty((used,), torch.uint8)
            arrived.copy_(memory[:used], non_blocking=True)
        rows = arrived[:nbytes].view(source.dtype).view(count, *source.row_shape)
        _put(rows, arrived[start:].view(torch.int64), out)


def place_hits(cache: FeatureCache, slots: Array, places: Array, out: Tensor, ring: StagingRing) -> None:
    """Copy cached rows to their places by torch's operations, where no kernel can; on the current stream.

    Args:
        cache: With its rows on the device.
        slots: The rows of it, int64.
        places: The row of ``out`` where each goes, int64.
        out: On the device, contiguous.
        ring: What the two lists go through.
    """
    there = ring.upload([torch.from_numpy(slots), torch.from_numpy(places)])
    word = word_bytes(cache.rows[:1].numel() * cache.rows.element_size(), cache.rows)
    rows = as_words(cache.rows, word).view(len(cache), -1).index_select(0, there[0])
    _put(rows.view(cache.rows.dtype).view(len(slots), *out.shape[1:]), there[1], out)


def _put(rows: Tensor, places: Tensor, out: Tensor) -> None:
    """Write rows, which nothing else uses, to their places in ``out``, as wide as it is."""
    if rows.dtype != out.dtype:
        out.index_copy_(0, places, rows.to(out.dtype))
        return
    word = word_bytes(rows[:1].numel() * rows.element_size(), rows, out)
    as_words(out, word).view(len(out), -1).index_copy_(0, places, as_words(rows, word).view(len(rows), -1))


def _send_large(
    source: HostFeature | NarrowFeature, ids: Array, places: Array | None, out: Tensor, ring: StagingRing
) -> None:
    """As :func:`send`, of rows that no buffer of the ring can hold: one by one, each in several pieces."""
    for i in range(len(ids)):
        (row,) = ring.upload([source.read(torch.from_numpy(ids[i : i + 1]))])
        out[i if places is None else int(places[i])].copy_(row[0])
