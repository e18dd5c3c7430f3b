"""Field: a named tensor that may be replaced or written at any time, and how it is read now."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..accelerator import Accelerator, Event
from ..graph.fields import FieldValue, FieldVersion, check_files, stored_tensor
from ..graph.stored_rows import StoredRows
from ..system.buffers import BufferPool
from .disk import DiskFeature, on_disk
from .feature import DeviceFeature, Feature, HostFeature, PlainFeature
from .narrow import NarrowFeature, StoredFeature, WideFeature
from .padding import Padding
from .store import CachedFeature, FeatureCache

# Reads of one version before its rows are cached, see Field: the first and the largest value. With
# the first, a field that is written at every step is never cached. With the largest, a field that
# is no longer written is still cached within a few thousand batches.
_FIRST_PATIENCE = 8
_LAST_PATIENCE = 4096
# A field whose rows were outdated on delivery so many times in turn is no longer read ahead.
_WRITES = 2
_WORTH = 8  # a cache has paid for itself after this many times its patience in reads


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A field's values at one moment, with their version and its number of invalidations."""

    tensor: FieldValue
    version: FieldVersion
    generation: int


class ReadPath:
    """How one version of a field is read; resolved once, then recognised by one comparison a read.

    It does not keep the values' memory alive, so that replaced values are freed. A reader holds the
    memory while it reads.

    Attributes:
        base: The rows where they are.
        stored: The rows as a cache keeps them.
        feature: The rows as they are read on the CPU.
        plain: ``feature``, if it is plain rows in memory that no cache may serve; else None.
        accelerated: The rows as an accelerator reads them; None before the first such read.
        declined: The choice of cached rows that gave these values no row.
    """

    __slots__ = (
        "_mark",
        "_values",
        "accelerated",
        "base",
        "cache",
        "cacheable",
        "declined",
        "feature",
        "generation",
        "plain",
        "row_bytes",
        "stored",
        "tier",
        "version",
    )

    def __init__(
        self,
        seen: Snapshot,
        base: PlainFeature,
        stored: StoredFeature,
        cache: FeatureCache | None,
        cacheable: bool,
    ) -> None:
        self._values: Callable[[], Any] = weakref.ref(seen.tensor)
        self._mark: object = None
        self.version: FieldVersion = seen.version
        self.generation: int = seen.generation
        self.base: HostFeature | DeviceFeature = base
        self.stored: HostFeature | DeviceFeature | NarrowFeature = stored
        self.cache: FeatureCache | None = cache
        self.cacheable: bool = cacheable
        self.tier: str = base.tier
        self.row_bytes: int = base.row_bytes
        self.declined: object = None
        self.accelerated: Any = None  # an AcceleratedFeature, which knows this class
        self.feature: Feature = _delivered(stored, cache)
        self.plain: HostFeature | None = None
        is_base = not cacheable and self.feature is base
        if is_base and isinstance(base, HostFeature) and base.is_plain:
            self.plain = base

    def stored_elsewhere(self, rows: HostFeature) -> StoredFeature:
        """Copies of rows of this field, in the form in which a cache keeps them."""
        return self.stored.over(rows) if isinstance(self.stored, NarrowFeature) else rows

    def elsewhere(self, rows: HostFeature, cache: FeatureCache | None) -> Feature:
        """Copies of rows of this field, with a cache of some, delivered like :attr:`feature`."""
        return _delivered(self.stored_elsewhere(rows), cache)

    def recognise(self, mark: object) -> None:
        """Serve values with this mark from now on."""
        # Never for rows on a device, whose tensor a kept path would keep alive.
        self._mark = None if isinstance(self.base, DeviceFeature) else mark


def _delivered(stored: StoredFeature, cache: FeatureCache | None) -> Feature:
    if cache is not None and cache.rows.device.type == "cpu":
        return CachedFeature(stored, cache)
    return stored if stored.decoding is None else WideFeature(stored)


def _marked(values: FieldValue) -> tuple[object, tuple[object, ...]]:
    """The values' memory, and a mark that changes when they are written or moved.

    It also notices assignments to ``.data``, which torch does not count as writes, and which may
    free the memory in the middle of a read. The address alone is not enough, because new memory is
    often where freed memory was.
    """
    if isinstance(values, StoredRows):
        return _marked_rows(values)
    held = values.untyped_storage()
    return held, (
        None if values.is_inference() else values._version,
        weakref.ref(held),
        held.data_ptr(),
        values.storage_offset(),
        values.shape,
        values.stride(),
        values.dtype,
    )


