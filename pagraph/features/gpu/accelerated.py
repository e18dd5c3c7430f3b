"""Rows cached on a device, and the transfer path that misses take."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

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


class AcceleratedFeature(WideFeature):
    """Rows on an accelerator: hits from its cache, misses from the host, on the current stream.

    Nothing waits for the stream's work. With zero-copy one kernel reads all rows; else hits are
    copied on the device while the CPU sends the misses.

    Args:
        source: All rows, as the cache keeps them. A field on the device itself needs no cache.
        cache: Filled from ``source``, with ``device_slots``. None: nothing is cached.
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
                f"a field must be on the CPU or where the loader delivers, {accelerator.device}, "
                f"got one on {source.tensor.device}"
            )
        super().__init__(source, accelerator.device)
        self._cache = cache
        self._accelerator = accelerator
        self._ring = ring
        self.transfer = transfer
        # Number of rows of a read whose hits the device is still counting, with these hits.
        self._asked: tuple[int, Hits] | None = None
        # Share of missed rows in the last read whose hits are known.
        self._missed = 1.0
        # How kernels reach the rows, and the rows of that: weakly, as who holds these pins memory.
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
        """The rows of ``ids``, with the number of rows that the cache served, of each part of the
        ids.

        Args:
            ids: 1-D int32 or int64, on the CPU, or on the device. Ids on the device are not checked
                before their rows are read: those out of range become zeros, or raise IndexError
                where rows are staged.
            out: A contiguous tensor on the device to write to and return.
            bounds: The ends of the parts, such as ``MiniBatch.hop_ends``; see ``part_ends``.

        Raises:
            IndexError: An id is outside ``[0, num_rows)``.
            TypeError: ``ids`` is not an int32 or int64 tensor.
            ValueError: ``ids``, ``out`` or ``bounds`` do not fit, or a value is too large for the
                cache's dtype.
            OutOfMemory: There is not enough memory on the device.
        """
        index: Array | None = None
        if not isinstance(ids, Tensor) or ids.device.type == "cpu":
            index = id_array(ids)
            check_ids(index, self.num_rows)
        else:
            # Their values are not looked at: that would wait for the device.
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
            # The caller may free the ids before the stream has read them.
            self._accelerator.current_stream.owns(ids)
            there = ids.contiguous()
        if isinstance(self._stored, DeviceFeature):
            self._read_near(self._stored.tensor, index, there, out)
            return out, Hits.known([0] * len(ends))
        assert isinstance(self._stored, HostRows)
        return out, self._read_far(self._stored, index, there, ends, out)

    @property
    def missed(self) -> float:
        """Share of missed rows in a read of late."""
        return self._missed

    def reach(self) -> tuple[Reach, object] | None:
        """How a recorded kernel reads all rows now, and what holds their memory while it does.

        None: rows are staged, or it is not decided yet whether they are; a read decides it.
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

    def _check_place(self, ids: Tensor) -> None:
        if ids.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"ids must be an int32 or int64 tensor, got {ids.dtype}")
        if ids.dim() != 1 or ids.device != self.device:
            raise ValueError(
                f"ids must be 1-D and on the CPU or {self.device}, got shape {tuple(ids.shape)} on "
                f"{ids.device}"
            )

    def _read_near(
        self, tensor: Tensor, index: Array | None, there: Tensor | None, out: Tensor
    ) -> None:
        """Read rows of a tensor on the device."""
        self._accelerator.current_stream.owns(tensor)
        there = self._sent(index) if there is None else there
        rows = ReachableRows.of_device(tensor) if self._accelerator.runs_kernels else None
        if rows is None:
            out.copy_(tensor.index_select(0, there))
        else:
            gather(self._accelerator, there, out, num_rows=self.num_rows, rows=rows, cache=None)

    def _read_far(
        self, source: HostRows, index: Array | None, there: Tensor | None, ends: Array, out: Tensor
    ) -> Hits:
        """Read host and cached rows; one of ``index`` and ``there``, the ids on the device, is
        given."""
        # A complete cache needs no host memory: it is not pinned, and no way to it is measured.
        complete = self._cache is not None and len(self._cache) == self.num_rows
        rows = None if complete else self.transfer.reach(source, self._ring)
        if rows is not None or (complete and self._accelerator.runs_kernels):
            return self._gather(index, there, ends, out, rows)
        return self._stage(source, index, there, ends, out)

    def _gather(
        self,
        index: Array | None,
        there: Tensor | None,
        ends: Array,
        out: Tensor,
        rows: ReachableRows | None,
    ) -> Hits:
        """Read all rows by one kernel, which counts the hits."""
        if there is None:
            assert index is not None
            there = self._sent(index)
        counting = None
        if self._cache is not None:
            counted = self._accelerator.empty((len(ends),), torch.int64).zero_()
            counting = ends.tolist(), counted
        gather(
            self._accelerator,
            there,
            out,
            rows=rows,
            cache=self._cache,
            counting=counting,
            num_rows=self.num_rows,
            decoding=self._decoding,
            missed=int(len(there) * self._missed),
        )
        if counting is None:
            return Hits.known([0] * len(ends))
        hits = Hits(*self._fetch(counting[1]))
        self._learn(len(there), hits)
        return hits

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
            self._missed = 1 - sum(known) / asked[0]
            self._asked = None

    def _stage(
        self, source: HostRows, index: Array | None, there: Tensor | None, ends: Array, out: Tensor
    ) -> Hits:
        """Copy the hits on the device, and send the misses meanwhile; the CPU counts the hits."""
        cache = self._cache
        kernels = self._accelerator.runs_kernels
        # The ids begin their way to the CPU before the hits are read, and are waited for
        # afterwards.
        fetched = None if there is None else self._fetch(there)
        if cache is not None and kernels:
            there = self._sent(index) if there is None else there
            gather(
                self._accelerator,
                there,
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

    def _sent(self, index: Array | None) -> Tensor:
        """Ids of the CPU on the device."""
        return self._ring.upload([torch.from_numpy(index)])[0]

    def _fetch(self, tensor: Tensor) -> tuple[Tensor, Event]:
        """A copy on the CPU of a tensor of the device, and when it is complete; waits for
        nothing."""
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
