"""Link: the transfer paths of a loader's fields to one accelerator; caches filled over it."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...accelerator import Accelerator, Event, StagingRing, Stream
from ...graph.fields import FieldVersion
from ...graph.stored_rows import rows_per_chunk
from ..disk import DiskFeature
from ..feature import Array, as_words, word_view
from ..field import ReadPath
from ..narrow import HostRows, source_of
from ..store import FeatureCache
from .accelerated import AcceleratedFeature
from .reachable import ReachableRows, gather
from .transfer import Transfer, check_mode, send

_PATIENCE = 8
"""Reads of new values before their memory is pinned, which takes longer than reading them: the
values of a field that is replaced at every step never are. A field's first values are pinned at
once."""


@dataclass(eq=False)
class _Way:
    """One field's transfer, with the version of the values that it serves and the reads of
    these."""

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
        self._passing = Transfer(accelerator, "staging")  # of values that may not stay
        # Guards the three below. Its holder waits for no stream, and takes at most locks of the
        # accelerator, whose holders never take this one. Re-entrant because a finaliser may call
        # `forget` or `close` in a thread that holds it, in the middle of anything.
        self._lock = threading.RLock()
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
                way.transfer = Transfer(self.accelerator, self._mode)
                way.version = version
                way.reads = 0
            way.reads += 1
            transfer = way.transfer if way.reads > _PATIENCE else self._passing
        if old is not None:
            # Or its pin would keep the old values alive. Outside the lock: `close` waits for a
            # thread that measures.
            old.close()
        return transfer

    def wait_for_writes(self, key: Hashable, version: FieldVersion, caller: Stream) -> None:
        """Make the first read of a version of a field on the device wait for its writes on the
        stream ``caller``.

        That is the user's stream, or in a thread of the loader the default one, on which users
        compute unless they choose another. Later reads do not wait: each would wait for all
        computation that was enqueued before it.
        """
        with self._lock:
            if self._written.get(key) != version:
                self.stream.wait_for(caller.record())
                # Last: threads that find it here do not wait for the writes.
                self._written[key] = version

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
        """Unpin everything; values that are read later are pinned again."""
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


_CHUNK_BYTES = 64 << 20
"""Rows that one kernel brings over the bus. Their ids go through the pinned buffers first: 1 MiB
for rows of 512 bytes."""
_COMPARED_BYTES = 8 << 20
"""Rows compared at once; the device needs this much memory besides the cache."""


@dataclass(frozen=True, eq=False)
class Filling:
    """Bytes and times of a filling, from when its path was chosen; it may still be running. Keeps
    no rows alive."""

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

    Where the device reads host memory itself, a kernel puts each row in its place; all rows in
    their own order are one plain copy. Else the CPU gathers them into pinned buffers, filling one
    while another is copied. ``ids`` are int64, on the CPU, without repeats.
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
    """Whether a cache of ``ids`` has the same bits as the source now; reads all of these rows."""
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
        if isinstance(source_of(source), DiskFeature):
            # A disk is read in the file's order; the device puts each row in its place.
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
    if len(ids) != source.num_rows or reached.table is not None:
        return False
    if reached.stride_bytes != source.row_bytes:
        return False  # there are gaps between the rows
    return bool(np.array_equal(ids.numpy(), np.arange(len(ids))))


def _spans(count: int, row_bytes: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    step = rows_per_chunk(row_bytes, most_bytes)
    for begin in range(0, count, step):
        yield begin, min(count, begin + step)
