"""Rows cached on a device, and the transfer path that misses take."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...accelerator import Accelerator, Event, StagingRing, Stream
from ...graph.fields import FieldVersion
from ...system.buffers import BufferPool
from ..feature import Array, DeviceFeature, HostFeature, check_ids, id_array, output_for
from ..field import ReadPath
from ..narrow import HostRows, StoredFeature, WideFeature, source_of
from ..store import FeatureCache, Hits, check_rows, part_ends, split_ids
from .reachable import ReachableRows, gather
from .transfer import Transfer, check_mode, place_hits, send

__all__ = ["AcceleratedFeature", "Link"]


class AcceleratedFeature(WideFeature):
    """Rows on an accelerator: hits from the cache, misses from the host, on the stream that is in
    use.

    Nothing waits for the stream's work. Where rows are reached by zero-copy one kernel reads all of
    them; else the hits are copied on the device while the CPU sends the misses.

    Args:
        source: All the rows, as the cache keeps them. A field on the device itself needs no cache.
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
        self._asked: tuple[int, Hits] | None = None  # rows of a read, with its hits, on their way
        self._missed = 1.0  # share of the rows, in the last read whose hits are known

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
        if isinstance(self._stored, DeviceFeature):
            self._read_near(self._stored.tensor, index, there, out)
            return out, Hits.known([0] * len(ends))
        assert isinstance(self._stored, HostRows)
        return out, self._read_far(self._stored, index, there, ends, out)

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
            counting = ends.tolist(), self._accelerator.empty((len(ends),), torch.int64).zero_()
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
        """Take note of the hits of one read after the other; another thread may do so too."""
        if (asked := self._asked) is None:
            self._asked = count, hits
        elif (known := asked[1].now()) is not None:
            self._asked, self._missed = None, 1 - sum(known) / asked[0]

    def _stage(
        self, source: HostRows, index: Array | None, there: Tensor | None, ends: Array, out: Tensor
    ) -> Hits:
        """Copy the hits on the device, and send the misses meanwhile; the CPU counts the hits."""
        cache, kernels = self._cache, self._accelerator.runs_kernels
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
        """A copy of a tensor of the device on the CPU, and when it is there; waits for nothing."""
        memory = self._accelerator.host_memory(tensor.numel() * tensor.element_size()).view(
            tensor.dtype
        )
        memory.copy_(tensor, non_blocking=True)
        return memory, self._accelerator.current_stream.record()


def _check_cache(cache: FeatureCache, source: StoredFeature, accelerator: Accelerator) -> None:
    check_rows(cache, source)
    slots = cache.device_slots
    if (
        slots is None
        or slots.device != accelerator.device
        or cache.rows.device != accelerator.device
    ):
        where = None if slots is None else slots.device
        raise ValueError(
            f"cache must have its rows and device_slots on {accelerator.device}, got "
            f"{cache.rows.device} and {where}"
        )
    if len(slots) != source.num_rows:
        raise ValueError(
            f"cache must have a slot for each of {source.num_rows} rows, got {len(slots)}"
        )


_PATIENCE = 8
"""Reads of new values before their memory is pinned, which takes longer than to read them: those of
a field that is replaced at every step never are. The first values of a field are, at once."""


@dataclass(eq=False)
class _Way:
    """One field's transfer."""

    transfer: Transfer
    version: FieldVersion
    reads: int = _PATIENCE


class Link:
    """Transfer paths (``mode``: see :class:`Transfer`) of a set's fields to one accelerator. Safe
    from any thread."""

    def __init__(self, accelerator: Accelerator, mode: str = "auto") -> None:
        self.accelerator = accelerator
        check_mode(mode)
        self._mode = mode
        self._passing = Transfer(accelerator, "staging")
        self._lock = threading.RLock()  # a finaliser may run in the middle of anything
        self._ring: StagingRing | None = None
        self._ways: dict[Hashable, _Way] = {}
        self._written: dict[Hashable, FieldVersion] = {}  # of fields on the device

    @property
    def stream(self) -> Stream:
        """The stream on which rows are read."""
        return self.accelerator.stream("reading")

    @property
    def ring(self) -> StagingRing:
        """The pinned buffers of everything that is copied to the accelerator."""
        with self._lock:
            if self._ring is None:
                self._ring = StagingRing(self.accelerator)
            return self._ring

    @property
    def transfers(self) -> dict[Hashable, Transfer]:
        """Transfer path of each field that has been read."""
        with self._lock:
            return {key: way.transfer for key, way in self._ways.items()}

    def transfer(self, key: Hashable, version: FieldVersion) -> Transfer:
        """Transfer path of a version of a field: the same while the values are in the same
        memory."""
        with self._lock:
            way = self._ways.get(key)
            if way is None:
                way = self._ways[key] = _Way(Transfer(self.accelerator, self._mode), version)
            old = None
            if not _same_memory(way.version, version):
                old = way.transfer
                way.transfer, way.version, way.reads = (
                    Transfer(self.accelerator, self._mode),
                    version,
                    0,
                )
            way.reads += 1
            transfer = way.transfer if way.reads > _PATIENCE else self._passing
        if old is not None:
            old.close()  # or its pin would keep the old values
        return transfer

    def wait_for_writes(self, key: Hashable, version: FieldVersion, caller: Stream) -> None:
        """Make the first read of a version of a field on the device wait for its writes on the
        stream ``caller``.

        The caller's stream is the user's, or in a thread of the loader the default one, on which
        users compute as long as they choose no other. Later reads do not wait, or reading would
        follow all computation.
        """
        with self._lock:
            if self._written.get(key) != version:
                self.stream.wait_for(caller.record())
                self._written[key] = version  # only now: others, who see it, go on at once

    def feature(self, key: Hashable, path: ReadPath) -> AcceleratedFeature:
        """A field's rows as the accelerator gets them."""
        transfer = self.transfer(key, path.version)
        known: AcceleratedFeature | None = path.accelerated
        if known is None or known.transfer is not transfer:
            known = AcceleratedFeature(
                path.stored, path.cache, self.accelerator, self.ring, transfer
            )
            path.accelerated = known
        return known

    def forget(self, key: Hashable) -> None:
        """Unpin the memory of a field that is gone."""
        with self._lock:
            way = self._ways.pop(key, None)
        if way is not None:
            way.transfer.close()

    def close(self) -> None:
        """Unpin everything; what is read later is pinned anew."""
        for key in list(self._ways):
            self.forget(key)


def _same_memory(one: FieldVersion, other: FieldVersion) -> bool:
    """Whether two versions are of the same tensor, written or not."""
    storage = one.storage()
    if storage is None or storage is not other.storage() or one.layout != other.layout:
        return False
    if one.ids is None or other.ids is None:
        return one.ids is other.ids
    return _same_memory(one.ids, other.ids)
