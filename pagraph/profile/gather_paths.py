"""How fast each way of the engine brings rows to a device: hits, misses, both, the look-up alone, filling a cache."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import closing

import torch
from torch import Tensor

from ..accelerator import StagingRing
from ..cache.store import FeatureCache, slots_for
from ..features.accelerated import AcceleratedFeature
from ..features.device import DeviceFeature
from ..features.device_filling import fill_rows
from ..features.host import HostFeature
from ..features.link import Link
from ..features.transfer import Transfer
from .ceilings import DEVICE_COPY, PINNED_COPY, SECTOR, random_rows, word_of
from .device_timer import DeviceTimer, Rate

__all__ = ["HITS", "LOOKUP", "MODES", "NEAR", "OFF_LINE", "GatherPaths", "filling", "misses", "mixed"]

HITS = "hits"
NEAR = "field on the device"
LOOKUP = "look-up alone"
OFF_LINE = "misses, zero-copy, table half a line off"
MODES = ("zero-copy", "staging")

_SHORT = 8  # runs of what takes well under a millisecond are made of so many calls
_SHARE = 0.8
_POISON = 0x5A
_SLOT_BYTES = 1 << 16


def misses(mode: str) -> str:
    """The name of the rate of rows that no cache holds; ``mode`` is one of ``MODES``."""
    return f"misses, {mode}"


def mixed(mode: str) -> str:
    """The name of the rate of rows of which a cache holds 80 %."""
    return f"{_SHARE:.0%} hits, {mode}"


def filling(mode: str) -> str:
    """The name of the rate at which a cache of these rows is filled."""
    return f"filling a cache of {_SHARE:.0%}, {mode}"


class GatherPaths:
    """Times the ways by which rows come, all of them the engine's own; each is compared with plain indexing first.

    Args:
        timer: Of the device.
        table: Host memory, uint8, shape ``(rows, row_bytes)``, contiguous.
        ids: Rows to read, int64, on the CPU.
    """

    def __init__(self, timer: DeviceTimer, table: Tensor, ids: Tensor) -> None:
        self._timer = timer
        self._accelerator = timer.accelerator
        self._stream = timer.accelerator.stream("reading")
        self._rows = table.view(word_of(table.shape[1]))
        self._row_bytes = table.shape[1]
        self._source = HostFeature(self._rows)
        self._order = torch.randperm(len(table), generator=torch.Generator().manual_seed(2))
        self._ring = StagingRing(self._accelerator)
        self._wanted = ids
        with self._stream.use():
            self._ids = self._accelerator.empty((len(ids),), torch.int64)
            self._ids.copy_(ids)
            self._out = self._accelerator.empty((len(ids), self._rows.shape[1]), self._rows.dtype)

    def near(self) -> Iterator[Rate]:
        """What stays on the device: hits, rows of a field that is there, and the look-up of their places alone."""
        transfer = Transfer(self._accelerator, "staging")
        cache, slots = self._cache(1.0)
        # Its calls take so little time that they are given ahead of the device: none may wait for a free slot.
        ring = StagingRing(self._accelerator, slots=8 * _SHORT, slot_bytes=_SLOT_BYTES)
        on_device = AcceleratedFeature(DeviceFeature(cache.rows), None, self._accelerator, ring, transfer)
        cached = AcceleratedFeature(self._source, cache, self._accelerator, ring, transfer)
        of_places = self._rows[self._order[self._wanted]]
        hits = self._seconds(cached, self._rows[self._wanted], times=_SHORT)
        calls = self._timer.host_seconds(lambda: cached.read(self._ids, self._out), times=_SHORT)
        yield Rate(HITS, self._nbytes(len(self._ids)), hits, DEVICE_COPY, f"{calls * 1e6:,.0f} us of the CPU a call")
        near = self._seconds(on_device, of_places, times=_SHORT)
        yield Rate(NEAR, self._nbytes(len(self._ids)), near, DEVICE_COPY)
        with self._stream.use():
            found = self._accelerator.empty((len(self._ids),), torch.int32)
        looking = self._timer(lambda: torch.index_select(slots, 0, self._ids, out=found), times=_SHORT)
        note = f"a sector for each id; {sum(looking) / sum(hits):.1%} of the time of {HITS}"
        yield Rate(LOOKUP, len(self._ids) * SECTOR, looking, random_rows("device", SECTOR), note)

    def far(self, mode: str, left_out: dict[str, str]) -> Iterator[Rate]:
        """What comes from the host: misses alone, misses among hits, a cache being filled.

        Args:
            mode: One of ``MODES``.
            left_out: Takes the reason if the rows cannot come that way.
        """
        with closing(Transfer(self._accelerator, mode)) as transfer, closing(Link(self._accelerator, mode)) as link:
            alone = self._missed(transfer, left_out, misses(mode))
            if alone is None:
                return
            yield alone
            cache, _ = self._cache(_SHARE)
            held, missed = self._order[: len(cache)], cache.slots[self._wanted] >= len(cache)
            seconds = self._seconds(self._feature(cache, transfer), self._rows[self._wanted])
            delivered = self._nbytes(len(missed)) / statistics.median(seconds) / 1e9
            note = f"missed rows alone; {delivered:,.1f} GB/s delivered"
            yield Rate(mixed(mode), self._nbytes(int(missed.sum())), seconds, PINNED_COPY, note)
            del cache
            seconds = self._timer(lambda: fill_rows(self._source, held, link, transfer))
            yield Rate(filling(mode), self._nbytes(len(held)), seconds, PINNED_COPY)

    def off_line(self, left_out: dict[str, str]) -> Iterator[Rate]:
        """Misses by zero-copy alone, of a table that does not begin with a line of memory."""
        with closing(Transfer(self._accelerator, MODES[0])) as transfer:
            alone = self._missed(transfer, left_out, OFF_LINE)
            if alone is not None:
                yield alone

    def _missed(self, transfer: Transfer, left_out: dict[str, str], name: str) -> Rate | None:
        """Rows that no cache holds; None and a reason if they would not come as the transfer should bring them."""
        seconds = self._seconds(self._feature(None, transfer), self._rows[self._wanted])
        if transfer.chosen != transfer.mode:
            left_out[name] = transfer.reason
            return None
        return Rate(name, self._nbytes(len(self._wanted)), seconds, PINNED_COPY)

    def _cache(self, share: float) -> tuple[FeatureCache, Tensor]:
        """A cache of that share of the rows, at random places, and its table on the device."""
        held = self._order[: round(share * len(self._order))]
        table = slots_for(self._order, len(self._order))
        with self._stream.use():
            rows = self._accelerator.empty((len(held), self._rows.shape[1]), self._rows.dtype)
            slots = self._accelerator.empty((len(table),), torch.int32)
            rows.copy_(self._rows[held])
            slots.copy_(table)
        return FeatureCache(rows, table, slots), slots

    def _feature(self, cache: FeatureCache | None, transfer: Transfer) -> AcceleratedFeature:
        return AcceleratedFeature(self._source, cache, self._accelerator, self._ring, transfer)

    def _seconds(self, feature: AcceleratedFeature, expected: Tensor, *, times: int = 1) -> tuple[float, ...]:
        with self._stream.use():
            self._out.fill_(_POISON)
            feature.read(self._ids, self._out)
            came = self._out.cpu()
        if not torch.equal(came, expected):
            raise RuntimeError(f"{feature.tier} rows were delivered wrong on {self._accelerator}")
        return self._timer(lambda: feature.read(self._ids, self._out), times=times)

    def _nbytes(self, rows: int) -> int:
        return rows * self._row_bytes
