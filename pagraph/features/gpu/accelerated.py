"""Rows cached on a device, and the transfer path that misses take."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

from ...accelerator import Accelerator, Event, StagingRing
from ...system.buffers import BufferPool
from ..feature import Array, DeviceFeature, HostFeature, check_ids, id_array, output_for
from ..narrow import HostRows, NarrowFeature, StoredFeature, WideFeature, source_of
from ..store import FeatureCache, Hits, check_rows, part_ends, split_ids
from .reachable import Reach, ReachableRows, gather
from .transfer import Transfer, place_hits, send


class ReadGroup:
    """Several reads that share one copy of their ids to the device, and one of their hits back.

    Belongs to one thread and its current stream.

    Args:
        accelerator: Where rows are delivered.
        ring: Pinned buffers.
        asked: The ids of each read, 1-D int32 or int64, on the CPU or on the device; and a copy of
            them on the device, if there is one. Tensors on the device may come from another stream,
            which the current stream waits for.
        parts: Number of parts of the ids of all reads, whose hits are counted.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        ring: StagingRing,
        asked: Sequence[tuple[Tensor, Tensor | None]],
        parts: int,
    ) -> None:
        self._accelerator = accelerator
        self._ring = ring
        self._asked = asked
        self._parts = parts
        for place in range(len(asked)):
            given = self._given(place)
            if given is not None:
                # The caller may free them before the stream has read them.
                accelerator.current_stream.owns(given)
        self._checked = dict[tuple[int, torch.dtype, int], int]()
        self._sent: list[Tensor | None] | None = None
        # Made when a read counts its hits on the device.
        self._counters: Tensor | None = None
        self._used = 0
        self._counts: Tensor | None = None
        self._ready: Event | None = None

    def count(self, place: int) -> int:
        """Number of ids of a read."""
        return int(self._asked[place][0].shape[0])

    def index(self, place: int, num_rows: int) -> Array | None:
        """The ids of a read on the CPU, checked.

        None if they are on the device alone, since looking at them would wait for the device.

        Raises:
            IndexError: An id is outside ``[0, num_rows)``.
            TypeError: The ids are not an int32 or int64 tensor.
            ValueError: They are not 1-D, or on another device.
        """
        ids = self._asked[place][0]
        if isinstance(ids, Tensor) and ids.device.type != "cpu":
            self._check_place(ids)
            return None
        index = id_array(ids)
        # The seeds are the first ids of a batch, so they may be checked already.
        same = ids.data_ptr(), ids.dtype, num_rows
        if not ids.is_contiguous() or self._checked.get(same, -1) < len(index):
            check_ids(index, num_rows)
            if ids.is_contiguous():
                self._checked[same] = len(index)
        return index

    def there(self, place: int) -> Tensor:
        """The ids of a read on the device, contiguous."""
        given = self._given(place)
        if given is not None:
            return given.contiguous()
        if self._sent is None:
            self._sent = self._send()
        sent = self._sent[place]
        assert sent is not None
        return sent

    def counters(self, parts: int) -> slice:
        """Reserve counters, which are 0, for the hits of a read; returns their :attr:`counted`."""
        if self._counters is None:
            self._counters = self._accelerator.empty((self._parts,), torch.int64).zero_()
        self._used += parts
        return slice(self._used - parts, self._used)

    @property
    def counted(self) -> Tensor:
        """The counters of all reads, int64, on the device."""
        assert self._counters is not None
        return self._counters

    def end(self) -> Event:
        """Begin to copy the hits back; returns the event of the end of this and all reads."""
        if self._counters is not None:
            self._counts = self._accelerator.host_memory(8 * self._parts).view(torch.int64)
            self._counts.copy_(self._counters, non_blocking=True)
        self._ready = self._accelerator.current_stream.record()
        return self._ready

    def hits(self, counted: slice) -> Hits:
        """The hits of some counters, after :meth:`end`."""
        assert self._counts is not None
        return Hits(self._counts[counted], self._ready)

    def _given(self, place: int) -> Tensor | None:
        """The ids of a read that are already on the device, or None."""
        ids, there = self._asked[place]
        if there is None and isinstance(ids, Tensor) and ids.device.type != "cpu":
            return ids
        return there

    def _check_place(self, ids: Tensor) -> None:
        if ids.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"ids must be an int32 or int64 tensor, got {ids.dtype}")
        device = self._accelerator.device
        if ids.dim() != 1 or ids.device != device:
            raise ValueError(
                f"ids must be 1-D and on the CPU or {device}, got shape {tuple(ids.shape)} on "
                f"{ids.device}"
            )

    def _send(self) -> list[Tensor | None]:
        """Copy the ids that are on the CPU alone to the device.

        Ids that are a prefix of others, as a batch's seeds are of its vertices, share their copy.
        """
        longest = dict[Hashable, Tensor]()
        keys: list[Hashable] = []
        for place, (ids, _) in enumerate(self._asked):
            if self._given(place) is not None:
                keys.append(None)
                continue
            plain = ids.is_contiguous()
            key: Hashable = (ids.data_ptr(), ids.dtype) if plain else place
            keys.append(key)
            known = longest.get(key)
            if known is None or known.shape[0] < ids.shape[0]:
                longest[key] = ids if plain else ids.detach().contiguous()
        copies = dict(zip(longest, self._ring.upload(longest.values()), strict=True))
        sent: list[Tensor | None] = []
        for key, (ids, _) in zip(keys, self._asked, strict=True):
            sent.append(None if key is None else copies[key][: ids.shape[0]])
        return sent


