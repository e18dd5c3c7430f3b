"""AcceleratedFeature: rows delivered on an accelerator, from its cache and from the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..accelerator import Accelerator, Event, StagingRing
from ..buffers import BufferPool
from ..cache.store import FeatureCache
from .cached import part_ends
from .device import DeviceFeature
from .feature import Array, check_ids, id_array, output_for, raise_bad_id
from .hits import Hits
from .host import HostFeature
from .narrow import NarrowFeature
from .reachable import ReachableRows, gather
from .staged import place_hits, send
from .transfer import Transfer

__all__ = ["AcceleratedFeature"]


class AcceleratedFeature:
    """Reads rows on an accelerator: hits from the cache, misses from the host, on the stream that is in use.

    What is returned is there when the stream's work has been done; nothing waits for that. Where rows are reached by
    zero-copy one kernel reads all of them; else the hits are copied on the device while the CPU sends the misses. Rows
    that are narrower in the cache are delivered as wide as the field's, the missing ones rounded alike.

    Args:
        source: All the rows, as the cache keeps them. A field on the device itself needs no cache.
        cache: Filled from ``source``, with ``device_slots``. None: nothing is cached.
        accelerator: Where rows are delivered.
        ring: For what goes to the device through pinned memory.
        transfer: How missed rows do.

    Raises:
        ValueError: ``cache`` holds other rows than ``source`` or is not on the device, or ``source`` is on another
            device.
    """

    def __init__(
        self,
        source: HostFeature | DeviceFeature | NarrowFeature,
        cache: FeatureCache | None,
        accelerator: Accelerator,
        ring: StagingRing,
        transfer: Transfer,
    ) -> None:
        if cache is not None:
            _check_cache(cache, source, accelerator)
        if isinstance(source, DeviceFeature) and source.tensor.device != accelerator.device:
            raise ValueError(
                f"a field must be on the CPU or where the loader delivers, {accelerator.device}, "
                f"got one on {source.tensor.device}"
            )
        whole = source.source if isinstance(source, NarrowFeature) else source
        self.device = accelerator.device
        self.num_rows = source.num_rows
        self.row_shape = source.row_shape
        self.dtype = whole.dtype
        self.row_bytes = whole.row_bytes
        self.tier = source.tier
        self._source = source
        self._cache = cache
        self._accelerator = accelerator
        self._ring = ring
        self.transfer = transfer

    def read(self, ids: Tensor, out: Tensor | BufferPool | None = None) -> Tensor:
        """The rows of ``ids``; see :class:`~pagraph.features.feature.Feature` and :meth:`read_counted`."""
        return self.read_counted(ids, out)[0]

    def read_counted(
        self, ids: Tensor, out: Tensor | BufferPool | None = None, bounds: Sequence[int] | None = None
    ) -> tuple[Tensor, Hits]:
        """The rows of ``ids``, with the number of rows that the cache served, of each part of the ids.

        Args:
            ids: 1-D int32 or int64, on the CPU, or on the device. Ids on the device are not checked before their rows
                are read: those out of range become zeros, or raise IndexError where rows are staged.
            out: A contiguous tensor on the device to write to and return.
            bounds: Where the parts end, such as ``MiniBatch.hop_ends``: ascending, the last is ``len(ids)``. None: all
                ids are one part.

        Raises:
            IndexError: An id is outside ``[0, num_rows)``.
            TypeError: ``ids`` is not an int32 or int64 tensor.
            ValueError: ``ids``, ``out`` or ``bounds`` are not such, or a value is too large for the cache's dtype.
            OutOfMemory: There is not enough memory on the device.
        """
        index: Array | None = None
        if not isinstance(ids, Tensor) or ids.device.type == "cpu":
            index = id_array(ids)
            check_ids(index, self.num_rows)
        else:
            self._check_place(ids)
        ends = part_ends(bounds, len(ids))
        if not isinstance(out, Tensor):
            out = self._accelerator.empty((len(ids), *self.row_shape), self.dtype)
        else:
            output_for(self, len(ids), out)
        if out.numel() == 0:
            return out, Hits.known([0] * len(ends))
        there = None
        if index is None:
            self._accelerator.current_stream.owns(ids)
            there = ids.contiguous()
        if isinstance(self._source, DeviceFeature):
            self._read_near(self._source.tensor, index, there, out)
            return out, Hits.known([0] * len(ends))
        return out, self._read_far(self._source, index, there, ends, out)

    def _check_place(self, ids: Tensor) -> None:
        if ids.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"ids must be an int32 or int64 tensor, got {ids.dtype}")
        if ids.dim() != 1 or ids.device != self.device:
            raise ValueError(
                f"ids must be 1-D and on the CPU or {self.device}, got shape {tuple(ids.shape)} on {ids.device}"
            )

    def _read_near(self, tensor: Tensor, index: Array | None, there: Tensor | None, out: Tensor) -> None:
        """Read rows of a tensor on the device."""
        self._accelerator.current_stream.owns(tensor)
        there = self._sent(index) if there is None else there
        rows = ReachableRows.of_device(tensor) if self._accelerator.runs_kernels else None
        if rows is None:
            out.copy_(tensor.index_select(0, there))
        else:
            gather(self._accelerator, there, out, num_rows=self.num_rows, rows=rows, cache=None)

    def _read_far(
        self,
        source: HostFeature | NarrowFeature,
        index: Array | None,
        there: Tensor | None,
        ends: Array,
        out: Tensor,
    ) -> Hits:
        """Read rows of the host, and of the cache; one of ``index`` and ``there``, the ids on the device, is given."""
        complete = self._cache is not None and len(self._cache) == self.num_rows
        rows = None if complete else self.transfer.reach(source, self._ring)
        if rows is not None or (complete and self._accelerator.runs_kernels):
            return self._gather(index, there, ends, out, rows)
        return self._stage(source, index, there, ends, out)

    def _gather(
        self, index: Array | None, there: Tensor | None, ends: Array, out: Tensor, rows: ReachableRows | None
    ) -> Hits:
        """Read all rows by one kernel, which counts the hits."""
        sent = [] if index is None else [torch.from_numpy(index)]
        if self._cache is not None:
            sent += [torch.from_numpy(ends), torch.zeros(len(ends), dtype=torch.int64)]
        arrived = self._ring.upload(sent) if sent else []
        there = arrived.pop(0) if there is None else there
        counting = (arrived[0], arrived[1]) if arrived else None
        gather(self._accelerator, there, out, num_rows=self.num_rows, rows=rows, cache=self._cache, counting=counting)
        if counting is None:
            return Hits.known([0] * len(ends))
        return Hits(*self._fetch(counting[1]))

    def _stage(
        self,
        source: HostFeature | NarrowFeature,
        index: Array | None,
        there: Tensor | None,
        ends: Array,
        out: Tensor,
    ) -> Hits:
        """Copy the hits on the device, and send the misses meanwhile; the CPU counts the hits."""
        cache, kernels = self._cache, self._accelerator.runs_kernels
        fetched = None if there is None else self._fetch(there)
        if cache is not None and kernels:
            there = self._sent(index) if there is None else there
            gather(self._accelerator, there, out, num_rows=self.num_rows, rows=None, cache=cache, leave=True)
        if fetched is not None:
            fetched[1].wait()
            index = fetched[0].numpy()
        assert index is not None
        whole = source.source if isinstance(source, NarrowFeature) else source
        if cache is None:
            whole.announce(index)
            send(source, index, None, out, self._accelerator, self._ring)
            return Hits.known([0] * len(ends))
        whole.announce(index, cache.slots.numpy(), len(cache))
        slots, places, missed, missed_places = _split(cache, index, self.num_rows)
        if len(slots) and not kernels:
            place_hits(cache, slots, places, out, self._ring)
        if len(missed):
            where = missed_places if len(slots) else None
            send(source, missed, where, out, self._accelerator, self._ring)
        return Hits.known(np.diff(np.searchsorted(places, ends), prepend=0).tolist())

    def _sent(self, index: Array | None) -> Tensor:
        """Ids of the CPU on the device."""
        return self._ring.upload([torch.from_numpy(index)])[0]

    def _fetch(self, tensor: Tensor) -> tuple[Tensor, Event]:
        """A copy of a tensor of the device on the CPU, and when it is there; waits for nothing."""
        memory = self._accelerator.host_memory(tensor.numel() * tensor.element_size()).view(tensor.dtype)
        memory.copy_(tensor, non_blocking=True)
        return memory, self._accelerator.current_stream.record()


def _split(cache: FeatureCache, index: Array, num_rows: int) -> tuple[Array, Array, Array, Array]:
    """Ids as slots and places of the hits, ids and places of the misses, all int64."""
    from . import _gather

    count = len(index)
    slots, places, missed, missed_places = np.empty((4, count), dtype=np.int64)
    hits = _gather.split(cache.slots.numpy(), len(cache), num_rows, index, slots, places, missed, missed_places)
    if hits < 0:
        raise_bad_id(index, -1 - hits, num_rows)
    return slots[:hits], places[:hits], missed[: count - hits], missed_places[: count - hits]


def _check_cache(
    cache: FeatureCache, source: HostFeature | DeviceFeature | NarrowFeature, accelerator: Accelerator
) -> None:
    if tuple(cache.rows.shape[1:]) != source.row_shape or cache.rows.dtype != source.dtype:
        raise ValueError(
            f"cache must hold rows of shape {source.row_shape} and dtype {source.dtype}, "
            f"got {tuple(cache.rows.shape[1:])} and {cache.rows.dtype}"
        )
    slots = cache.device_slots
    if slots is None or slots.device != accelerator.device or cache.rows.device != accelerator.device:
        where = None if slots is None else slots.device
        raise ValueError(
            f"cache must have its rows and device_slots on {accelerator.device}, got {cache.rows.device} and {where}"
        )
    if len(slots) != source.num_rows:
        raise ValueError(f"cache must have a slot for each of {source.num_rows} rows, got {len(slots)}")
