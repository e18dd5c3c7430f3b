"""StaticCache: the rows of a loader's fields that are kept, chosen once, under one budget for all vertex types."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..cache.budget import SLOT_BYTES, Budget, rows_that_fit
from ..cache.division import Demand, divide
from ..cache.memory import auto_budget
from ..cache.plan import CachePlan, FieldPlan
from ..cache.policy import Ranked, Ranking, check_rankings
from ..cache.store import FeatureCache, slots_for
from .device import DeviceFeature
from .field import Field, Snapshot, can_cache, host_feature
from .filling import fill_cache, holds
from .host import HostFeature
from .version import FieldVersion

__all__ = ["StaticCache"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Index:
    """The vertices of one type that are cached: the same for all fields."""

    ids: Tensor
    slots: Tensor


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A field that is worth caching, as it is now."""

    field: Field
    node_type: str
    seen: Snapshot
    base: HostFeature | DeviceFeature


class StaticCache:
    """Decides once which vertices are cached, and keeps their rows of every field that a cache can serve.

    Of one vertex type the same vertices are cached for all its fields. Safe from any thread.

    Args:
        device: Where rows are cached.
        budget: What all rows and tables may take together.
        rank: Gives the vertices of every type, most valuable first; called when rows of a type are first cached.
        num_nodes: Vertex type to its number of vertices.
        share: Caches with equal ``share``, budget, device and ``num_nodes`` of the same tensors become one. None: no
            sharing, as when the ranking depends on the seeds.
    """

    _live: weakref.WeakSet[StaticCache] = weakref.WeakSet()
    _live_lock = threading.Lock()

    def __init__(
        self,
        *,
        device: torch.device,
        budget: Budget,
        rank: Callable[[], Ranked],
        num_nodes: Mapping[str, int],
        share: Hashable = None,
    ) -> None:
        self._device = device
        self._budget = budget
        self._rank = rank
        self._num_nodes = dict(num_nodes)
        self._share = share
        self._fields: dict[Hashable, tuple[Field, str]] = {}
        self._fill_lock = threading.Lock()
        self._stepped = False
        self._decided = False
        self._nbytes = 0
        self._weighed: list[tuple[str, FieldVersion]] = []  # what was considered when it was decided
        self._indices: dict[str, _Index] = {}
        self._parts: dict[Hashable, FieldPlan] = {}
        if share is not None:
            with self._live_lock:
                self._live.add(self)

    def add(self, key: Hashable, field: Field, node_type: str) -> None:
        """Consider a field; one that comes after the decision gets the bytes that are left."""
        self._fields[key] = field, node_type

    def prepare(self) -> None:
        """Fill the cache if its size and its fields are known; call before the first batch of an epoch.

        A cache that another loader has filled already is taken over here, whatever the budget.
        """
        if not self._take_over() and (self._stepped or not self._budget.is_auto):
            self._decide()

    def after_first_step(self) -> None:
        """Fill the cache if :meth:`prepare` could not; call when a first training step is done.

        Only then is known what memory a step needs ("auto"), and which fields are read if none were given.
        """
        self._stepped = True
        self.prepare()

    def cache_for(
        self, key: Hashable, seen: Snapshot, base: HostFeature | DeviceFeature
    ) -> tuple[FeatureCache | None, bool]:
        """Count a read of a field; returns its cache if that has these values, and whether a cache may serve it."""
        field, node_type = self._fields.get(key, (None, ""))
        if field is None:
            return None, False
        if not can_cache(base, self._device, self._num_nodes[node_type]):
            field.forget_other_than(seen)  # its memory would wait for the old values for ever
            return None, False
        cache, due = field.cache_for(seen)
        if due and self._decided and self._fill_lock.acquire(blocking=False):
            try:
                cache = self._fill_late(key, _Candidate(field, node_type, seen, base))
            finally:
                self._fill_lock.release()
        return cache, True

    def invalidate_shared(self, version: FieldVersion) -> None:
        """Forget the cached rows of these values in all caches that may share them."""
        with self._live_lock:
            others = [s for s in self._live if s is not self and s._share == self._share]
        for other in others:
            for field, _ in list(other._fields.values()):
                if field.cached(version) is not None:
                    field.invalidate()

    @property
    def plans(self) -> list[CachePlan]:
        """What is cached of each vertex type."""
        parts = {key: part for key, part in self._parts.items() if self._fields[key][0].is_cached}
        several = len(self._num_nodes) > 1
        by_type = {t: tuple(p for k, p in parts.items() if self._fields[k][1] == t) for t in self._num_nodes}
        return [
            CachePlan(self._device, n, self._nbytes, self._table_bytes(t), by_type[t], t if several else None)
            for t, n in self._num_nodes.items()
        ]

    # -- deciding -----------------------------------------------------------------------------------------

    def _decide(self) -> None:
        """Choose the vertices and fill the cache, once there is a field that is worth it."""
        with self._fill_lock:
            found = {} if self._decided else self._candidates()
            if not found:
                return
            widths = {t: sum(c.base.row_bytes for c in found.values() if c.node_type == t) for t in self._num_nodes}
            wanted = {t: (width, self._num_nodes[t]) for t, width in widths.items() if width}
            nbytes = self._budget.nbytes(wanted.values(), free=lambda: auto_budget(self._device))
            self._indices = self._choose(nbytes, wanted)
            tables = 0 if self._budget.pays_tables else sum(map(self._table_bytes, self._indices))
            self._nbytes = nbytes + tables
            self._weighed = [(c.node_type, c.seen.version) for c in found.values()]
            self._decided = True
            for key, candidate in found.items():
                if candidate.node_type in self._indices:
                    self._fill(key, candidate, len(self._indices[candidate.node_type].ids))
            self._log("")

    def _choose(self, nbytes: int, wanted: Mapping[str, tuple[int, int]]) -> dict[str, _Index]:
        """The vertices to cache of every type that gets any; all vertices are ranked only if a row fits at all."""
        paid = self._budget.pays_tables
        if not any(rows_that_fit(nbytes, [width], n, table=paid) for width, n in wanted.values()):
            return {}
        rankings = check_rankings(self._rank(), self._num_nodes)
        demands = [Demand(n, width, SLOT_BYTES * n * paid, rankings[t]) for t, (width, n) in wanted.items()]
        counts = divide(nbytes, demands)
        return {t: self._index(t, rankings[t], count) for t, count in zip(wanted, counts, strict=True) if count}

    def _index(self, node_type: str, ranking: Ranking, count: int) -> _Index:
        ids = ranking.ids[:count].clone()  # a view would keep the whole ranking in memory
        return _Index(ids, slots_for(ids, self._num_nodes[node_type] if len(ids) else 0))

    def _candidates(self) -> dict[Hashable, _Candidate]:
        """The fields that are worth caching; one that cannot be read now raises when it is read."""
        found = {}
        for key, (field, node_type) in list(self._fields.items()):
            try:
                seen = field.snapshot()
            except (KeyError, RuntimeError):
                continue
            base = host_feature(seen.tensor, self._device)
            if can_cache(base, self._device, self._num_nodes[node_type]):
                found[key] = _Candidate(field, node_type, seen, base)
        return found

    # -- filling ------------------------------------------------------------------------------------------

    def _fill_late(self, key: Hashable, candidate: _Candidate) -> FeatureCache | None:
        """Cache a field that came, or settled, after the decision, in the bytes that are left."""
        node_type, num_nodes = candidate.node_type, self._num_nodes[candidate.node_type]
        row_bytes = candidate.base.row_bytes
        tables = sum(self._table_bytes(t) for t in self._indices)
        left = self._nbytes - tables - sum(part.nbytes for other, part in self._parts.items() if other != key)
        if node_type in self._indices:
            count = rows_that_fit(left, [row_bytes], num_nodes, table=False)
        else:
            count = rows_that_fit(left, [row_bytes], num_nodes)
            if count:
                ranking = check_rankings(self._rank(), self._num_nodes)[node_type]
                self._indices = {**self._indices, node_type: self._index(node_type, ranking, count)}
        count = min(count, len(self._indices[node_type].ids)) if count else 0
        return self._fill(key, candidate, count) if count else None

    def _fill(self, key: Hashable, candidate: _Candidate, count: int) -> FeatureCache | None:
        """Cache the first ``count`` of the chosen vertices; the caller holds the fill lock."""
        index, base = self._indices[candidate.node_type], candidate.base
        cache = candidate.field.fill(
            candidate.seen,
            lambda: fill_cache(
                base,
                index.ids[:count],
                device=self._device,
                num_nodes=self._num_nodes[candidate.node_type],
                slots=index.slots,
            ),
        )
        if cache is not None:
            self._parts = {**self._parts, key: FieldPlan(key, count, cache.row_nbytes, base.tier)}
        return cache

    # -- sharing ------------------------------------------------------------------------------------------

    def _take_over(self) -> bool:
        """Use another loader's cache that was made for all of this one's fields; whether there is one."""
        if self._share is None or self._decided:
            return False
        with self._live_lock:
            others = [s for s in self._live if s is not self]
        mine = (self._share, self._budget, self._device, self._num_nodes)
        with self._fill_lock:
            found = {} if self._decided else self._candidates()
            for other in others:
                if found and mine == (other._share, other._budget, other._device, other._num_nodes):
                    caches = other._caches_of(found)
                    if caches:
                        self._adopt(other, found, caches)
                        return True
        return False

    def _caches_of(self, found: Mapping[Hashable, _Candidate]) -> dict[Hashable, FeatureCache] | None:
        """This cache's rows of another's fields, by the other's keys; None if it was not made for all of them."""
        caches = {}
        for key, candidate in found.items():
            index = self._indices.get(candidate.node_type)
            version = candidate.seen.version
            if index is None or len(index.ids) == 0:
                # Of a type that is not worth caching the rows are missing rightly.
                if not any(t == candidate.node_type and version == seen for t, seen in self._weighed):
                    return None
                continue
            cache = self._cached(candidate.node_type, version)
            # A new loader promises the values of now, those written behind torch's back too: compare them.
            if cache is None or not holds(cache, candidate.base, index.ids):
                return None
            caches[key] = cache
        return caches

    def _cached(self, node_type: str, version: FieldVersion) -> FeatureCache | None:
        """The cache of whichever field of a type has these values."""
        caches = (field.cached(version) for field, t in list(self._fields.values()) if t == node_type)
        return next((cache for cache in caches if cache is not None), None)

    def _adopt(
        self, other: StaticCache, found: Mapping[Hashable, _Candidate], caches: Mapping[Hashable, FeatureCache]
    ) -> None:
        """Take another's decision and rows as this one's; the caller holds the fill lock."""
        self._nbytes, self._weighed, self._decided = other._nbytes, other._weighed, True
        types = {found[key].node_type for key in caches}
        self._indices = {t: index for t, index in other._indices.items() if t in types}
        for key, cache in caches.items():
            candidate = found[key]
            candidate.field.adopt(candidate.seen, cache)
            self._parts = {**self._parts, key: FieldPlan(key, len(cache), cache.row_nbytes, candidate.base.tier)}
        self._log(", shared with another loader")

    def _table_bytes(self, node_type: str) -> int:
        index = self._indices.get(node_type)
        return index.slots.numel() * index.slots.element_size() if index is not None else 0

    def _log(self, remark: str) -> None:
        for plan in self.plans:
            _log.info("%r%s", plan, remark)
