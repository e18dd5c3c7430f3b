"""FieldSet: all fields that a loader reads, with one cache for those that are worth caching."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..buffers import BufferPool
from ..cache.budget import SLOT_BYTES, Budget, rows_that_fit
from ..cache.memory import auto_budget
from ..cache.plan import CachePlan, FieldPlan
from ..cache.policy import check_ranking
from ..cache.stats import CacheStats, ReadCounters
from ..cache.store import FeatureCache, slots_for
from .cached import CachedFeature
from .device import DeviceFeature
from .feature import Feature
from .field import Field, Snapshot, can_cache, delivering, host_feature
from .filling import fill_cache, holds
from .host import HostFeature
from .version import FieldVersion

__all__ = ["FieldRows", "FieldSet"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class FieldRows:
    """Rows of a field.

    Attributes:
        tensor: Shape ``(len(ids), ...)``, on the set's device; memory that nothing else uses.
        version: The version of the field that was read.
        generation: How often the field had been invalidated then.
    """

    tensor: Tensor
    version: FieldVersion
    generation: int


@dataclass(frozen=True, eq=False)
class _Index:
    """The vertices that are cached, decided once: the same for all fields."""

    ids: Tensor
    slots: Tensor
    budget_bytes: int


class FieldSet:
    """Reads rows of named fields, from a static cache where it holds them; always the present values.

    On the CPU, fields of memory-mapped files are cached in memory; for another device, fields in host
    memory or in files are cached on it. The same vertices are cached for all these fields. When a field is
    replaced or written, it is read from its source until it has settled, then cached again.

    Args:
        sources: Field key to a function that gives the field's present tensor. Asked anew at every read;
            keys may come and go.
        device: Where rows are delivered, and cached.
        budget: What the cache may take. None: no cache.
        rank: Gives the vertices, most valuable first; called once, when the cache is first filled.
        pool_of: Gives the memory for a field's rows that are delivered on the CPU.
        num_nodes: Number of vertices.
        share: Sets with equal ``share``, budget and device that read the same tensors use one cache: the train and
            the validation loader of a graph, say. None: no sharing, as when the ranking depends on the seeds.
    """

    _live: weakref.WeakSet[FieldSet] = weakref.WeakSet()
    _live_lock = threading.Lock()

    def __init__(
        self,
        sources: Mapping[Any, Callable[[], Tensor]],
        *,
        device: torch.device,
        budget: Budget | None,
        rank: Callable[[], Tensor],
        pool_of: Callable[[Any], BufferPool],
        num_nodes: int,
        share: Hashable = None,
    ) -> None:
        self._sources: dict[Hashable, Callable[[], Tensor]] = dict(sources)
        if device.type == "cuda" and device.index is None:
            # Each thread has a current device of its own, and reads come from any thread.
            device = torch.device("cuda", torch.cuda.current_device())
        self._device = device
        self._budget = budget
        self._rank = rank
        self._pool_of = pool_of
        self._num_nodes = num_nodes
        self._fields: dict[Hashable, Field] = {}
        self._lock = threading.Lock()
        self._fill_lock = threading.Lock()
        self._index: _Index | None = None
        self._decided = budget is None
        self._parts: dict[Hashable, FieldPlan] = {}
        self._counters = ReadCounters()
        self._share = share
        if share is not None and budget is not None:
            with self._live_lock:
                self._live.add(self)

    def add_source(self, key: Hashable, source: Callable[[], Tensor]) -> None:
        """Add or replace a field; one that comes after the cache was filled gets the bytes that are left."""
        self._sources[key] = source

    # -- reading ------------------------------------------------------------------------------------------

    def read(self, key: Hashable, ids: Tensor) -> FieldRows:
        """The rows of ``ids``; safe from any thread.

        Raises:
            KeyError: There is no such field now.
            IndexError: An id is out of range.
            RuntimeError: The field requires gradients.
        """
        begin = time.perf_counter()
        field = self._field(key)
        seen = field.snapshot()
        base = host_feature(seen.tensor, self._device)
        cacheable = self._budget is not None and can_cache(base, self._device, self._num_nodes)
        cache = self._cache_for(key, field, seen, base) if cacheable else None
        feature = delivering(base, self._device) if cache is None else CachedFeature(base, cache)
        tensor, hits = self._read(key, feature, ids)
        self._counters.record(
            key,
            base.tier,
            asked=len(ids),
            hits=hits,
            row_bytes=base.row_bytes,
            cacheable=cacheable,
            seconds=time.perf_counter() - begin,
        )
        return FieldRows(tensor, seen.version, seen.generation)

    def is_current(self, key: Hashable, rows: FieldRows) -> bool:
        """Whether a read now gives the same values: not once the field was replaced, written or deleted."""
        return self._field(key).is_current(rows.version, rows.generation)

    def _read(self, key: Hashable, feature: Feature, ids: Tensor) -> tuple[Tensor, int]:
        out = None
        if self._device.type == "cpu":
            out = self._pool_of(key).take((len(ids), *feature.row_shape), feature.dtype)
        if isinstance(feature, CachedFeature):
            return feature.read_counted(ids, out)
        return feature.read(ids, out), 0

    def _field(self, key: Hashable) -> Field:
        field = self._fields.get(key)
        if field is None:
            with self._lock:
                field = self._fields.setdefault(key, Field(key, partial(_read_source, self._sources, key)))
        return field

    # -- caching ------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Fill the cache if its size and its fields are known; call before the first batch.

        A cache that another set has filled already is taken over here, whatever the budget.
        """
        if self._budget is not None and not self._take_over() and not self._budget.is_auto:
            self._decide(self._budget, last=False)

    def after_first_step(self) -> None:
        """Fill the cache if :meth:`prepare` could not; call when a first training step is done.

        Only then is known what memory a step needs ("auto"), and which fields are read if none were given.
        """
        if self._budget is not None and not self._take_over():
            self._decide(self._budget, last=True)

    def invalidate(self, key: Hashable | None = None) -> None:
        """Forget what is cached of one field, or of all: for writes that torch cannot see.

        Needed after writes through a NumPy view or ``tensor.data``, and by other processes. Sets that share a cache
        with this one forget it too.
        """
        for field in [self._field(key)] if key is not None else list(self._fields.values()):
            version = field.invalidate()
            if version is None or self._share is None:
                continue
            with self._live_lock:
                others = [s for s in self._live if s is not self and s._share == self._share]
            for other in others:
                for theirs in list(other._fields.values()):
                    if theirs.cached(version) is not None:
                        theirs.invalidate()

    @property
    def counters(self) -> CacheStats:
        """What was read so far; subtract an earlier value for what was read since."""
        return self._counters.snapshot()

    @property
    def plan(self) -> CachePlan:
        """What the cache holds; no field before that is decided, and without a budget."""
        index = self._index
        if index is None:
            return CachePlan(self._device, self._num_nodes, 0, 0, ())
        table = index.slots.numel() * index.slots.element_size()
        return CachePlan(self._device, self._num_nodes, index.budget_bytes, table, tuple(self._parts.values()))

    def _decide(self, budget: Budget, *, last: bool) -> None:
        """Choose the vertices and fill the cache, once; not if no field is worth it and more may come."""
        with self._fill_lock:
            found = {} if self._decided else self._candidates()
            if self._decided or not (found or last):
                return
            row_bytes = [base.row_bytes for _, base in found.values()]
            nbytes = budget.nbytes(row_bytes, self._num_nodes, free=lambda: auto_budget(self._device))
            count = rows_that_fit(nbytes, row_bytes, self._num_nodes)
            ids = check_ranking(self._rank(), self._num_nodes)[:count] if count else torch.empty(0).long()
            slots = slots_for(ids, self._num_nodes if len(ids) else 0)
            self._index = _Index(ids, slots, nbytes)
            self._decided = True
            for key, (seen, base) in found.items():
                if len(ids):
                    self._fill(key, self._field(key), seen, base, self._index, len(ids))
            _log.info("%r", self.plan)

    def _take_over(self) -> bool:
        """Use the cache of another set that has all of this set's fields in it; whether there is one."""
        if self._share is None or self._decided:
            return False
        with self._live_lock:
            others = [s for s in self._live if s is not self]
        mine = (self._share, self._budget, self._device, self._num_nodes)
        with self._fill_lock:
            found = {} if self._decided else self._candidates()
            for other in others:
                index = other._index
                theirs = (other._share, other._budget, other._device, other._num_nodes)
                if not found or index is None or len(index.ids) == 0 or theirs != mine:
                    continue
                caches = {
                    key: cache
                    for key, (seen, base) in found.items()
                    # A new loader promises the values of now, those written behind torch's back too: compare them.
                    if (cache := other._cached(seen.version)) is not None and holds(cache, base, index.ids)
                }
                if len(caches) == len(found):
                    self._adopt(index, found, caches)
                    return True
        return False

    def _cached(self, version: FieldVersion) -> FeatureCache | None:
        """The cache of whichever field has these values."""
        caches = (field.cached(version) for field in list(self._fields.values()))
        return next((cache for cache in caches if cache is not None), None)

    def _adopt(
        self,
        index: _Index,
        found: Mapping[Hashable, tuple[Snapshot, HostFeature | DeviceFeature]],
        caches: Mapping[Hashable, FeatureCache],
    ) -> None:
        """Take another set's index and caches as this one's; the caller holds the fill lock."""
        self._index, self._decided = index, True
        for key, (seen, base) in found.items():
            cache = caches[key]
            self._field(key).adopt(seen, cache)
            self._parts = {**self._parts, key: FieldPlan(key, len(cache), cache.row_nbytes, base.tier)}
        _log.info("%r, shared with another loader", self.plan)

    def _candidates(self) -> dict[Hashable, tuple[Snapshot, HostFeature | DeviceFeature]]:
        """The fields that are worth caching; one that cannot be read now raises when it is read."""
        found = {}
        for key in list(self._sources):
            try:
                seen = self._field(key).snapshot()
            except (KeyError, RuntimeError):
                continue
            base = host_feature(seen.tensor, self._device)
            if can_cache(base, self._device, self._num_nodes):
                found[key] = (seen, base)
        return found

    def _cache_for(
        self, key: Hashable, field: Field, seen: Snapshot, base: HostFeature | DeviceFeature
    ) -> FeatureCache | None:
        cache, due = field.cache_for(seen)
        index = self._index
        if not due or index is None or not self._fill_lock.acquire(blocking=False):
            return cache
        try:
            others = sum(part.nbytes for other, part in self._parts.items() if other != key)
            left = index.budget_bytes - SLOT_BYTES * self._num_nodes - others
            count = rows_that_fit(left, [base.row_bytes], self._num_nodes, table=False)
            return self._fill(key, field, seen, base, index, min(count, len(index.ids)))
        finally:
            self._fill_lock.release()

    def _fill(
        self,
        key: Hashable,
        field: Field,
        seen: Snapshot,
        base: HostFeature | DeviceFeature,
        index: _Index,
        count: int,
    ) -> FeatureCache | None:
        """Cache the first ``count`` of the chosen vertices; the caller holds the fill lock."""
        cache = field.fill(
            seen,
            lambda: fill_cache(
                base, index.ids[:count], device=self._device, num_nodes=self._num_nodes, slots=index.slots
            ),
        )
        if cache is not None:
            self._parts = {**self._parts, key: FieldPlan(key, count, cache.row_nbytes, base.tier)}
        return cache


def _read_source(sources: Mapping[Hashable, Callable[[], Tensor]], key: Hashable) -> Tensor:
    """The field's tensor now. Not a method: a cycle would keep caches in memory until the collector runs."""
    return sources[key]()
