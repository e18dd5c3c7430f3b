"""StaticCache: decides when rows are chosen and cached, under one budget for all types."""

from __future__ import annotations

import logging
import threading
import warnings
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial

import torch

from ..accelerator import OutOfMemory
from ..features.feature import PlainFeature
from ..features.field import Field, ReadPath, Snapshot, host_feature
from ..features.gpu.link import Link
from ..features.store import FeatureCache
from ..graph.fields import FieldValue, FieldVersion
from ..ranking.policy import Rank, RowType
from ..ranking.workload import Share
from ..system.budget import SLOT_BYTES, Budget, rows_that_fit
from ..system.threads import fork_lock, try_lock
from ..system.units import bytes_text
from .choice import Candidate, Choice, Outputs, Role, choose, memoized
from .holding import Entry, Holding
from .plan import CachePlans, auto_budget, check_budget, room_for, wait_until_gone, warn_of_memory

_log = logging.getLogger(__name__)


class StaticCache:
    """Cached rows of all fields that a cache can serve. Thread-safe.

    For the arguments see ``FieldSet``. ``num_rows`` has the sizes of vertex and edge types.
    ``link`` has the transfer paths to the accelerator that caches rows; None: host memory does.
    """

    # Lock order:
    #
    #     _shrinking   one per process: a cache shrinks to make room for a batch
    #     _fill_lock   one per cache: its choice and its rows change
    #     _live_lock   one per process: the set of caches that may share rows; held briefly
    #
    # A thread that holds a fill lock never waits for another cache's: `_take_over_from` gives up if
    # that one is busy, and only the thread that holds `_shrinking` takes several. So there is no
    # deadlock. Reads take none of these: they see a field's old rows, its new ones, or none.

    # All caches that may share their rows.
    _live: weakref.WeakSet[StaticCache] = weakref.WeakSet()
    _live_lock = threading.Lock()
    _shrinking = threading.Lock()

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
        link: Link | None = None,
    ) -> None:
        if link is not None:
            check_budget(budget, link.accelerator)
        self._device = device
        self._budget = budget
        self._rank = rank
        self._num_rows = dict(num_rows)
        self._outputs = outputs
        self._ranks_all = ranks_all
        self._share = share
        self._cache_dtype = cache_dtype
        self._link = link
        self._accelerator = None if link is None else link.accelerator
        self._holding = Holding(device, num_rows, outputs, cache_dtype=cache_dtype, link=link)
        # A fork lock: another thread may hold it for long, and a child forked meanwhile could never
        # take a plain lock.
        self._fill_lock = fork_lock()
        # A training step is done, so its memory and the fields that it reads are known.
        self._stepped = False
        # A choice is made. Later fields get the bytes that it leaves.
        self._decided = False
        # Refilled by another ranking, so no longer shareable.
        self._refilled = False
        # Host memory that "auto" may take; None: a share of free memory.
        self.allowed: int | None = None
        # Bytes of the accelerator to leave for batches, on top of the reserve.
        self._batches_bytes = 0
        # Budget of the choice.
        self._room = 0
        # Bytes of rows and tables. Exceeds the room if the budget does not pay for tables.
        self._nbytes = 0
        if share is not None:
            with self._live_lock:
                self._live.add(self)

    def add(self, key: Hashable, field: Field, row_type: RowType, role: Role) -> None:
        """Add a field, or a role of one. After the decision, it gets the bytes left over."""
        known = self._holding.entries.get(key)
        if known is not None:
            role |= known.role
        self._holding.entries[key] = Entry(field, row_type, role)

    def let_grow(self, grows: bool) -> None:
        """Set whether windows fill the cache from now on, rather than a separate read."""
        self._holding.grows = grows

    def prepare(self) -> None:
        """Fill the cache if its size and fields are known, or take over another loader's.

        Call before an epoch. A cache that windows fill waits for the first step, so that ranking
        overlaps with reads.
        """
        if not self._take_over() and (
            self._stepped or not (self._budget.is_auto or self._holding.will_grow)
        ):
            self._decide()

    def after_first_step(self, batches_bytes: int = 0) -> None:
        """Fill the cache if :meth:`prepare` could not. Call after the first training step.

        Only then is the memory of a step known ("auto"), and which fields are read if none were
        given. ``batches_bytes`` of an accelerator stay free for batches.
        """
        self._stepped = True
        self._batches_bytes = batches_bytes
        self.prepare()

    def refill(self, rank: Rank) -> None:
        """Refill the cache by another ranking, within the same bytes; reads may go on.

        A read sees a field's old rows, its new ones, or none. Unchanged rows are kept. In memory,
        fields are filled one by one, those that shrink first, while their old rows stay. So the
        cache exceeds the budget by at most one field and the tables. On other devices, old rows are
        released first.

        Sets that took over this one's rows keep them. This set no longer shares.
        """
        with self._fill_lock:
            self._rank = rank
            self._refilled = True
            found = self._holding.candidates() if self._decided else {}
            if found:
                self._install(found, ", filled again")

    def shrink(self) -> bool:
        """Drop about half of the rows on an accelerator, those read least; False without any.

        All rows are released before the remaining ones are filled again, so the peak does not grow.
        Sets that share the rows follow. Later fillings keep to the new size. A thread that calls
        during another shrinking waits for it and gets True, since concurrent batches run short of
        memory together.
        """
        if self._link is None:
            return False
        held: list[bool] = []
        try:
            if not try_lock(self._shrinking, held):
                # The shrinking for another batch makes room for this one too.
                with self._shrinking:
                    return True
            # Peers may hold the same rows, which are freed only when all release them.
            peers = [
                other for other in self._others() if other._accelerator is self._link.accelerator
            ]
            return self._shrink_locked(self._link, peers, [self, *peers])
        finally:
            if held:
                self._shrinking.release()

    def _shrink_locked(
        self, link: Link, peers: Sequence[StaticCache], unlocked: Sequence[StaticCache]
    ) -> bool:
        """:meth:`_shrink` once the fill locks of ``unlocked`` are held."""
        if not unlocked:
            return self._shrink(link, peers)
        # By `with`, and so one within the other: in an ExitStack, which is Python, Ctrl-C could
        # leave a lock held.
        with unlocked[0]._fill_lock:
            return self._shrink_locked(link, peers, unlocked[1:])

    def _shrink(self, link: Link, peers: Sequence[StaticCache]) -> bool:
        counts, taken = self._halve()
        if not taken:
            return False
        common = [
            (p, theirs, key) for p in peers for theirs, key in p._holding.same_rows(self._holding)
        ]
        leaving = self._holding.release()
        for peer, theirs, _ in common:
            peer._holding.release([theirs])
            # A later filling of the peer must not take the memory back.
            peer._room = min(self._room, peer._room)
            peer._nbytes = min(self._nbytes, peer._nbytes)
        wait_until_gone(leaving)  # reads in flight still use the old rows
        link.accelerator.release_memory()
        # A field may have been deleted or written meanwhile.
        found = self._holding.candidates()
        counts = {key: count for key, count in counts.items() if key in found}
        # The device may have less memory than it reports: halve until the rows fit, or none stay.
        while counts and not self._try_to(partial(self._holding.fill_first, counts, found)):
            wait_until_gone(self._holding.release())  # reads may already use some of it
            self._holding.fillings.clear()
            link.accelerator.release_memory()
            counts = {key: count // 2 for key, count in counts.items() if count > 1}
        # Peers share the refilled rows, unless they see other values by now.
        held = self._holding.held
        for peer, theirs, key in common:
            candidate = peer._holding.candidates().get(theirs)
            if (
                key in held
                and candidate is not None
                and candidate.seen.version == found[key].seen.version
            ):
                peer._holding.take(theirs, candidate, held[key].rows)
        for cache in (self, *(peer for peer, _, _ in common)):
            cache._holding.prune()
        self._log(", made smaller")
        return True

    def _halve(self) -> tuple[dict[Hashable, int], int]:
        """Halve the room; returns the rows of each field that stay, and the bytes taken so far."""
        held = self._holding.held
        tables = self._holding.choice.table_bytes  # these do not shrink
        rows = sum(cache.row_nbytes for cache in held.values())
        self._nbytes = (rows + tables) // 2
        self._room = self._nbytes if self._budget.pays_tables else max(0, self._nbytes - tables)
        left = max(0, self._nbytes - tables)
        counts = {key: len(cache) * left // max(1, rows) for key, cache in held.items()}
        return {key: count for key, count in counts.items() if count}, rows + tables

    def _others(self) -> list[StaticCache]:
        with self._live_lock:
            return [other for other in self._live if other is not self]

    def can_serve(self, field: Field, base: PlainFeature) -> bool:
        """Whether a cache would save anything for a field's current values."""
        entry = next(
            (entry for entry in self._holding.entries.values() if entry.field is field), None
        )
        return entry is not None and self._holding.can_cache(entry.type, base)

    def fill_late(self, key: Hashable, path: ReadPath, values: FieldValue) -> None:
        """Cache a field that was added or settled after the decision, in the bytes left over.

        Does nothing if another thread fills.
        """
        # Not blocking: this runs inside a read, which goes on without a cache. `declined` keeps a
        # field that is not worth a row from asking again under the same choice.
        choice = self._holding.choice
        if not self._decided or path.declined is choice:
            return
        held: list[bool] = []
        try:
            if not try_lock(self._fill_lock, held):
                return
            base = host_feature(values, self._device)
            seen = Snapshot(values, path.version, path.generation)
            if self._try_to_fill_late(key, self._holding.candidate(key, seen, base)) is None:
                path.declined = self._holding.choice
        finally:
            if held:
                self._fill_lock.release()

    def input_type(self, key: Hashable) -> RowType | None:
        """The type of a field that is read for inputs; None for others."""
        entry = self._holding.entries.get(key)
        return entry.type if entry is not None and entry.role & Role.INPUT else None

    def invalidate_shared(self, version: FieldVersion) -> None:
        """Drop the cached rows of these values in all caches that may share them."""
        for other in self._others():
            if self._share is None or other._share is None or self._share.kind != other._share.kind:
                continue
            for entry in list(other._holding.entries.values()):
                if entry.field.cached(version) is not None:
                    entry.field.invalidate()

    @property
    def plans(self) -> CachePlans:
        """A plan for each vertex type and each cached edge type, or why nothing is cached."""
        reason = "" if self._holding.held else self._why_empty()
        return self._holding.plans(self._nbytes, reason)

    def _why_empty(self) -> str:
        """The reason why nothing is cached now."""
        if not self._holding.entries:
            return "as no field is prefetched"
        found = self._holding.candidates()
        if not found and self._link is not None:
            return "as no field with a row per vertex is on the CPU"
        if not found:
            return (
                "as no field is in a file: on the CPU only rows of files are cached, on a GPU "
                "rows in memory, too"
            )
        if not self._decided:
            return (
                f"until {'a training step' if self._budget.is_auto else 'the first epoch'} has "
                "shown what is read"
            )
        least = self._least_bytes(found)
        return (
            f"as one row takes {least} bytes"
            if self._room < least
            else "as no row is expected to be read"
        )

    def _least_bytes(self, found: Mapping[Hashable, Candidate]) -> int:
        """Bytes of the smallest row of any field, with its table if the budget pays for tables."""
        tables = {
            t: SLOT_BYTES * n if self._budget.pays_tables else 0 for t, n in self._num_rows.items()
        }
        return min(tables[c.type] + c.cached_bytes for c in found.values())

    # -- deciding: all but _decide need the fill lock

    def _decide(self) -> None:
        """Choose rows and fill the cache, once a field is worth caching."""
        with self._fill_lock:
            found = {} if self._decided else self._holding.candidates()
            if not found:
                return
            widths = {
                t: sum(c.cached_bytes for c in found.values() if c.type == t)
                for t in self._num_rows
            }
            wanted = [(width, self._num_rows[t]) for t, width in widths.items() if width]
            if self._link is None:
                allowed = self.allowed
                free = partial(auto_budget, self._device) if allowed is None else lambda: allowed
                self._room = self._budget.nbytes(wanted, free=free)
            else:
                accelerator = self._link.accelerator
                self._room = room_for(self._budget, wanted, accelerator, self._batches_bytes)
            self._install(found)
            self._warn_of_too_little(found, wanted)

    def _warn_of_too_little(
        self, found: Mapping[Hashable, Candidate], wanted: Sequence[tuple[int, int]]
    ) -> None:
        """Warn of a budget that is smaller than any row: ``cache=1`` is one byte."""
        budget = self._budget
        least = self._least_bytes(found)
        if budget.is_auto or budget.nbytes(wanted, free=lambda: 0) >= least:
            return
        given = (
            f"{budget.limit} bytes" if budget.share is None else f"{budget.share:.4g} of the rows"
        )
        taken = "one row and the index take" if budget.pays_tables else "one row takes"
        warnings.warn(
            f"a cache of {given} is too small: {taken} {least} bytes. Use a larger size, 1.0 to "
            "cache all rows, or 0 to disable the cache",
            RuntimeWarning,
            stacklevel=2,
        )

    def _install(self, found: Mapping[Hashable, Candidate], remark: str = "") -> None:
        """Choose rows within the room and fill the cache; with less if device memory runs out."""
        wanted = self._room
        rank = memoized(self._rank)
        while True:
            choice = self._choose(self._room, found, rank, pays_tables=self._budget.pays_tables)
            self._nbytes = self._room + (0 if self._budget.pays_tables else choice.table_bytes)
            self._decided = True
            if self._try_to(partial(self._holding.install, choice, found)):
                break
            assert self._link is not None
            wait_until_gone(self._holding.clear())
            self._link.accelerator.release_memory()
            # Halving ends after at most about 40 rounds, with no rows.
            self._room = min(self._room // 2, self._link.accelerator.free_bytes()[0])
        if self._room < wanted:
            if not choice.rows:
                self._room = 0
                self._nbytes = 0
            warn_of_memory(self._device, self._nbytes)
        self._log(remark)

    def _try_to(self, fill: Callable[[], None]) -> bool:
        """Call ``fill``; whether the device had memory for it."""
        try:
            fill()
        except OutOfMemory:
            return False
        return True

    def _choose(
        self, nbytes: int, found: Mapping[Hashable, Candidate], rank: Rank, *, pays_tables: bool
    ) -> Choice:
        return choose(
            nbytes,
            found,
            num_rows=self._num_rows,
            rank=rank,
            outputs=self._outputs,
            pays_tables=pays_tables,
            ranks_all=self._ranks_all,
        )

    def _fill_late(self, key: Hashable, candidate: Candidate) -> FeatureCache | None:
        """Cache a field in the bytes left over; None if it is not worth a row."""
        holding = self._holding
        row_type = candidate.type
        if holding.has_declined(candidate):
            return None
        left = self._nbytes - holding.used_without(key)
        index = holding.choice.indices.get(row_type)
        if index is None:
            # The first field of its type: rank it now, and pay its table from what is left.
            more = self._choose(left, {key: candidate}, self._rank, pays_tables=True)
            holding.add_type(row_type, more)
            count = more.rows.get(key, 0)
        else:
            # All fields of a type are cached for the same vertices; their table is already paid.
            fit = rows_that_fit(
                left, [candidate.cached_bytes], self._num_rows[row_type], table=False
            )
            count = min(fit, len(index.ids))
        if not count:
            holding.decline(key, candidate)
            return None
        return holding.fill(key, candidate, count)

    def _try_to_fill_late(self, key: Hashable, candidate: Candidate) -> FeatureCache | None:
        """:meth:`_fill_late`, halving the bytes while device memory runs out."""
        if self._link is None:
            return self._fill_late(key, candidate)
        before = self._nbytes
        while True:
            try:
                cache = self._fill_late(key, candidate)
                break
            except OutOfMemory:
                left = self._nbytes - self._holding.used_without(key)
            # Half of what is left, and at least a byte: so this ends.
            self._nbytes -= max(1, left - left // 2)
            self._link.accelerator.release_memory()
        self._holding.fillings.clear()  # timing it would make this read wait
        if self._nbytes < before:
            self._room = max(0, self._room - (before - self._nbytes))
            warn_of_memory(self._device, self._nbytes)
        return cache

    # -- sharing

    def _take_over(self) -> bool:
        """Use another loader's cache for all of this one's fields; whether there is one."""
        if self._share is None or self._decided or self._refilled:
            return False
        others = self._others()
        mine = self._kind
        with self._fill_lock:
            # Checked again under the lock: another thread may have decided.
            found = {} if self._decided else self._holding.candidates()
            for other in others:
                alike = found and mine == other._kind and self._share.takes(other._share)
                if alike and self._take_over_from(other, found):
                    return True
        return False

    @property
    def _kind(self) -> tuple[object, ...]:
        """Equal for caches that may share rows."""
        return self._budget, self._device, self._accelerator, self._num_rows, self._cache_dtype

    def _take_over_from(self, other: StaticCache, found: Mapping[Hashable, Candidate]) -> bool:
        held: list[bool] = []
        try:
            # It may be busy filling. Two caches that wait for each other's fill locks would
            # deadlock.
            if not try_lock(other._fill_lock, held):
                return False
            caches = None if other._refilled else other._holding.caches_of(found, self._link)
            if not caches:
                return False
            self._room = other._room
            self._nbytes = other._nbytes
            self._decided = True
            same = self._share == other._share
            self._holding.adopt(other._holding, found, caches, same_workload=same)
            # A third loader must be compared with the workload that these rows were chosen for.
            self._share = other._share
        except OutOfMemory:  # no room to compare the values
            return False
        finally:
            if held:
                other._fill_lock.release()
        self._log(", shared with another loader")
        return True

    def _log(self, remark: str) -> None:
        filled = sum(filling.nbytes for filling in self._holding.fillings)
        if filled:
            seconds = sum(filling.seconds() for filling in self._holding.fillings)
            self._holding.fillings.clear()
            remark += (
                f", {bytes_text(filled)} in {seconds:.3g} s, "
                f"{filled / max(seconds, 1e-9) * 1e-9:.3g} GB/s"
            )
        for plan in self.plans:
            _log.info("%r%s", plan, remark)
