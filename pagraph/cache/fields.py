"""FieldSet: all fields that a loader reads, with one cache for those that are worth caching."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..accelerator import Accelerator, Event, OutOfMemory, Stream, accelerator_for, with_room
from ..features.feature import DeviceFeature, read_each
from ..features.field import (
    Field,
    FieldRows,
    Read,
    Reading,
    ReadPath,
    Snapshot,
    host_feature,
    row_reader,
)
from ..features.gpu.accelerated import AcceleratedFeature, ReadGroup
from ..features.gpu.link import Link
from ..features.gpu.reachable import Reach
from ..features.gpu.transfer import Transfer, check_mode
from ..features.narrow import stored_as
from ..features.padding import Padding
from ..features.store import Hits, read_counted, read_padded
from ..graph.fields import FieldValue, FieldVersion
from ..graph.graph import NODE_TYPE
from ..ranking.policy import Rank, RowType
from ..ranking.workload import FirstEpoch, Share
from ..stats.reads import CacheStats, CountedRead, PendingRead, ReadCounters, ReadObserver
from ..system.budget import Budget
from ..system.buffers import BufferPool
from .choice import Outputs, Role
from .plan import CachePlan, CachePlans
from .static import StaticCache
from .windows import Windows

T = TypeVar("T")


class FieldReach(NamedTuple):
    """A field as a recorded kernel reads it. It holds no cached rows: a cache that gives way would
    wait for a batch on its way, though once it is enqueued the stream's order is enough.

    Attributes:
        field: The field.
        version, generation: Of the values that are read, see ``FieldRows``.
        counted: What does not change from read to read of ``ReadCounters.record``: the tier, the
            bytes of a row, and whether a cache may serve the field.
        reach: Addresses and layout.
        missed: Share of rows that the cache has not, of late.
        held: Holds the rows that are not cached; to be kept until the kernel is through.
    """

    field: Field
    version: FieldVersion
    generation: int
    counted: tuple[str, int, bool]
    reach: Reach
    missed: float
    held: object


class _Begun(NamedTuple):
    """A read that an accelerator has been told to do.

    Attributes:
        label: Of the field.
        path, feature: How it is read.
        tensor: The rows.
        counted: Their hits, or where the group counts them.
        held: Holds the values' memory: another thread may replace the field meanwhile.
    """

    label: Hashable
    path: ReadPath
    feature: AcceleratedFeature
    tensor: Tensor
    counted: Hits | slice
    held: object


class FieldSet:
    """Rows of named fields, from a static cache where it holds them; always the present values.

    On the CPU, fields of memory-mapped files are cached in memory; for another device, fields in
    host memory or in files are cached on it. One budget serves all fields of all types, where it
    saves most bytes; within a type rows are cached in one order. A field that is replaced or
    written is read from its source until it has settled.

    Args:
        sources: Field key to a function that gives the field's present values. Called at every
            read; keys may come and go.
        device: Where rows are delivered, and cached.
        budget: Size of the cache. None: no cache.
        rank: Checked rankings of the rows of some types; called when the cache is filled.
        pool_of: Memory for a field's rows that are delivered on the CPU.
        num_nodes: Number of vertices; for several types, a mapping from vertex and edge types to
            numbers of rows.
        outputs: Reads an epoch of each row of a type as a seed, shape ``(num_rows,)``; None where
            they are not known. Default: of no type.
        ranks_all: ``rank`` leaves no vertex out: it is not called where all of them have room.
        first_epoch: Counts reads until it has a ranking, by which the cache is then filled again.
        share: Sets whose ``share`` allows it, with equal budget and device, that read the same
            tensors use one cache: the train and the validation loader of a graph, say. None: no
            sharing.
        cache_dtype: float16, bfloat16 or int8, the form of cached rows of float32 and float64
            fields. All rows of fields that the cache may serve are rounded alike, cached or not.
            None: as they are.
        accelerator: Delivers on ``device``. None: that of the device, if it is a CUDA device.
        transfer: Path of missed rows to an accelerator: "auto", "zero-copy" or "staging", see
            ``Transfer``.

    Attributes:
        accelerator: The accelerator that delivers rows; None on the CPU.

    Raises:
        ValueError: A budget above what the accelerator has; ``transfer`` is none of the three.
    """

    def __init__(
        self,
        sources: Mapping[Any, Callable[[], FieldValue]],
        *,
        device: torch.device,
        budget: Budget | None,
        rank: Rank,
        pool_of: Callable[[Any], BufferPool],
        num_nodes: int | Mapping[RowType, int],
        outputs: Outputs = lambda row_type: None,
        ranks_all: bool = False,
        first_epoch: FirstEpoch | None = None,
        share: Share | None = None,
        cache_dtype: torch.dtype | None = None,
        accelerator: Accelerator | None = None,
        transfer: str = "auto",
    ) -> None:
        if device.type == "cuda" and device.index is None:
            # Each thread has a current device of its own, and reads come from any thread.
            device = torch.device("cuda", torch.cuda.current_device())
        accelerator = accelerator_for(device) if accelerator is None else accelerator
        check_mode(transfer)
        self.accelerator = accelerator
        self._link = None if accelerator is None else Link(accelerator, transfer)
        if self._link is not None:
            # Not at exit: the driver may be gone by then, and unpins all memory itself.
            weakref.finalize(self, self._link.close).atexit = False
        self._device = device
        self._pool_of = pool_of
        self._cache_dtype = cache_dtype
        self._num_rows: dict[RowType, int] = (
            {NODE_TYPE: num_nodes} if isinstance(num_nodes, int) else dict(num_nodes)
        )
        self._fields: dict[Hashable, Field] = {}
        self._storages: dict[Hashable, Callable[[Tensor], Tensor]] = {}
        self._roles: dict[Hashable, tuple[RowType | None, Role]] = {}
        # Guards `_fields` and `_roles` where a field is added or all are listed. Reads look one key
        # up without it: a dictionary's look-up is atomic, and an entry is replaced as a whole.
        self._lock = threading.Lock()
        self._counters = ReadCounters()
        self._first_epoch = first_epoch
        # Bytes of the accelerator that batches of one launch take, or will.
        self.batches_bytes: int = 0
        self._static: StaticCache | None = None
        if budget is not None:
            self._static = StaticCache(
                device=device if self._link is not None else torch.device("cpu"),
                budget=budget,
                rank=rank,
                num_rows=self._num_rows,
                outputs=outputs,
                ranks_all=ranks_all,
                share=share,
                cache_dtype=cache_dtype,
                link=self._link,
            )
        for key, source in sources.items():
            self.add_source(key, source)

    def add_source(
        self,
        key: Hashable,
        source: Callable[[], FieldValue],
        *,
        row_type: RowType | None = NODE_TYPE,
        role: Role = Role.INPUT,
        label: Hashable = None,
    ) -> None:
        """Add or replace a field; one that comes after the cache was filled gets the bytes that are
        left.

        Args:
            key: The field.
            source: Gives its present tensor or rows by reference, or raises KeyError.
            row_type: Its vertex or edge type. Fields of None, and of types that ``num_nodes`` does
                not name, are never cached.
            role: Which rows of a batch are read; another one is added to those that are known.
            label: Its name in statistics and plans; fields may share one. Default: the key.
        """
        with self._lock:
            field = self._fields.get(key)
            if field is None:
                field = self._fields[key] = Field(key, source, label, self._pool_of(key))
            field.source = source
            before = self._roles.get(key)
            self._roles[key] = row_type, role if before is None else before[1] | role
        if self._static is not None and row_type is not None and row_type in self._num_rows:
            self._static.add(key, field, row_type, role)

    def add_storage(self, key: Hashable, fetch: Callable[[Tensor], Tensor]) -> None:
        """Read a key by a user's function of the ids, which is no field: neither cached, counted,
        nor read again."""
        self._storages[key] = fetch

    def read(
        self,
        key: Hashable,
        ids: Tensor,
        bounds: Sequence[int] | None = None,
        padding: Padding | None = None,
        there: Tensor | None = None,
        values: FieldValue | None = None,
        after: Event | None = None,
        windows: Windows | None = None,
    ) -> FieldRows:
        """The rows of ``ids``; safe from any thread.

        With an accelerator its stream "reading" does the work, and this returns before it has been
        done.

        Args:
            key: The field.
            ids, bounds, padding, there, values: See :class:`Read`.
            after: The event that ids on the accelerator wait for, if any.
            windows: Rows on disk that were read for several batches, to be taken from where they
                have these.

        Raises:
            KeyError: There is no such field now.
            IndexError: An id is out of range.
            RuntimeError: The field requires gradients.
            ValueError: A value is too large for ``cache_dtype``, the field is on another device, or
                its dtype can hold no label of padding.
            OutOfMemory: The accelerator has no room for the rows.
        """
        fetch = self._storages.get(key)
        if fetch is not None:
            return self._fetched(fetch, ids)
        read = Read(key, ids, bounds, padding, there, values)
        if self._link is not None:
            (rows,) = self._read_on_accelerator(self._link, [read], after)
            assert rows is not None
            return rows
        begin = time.perf_counter()
        field = self._fields[key]
        return self._read_here(read, field, field.path(self._resolve, values), begin, windows)

    def reach(self, key: Hashable) -> tuple[FieldReach, object] | None:
        """How a recorded kernel reads a field on the accelerator now, and what holds the cached
        rows; to be kept until the kernel is enqueued: their memory may be another's then.

        None: not by such a kernel, or by none before :meth:`read` has decided, counted or cached
        something.
        """
        field = self._fields.get(key)
        if field is None:
            return None
        try:
            held, values, path = field.path(self._resolve)
        except (KeyError, RuntimeError):
            return None
        if path.cacheable:
            undecided = path.cache is None and path.declined is None and field.is_due
            if undecided or self._first_epoch is not None:
                return None
        feature = path.accelerated
        if feature is None and isinstance(path.base, DeviceFeature) and self._link is not None:
            # Its path is not kept: it would keep the user's tensor alive.
            feature = self._link.feature(key, path)
        reached = None if feature is None else feature.reach()
        if reached is None:
            return None
        reach, rows = reached
        counted = path.tier, path.row_bytes, path.cacheable
        seen = path.version, path.generation
        return FieldReach(field, *seen, counted, reach, feature.missed, (held, rows)), feature

    def count_each(
        self, reads: Sequence[tuple[FieldReach, Sequence[int], Sequence[int]]], seconds: float
    ) -> None:
        """Count reads that are done, each in so many seconds: the field, its hits, and the ends of
        the hops."""
        counted = []
        for read, hits, bounds in reads:
            tier, row_bytes, cacheable = read.counted
            of_field = bounds[-1], hits, row_bytes, cacheable, seconds, bounds
            counted.append(CountedRead(read.field.label, tier, *of_field))
        self._counters.record_each(counted)

    def read_each(
        self, reads: Sequence[Read], after: Event | None = None, windows: Windows | None = None
    ) -> list[FieldRows | None]:
        """:meth:`read` of each; None for a field that cannot be read now.

        Such a field may have been deleted only to be set again: that is an error once its rows are
        needed, in :meth:`current_each`. Rows in memory that no cache serves are copied in one call
        for all fields: for 2,700 rows of each of 5 attributes that took 0.24 ms for 0.32. An
        accelerator gets the ids of all reads in one copy.
        """
        if not reads:
            return []
        if self._link is not None and not self._counters.is_traced and not self._storages:
            return self._read_on_accelerator(self._link, reads, after, skips=True)
        if windows is None and len(reads) > 1 and self._copies_together:
            return self._read_together(reads)
        rows: list[FieldRows | None] = []
        for read in reads:
            try:
                rows.append(self.read(*read, after, windows))
            except OutOfMemory:  # a RuntimeError too; `with_room` handles it
                raise
            except (KeyError, RuntimeError):
                rows.append(None)
        return rows

    @property
    def _copies_together(self) -> bool:
        """Whether one call may copy several fields; not while a trace shows each field's read."""
        return self._link is None and self._device.type == "cpu" and not self._counters.is_traced

    def _read_together(self, reads: Sequence[Read]) -> list[FieldRows | None]:
        """:meth:`read_each` on the CPU: plain rows in memory are copied in one call, others each by
        itself."""
        begin = time.perf_counter()
        rows: list[FieldRows | None] = [None] * len(reads)
        # Readings hold the values' memory until all of it was copied.
        plain: list[tuple[int, Field, Reading]] = []
        others: list[tuple[int, Field, Reading]] = []
        for place, read in enumerate(reads):
            field = self._fields.get(read.key)
            if field is None:
                (rows[place],) = self.read_each([read])
                continue
            try:
                reading = field.path(self._resolve, read.values)
            except (KeyError, RuntimeError):
                continue
            is_plain = reading[2].plain is not None and read.ids.dtype == reads[0].ids.dtype
            (plain if is_plain else others).append((place, field, reading))
        if len(plain) < 2:  # one call for one field saves nothing
            others += plain
            plain = []
        if plain:
            wanted: Any = [
                (reading[2].plain, reads[place].ids, field.pool, reads[place].padding)
                for place, field, reading in plain
            ]
            copied = read_each(wanted)
            # The call's time is divided by bytes: each field's own cannot be seen from here.
            nbytes = sum([tensor.nbytes for tensor in copied])
            per_byte = (time.perf_counter() - begin) / max(1, nbytes)
            counted = []
            for (place, field, (_, _, path)), tensor in zip(plain, copied, strict=True):
                count = reads[place].ids.shape[0]
                width = path.row_bytes
                seconds = per_byte * width * count
                of_read = count, None, width, False, seconds, reads[place].bounds
                counted.append(CountedRead(field.label, path.tier, *of_read))
                rows[place] = FieldRows(tensor, path.version, path.generation)
            self._counters.record_each(counted)
        for place, field, reading in others:
            begin = time.perf_counter()
            rows[place] = self._read_here(reads[place], field, reading, begin, None)
        return rows

    def current_each(
        self, reads: Sequence[Read], rows: Sequence[FieldRows | None], after: Event | None = None
    ) -> list[FieldRows]:
        """The rows as they are now: those of fields that were replaced or written since are read
        again.

        Raises:
            KeyError: There is no such field now.
        """
        current = []
        for read, known in zip(reads, rows, strict=True):
            # As is_current has it, without the call: this is done for each field of each batch.
            if known is None or (
                known.version is not None
                and not self._fields[read.key].is_current(known.version, known.generation)
            ):
                now = read._replace(values=None)
                known = self.with_room(partial(self.read, *now, after))
            current.append(known)
        return current

    def _fetched(self, fetch: Callable[[Tensor], Tensor], ids: Tensor) -> FieldRows:
        """Rows of a user's storage, which works on the calling thread's stream."""
        rows = fetch(ids)
        if self._link is None:
            return FieldRows(rows, None, 0)
        accelerator = self._link.accelerator
        return FieldRows(rows, None, 0, None, accelerator.current_stream.record(), accelerator)

    def _read_here(
        self,
        read: Read,
        field: Field,
        reading: Reading,
        begin: float,
        windows: Windows | None,
    ) -> FieldRows:
        """:meth:`read` without an accelerator, begun at ``begin``; ``reading`` holds the memory
        that the path reads."""
        key, ids, bounds, padding, *_ = read
        held, values, path = reading
        if path.cacheable and path.cache is None and field.is_due:
            held, values, path = self._filled_late(key, field, (held, values, path))
        found = None if windows is None else windows.read(key, path, ids, field.pool, bounds)
        if found is None and padding is not None:
            found = read_padded(path.feature, ids, field.pool, padding)
        elif found is None:
            found = read_counted(path.feature, ids, field.pool, bounds)
        elif padding is not None:
            found = padding.added_to(found[0]), found[1]
        tensor, hits = found
        if tensor.device != self._device:
            tensor = tensor.to(self._device)
        # Only now: reading has checked the ids, which the count indexes by.
        if path.cacheable and self._first_epoch is not None:
            self._count_first(key, ids, bounds)
        seconds = time.perf_counter() - begin
        counted = ids.shape[0], hits, path.row_bytes, path.cacheable, seconds, bounds
        self._counters.record_each([CountedRead(field.label, path.tier, *counted)])
        # The values' memory was held until here: another thread may have replaced the field, and a
        # late filling has resolved another path.
        del held
        return FieldRows(tensor, path.version, path.generation)

    def _resolve(self, field: Field, seen: Snapshot) -> ReadPath:
        """The read path of a new version of a field."""
        # Owned on an accelerator: reads go on after this returns, and need memory that stays.
        base = host_feature(seen.tensor, self._device, owned=self._link is not None)
        cacheable = self._static is not None and self._static.can_serve(field, base)
        cache = field.begin(seen, cacheable=cacheable)
        stored = stored_as(base, self._cache_dtype, field.label) if cacheable else base
        return ReadPath(seen, base, stored, cache, cacheable)

    def _filled_late(self, key: Hashable, field: Field, now: Reading) -> Reading:
        """The path of a field that has settled, with a cache if it is worth one."""
        assert self._static is not None
        self._static.fill_late(key, now[2], now[1])
        return field.path(self._resolve) if field.is_cached else now

    def _read_on_accelerator(
        self, link: Link, reads: Sequence[Read], after: Event | None, *, skips: bool = False
    ) -> list[FieldRows | None]:
        """:meth:`read` of each on an accelerator, one after the other; with ``skips`` None for a
        field that cannot be read now."""
        begin = time.perf_counter()
        caller = link.accelerator.current_stream
        known: list[_Begun | None] = []
        with link.stream.use():
            if after is not None:
                link.stream.wait_for(after)
            asked = [(read.ids, read.there) for read in reads]
            parts = sum(1 if read.bounds is None else len(read.bounds) for read in reads)
            group = ReadGroup(link.accelerator, link.ring, asked, parts)
            begun = link.stream.record()
            for place, read in enumerate(reads):
                try:
                    known.append(self._begin(link, caller, group, place, read))
                except OutOfMemory:  # a RuntimeError too; `with_room` handles it
                    raise
                except (KeyError, RuntimeError):
                    if not skips:
                        raise
                    known.append(None)
            ready = group.end()
        rows: list[FieldRows | None] = []
        pending = []
        # The device's time is divided by bytes: when it was through with each cannot be seen.
        total = sum([each.tensor.nbytes for each in known if each is not None])
        for place, each in enumerate(known):
            if each is None:
                rows.append(None)
                continue
            path = each.path
            hits = each.feature.finish(group, place, each.counted)
            counted = group.count(place), hits, path.row_bytes, path.cacheable, begun, ready
            share = each.tensor.nbytes / total if total else 1 / len(known)
            pending.append(PendingRead(each.label, path.tier, *counted, reads[place].bounds, share))
            of_version = path.version, path.generation
            rows.append(FieldRows(each.tensor, *of_version, begun, ready, link.accelerator))
        self._counters.record_pending(pending, time.perf_counter() - begin)
        return rows

    def _begin(
        self, link: Link, caller: Stream, group: ReadGroup, place: int, read: Read
    ) -> _Begun:
        """Begin a read on an accelerator, on the stream that is in use."""
        key = read.key
        field = self._fields[key]
        try:
            held, values, path = field.path(self._resolve, read.values)
        except KeyError:
            link.forget(key)
            raise
        if path.cacheable and path.cache is None and field.is_due:
            held, values, path = self._filled_late(key, field, (held, values, path))
        # The user's stream may not have finished writing a field on the device.
        if isinstance(path.base, DeviceFeature):
            link.wait_for_writes(key, path.version, caller)
        feature = link.feature(key, path)
        tensor, counted = feature.begin(group, place, bounds=read.bounds)
        if read.padding is not None:
            tensor = read.padding.added_to(tensor)
        # Only now: ids of the CPU have been checked.
        if path.cacheable and self._first_epoch is not None:
            self._count_first(key, read.ids, read.bounds)
        return _Begun(field.label, path, feature, tensor, counted, held)

    def begin_cold(self) -> bool:
        """Whether, when an epoch begins, a field lies in a file of which much is not in memory."""
        # A list: each field notes that an epoch begins, also behind one that is cold.
        return any([field.begin_cold() for field in list(self._fields.values())])

    def new_windows(self, holds_rows: Callable[[int], bool]) -> Windows:
        """Windows for the next group of batches; see there."""
        if self._link is None:
            return Windows(self._reading_from_disk, self._pool_of, holds_rows)
        # An accelerator copies rows from the mapped file: pages in memory are all it needs.
        return Windows(self._reading_from_disk, self._pool_of, lambda nbytes: False)

    def _reading_from_disk(self, key: Hashable) -> Reading | None:
        field = self._fields.get(key)
        if field is None:
            return None
        try:
            return field.path(self._resolve)
        except (KeyError, RuntimeError):  # an error once its rows are needed
            return None

    def is_current(self, key: Hashable, rows: FieldRows) -> bool:
        """Whether a read now gives the same values: not once the field was replaced, written or
        deleted."""
        return rows.version is None or self._fields[key].is_current(rows.version, rows.generation)

    @property
    def declared(self) -> list[tuple[Field, RowType | None, Role]]:
        """The fields, with what they have rows of, and which rows of a batch are read."""
        with self._lock:
            return [(field, *self._roles[key]) for key, field in self._fields.items()]

    def row_type(self, key: Hashable) -> RowType | None:
        """The vertex or edge type that a field has rows of."""
        return self._roles[key][0]

    def input_row_bytes(self, row_type: RowType | None = None) -> int:
        """Bytes of the rows that a batch has of each vertex that it reads; of one type, or of
        all."""
        total = 0
        for field, kind, role in self.declared:
            if Role.INPUT in role and row_type in (None, kind):
                with suppress(KeyError, RuntimeError):  # a field that cannot be read now
                    total += row_reader(field.snapshot().tensor).row_bytes
        return total

    def allow(self, nbytes: int, *, counts: bool) -> None:
        """Bound a cache in memory.

        Args:
            nbytes: What "auto" may take, in place of a share of what is free.
            counts: Whether there is memory to count the first epoch, and to rank by it.
        """
        if self._static is not None:
            self._static.allowed = nbytes
        if not counts:
            self._first_epoch = None

    def let_grow(self, grows: bool) -> None:
        """Let windows fill a cache in memory from now on, where a file is not in memory; else it is
        read for that."""
        if self._static is not None:
            self._static.let_grow(grows)

    def prepare(self) -> None:
        """Fill the cache if its size and fields are known; call before the first batch of an
        epoch."""
        if self._static is None:
            return
        rank = None if self._first_epoch is None else self._first_epoch.ranking()
        if rank is not None:
            self._first_epoch = None
            self._static.refill(rank)
        self._static.prepare()

    def after_first_step(self) -> None:
        """Fill the cache if :meth:`prepare` could not; call when a first training step is done."""
        if self._static is not None:
            self._static.after_first_step(self.batches_bytes)

    def refill(self, rank: Rank) -> None:
        """Choose again by another ranking, under the same number of bytes, or fill by it later; see
        ``StaticCache``."""
        if self._static is not None:
            self._static.refill(rank)

    def invalidate(self, key: Hashable | None = None) -> None:
        """Forget the cached rows of one field, or of all, here and in sets that share the cache.

        Needed after writes that torch cannot see: through a NumPy view, ``tensor.data``, or by
        other processes.
        """
        for field in [self._fields[key]] if key is not None else list(self._fields.values()):
            version = field.invalidate()
            if version is not None and self._static is not None:
                self._static.invalidate_shared(version)

    def shrink(self) -> bool:
        """Give up about half of the rows cached on an accelerator, those read least; reads may go
        on.

        Later fillings stay under that size.

        Returns:
            Whether anything was given up; False where nothing was cached, and on the CPU.
        """
        return self._static is not None and self._static.shrink()

    def with_room(self, work: Callable[[], T]) -> T:
        """Do work that can be repeated; where an accelerator's memory is short, again with a
        smaller cache.

        Raises:
            OutOfMemory: It does not fit, and nothing is cached any more.
        """
        return (
            work() if self._link is None else with_room(work, self._link.accelerator, self.shrink)
        )

    def close(self) -> None:
        """Unpin the fields' memory. Reads after that pin it again. Dropping the set does it, too."""
        if self._link is not None:
            self._link.close()

    @property
    def device(self) -> torch.device:
        """Device that rows are delivered on."""
        return self._device

    @property
    def cache_dtype(self) -> torch.dtype | None:
        """The dtype of cached rows of floating-point numbers; None: as they are."""
        return self._cache_dtype

    @property
    def transfers(self) -> dict[Hashable, Transfer]:
        """Transfer path of each field that was read on an accelerator."""
        return {} if self._link is None else self._link.transfers

    def observe(self, observer: ReadObserver) -> None:
        """Tell an observer of every read while it is listening."""
        self._counters.observer = observer

    @property
    def counters(self) -> CacheStats:
        """Statistics of all reads that are done (see :meth:`settle`); subtract an earlier value for
        those since."""
        return self._counters.snapshot()

    def settle(self) -> None:
        """Wait for all reads so far, so that they are counted; for the end of an epoch."""
        self._counters.settle()

    @property
    def plans(self) -> CachePlans:
        """The cached rows of each type; none before they are chosen, and without a budget."""
        if self._static is not None:
            plans = self._static.plans
        else:
            vertices = {t: n for t, n in self._num_rows.items() if isinstance(t, str)}
            plans = CachePlans(
                CachePlan(self._device, n, 0, 0, (), None, "as cache=0 asks")
                for n in vertices.values()
            )
        if not self.batches_bytes:
            return plans
        return CachePlans(replace(plan, batches_bytes=self.batches_bytes) for plan in plans)

    @property
    def plan(self) -> CachePlan:
        """The cached rows, for a set with one vertex type."""
        return self.plans[0]

    def _count_first(self, key: Hashable, ids: Tensor, bounds: Sequence[int] | None) -> None:
        first_epoch = self._first_epoch  # another thread may end the count
        if first_epoch is None or self._static is None:
            return
        row_type = self._static.input_type(key)
        if isinstance(row_type, str):
            first_epoch.add(key, row_type, ids, bounds)