def _marked_rows(rows: StoredRows) -> tuple[object, tuple[object, ...]]:
    held, mark = _marked(rows.tensor)
    if rows.ids is None:
        return held, (*mark, rows.dtype)
    held_ids, mark_of_ids = _marked(rows.ids)
    return (held, held_ids), (*mark, *mark_of_ids, rows.dtype)


def _borrowed(values: Tensor) -> Tensor:
    """A tensor of the same CPU memory that does not keep it alive."""
    storage = values.untyped_storage()
    size = storage.nbytes()
    if not size:
        return values.detach()
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(storage.data_ptr()))
    empty = torch.empty(0, dtype=values.dtype, device="cpu")
    return empty.set_(
        torch.from_numpy(memory).untyped_storage(),
        values.storage_offset(),
        values.shape,
        values.stride(),
    )


def _borrowed_value(values: FieldValue) -> Tensor | StoredRows:
    if not isinstance(values, StoredRows):
        return _borrowed(values)
    ids = None if values.ids is None else _borrowed(values.ids)
    return StoredRows(_borrowed(values.tensor), ids, values.decoding)


def host_feature(tensor: FieldValue, device: torch.device, *, owned: bool = True) -> PlainFeature:
    """The rows of a field where they are: on disk, in host memory or on a device.

    Of ``NarrowRows`` these are the stored rows. Rows on a device are delivered to ``device``.
    Unless ``owned``, the feature does not keep CPU memory alive: the caller must hold the values.
    """
    if isinstance(tensor, Tensor) and tensor.device.type != "cpu":
        return DeviceFeature(tensor, device)
    kind = DiskFeature if on_disk(tensor) else HostFeature
    if owned or not _has_plain_memory(tensor):
        return kind(tensor)
    return kind(_borrowed_value(tensor))


def _has_plain_memory(values: FieldValue) -> bool:
    """Whether :func:`_borrowed` gives the same values: it copies addresses and strides only."""
    tensor = stored_tensor(values)
    return tensor.layout == torch.strided and not tensor.is_conj() and not tensor.is_neg()


def row_reader(values: FieldValue) -> Feature:
    """The rows of a field as values on the CPU."""
    stored = host_feature(values, torch.device("cpu"))
    return stored if stored.decoding is None else WideFeature(stored)


def can_cache(feature: PlainFeature, accelerator: Accelerator | None, num_nodes: int) -> bool:
    """Whether a cache helps: for host rows on an accelerator, else for rows on disk."""
    if isinstance(feature, DeviceFeature) or feature.row_bytes == 0:
        return False
    if feature.num_rows != num_nodes:
        return False  # rows to cache are chosen by vertex
    if accelerator is not None:
        return True
    return isinstance(feature, DiskFeature) and feature.rows is not None


class Read(NamedTuple):
    """A read of a field, for a batch.

    Attributes:
        key: The field.
        ids: 1-D int32 or int64 tensor, on the CPU or on the accelerator. On the accelerator they
            are not checked.
        bounds: Ends of the hops in the ids (``MiniBatch.hop_ends``), to count reads by hop.
        padding: Padding that the result gets.
        there: A copy of the ids on the accelerator, if there is one.
        values: The field's values, if the caller has asked its source already and checked that they
            can be read. Whether they are current is checked later.
    """

    key: Hashable
    ids: Tensor
    bounds: Sequence[int] | None = None
    padding: Padding | None = None
    there: Tensor | None = None
    values: FieldValue | None = None


@dataclass(eq=False, slots=True)
class FieldRows:
    """Rows of a field, as :meth:`FieldSet.read` returns them.

    Attributes:
        tensor: Shape ``(len(ids), ...)``, on the set's device, in memory that nothing else uses. On
            an accelerator the values may still be in transit: see :meth:`arrive`.
        version: The version of the field that was read; None for rows of a user's storage, which
            has no versions.
        generation: The field's number of invalidations at that time.
        begun: Event when an accelerator began to read; None on the CPU, where nothing is pending.
        ready: Event when the values have arrived.
        accelerator: The tensor's accelerator.
    """

    tensor: Tensor
    version: FieldVersion | None
    generation: int
    begun: Event | None = None
    ready: Event | None = None
    accelerator: Accelerator | None = None

    def arrive(self) -> Tensor:
        """The tensor; the thread's current stream waits for the values, the thread does not."""
        if self.accelerator is not None and self.ready is not None:
            self.accelerator.hand_over([self.tensor], self.ready)
        return self.tensor


Reading = tuple[object, FieldValue, ReadPath]
"""The result of :meth:`Field.path`."""


