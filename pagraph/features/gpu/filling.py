"""Filling a cache on an accelerator, at the speed of its bus: rows go straight to their places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...accelerator import Event
from ..disk import DiskFeature
from ..feature import Array, as_words, word_view
from ..narrow import HostRows, source_of
from ..store import FeatureCache
from .accelerated import Link
from .reachable import ReachableRows, gather
from .transfer import Transfer, send

__all__ = ["Filling", "fill_rows", "holds_on_device"]

_CHUNK_BYTES = 64 << 20
_COMPARED_BYTES = 8 << 20


@dataclass(frozen=True, eq=False)
class Filling:
    """Bytes and times of a filling, from when its path was chosen; it may still be under way. Holds
    no rows."""

    nbytes: int
    begun: Event
    ready: Event

    def seconds(self) -> float:
        """Duration; waits for the rows."""
        self.ready.wait()
        return self.ready.seconds_since(self.begun)


def fill_rows(
    source: HostRows, ids: Tensor, link: Link, transfer: Transfer
) -> tuple[Tensor, Filling]:
    """The rows of ``ids`` on the accelerator, in that order; waits for nothing on the device.

    Where the device reads host memory itself, a kernel puts each row in place; if all rows are
    wanted in their own order, that is one plain copy. Else the CPU gathers them into pinned
    buffers, one while another is copied. ``ids`` are int64, on the CPU, without repeats.
    """
    with link.stream.use():
        reached = transfer.reach(source, link.ring)
        begun = link.stream.record()
        rows = link.accelerator.empty((len(ids), *source.row_shape), source.dtype)
        _read_into(rows, source, ids, link, reached)
        return rows, Filling(rows.numel() * rows.element_size(), begun, link.stream.record())


def holds_on_device(
    cache: FeatureCache, source: HostRows, ids: Tensor, link: Link, transfer: Transfer
) -> bool:
    """Whether a cache of ``ids`` has the very bits that the source has now; reads all of these
    rows."""
    with link.stream.use():
        reached = transfer.reach(source, link.ring)
        same = []  # tensors on the device: nothing waits before the end
        for begin, end in _spans(len(cache), source.row_bytes, _COMPARED_BYTES):
            rows = cache.rows[begin:end]
            now = link.accelerator.empty(tuple(rows.shape), rows.dtype)
            _read_into(now, source, ids[begin:end], link, reached)
            same.append((word_view(rows) == word_view(now)).all())
        return bool(torch.stack(same).all()) if same else True


def _read_into(
    rows: Tensor, source: HostRows, ids: Tensor, link: Link, reached: ReachableRows | None
) -> None:
    if reached is None:
        chosen: Array = ids.numpy()
        order = None
        if isinstance(source_of(source), DiskFeature):  # read in its own order
            order = np.argsort(chosen)
            chosen = chosen[order]
        send(source, chosen, order, rows, link.ring)
    elif _is_all(source, ids, reached):
        as_words(rows, 1).copy_(reached.memory, non_blocking=True)
    else:
        for begin, end in _spans(len(ids), source.row_bytes, _CHUNK_BYTES):
            (there,) = link.ring.upload([ids[begin:end]])
            gather(
                link.accelerator,
                there,
                rows[begin:end],
                num_rows=source.num_rows,
                rows=reached,
                cache=None,
            )


def _is_all(source: HostRows, ids: Tensor, reached: ReachableRows) -> bool:
    """Whether the ids are all rows, one after the other as they lie in memory."""
    if (
        len(ids) != source.num_rows
        or reached.table is not None
        or reached.stride_bytes != source.row_bytes
    ):
        return False
    return bool(np.array_equal(ids.numpy(), np.arange(len(ids))))


def _spans(count: int, row_bytes: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    step = max(1, most_bytes // max(1, row_bytes))
    for begin in range(0, count, step):
        yield begin, min(count, begin + step)
