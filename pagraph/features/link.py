"""Link: how the fields of a set reach an accelerator; what they share on the way, and how each of them goes."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass

from ..accelerator import Accelerator, StagingRing, Stream
from ..field_version import FieldVersion
from .accelerated import AcceleratedFeature
from .field import ReadPath
from .transfer import Transfer

__all__ = ["Link"]

_PATIENCE = 8
"""How often new values are read before their memory is pinned, which takes longer than to read them: those of a field
that is replaced at every step never are. The first values of a field are, at once."""


@dataclass(eq=False)
class _Way:
    """One field's."""

    transfer: Transfer
    version: FieldVersion
    reads: int = _PATIENCE


class Link:
    """The way of all fields of a set to an accelerator. Safe from any thread.

    Args:
        accelerator: Where rows are delivered, and cached.
        mode: See :class:`Transfer`.

    Raises:
        ValueError: ``mode`` is not one that ``Transfer`` knows.
    """

    def __init__(self, accelerator: Accelerator, mode: str = "auto") -> None:
        self.accelerator = accelerator
        self._mode = mode
        self._new(mode)  # says what is wrong with it
        self._passing = self._new("staging")
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
        """What goes to the accelerator through pinned memory goes through this."""
        with self._lock:
            if self._ring is None:
                self._ring = StagingRing(self.accelerator)
            return self._ring

    @property
    def transfers(self) -> dict[Hashable, Transfer]:
        """How the missed rows of each field arrive, of those that have been read."""
        with self._lock:
            return {key: way.transfer for key, way in self._ways.items()}

    def transfer(self, key: Hashable, version: FieldVersion) -> Transfer:
        """How the missed rows of a field arrive: the same as long as its values are in the same memory.

        Args:
            key: The field.
            version: Of the values that will be read.
        """
        with self._lock:
            way = self._ways.get(key)
            if way is None:
                way = self._ways[key] = _Way(self._new(self._mode), version)
            old = None
            if not _same_memory(way.version, version):
                old, way.transfer, way.version, way.reads = way.transfer, self._new(self._mode), version, 0
            way.reads += 1
            transfer = way.transfer if way.reads > _PATIENCE else self._passing
        if old is not None:
            old.close()  # or its pin would keep the old values
        return transfer

    def wait_for_writes(self, key: Hashable, version: FieldVersion, caller: Stream) -> None:
        """Read new values of a field on the device after what wrote them.

        That was given to the calling thread's stream: the user's, or in a thread of the loader the default one, on
        which users compute as long as they choose no other. Values that were read before are not waited for again, or
        reading would follow all computation.

        Args:
            key: The field.
            version: Of the values that will be read.
            caller: The calling thread's stream.
        """
        with self._lock:
            if self._written.get(key) != version:
                self.stream.wait_for(caller.record())
                self._written[key] = version  # only now: others, who see it, go on at once

    def feature(self, key: Hashable, path: ReadPath) -> AcceleratedFeature:
        """A field's rows as the accelerator gets them."""
        transfer, known = self.transfer(key, path.version), path.accelerated
        if known is None or known.transfer is not transfer:
            known = AcceleratedFeature(path.stored, path.cache, self.accelerator, self.ring, transfer)
            path.accelerated = known
        return known

    def forget(self, key: Hashable) -> None:
        """There is no such field any more: unpin its memory."""
        with self._lock:
            way = self._ways.pop(key, None)
        if way is not None:
            way.transfer.close()

    def close(self) -> None:
        """Unpin everything; what is read later is pinned anew."""
        with self._lock:
            ways = list(self._ways.values())
            self._ways.clear()
        for way in ways:
            way.transfer.close()

    def _new(self, mode: str) -> Transfer:
        return Transfer(self.accelerator, mode)


def _same_memory(one: FieldVersion, other: FieldVersion) -> bool:
    """Whether two versions are of the same tensor, written or not."""
    storage = one.storage()
    if storage is None or storage is not other.storage() or one.layout != other.layout:
        return False
    if one.ids is None or other.ids is None:
        return one.ids is other.ids
    return _same_memory(one.ids, other.ids)
