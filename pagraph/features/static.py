"""StaticCache: the rows of a loader's fields that are kept, under one budget for all vertex and edge types."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Hashable, Mapping

import torch

from ..cache.budget import Budget, rows_that_fit
from ..cache.memory import auto_budget
from ..cache.plan import CachePlans
from ..cache.sharing import Share
from ..cache.store import FeatureCache
from ..field_version import FieldVersion
from .candidate import Candidate, Role, RowType
from .choice import Choice, Outputs, Rank, choose
from .device import DeviceFeature
from .field import Field, Snapshot, can_cache
from .holding import Entry, Holding
from .host import HostFeature

__all__ = ["StaticCache"]

_log = logging.getLogger(__name__)


class StaticCache:
    """Decides which rows are cached, and keeps them of every field that a cache can serve.

    Of one vertex or edge type all fields are cached in one order, each as many rows as saves most bytes. Safe from any
    thread.

    Args:
        device: Where rows are cached.
        budget: What all rows and tables may take together.
        rank: Gives the rows of some types, most valuable first; called when rows of a type are first cached.
        num_rows: Vertex and edge types to their numbers of rows.
        outputs: Gives how often an epoch reads each row of a type as a seed.
        ranks_all: ``rank`` leaves no vertex out: it is not called where all of them have room.
        share: Caches whose ``share`` allows it, with equal budget, device and ``num_rows``, of the same tensors become
            one. None: no sharing.
        cache_dtype: What float32 and float64 rows are cached in; None: as they are.
    """

    _live: weakref.WeakSet[StaticCache] = weakref.WeakSet()
    _live_lock = threading.Lock()

    def __init__(
        self,
        *,
        device: torch.device,
        budget: Budget,
        rank: Rank,
        num_rows: Mapping[RowType, int],
        outputs: Outputs = lambda row_type: None,
        ranks_all: bool = False,
        share: Share | None = None,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        self._device = device
        self._budget = budget
        self._rank = rank
        self._num_rows = dict(num_rows)
        self._outputs = outputs
        self._ranks_all = ranks_all
        self._share = share
        self._cache_dtype = cache_dtype
        self._holding = Holding(device, num_rows, outputs, cache_dtype=cache_dtype)
        self._fill_lock = threading.Lock()
        self._stepped = self._decided = self._refilled = False
        self._room = self._nbytes = 0  # what choices are made under; the same with tables that come on top
        if share is not None:
            with self._live_lock:
                self._live.add(self)

    def add(self, key: Hashable, field: Field, row_type: RowType, role: Role) -> None:
        """Consider a field; one that comes after the decision gets the bytes that are left.

        Of a field that is known the roles are put together; that does not change what is cached already.
        """
        known = self._holding.entries.get(key)
        self._holding.entries[key] = Entry(field, row_type, role if known is None else known.role | role)

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

    def refill(self, rank: Rank) -> None:
        """Choose anew by another ranking, under the same number of bytes, and fill again; reads may go on.

        A read sees a field's old rows or its new ones, or none. In memory, fields are filled one after another, those
        that shrink first, each beside its old rows: at most one field (and the tables) more than the budget. On other
        devices all old rows that are not kept go first. What does not change is not filled again.

        Sets that took over this one's rows go on with them; from now on this set shares with no other.
        """
        with self._fill_lock:
            self._rank, self._refilled = rank, True
            found = self._holding.candidates() if self._decided else {}
            if found:
                self._install(found)
                self._log(", filled again")

    def cache_for(
        self, key: Hashable, seen: Snapshot, base: HostFeature | DeviceFeature
    ) -> tuple[FeatureCache | None, bool]:
        """Count a read of a field; returns its cache if that has these values, and whether a cache may serve it."""
        entry = self._holding.entries.get(key)
        if entry is None:
            return None, False
        if not can_cache(base, self._device, self._num_rows[entry.type]):
            entry.field.forget_other_than(seen)  # its memory would wait for the old values for ever
            return None, False
        cache, due = entry.field.cache_for(seen)
        if due and self._decided and self._fill_lock.acquire(blocking=False):
            try:
                cache = self._fill_late(key, self._holding.candidate(key, seen, base))
            finally:
                self._fill_lock.release()
        return cache, True

    def input_type(self, key: Hashable) -> RowType | None:
        """Whose rows a field has that is read for input nodes; None for others."""
        entry = self._holding.entries.get(key)
        return entry.type if entry is not None and entry.role & Role.INPUT else None

    def invalidate_shared(self, version: FieldVersion) -> None:
        """Forget the cached rows of these values in all caches that may share them."""
        with self._live_lock:
            others = [s for s in self._live if s is not self]
        for other in others:
            if self._share is None or other._share is None or self._share.kind != other._share.kind:
                continue
            for entry in list(other._holding.entries.values()):
                if entry.field.cached(version) is not None:
                    entry.field.invalidate()

    @property
    def plans(self) -> CachePlans:
        """What is cached of each vertex type, and of each edge type of which anything is."""
        return self._holding.plans(self._nbytes)

    # -- deciding; the caller of what follows holds the fill lock -----------------------------------------

    def _decide(self) -> None:
        """Choose what to cache and fill the cache, once there is a field that is worth it."""
        with self._fill_lock:
            found = {} if self._decided else self._holding.candidates()
            if not found:
                return
            widths = {t: sum(c.cached_bytes for c in found.values() if c.type == t) for t in self._num_rows}
            wanted = [(width, self._num_rows[t]) for t, width in widths.items() if width]
            self._room = self._budget.nbytes(wanted, free=lambda: auto_budget(self._device))
            self._install(found)
            self._log("")

    def _install(self, found: Mapping[Hashable, Candidate]) -> None:
        paid = self._budget.pays_tables
        choice = self._choose(self._room, found, pays_tables=paid)
        self._nbytes = self._room + (0 if paid else choice.table_bytes)
        self._decided = True
        self._holding.install(choice, found)

    def _choose(self, nbytes: int, found: Mapping[Hashable, Candidate], *, pays_tables: bool) -> Choice:
        return choose(
            nbytes,
            found,
            num_rows=self._num_rows,
            rank=self._rank,
            outputs=self._outputs,
            pays_tables=pays_tables,
            ranks_all=self._ranks_all,
        )

    def _fill_late(self, key: Hashable, candidate: Candidate) -> FeatureCache | None:
        """Cache a field that came, or settled, after the decision, in the bytes that are left."""
        holding, row_type = self._holding, candidate.type
        if holding.has_declined(candidate):
            return None
        left = self._nbytes - holding.used_without(key)
        index = holding.choice.indices.get(row_type)
        if index is None:
            more = self._choose(left, {key: candidate}, pays_tables=True)
            holding.choice = holding.choice.with_type(row_type, more)
            count = more.rows.get(key, 0)
        else:
            fit = rows_that_fit(left, [candidate.cached_bytes], self._num_rows[row_type], table=False)
            count = min(fit, len(index.ids))
        if not count:
            holding.decline(key, candidate)
            return None
        return holding.fill(key, candidate, count)

    # -- sharing ------------------------------------------------------------------------------------------

    def _take_over(self) -> bool:
        """Use another loader's cache that was made for all of this one's fields; whether there is one."""
        if self._share is None or self._decided or self._refilled:
            return False
        with self._live_lock:
            others = [s for s in self._live if s is not self]
        mine = (self._budget, self._device, self._num_rows, self._cache_dtype)
        with self._fill_lock:
            found = {} if self._decided else self._holding.candidates()
            for other in others:
                theirs = (other._budget, other._device, other._num_rows, other._cache_dtype)
                if found and mine == theirs and self._share.takes(other._share) and self._take_over_from(other, found):
                    return True
        return False

    def _take_over_from(self, other: StaticCache, found: Mapping[Hashable, Candidate]) -> bool:
        if not other._fill_lock.acquire(blocking=False):  # it is filling; two that wait for each other wait for ever
            return False
        try:
            caches = None if other._refilled else other._holding.caches_of(found)
            if not caches:
                return False
            self._room, self._nbytes, self._decided = other._room, other._nbytes, True
            same = self._share == other._share
            self._holding.adopt(other._holding, found, caches, same_workload=same)
            self._share = other._share  # that is what these rows were chosen for
        finally:
            other._fill_lock.release()
        self._log(", shared with another loader")
        return True

    def _log(self, remark: str) -> None:
        for plan in self.plans:
            _log.info("%r%s", plan, remark)