def look_each(
    fields: Iterable[Field | None], given: Iterable[FieldValue | None]
) -> list[Reading | None]:
    """:meth:`Field.path` of each field, as far as its path is known and still that of its values.

    A batch looks at its fields twice, to read them and before it is delivered. So this calls no
    function of ours for a field: with seven fields, these calls were a third of a batch's.

    Args:
        fields: The fields; None is passed over.
        given: The values of ``Read``, if any. The source is not asked then.
    """
    found: list[Reading | None] = []
    for field, values in zip(fields, given, strict=True):
        found.append(None)
        if field is None or (path := field._path) is None:
            continue
        if path.generation != field._generation:
            continue
        if values is None:
            try:
                values = field.source()
            except (KeyError, RuntimeError):
                continue
        # Those that require gradients are refused by `path`.
        if path._values() is not values or path._mark is None or values.requires_grad:
            continue
        held: Any
        mark: tuple[object, ...]
        if isinstance(values, Tensor):
            # As `_marked` has it, without the call; tensors of inference mode have no mark.
            held = values.untyped_storage()
            layout = values.storage_offset(), values.shape, values.stride(), values.dtype
            mark = values._version, weakref.ref(held), held.data_ptr(), *layout
        else:
            held, mark = _marked(values)
        if mark == path._mark:
            found[-1] = held, values, path
    return found


