"""Link: the transfer paths of a loader's fields to one accelerator, and filling caches on it."""

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
"""Reads of new values before their memory is pinned. Pinning takes longer than reading, so values
that are replaced at every step are never pinned. A field's first values are pinned at once."""


@dataclass(eq=False)
class _Way:
    """One field's transfer path, the version of the values that it serves, and their reads."""

    transfer: Transfer
    version: FieldVersion
    reads: int = _PATIENCE


class Link:
    """Transfer paths of a set's fields to one accelerator; thread-safe.

    See :class:`Transfer` for ``mode``.
    """

    def __init__(self, accelerator: Accelerator, mode: str = "auto") -> None:
        self.accelerator = accelerator
        check_mode(mode)
        self._mode = mode
        self._passing = Transfer(accelerator, "staging")  # for values that may soon be replaced
        # Guards the three below. Its holder waits for no stream, and takes at most locks of the
        # accelerator, whose holders never take this one. It is re-entrant because a finaliser may
        # call `forget` or `close` at any point of a thread that holds it.
        self._lock = threading.RLock()
        self._ring: StagingRing | None = None
        self._ways: dict[Hashable, _Way] = {}
        # Versions of fields on the device whose writes the reading stream has waited for.
        self._written: dict[Hashable, FieldVersion] = {}

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
        """Transfer path of a version of a field; kept while the values stay in the same memory."""
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
            # Else its pin would keep the old values alive. Called outside the lock, because `close`
            # waits for a thread that measures.
            old.close()
        return transfer

    def wait_for_writes(self, key: Hashable, version: FieldVersion, caller: Stream) -> None:
        """Make the first read of a version of a field on the device wait for its writes.

        These are on the stream ``caller``: the user's, or in a loader's thread the default one, on
        which users compute unless they choose another. Later reads do not wait, because each would
        wait for all computation enqueued before it.
        """
        with self._lock:
            if self._written.get(key) != version:
                self.stream.wait_for(caller.record())
                # Set last, since threads that find it do not wait for the writes.
                self._written[key] = version

    def feature(self, key: Hashable, path: ReadPath) -> AcceleratedFeature:
        """A field's rows as the accelerator reads them."""
        transfer = self.transfer(key, path.version)
        known: AcceleratedFeature | None = path.accelerated
        if known is None or known.transfer is not transfer:
            known = AcceleratedFeature(
                path.stored, path.cache, self.accelerator, self.ring, transfer
            )
            path.accelerated = known
        return known

    def forget(self, key: Hashable) -> None:
        """Unpin the memory of a field that no longer exists."""
        with self._lock:
            way = self._ways.pop(key, None)
        if way is not None:
            way.transfer.close()

    def close(self) -> None:
        """Unpin everything; later reads pin again."""
        for key in list(self._ways):
            self.forget(key)


def _same_memory(one: FieldVersion, other: FieldVersion) -> bool:
    """Whether two versions are of the same memory, whether or not it was written."""
    storage = one.storage()
    if storage is None or storage is not other.storage() or one.layout != other.layout:
        return False
    if one.ids is None or other.ids is None:
        return one.ids is other.ids
    return _same_memory(one.ids, other.ids)


_CHUNK_BYTES = 64 << 20
"""Bytes of rows that one kernel fetches over the bus. Their ids go through the pinned buffers
first: 1 MiB for rows of 512 bytes."""
_COMPARED_BYTES = 8 << 20
"""Bytes of rows compared at once, for which the device needs memory besides the cache."""


@dataclass(frozen=True, eq=False)
class Filling:
    """Bytes and times of filling a cache, which may still be running; keeps no rows alive.

    The time begins after the transfer path was chosen.
    """

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
    """The rows of ``ids`` on the accelerator, in that order; does not wait for the device.

    If the device reads host memory itself, a kernel gathers the rows; all rows in order are one
    copy. Else the CPU gathers them into pinned buffers, filling one while another is copied.
    ``ids`` are int64, on the CPU, without repeats.
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
    """Whether a cache of ``ids`` still has the source's bits; reads all these rows again."""
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
            # A disk is read in the file's order, and the device restores the order of the ids.
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
    """Whether the ids are all rows, in the order of memory and without gaps."""
    if len(ids) != source.num_rows or reached.table is not None:
        return False
    if reached.stride_bytes != source.row_bytes:
        return False
    return bool(np.array_equal(ids.numpy(), np.arange(len(ids))))


def _spans(count: int, row_bytes: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    step = rows_per_chunk(row_bytes, most_bytes)
    for begin in range(0, count, step):
        yield begin, min(count, begin + step)
