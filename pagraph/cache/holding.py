"""Holding: the cached rows of a loader's fields, for one choice of vertices and edges."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..features.disk import DiskFeature
from ..features.feature import DeviceFeature, PlainFeature
from ..features.field import Field, Snapshot, can_cache, host_feature
from ..features.gpu.link import Filling, Link, fill_rows, holds_on_device
from ..features.narrow import NarrowFeature, stored_as
from ..features.store import FeatureCache, fill_cache, growing_cache, holds
from ..graph.fields import FieldVersion
from ..ranking.policy import RowType
from .choice import Candidate, Choice, Index, Outputs, Role
from .plan import CachePlan, CachePlans, FieldPlan


@dataclass(frozen=True, eq=False)
class Entry:
    """A field that may be cached."""

    field: Field
    type: RowType
    role: Role


class Holding:
    """The fields that may be cached, and their cached rows.

    Changing it needs the fill lock of its :class:`StaticCache`; reading it needs no lock.
    """

    def __init__(
        self,
        device: torch.device,
        num_rows: Mapping[RowType, int],
        outputs: Outputs,
        *,
        cache_dtype: torch.dtype | None = None,
        link: Link | None = None,
    ) -> None:
        self._device = device
        self._num_rows = dict(num_rows)
        self._outputs = outputs
        self._cache_dtype = cache_dtype
        self._link = link
        self._accelerator = None if link is None else link.accelerator
        self.entries: dict[Hashable, Entry] = {}
        self.choice: Choice = Choice()
        self.fillings: list[Filling] = []
        # Whether look-ahead windows fill caches of files that are not in memory.
        self.grows = False
        # Whether the choice's scores are this loader's reads rather than a peer's.
        self._ranked_here = True
        # The cached fields, and what they save. Replaced as a whole and never changed, since plans
        # are printed without the fill lock.
        self._parts: dict[Hashable, FieldPlan] = {}
        # Memory that `install` released last; reads may still hold it.
        self._leaving: list[weakref.ref[torch.UntypedStorage]] = []
        # Values that were not worth a row. Replaced as a whole, like the parts.
        self._declined: dict[Hashable, tuple[RowType, FieldVersion]] = {}

    def candidates(self) -> dict[Hashable, Candidate]:
        """The fields that are worth caching, without those that cannot be read now."""
        found = {}
        # A copy: a loader may add a field meanwhile.
        for key, entry in list(self.entries.items()):
            try:
                seen = entry.field.snapshot()
            except (KeyError, RuntimeError):
                # Deleted, or it requires gradients now: the read that needs it raises.
                continue
            base = host_feature(seen.tensor, self._device)
            if self.can_cache(entry.type, base):
                found[key] = self.candidate(key, seen, base)
        return found

    @property
    def will_grow(self) -> bool:
        """Whether windows would fill the cache of a field now."""
        return any(self._grows(each.base) for each in self.candidates().values())

    def _grows(self, base: PlainFeature) -> bool:
        return self.grows and self._link is None and isinstance(base, DiskFeature) and base.is_cold

    def can_cache(self, row_type: RowType, base: PlainFeature) -> bool:
        """Whether a cache of a type's field would save anything."""
        return can_cache(base, self._accelerator, self._num_rows[row_type])

    def candidate(self, key: Hashable, seen: Snapshot, base: PlainFeature) -> Candidate:
        """A field that is worth caching."""
        entry = self.entries[key]
        stored = stored_as(base, self._cache_dtype, key)
        return Candidate(entry.field, entry.type, entry.role, seen, base, stored)

    def has_declined(self, candidate: Candidate) -> bool:
        """Whether these values were found not worth a row."""
        return (candidate.type, candidate.seen.version) in list(self._declined.values())

    def used_without(self, key: Hashable) -> int:
        """Bytes of all tables, and of the rows of all fields but one."""
        others = (part.nbytes for other, part in self._parts.items() if other != key)
        return self.choice.table_bytes + sum(others)

    def plans(self, budget_bytes: int, reason: str) -> CachePlans:
        """A plan for each vertex type and each cached edge type.

        ``reason`` says why nothing is cached.
        """
        now = self._parts
        by_type: dict[RowType, list[FieldPlan]] = {}
        for key, entry in list(self.entries.items()):
            if key in now and entry.field.is_cached:
                by_type.setdefault(entry.type, []).append(now[key])
        if by_type:
            reason = ""
        several = sum(isinstance(t, str) for t in self._num_rows) > 1
        indices = self.choice.indices
        plans = []
        for t, count in self._num_rows.items():
            is_edge_type = isinstance(t, tuple)
            parts = tuple(by_type.get(t, ()))
            if is_edge_type and not parts:
                continue
            table_bytes = indices[t].table_bytes if t in indices else 0
            shown = t if several or is_edge_type else None
            plans.append(
                CachePlan(self._device, count, budget_bytes, table_bytes, parts, shown, reason)
            )
        return CachePlans(plans)

    def install(self, choice: Choice, found: Mapping[Hashable, Candidate]) -> None:
        """Apply a choice: release rows that it omits, keep those that stay, fill the others."""
        kept = self._kept(choice, found)
        old = self._parts
        # In memory, a field's old rows serve until its new ones are there. A device may have no
        # room for both, so all rows that do not stay are released first.
        staying = choice.rows.keys() if self._link is None else kept.keys()
        self._leaving = self.release(old.keys() - staying)
        if self._link is not None:
            self.choice = Choice(self._tables_of({found[key].type for key in kept}))
        choice = self._with_tables(choice)
        self.choice = choice
        self._ranked_here = True
        self._declined = {
            key: (candidate.type, candidate.seen.version)
            for key, candidate in found.items()
            if key not in choice.rows
        }
        self._parts = {key: part for key, part in old.items() if key in choice.rows}
        for key, cache in kept.items():
            index = choice.indices[found[key].type]
            self._use(key, found[key], index.cache(cache.rows))
        growth = {}
        for key, count in choice.rows.items():
            if key not in kept:
                before = old[key].nbytes if key in old else 0
                growth[key] = count * found[key].cached_bytes - before
        # Fields that shrink come first, to keep the peak low.
        for key in sorted(growth, key=growth.__getitem__):
            if self.fill(key, found[key], choice.rows[key]) is None:
                # Written meanwhile: rows of the old choice must not stay.
                self.entries[key].field.release()

    def _kept(
        self, choice: Choice, found: Mapping[Hashable, Candidate]
    ) -> dict[Hashable, FeatureCache]:
        """The caches that already hold the rows of a new choice."""
        kept = {}
        for key, count in choice.rows.items():
            candidate = found[key]
            cache = candidate.field.cached(candidate.seen.version)
            before = self.choice.indices.get(candidate.type)
            if cache is None or before is None or len(cache) != count:
                continue
            # An equal number may be other rows, if the order has changed.
            if torch.equal(before.ids[:count], choice.indices[candidate.type].ids[:count]):
                kept[key] = cache
        return kept

    def _with_tables(self, choice: Choice) -> Choice:
        """The choice with its tables on the accelerator, if there is one."""
        if self._link is None:
            return choice
        with self._link.stream.use():
            return choice.sent(self._link.ring, self.choice)

    def add_type(self, row_type: RowType, more: Choice) -> None:
        """Add the rows of a type that is chosen later, if it gets any."""
        if row_type in more.indices:
            index = self._with_tables(more).indices[row_type]
            self.choice = Choice(
                {**self.choice.indices, row_type: index}, {**self.choice.rows, **more.rows}
            )

    @property
    def held(self) -> dict[Hashable, FeatureCache]:
        """The rows that are cached now, by field."""
        caches = {key: self.entries[key].field.cache for key in list(self._parts)}
        return {key: cache for key, cache in caches.items() if cache is not None}

    def same_rows(self, other: Holding) -> list[tuple[Hashable, Hashable]]:
        """Fields that share cached rows with ``other``, as pairs of a key here and a key there."""
        # By identity: equal rows in different memory are not shared.
        theirs = {id(cache.rows): key for key, cache in other.held.items()}
        return [
            (key, theirs[id(cache.rows)])
            for key, cache in self.held.items()
            if id(cache.rows) in theirs
        ]

    def release(
        self, keys: Collection[Hashable] | None = None
    ) -> list[weakref.ref[torch.UntypedStorage]]:
        """Release the rows of some fields, or of all.

        Returns their memory, which reads in flight still hold.
        """
        keys = list(self._parts) if keys is None else keys
        caches = [cache for cache in map(self.held.get, keys) if cache is not None]
        for key in keys:
            self.entries[key].field.release()
        self._parts = {key: part for key, part in self._parts.items() if key not in keys}
        # Weak: a caller that waits until they are freed must not hold them.
        return [weakref.ref(cache.rows.untyped_storage()) for cache in caches]

    def clear(self) -> list[weakref.ref[torch.UntypedStorage]]:
        """Release all rows and tables.

        Returns their memory, and what :meth:`install` released last.
        """
        leaving = [*self._leaving, *self.release()]
        self.choice = Choice()
        self.fillings.clear()
        return leaving

    def fill_first(
        self, counts: Mapping[Hashable, int], found: Mapping[Hashable, Candidate]
    ) -> None:
        """Cache the first rows of the current order, of fields without cached rows."""
        self.choice = Choice(self.choice.indices, counts)
        for key, count in counts.items():
            self.fill(key, found[key], count)

    def take(self, key: Hashable, candidate: Candidate, rows: Tensor) -> None:
        """Use rows that a peer has filled, the first of the current order."""
        self._use(key, candidate, self.choice.indices[candidate.type].cache(rows))

    def prune(self) -> None:
        """Release the tables of types without cached rows."""
        types = {self.entries[key].type for key in self._parts}
        rows = {key: count for key, count in self.choice.rows.items() if key in self._parts}
        self.choice = Choice(self._tables_of(types), rows)

    def _tables_of(self, types: Collection[RowType]) -> dict[RowType, Index]:
        """The tables of some types."""
        return {t: index for t, index in self.choice.indices.items() if t in types}

    def decline(self, key: Hashable, candidate: Candidate) -> None:
        """Note that these values are not worth a row."""
        self._declined = {**self._declined, key: (candidate.type, candidate.seen.version)}

    def fill(self, key: Hashable, candidate: Candidate, count: int) -> FeatureCache | None:
        """Cache the first ``count`` rows of the order; None if the values change meanwhile."""
        cache = candidate.field.fill(candidate.seen, lambda: self._filled(key, candidate, count))
        if cache is not None:
            self._describe(key, candidate, cache)
            if isinstance(candidate.stored, NarrowFeature):
                candidate.stored.warn_of_tiny()
        return cache

    def _filled(self, key: Hashable, candidate: Candidate, count: int) -> FeatureCache:
        index = self.choice.indices[candidate.type]
        stored = candidate.stored
        ids = index.ids[:count]
        if self._link is None:
            num_nodes = self._num_rows[candidate.type]
            if self._grows(candidate.base):
                before = candidate.field.cached(candidate.seen.version)
                return growing_cache(stored, ids, slots=index.slots, before=before)
            return fill_cache(
                stored, ids, device=self._device, num_nodes=num_nodes, slots=index.slots
            )
        assert not isinstance(stored, DeviceFeature)
        transfer = self._link.transfer(key, candidate.seen.version)
        rows, filling = fill_rows(stored, ids, self._link, transfer)
        self.fillings.append(filling)
        return index.cache(rows)

    def caches_of(
        self, found: Mapping[Hashable, Candidate], link: Link | None
    ) -> dict[Hashable, FeatureCache] | None:
        """The rows for a peer's fields ``found``, by its keys; None if some were not considered."""
        caches = {}
        entries = list(self.entries.values())
        for key, candidate in found.items():
            stored = candidate.stored
            version = candidate.seen.version
            same = (
                entry.field.cached(version) for entry in entries if entry.type == candidate.type
            )
            cache = next((cache for cache in same if cache is not None), None)
            if cache is None:
                if not self.has_declined(candidate):
                    return None
                continue  # not worth a row here, so not there either
            # A new loader promises the current values, also after writes that torch does not
            # track. Only a comparison finds these.
            ids = self.choice.indices[candidate.type].ids
            if link is None:
                equal = holds(cache, stored, ids)
            else:
                assert not isinstance(stored, DeviceFeature)
                equal = holds_on_device(cache, stored, ids, link, link.transfer(key, version))
            if not equal:
                return None
            caches[key] = cache
        return caches

    def adopt(
        self,
        other: Holding,
        found: Mapping[Hashable, Candidate],
        caches: Mapping[Hashable, FeatureCache],
        *,
        same_workload: bool,
    ) -> None:
        """Take over another's cached rows of these fields.

        Its expected reads hold only for the same workload.
        """
        types = {found[key].type for key in caches}
        indices = {t: index for t, index in other.choice.indices.items() if t in types}
        self.choice = Choice(indices, {key: len(cache) for key, cache in caches.items()})
        self._ranked_here = same_workload
        self._declined = dict(other._declined)
        for key, cache in caches.items():
            self._use(key, found[key], cache)

    def _use(self, key: Hashable, candidate: Candidate, cache: FeatureCache) -> None:
        """Use rows that are already filled."""
        candidate.field.adopt(candidate.seen, cache)
        self._describe(key, candidate, cache)

    def _describe(self, key: Hashable, candidate: Candidate, cache: FeatureCache) -> None:
        """Record how many rows of a field are cached, and what they are expected to save."""
        seeds = self._outputs(candidate.type) if Role.OUTPUT in candidate.role else None
        expected: tuple[float | None, float | None] = (None, None)
        if self._ranked_here or Role.INPUT not in candidate.role:
            expected = self.choice.indices[candidate.type].expected(
                candidate.role, len(cache), seeds
            )
        base = candidate.base
        label = candidate.field.label
        complete = len(cache) == base.num_rows
        part = FieldPlan(
            label, len(cache), cache.row_nbytes, base.tier, base.row_bytes, *expected, complete
        )
        self._parts = {**self._parts, key: part}