class Field:
    """A field whose source is asked for the values at every read, with a cache while they stay.

    A cache serves only the version that it was filled from, and is dropped when another version is
    read. It is filled again when one version was read ``patience`` times in a row. Patience doubles
    if a cache was dropped before it had paid for itself, and else halves. So a field that is
    written at every step is not cached at every step.

    Args:
        key: The field's name, for errors.
        source: Returns the current tensor or stored rows, or raises KeyError.
        label: Its name in statistics. Default: the key.
        pool: Recycled memory for its rows. Default: fresh memory.

    Attributes:
        reads: Reads of the version that was read last; the caller of :func:`look_each` counts.
        is_written: Whether the values are written in every step, as node memories are, so that rows
            read ahead would be outdated.
    """

    def __init__(
        self,
        key: Hashable,
        source: Callable[[], FieldValue],
        label: Hashable = None,
        pool: BufferPool | None = None,
    ) -> None:
        self._key = key
        self.pool = pool
        self.label: Hashable = key if label is None else label
        self.source = source
        # Guards changes of what follows. Its holder calls nothing that takes a lock or waits: in
        # particular no source, which is the user's code, and no filling. Readers take it only when
        # they resolve a path. Else they read single attributes, which may be a moment old.
        self._lock = threading.Lock()
        self._generation = 0
        self._cache: FeatureCache | None = None
        # The cached version, or the last one that was read if none is cached.
        self._version: FieldVersion | None = None
        self._path: ReadPath | None = None
        self.reads: int = 0
        self._patience = _FIRST_PATIENCE
        self._filling = False
        # The version of the rows that were read on delivery last, and how many times in turn that
        # was another one than before.
        self._late: FieldVersion | None = None
        self._writes = 0
        self.is_written: bool = False

    def note_late(self, version: FieldVersion) -> None:
        """Note that rows had to be read on delivery, as those read ahead, if any, were outdated."""
        self._writes = 0 if version == self._late else self._writes + 1
        self._late = version
        self.is_written = self._writes >= _WRITES

    def snapshot(self) -> Snapshot:
        """The current values, with their version; raises like :meth:`path`."""
        generation = self._generation  # before the values, so that no invalidation is missed
        values = self._now()
        return Snapshot(values, FieldVersion.of(values), generation)

    def path(
        self, resolve: Callable[[Field, Snapshot], ReadPath], values: FieldValue | None = None
    ) -> Reading:
        """The values' memory, which the caller holds while reading, the values, and their path.

        Counts a read. The path is resolved again if the values changed.

        Args:
            resolve: Finds the path of new values.
            values: Those of ``Read``, if any. The source is not asked then.

        Raises:
            KeyError: The field is gone.
            RuntimeError: The field requires gradients, and these are enabled in the thread.
        """
        (known,) = look_each((self,), (values,))
        if known is None:
            return self.resolved(resolve, values)
        self.reads += 1  # a count that another thread loses does no harm
        return known

    def resolved(
        self, resolve: Callable[[Field, Snapshot], ReadPath], values: FieldValue | None = None
    ) -> Reading:
        """:meth:`path` of values that :func:`look_each` does not know."""
        generation = self._generation  # before the values, so that no invalidation is missed
        if values is None:
            values = self._now()
        path = mark = held = None
        # Repeat if another thread moved the tensor meanwhile: the path would read old memory.
        while path is None or mark != _marked(values)[1]:
            held, mark = _marked(values)
            path = resolve(self, Snapshot(values, FieldVersion.of(values), generation))
        path.recognise(None if path.version.writes is None else mark)
        with self._lock:
            # Keep the path unless an invalidation or another cache came first.
            if generation == self._generation and path.cache is self._cache:
                self._path = path
        self.reads += 1
        return held, values, path

    def begin_epoch(self) -> None:
        """Raise FormatError if the values are in a file that can no longer be read as it was.

        If the file was written, cached rows are dropped, and read anew.
        """
        try:
            values = self.source()
        except (KeyError, RuntimeError):
            return
        check_files(values)
        path = self._path
        if path is None or path.version == FieldVersion.of(values):
            return
        with self._lock:
            if self._path is path:
                self._path = None

    def begin_cold(self) -> bool:
        """Whether the values lie in a file that is largely not in memory; called once an epoch.

        It also checks whether a mapping that reads bypass was written behind torch's back.
        """
        path = self._path
        if path is not None and isinstance(path.base, DiskFeature):
            path.base.renew()
        try:
            values = self.source()
        except (KeyError, RuntimeError):
            return False
        return on_disk(values) and DiskFeature(values).is_cold

    def is_current(self, version: FieldVersion, generation: int) -> bool:
        """Whether the values are still those of an earlier read."""
        if generation != self._generation:
            return False
        try:
            values = self.source()
        except KeyError:
            return False
        (known,) = look_each((self,), (values,))
        is_known = known is not None and known[2].version is version
        return is_known or FieldVersion.of(values) == version

    def begin(self, seen: Snapshot, *, cacheable: bool) -> FeatureCache | None:
        """Note which values are read and whether they may be cached; returns their cache.

        A cache of other values is dropped.
        """
        with self._lock:
            if seen.generation != self._generation:
                return None
            if self._version != seen.version:
                self._drop()
                self._version = seen.version if cacheable else None
            return self._cache

    @property
    def is_due(self) -> bool:
        """Whether the values are not cached, but have been read often enough to be."""
        return self._cache is None and self.reads >= self._patience and not self._filling

    def fill(self, seen: Snapshot, build: Callable[[], FeatureCache]) -> FeatureCache | None:
        """Fill the cache with the values of ``seen``.

        Returns None if another thread is filling it, or if the values changed meanwhile.
        """
        with self._lock:
            if self._filling:
                return None
            self._filling = True
        try:
            cache = build()
            with self._lock:
                if seen.generation != self._generation:
                    return None
                # A write that is still under way changes the version when it ends: the next read
                # sees that.
                if FieldVersion.of(seen.tensor) != seen.version:
                    return None
                self._hold(cache, seen.version)
                return cache
        finally:
            self._filling = False

    def cached(self, version: FieldVersion) -> FeatureCache | None:
        """The cache, if it has the values of ``version``."""
        with self._lock:
            return self._cache if self._version == version else None

    @property
    def cache(self) -> FeatureCache | None:
        """The current cache, of any version."""
        return self._cache

    @property
    def is_cached(self) -> bool:
        """Whether there is a cache now."""
        return self._cache is not None

    def adopt(self, seen: Snapshot, cache: FeatureCache) -> None:
        """Use a cache that another field of the same values has filled."""
        with self._lock:
            if seen.generation == self._generation:
                self._hold(cache, seen.version)

    def release(self) -> None:
        """Drop the cache because other rows will be cached, not because the values changed."""
        with self._lock:
            self._cache = None
            self._path = None
            self.reads = 0

    def invalidate(self) -> FieldVersion | None:
        """Drop the cache and outdate every snapshot; returns the version that was cached."""
        with self._lock:
            version = self._version if self._cache is not None else None
            self._generation += 1
            self._drop()
            return version

    def _now(self) -> FieldValue:
        try:
            values = self.source()
        except KeyError:
            with self._lock:
                self._drop()
            raise
        if values.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                f"field {self._key!r} must not require gradients to be read ahead, got "
                "requires_grad=True: detach() it, or do not prefetch it and read it from the graph"
            )
        return values

    def _hold(self, cache: FeatureCache, version: FieldVersion) -> None:
        self._cache = cache
        self._version = version
        self._path = None  # the next read resolves one through the cache
        self.reads = 0

    def _drop(self) -> None:
        if self._cache is not None and self.reads >= _WORTH * self._patience:
            self._patience = max(_FIRST_PATIENCE, self._patience // 2)
        elif self._cache is not None:
            self._patience = min(_LAST_PATIENCE, self._patience * 2)
        self._cache = None
        self._version = None
        self._path = None
        self.reads = 0