class AcceleratedFeature(WideFeature):
    """Rows on an accelerator: hits from its cache, misses from the host, on the current stream.

    Nothing waits for the stream. With zero-copy one kernel reads all rows. Else hits are copied on
    the device while the CPU sends the misses.

    Args:
        source: All rows, in the cache's form. Rows on the device need no cache.
        cache: Filled from ``source``, with ``device_slots``; None if nothing is cached.
        accelerator: Where rows are delivered.
        ring: Pinned buffers.
        transfer: Transfer path of missed rows.
    """

    def __init__(
        self,
        source: StoredFeature,
        cache: FeatureCache | None,
        accelerator: Accelerator,
        ring: StagingRing,
        transfer: Transfer,
    ) -> None:
        if cache is not None:
            _check_cache(cache, source, accelerator)
        if isinstance(source, DeviceFeature) and source.tensor.device != accelerator.device:
            raise ValueError(
                f"a field must be on the CPU or on the loader's device {accelerator.device}, got "
                f"one on {source.tensor.device}"
            )
        super().__init__(source, accelerator.device)
        self._cache = cache
        self._accelerator = accelerator
        self._ring = ring
        self.transfer = transfer
        # The number of rows of a read, and its hits, which the device may still be counting.
        self._asked: tuple[int, Hits] | None = None
        # Share of missed rows in the last read whose hits are known.
        self.missed = 1.0
        # How kernels reach the rows, and a weak reference to those, which keep memory pinned.
        self._reach: tuple[Reach, Callable[[], ReachableRows | None]] | None = None

    def read(self, ids: Tensor, out: Tensor | BufferPool | None = None) -> Tensor:
        """The rows of ``ids``; see :class:`~pagraph.features.feature.Feature` and
        :meth:`read_counted`."""
        return self.read_counted(ids, out)[0]

    def read_counted(
        self,
        ids: Tensor,
        out: Tensor | BufferPool | None = None,
        bounds: Sequence[int] | None = None,
    ) -> tuple[Tensor, Hits]:
        """The rows of ``ids``, with the cache hits of each part of the ids; one read alone."""
        parts = 1 if bounds is None else len(bounds)
        group = ReadGroup(self._accelerator, self._ring, [(ids, None)], parts)
        rows, counted = self.begin(group, 0, out, bounds)
        group.end()
        return rows, self.finish(group, 0, counted)

    def begin(
        self,
        group: ReadGroup,
        place: int,
        out: Tensor | BufferPool | None = None,
        bounds: Sequence[int] | None = None,
    ) -> tuple[Tensor, Hits | slice]:
        """Begin a read of a group.

        Args:
            group: The reads. Ids on the CPU are checked. Ids on the device alone are not: rows out
                of range become zeros, or raise IndexError if rows are staged.
            place: Index of this read in the group.
            out: A contiguous tensor on the device to write to and return; a pool is ignored.
            bounds: The ends of the parts, such as ``MiniBatch.hop_ends``; see ``part_ends``.

        Returns:
            The rows; and their hits, or the group's counters that will have these.

        Raises:
            IndexError: An id is outside ``[0, num_rows)``.
            TypeError: Ids are not an int32 or int64 tensor.
            ValueError: ``ids``, ``out`` or ``bounds`` do not fit, or a value is too large for the
                cache's dtype.
            OutOfMemory: There is not enough memory on the device.
        """
        index = group.index(place, self.num_rows)
        count = group.count(place)
        ends = part_ends(bounds, count)
        if not isinstance(out, Tensor):
            out = self._accelerator.empty((count, *self.row_shape), self.dtype)
        else:
            output_for(self, count, out)
        if out.numel() == 0:
            return out, Hits.known([0] * len(ends))
        if isinstance(self._stored, DeviceFeature):
            self._read_near(self._stored.tensor, group.there(place), out)
            return out, Hits.known([0] * len(ends))
        assert isinstance(self._stored, HostRows)
        return out, self._read_far(self._stored, group, place, index, ends, out)

    def finish(self, group: ReadGroup, place: int, counted: Hits | slice) -> Hits:
        """The hits of a read that :meth:`begin` began, after the group has ended."""
        if isinstance(counted, Hits):
            return counted
        hits = group.hits(counted)
        self._learn(group.count(place), hits)
        return hits

    def reach(self) -> tuple[Reach, object] | None:
        """How a recorded kernel reads all rows now, and an object that keeps their memory alive.

        None if rows are staged, or if no read has decided the transfer path yet.
        """
        known = self._reach
        if known is not None:
            rows = known[1]()
            if rows is not None:
                return known[0], rows
        if not self._accelerator.runs_kernels:
            return None
        stored = self._stored
        complete = self._cache is not None and len(self._cache) == self.num_rows
        rows = None
        if isinstance(stored, DeviceFeature):
            rows = ReachableRows.of_device(stored.tensor)
        elif isinstance(stored, HostFeature | NarrowFeature) and not complete:
            rows = self.transfer.reached(stored)
        if rows is None and not complete:
            return None
        out = torch.empty((0, *self.row_shape), dtype=self.dtype, device=self.device)
        reach = Reach.of(out, self.num_rows, rows, self._cache, self._decoding)
        if rows is None:
            return reach, None
        if not isinstance(stored, DeviceFeature):
            self._reach = reach, weakref.ref(rows)
        return reach, rows

    def _read_near(self, tensor: Tensor, there: Tensor, out: Tensor) -> None:
        """Read rows of a tensor on the device."""
        self._accelerator.current_stream.owns(tensor)
        rows = ReachableRows.of_device(tensor) if self._accelerator.runs_kernels else None
        if rows is None:
            out.copy_(tensor.index_select(0, there))
        else:
            gather(self._accelerator, there, out, num_rows=self.num_rows, rows=rows, cache=None)

    def _read_far(
        self,
        source: HostRows,
        group: ReadGroup,
        place: int,
        index: Array | None,
        ends: Array,
        out: Tensor,
    ) -> Hits | slice:
        """Read host and cached rows."""
        # A complete cache needs no host memory, so this is not pinned and no path is measured.
        complete = self._cache is not None and len(self._cache) == self.num_rows
        rows = None if complete else self.transfer.reach(source, self._ring)
        if rows is not None or (complete and self._accelerator.runs_kernels):
            return self._gather(group, place, ends, out, rows)
        return self._stage(source, group, place, index, ends, out)

    def _gather(
        self,
        group: ReadGroup,
        place: int,
        ends: Array,
        out: Tensor,
        rows: ReachableRows | None,
    ) -> Hits | slice:
        """Read all rows by one kernel, which counts the hits."""
        there = group.there(place)
        counting = None
        counted: Hits | slice
        if self._cache is None:
            counted = Hits.known([0] * len(ends))
        else:
            counted = group.counters(len(ends))
            counting = ends.tolist(), group.counted[counted]
        gather(
            self._accelerator,
            there,
            out,
            rows=rows,
            cache=self._cache,
            counting=counting,
            num_rows=self.num_rows,
            decoding=self._decoding,
            missed=int(there.shape[0] * self.missed),
        )
        return counted

    def _learn(self, count: int, hits: Hits) -> None:
        """Estimate the share of misses from one read at a time, once its hits are known.

        No lock: each attribute is read and written whole, so that threads at worst lose a sample or
        take one twice. The share only decides in which order a kernel reads host memory.
        """
        asked = self._asked
        if asked is None:
            self._asked = count, hits
            return
        known = asked[1].now()
        if known is not None:
            self.missed = 1 - sum(known) / asked[0]
            self._asked = None

    def _stage(
        self,
        source: HostRows,
        group: ReadGroup,
        place: int,
        index: Array | None,
        ends: Array,
        out: Tensor,
    ) -> Hits:
        """Copy the hits on the device and send the misses meanwhile; the CPU counts the hits."""
        cache = self._cache
        kernels = self._accelerator.runs_kernels
        # Ids on the device are copied to the CPU while it reads the hits.
        fetched = None if index is not None else self._fetch(group.there(place))
        if cache is not None and kernels:
            gather(
                self._accelerator,
                group.there(place),
                out,
                rows=None,
                cache=cache,
                leave=True,
                num_rows=self.num_rows,
                decoding=self._decoding,
            )
        if fetched is not None:
            fetched[1].wait()
            index = fetched[0].numpy()
        whole = source_of(source)
        assert index is not None and isinstance(whole, HostFeature)
        if cache is None:
            whole.announce(index)
            send(source, index, None, out, self._ring, self._decoding)
            return Hits.known([0] * len(ends))
        whole.announce(index, cache.slots.numpy(), len(cache))
        slots, places, missed, missed_places = split_ids(cache, index, self.num_rows)
        # Without kernels, torch copies the hits; with them it was done above.
        if len(slots) and not kernels:
            place_hits(cache, slots, places, out, self._ring, self._decoding)
        if len(missed):
            where = missed_places if len(slots) else None
            send(source, missed, where, out, self._ring, self._decoding)
        return Hits.known(np.diff(np.searchsorted(places, ends), prepend=0).tolist())

    def _fetch(self, tensor: Tensor) -> tuple[Tensor, Event]:
        """Begin to copy a device tensor to the CPU; returns the copy and the event of its end."""
        nbytes = tensor.numel() * tensor.element_size()
        memory = self._accelerator.host_memory(nbytes).view(tensor.dtype)
        memory.copy_(tensor, non_blocking=True)
        return memory, self._accelerator.current_stream.record()


def _check_cache(cache: FeatureCache, source: StoredFeature, accelerator: Accelerator) -> None:
    check_rows(cache, source)
    slots = cache.device_slots
    where = None if slots is None else slots.device
    if slots is None or {where, cache.rows.device} != {accelerator.device}:
        raise ValueError(
            f"cache must have its rows and device_slots on {accelerator.device}, got "
            f"{cache.rows.device} and {where}"
        )
    if len(slots) != source.num_rows:
        raise ValueError(
            f"cache must have a slot for each of {source.num_rows} rows, got {len(slots)}"
        )
