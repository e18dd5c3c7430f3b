"""Field: one named tensor that may be replaced or written at any time, and the cache of some of its rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch

from ..accelerator import Accelerator
from ..cache.store import FeatureCache
from ..field_version import FieldVersion
from ..indexed_rows import FieldValue
from .device import DeviceFeature
from .disk import DiskFeature
from .feature import Feature
from .host import HostFeature
from .narrow import NarrowFeature, RoundedFeature
from .placement import on_disk

__all__ = ["Field", "Snapshot", "can_cache", "host_feature", "on_cpu"]

_FIRST_PATIENCE = 8
_LAST_PATIENCE = 4096
_WORTH = 8  # a cache that served this many times its patience has paid for itself


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A field's values at one moment.

    Attributes:
        tensor: The values.
        version: Which tensor, and how often written.
        generation: How often the field had been invalidated.
    """

    tensor: FieldValue
    version: FieldVersion
    generation: int


def host_feature(tensor: FieldValue, device: torch.device) -> HostFeature | DeviceFeature:
    """The rows of a field where they are: on disk, in host memory or on a device."""
    if isinstance(tensor, torch.Tensor) and tensor.device.type != "cpu":
        return DeviceFeature(tensor, device)
    return DiskFeature(tensor) if on_disk(tensor) else HostFeature(tensor)


def on_cpu(feature: HostFeature | DeviceFeature | NarrowFeature) -> Feature:
    """The feature itself; narrow rows as wide as the field's."""
    return RoundedFeature(feature) if isinstance(feature, NarrowFeature) else feature


def can_cache(feature: HostFeature | DeviceFeature, accelerator: Accelerator | None, num_nodes: int) -> bool:
    """Whether a cache saves anything: host rows on an accelerator, disk rows in memory where there is none."""
    if isinstance(feature, DeviceFeature) or feature.row_bytes == 0 or feature.num_rows != num_nodes:
        return False
    return accelerator is not None or (isinstance(feature, DiskFeature) and feature.rows is not None)


class Field:
    """One field: asks its source for the values at every read, and notices when the values have changed.

    A cache serves only the version it was filled from. When another version is read, the cache is dropped;
    it is due to be filled again once one version was read ``patience`` times in a row. Patience doubles
    when a cache was dropped before it had paid for itself, so that a field that is written at every step is
    not cached again at every step, and halves when it had.

    Args:
        key: The field's name, for errors.
        source: Gives the present tensor or rows by reference, or raises KeyError.
    """

    def __init__(self, key: Hashable, source: Callable[[], FieldValue]) -> None:
        self._key = key
        self._source = source
        self._lock = threading.Lock()
        self._generation = 0
        self._cache: FeatureCache | None = None
        self._version: FieldVersion | None = None  # of the cache, or of the last read while there is none
        self._reads = 0  # of that version
        self._patience = _FIRST_PATIENCE
        self._filling = False

    def snapshot(self) -> Snapshot:
        """The tensor now.

        Raises:
            KeyError: The field is gone.
            RuntimeError: The tensor requires gradients, and gradients are on in this thread.
        """
        generation = self._generation  # before the values, so that no invalidation is missed
        try:
            tensor = self._source()
        except KeyError:
            with self._lock:
                self._drop()
            raise
        if tensor.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                f"field {self._key!r} must not require gradients to be read ahead, got requires_grad=True: "
                "detach() it, or do not prefetch it and read it from the graph"
            )
        return Snapshot(tensor, FieldVersion.of(tensor), generation)

    def is_current(self, version: FieldVersion, generation: int) -> bool:
        """Whether the values are still those of an earlier snapshot."""
        if generation != self._generation:
            return False
        try:
            return FieldVersion.of(self._source()) == version
        except KeyError:
            return False

    def cache_for(self, seen: Snapshot) -> tuple[FeatureCache | None, bool]:
        """Count a read; returns the cache if it has these values, and whether it is due to be filled."""
        with self._lock:
            if seen.generation != self._generation:
                return None, False
            if self._version != seen.version:
                self._drop()
                self._version = seen.version
            self._reads += 1
            if self._cache is not None:
                return self._cache, False
            return None, self._reads >= self._patience and not self._filling

    def fill(self, seen: Snapshot, build: Callable[[], FeatureCache]) -> FeatureCache | None:
        """Fill the cache with the values of ``seen``; None if another thread does, or if they change."""
        with self._lock:
            if self._filling:
                return None
            self._filling = True
        try:
            cache = build()
            with self._lock:
                # A write that began before this line raises the count when it ends, so it is seen at the
                # next read.
                if seen.generation != self._generation or FieldVersion.of(seen.tensor) != seen.version:
                    return None
                self._cache, self._version, self._reads = cache, seen.version, 0
                return cache
        finally:
            self._filling = False

    def cached(self, version: FieldVersion) -> FeatureCache | None:
        """The cache, if it has the values of ``version``."""
        with self._lock:
            return self._cache if self._version == version else None

    def forget_other_than(self, seen: Snapshot) -> None:
        """Give up a cache of other values than those of ``seen``, which no cache can serve."""
        with self._lock:
            if seen.generation == self._generation and self._version != seen.version:
                self._drop()

    @property
    def cache(self) -> FeatureCache | None:
        """The cache that there is now, of whichever version."""
        return self._cache

    @property
    def is_cached(self) -> bool:
        """Whether there is a cache now."""
        return self._cache is not None

    def adopt(self, seen: Snapshot, cache: FeatureCache) -> None:
        """Use a cache that another field of the same values has filled."""
        with self._lock:
            if seen.generation == self._generation:
                self._cache, self._version, self._reads = cache, seen.version, 0

    def release(self) -> None:
        """Give the cache up because other rows will be cached: the values are still those of now."""
        with self._lock:
            self._cache, self._reads = None, 0

    def invalidate(self) -> FieldVersion | None:
        """Forget the cache, and call every earlier snapshot old; returns the version that was cached."""
        with self._lock:
            version = self._version if self._cache is not None else None
            self._generation += 1
            self._drop()
            return version

    def _drop(self) -> None:
        if self._cache is not None:
            paid = self._reads >= _WORTH * self._patience
            self._patience = (
                max(_FIRST_PATIENCE, self._patience // 2) if paid else min(_LAST_PATIENCE, self._patience * 2)
            )
        self._cache = None
        self._version = None
        self._reads = 0
