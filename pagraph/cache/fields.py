"""FieldSet: all fields that a loader reads, with one cache for those worth caching."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from .. import _compiling
from .._postponed import finalize
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
    look_each,
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
from ..graph.watched import look_at_files
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
    """A field as a recorded kernel reads it.

    It holds no cached rows: a shrinking cache would wait for them until the batch is done. Once the
    kernel is enqueued, stream order protects them.

    Attributes:
        field: The field.
        version, generation: Of the values that are read, see ``FieldRows``.
        counted: The constant part of ``ReadCounters.record``: the tier, the bytes of a row, and
            whether a cache may serve the field.
        reach: Addresses and layout.
        missed: Recent share of cache misses.
        held: Keeps the uncached rows alive; hold it until the kernel is done.
    """

    field: Field
    version: FieldVersion
    generation: int
    counted: tuple[str, int, bool]
    reach: Reach
    missed: float
    held: object


class _Begun(NamedTuple):
    """A read that is enqueued on an accelerator.

    Attributes:
        label: Of the field.
        path, feature: How it is read.
        tensor: The rows.
        counted: Their hits, or where the group counts them.
        held: Keeps the values alive: another thread may replace the field meanwhile.
    """

    label: Hashable
    path: ReadPath
    feature: AcceleratedFeature
    tensor: Tensor
    counted: Hits | slice
    held: object


class FieldSet:
    """Rows of named fields, read through a static cache; always the current values.

    On the CPU, fields of memory-mapped files are cached in memory. On another device, fields in
    host memory or in files are cached there. One budget serves all fields of all types and is
    spent where it saves most bytes. Rows of one type are cached in one order. A field that is
    replaced or written is read from its source until it has settled.

    Args:
        sources: Field key to a function that returns the field's current values. Called at every
            read; keys may come and go.
        device: Where rows are delivered, and cached.
        budget: Size of the cache. None: no cache.
        rank: Checked rankings of the rows of some types; called when the cache is filled.
        pool_of: Memory for a field's rows that are delivered on the CPU.
        num_nodes: Number of vertices; for several types, a mapping from vertex and edge types to
            numbers of rows.
        outputs: Reads per epoch of each row of a type as a seed, shape ``(num_rows,)``; None if
            unknown. Default: None for all types.
        ranks_all: ``rank`` omits no vertex. It is not called if all of them fit.
        first_epoch: Counts reads until it has a ranking, by which the cache is then refilled.
        share: Sets with a compatible ``share`` and equal budget and device that read the same
            tensors use one cache, such as the training and validation loaders of a graph. None: no
            sharing.
        cache_dtype: float16, bfloat16 or int8, the form of cached rows of float32 and float64
            fields. All rows of fields that the cache may serve are rounded alike, cached or not.
            None: unchanged.
        accelerator: Delivers on ``device``. None: that of the device, if it is a CUDA device.
        transfer: Path of missed rows to an accelerator: "auto", "zero-copy" or "staging", see
            ``Transfer``.

    Attributes:
        accelerator: The accelerator that delivers rows; None on the CPU.

    Raises:
        ValueError: The budget exceeds the accelerator's memory, or ``transfer`` is invalid.
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
            # The current device is per thread, and reads come from any thread.
            device = torch.device("cuda", torch.cuda.current_device())
        accelerator = accelerator_for(device) if accelerator is None else accelerator
        check_mode(transfer)
        self.accelerator = accelerator
        self._link = None if accelerator is None else Link(accelerator, transfer)
        if self._link is not None:
            # Not at exit: the driver may be gone by then, and it unpins all memory itself.
            finalize(self, self._link.close)
        self._device = device
        self._pool_of = pool_of
        self._cache_dtype = cache_dtype
        if isinstance(num_nodes, int):
            num_nodes = {NODE_TYPE: num_nodes}
        self._num_rows: dict[RowType, int] = dict(num_nodes)
        self._fields: dict[Hashable, Field] = {}
        self._storages: dict[Hashable, Callable[[Tensor], Tensor]] = {}
        self._roles: dict[Hashable, tuple[RowType | None, Role]] = {}
        # Guards `_fields` and `_roles` when a field is added or all are listed. Reads look up a key
        # without it: a dict look-up is atomic, and an entry is replaced as a whole.
        self._lock = threading.Lock()
        self._counters = ReadCounters()
        self._first_epoch = first_epoch
        # Bytes of the accelerator that recorded batches take, or will take.
        self.batches_bytes: int = 0
        self._static: StaticCache | None = None
        if budget is not None:
            cached_on = device if self._link is not None else torch.device("cpu")
            self._static = StaticCache(
                device=cached_on,
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
        """Add or replace a field. After the cache was filled, it gets the bytes left over.

        Args:
            key: The field.
            source: Returns its current tensor or rows by reference, or raises KeyError.
            row_type: Its vertex or edge type. Fields of None, and of types that ``num_nodes`` does
                not name, are never cached.
            role: Which rows of a batch are read; added to the roles that it already has.
            label: Its name in statistics and plans; fields may share one. Default: the key.
        """
        with self._lock:
            field = self._fields.get(key)
            if field is None:
                field = self._fields[key] = Field(key, source, label, self._pool_of(key))
            field.source = source
            before = self._roles.get(key)
            roles = role if before is None else before[1] | role
            self._roles[key] = row_type, roles
        if self._static is not None and row_type is not None and row_type in self._num_rows:
            self._static.add(key, field, row_type, role)

    def add_storage(self, key: Hashable, fetch: Callable[[Tensor], Tensor]) -> None:
        """Read ``key`` by a user's function of the ids: never cached, counted or read again."""
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
        """The rows of ``ids``. Thread-safe.

        With an accelerator, the read is enqueued on its "reading" stream, and may not be done yet.

        Args:
            key: The field.
            ids, bounds, padding, there, values: See :class:`Read`.
            after: The event that ids on the accelerator wait for, if any.
            windows: Rows on disk that were read ahead for several batches; used if they have these.

        Raises:
            KeyError: The field does not exist now.
            IndexError: An id is out of range.
            RuntimeError: The field requires gradients.
            ValueError: A value is too large for ``cache_dtype``, the field is on another device, or
                its dtype cannot hold the padding label.
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
        """How a recorded kernel reads a field now, and an owner of the cached rows.

        Hold the owner until the kernel is enqueued: the memory may be reused once it is dropped.
        None if such a kernel cannot read the field, or if :meth:`read` must first decide, count or
        cache.
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
            # Not stored on the path, which would keep the user's tensor alive.
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
        """Count finished reads, each of so many seconds: the field, its hits, and the ends of the
        hops."""
        counted = []
        for read, hits, bounds in reads:
            tier, row_bytes, cacheable = read.counted
            of_field = bounds[-1], hits, row_bytes, cacheable, seconds, bounds
            counted.append(CountedRead(read.field.label, tier, *of_field))
        self._counters.record_each(counted)

    def read_each(
        self, reads: Sequence[Read], after: Event | None = None, windows: Windows | None = None
    ) -> list[FieldRows | None]:
        """:meth:`read` of each; None for a field that cannot be read now, or that is written so
        often that its rows would be read in vain (not through windows, which have read them).

        Such a field may be set again before its rows are needed; otherwise :meth:`current_each`
        raises. Uncached rows in memory are copied in one call for all fields: 0.24 rather than
        0.32 ms for 2,700 rows of 5 attributes. An accelerator gets the ids of all reads in one
        copy.
        """
        if not reads:
            return []
        # A trace needs a call for each field, and a user's storage may be among them.
        if not self._storages and not self._counters.is_traced:
            if self._link is not None:
                return self._read_on_accelerator(self._link, reads, after, skips=True)
            if windows is None and self._device.type == "cpu":
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

    def _read_together(self, reads: Sequence[Read]) -> list[FieldRows | None]:
        """:meth:`read_each` on the CPU, with one call for all plain rows in memory."""
        rows: list[FieldRows | None] = [None] * len(reads)
        fields = [self._fields.get(read.key) for read in reads]
        # Readings keep the values alive until they are copied.
        known = look_each(fields, [read.values for read in reads])
        plain: list[tuple[int, Field, Reading]] = []
        for place, (read, field, reading) in enumerate(zip(reads, fields, known, strict=True)):
            if field is None or field.is_written:
                continue
            begin = time.perf_counter()
            if reading is None:
                try:
                    reading = field.resolved(self._resolve, read.values)
                except (KeyError, RuntimeError):
                    continue
            else:
                field.reads += 1  # as `path` does; a count that another thread loses does no harm
            if reading[2].plain is not None and read.ids.dtype == reads[0].ids.dtype:
                plain.append((place, field, reading))
            else:
                rows[place] = self._read_here(read, field, reading, begin, None)
        if plain:
            wanted: Any = [
                (reading[2].plain, reads[place].ids, field.pool, reads[place].padding)
                for place, field, reading in plain
            ]
            begin = time.perf_counter()
            copied = read_each(wanted)
            # Divide the call's time by bytes: the time of each field is unknown.
            nbytes = sum([tensor.nbytes for tensor in copied])
            end = time.perf_counter()
            seconds = end - begin
            # Asked here, not in the function: a call for each batch would be seen.
            if _compiling.spans and _compiling.spans[-1][1] > begin * 1e9:
                seconds -= _compiling.kernels_seconds(begin, end, threading.get_ident())
            per_byte = seconds / max(1, nbytes)
            counted = []
            for (place, field, (_, _, path)), tensor in zip(plain, copied, strict=True):
                count = reads[place].ids.shape[0]
                width = path.row_bytes
                seconds = per_byte * width * count
                of_read = count, None, width, False, seconds, reads[place].bounds
                counted.append(CountedRead(field.label, path.tier, *of_read))
                rows[place] = FieldRows(tensor, path.version, path.generation)
            self._counters.record_each(counted)
        return rows

    def outdated(self, reads: Sequence[Read], rows: Sequence[FieldRows | None]) -> list[int]:
        """Places of the rows that are missing, or of fields that were replaced or written since."""
        fields = [self._fields.get(read.key) for read in reads]
        # Not `read.values`, which were the field's when the batch was planned.
        looked = look_each(fields, [None] * len(fields))
        places = []
        for place, known in enumerate(rows):
            reading = looked[place]
            # A version is one path's. Others may be equal: of a tensor that was set anew.
            if known and reading and known.version is reading[2].version:
                continue
            field = fields[place]
            if known is None:
                places.append(place)
            elif known.version is None or field is None:
                continue  # rows of a user's storage, which is no field and has no versions
            elif not field.is_current(known.version, known.generation):
                places.append(place)
        return places

    def current_each(
        self, reads: Sequence[Read], after: Event | None, kept: Sequence[FieldRows | None]
    ) -> Sequence[FieldRows]:
        """The current rows: those ``kept``, but of fields that were replaced or written since.

        Raises:
            KeyError: The field does not exist now.
        """
        places = self.outdated(reads, kept)
        current: Any = list(kept) if places else kept
        for place in places:
            read = reads[place]._replace(values=None)
            current[place] = self.with_room(partial(self.read, *read, after))
            if current[place].version is not None:
                self._fields[read.key].note_late(current[place].version)
        return current  # type: ignore[no-any-return]

    def _fetched(self, fetch: Callable[[Tensor], Tensor], ids: Tensor) -> FieldRows:
        """Rows of a user's storage, read on the calling thread's stream."""
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
        """:meth:`read` without an accelerator, begun at ``begin``."""
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
        # Only now: the count indexes by the ids, which reading has checked.
        if path.cacheable and self._first_epoch is not None:
            self._count_first(key, ids, bounds)
        end = time.perf_counter()
        kernels = 0.0
        if _compiling.spans and _compiling.spans[-1][1] > begin * 1e9:
            kernels = _compiling.kernels_seconds(begin, end, threading.get_ident())
        counted = ids.shape[0], hits, path.row_bytes, path.cacheable, end - begin, bounds, kernels
        self._counters.record_each([CountedRead(field.label, path.tier, *counted)])
        # Hold the values until here: another thread may have replaced the field.
        del held
        return FieldRows(tensor, path.version, path.generation)

    def _resolve(self, field: Field, seen: Snapshot) -> ReadPath:
        """The read path of a new version of a field."""
        # Owned with an accelerator: its reads are asynchronous and need memory that stays.
        base = host_feature(seen.tensor, self._device, owned=self._link is not None)
        cacheable = self._static is not None and self._static.can_serve(field, base)
        cache = field.begin(seen, cacheable=cacheable)
        stored = stored_as(base, self._cache_dtype, field.label) if cacheable else base
        return ReadPath(seen, base, stored, cache, cacheable)

    def _filled_late(self, key: Hashable, field: Field, now: Reading) -> Reading:
        """The read path of a field that has settled, with a cache if it is worth one."""
        assert self._static is not None
        self._static.fill_late(key, now[2], now[1])
        return field.path(self._resolve) if field.is_cached else now

    def _read_on_accelerator(
        self, link: Link, reads: Sequence[Read], after: Event | None, *, skips: bool = False
    ) -> list[FieldRows | None]:
        """:meth:`read` of each on an accelerator, in order.

        With ``skips``, None for a field that cannot be read now.
        """
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
                    if skips and self._fields[read.key].is_written:
                        known.append(None)
                        continue
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
        end = time.perf_counter()
        kernels = 0.0
        if _compiling.spans and _compiling.spans[-1][1] > begin * 1e9:
            kernels = _compiling.kernels_seconds(begin, end, threading.get_ident())
        # Divide the device's time by bytes: the time of each field is unknown.
        total = sum([each.tensor.nbytes for each in known if each is not None])
        for place, each in enumerate(known):
            if each is None:
                rows.append(None)
                continue
            path = each.path
            hits = each.feature.finish(group, place, each.counted)
            counted = group.count(place), hits, path.row_bytes, path.cacheable, begun, ready
            share = each.tensor.nbytes / total if total else 1 / len(known)
            of_read = *counted, reads[place].bounds, share, kernels
            pending.append(PendingRead(each.label, path.tier, *of_read))
            of_version = path.version, path.generation
            rows.append(FieldRows(each.tensor, *of_version, begun, ready, link.accelerator))
        self._counters.record_pending(pending, end - begin)
        return rows

    def _begin(
        self, link: Link, caller: Stream, group: ReadGroup, place: int, read: Read
    ) -> _Begun:
        """Enqueue a read on the accelerator's current stream."""
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
        # Only now: the count indexes by ids on the CPU, which are checked by now.
        if path.cacheable and self._first_epoch is not None:
            self._count_first(key, read.ids, read.bounds)
        return _Begun(field.label, path, feature, tensor, counted, held)

    def begin_epoch(self) -> None:
        """Find files that were changed since the last epoch: rows of those written are read anew.

        Raises:
            FormatError: A field's file was shortened or replaced.
        """
        look_at_files()
        for field in list(self._fields.values()):
            field.begin_epoch()

    def begin_cold(self) -> bool:
        """Begin an epoch; whether much of some field's file is not in memory."""
        # A list, so that every field notes that an epoch begins.
        return any([field.begin_cold() for field in list(self._fields.values())])

    def new_windows(self, holds_rows: Callable[[int], bool]) -> Windows:
        """Windows for the next group of batches, see :class:`Windows`."""
        if self._link is None:
            return Windows(self._reading_from_disk, self._pool_of, holds_rows)
        # An accelerator reads the mapped file, so it is enough that the pages are in memory.
        return Windows(self._reading_from_disk, self._pool_of, lambda nbytes: False)

    def _reading_from_disk(self, key: Hashable) -> Reading | None:
        field = self._fields.get(key)
        if field is None:
            return None
        try:
            return field.path(self._resolve)
        except (KeyError, RuntimeError):  # raised once its rows are needed
            return None

    @property
    def declared(self) -> list[tuple[Field, RowType | None, Role]]:
        """The fields, with their types and roles."""
        with self._lock:
            return [(field, *self._roles[key]) for key, field in self._fields.items()]

    def row_type(self, key: Hashable) -> RowType | None:
        """The vertex or edge type of a field's rows."""
        return self._roles[key][0]

    def input_row_bytes(self, row_type: RowType | None = None) -> int:
        """Bytes that a batch reads per input vertex, of one type or of all."""
        total = 0
        for field, kind, role in self.declared:
            if Role.INPUT in role and row_type in (None, kind):
                with suppress(KeyError, RuntimeError):  # a field that cannot be read now
                    total += row_reader(field.snapshot().tensor).row_bytes
        return total

    def allow(self, nbytes: int, *, counts: bool) -> None:
        """Bound a cache in memory.

        Args:
            nbytes: Budget of "auto", instead of a share of free memory.
            counts: Whether there is memory to count the first epoch, and to rank by it.
        """
        if self._static is not None:
            self._static.allowed = nbytes
        if not counts:
            self._first_epoch = None

    def let_grow(self, grows: bool) -> None:
        """Set whether windows fill the cache from now on, rather than a separate read."""
        if self._static is not None:
            self._static.let_grow(grows)

    def prepare(self) -> None:
        """Fill the cache if its size and fields are known. Call before an epoch's first batch."""
        if self._static is None:
            return
        rank = None if self._first_epoch is None else self._first_epoch.ranking()
        if rank is not None:
            self._first_epoch = None
            self._static.refill(rank)
        self._static.prepare()

    def after_first_step(self) -> None:
        """Fill the cache if :meth:`prepare` could not. Call after the first training step."""
        if self._static is not None:
            self._static.after_first_step(self.batches_bytes)

    def refill(self, rank: Rank) -> None:
        """Refill the cache by another ranking, within the same bytes; see ``StaticCache``."""
        if self._static is not None:
            self._static.refill(rank)

    def invalidate(self, key: Hashable | None = None) -> None:
        """Drop the cached rows of one field, or of all, here and in sets that share the cache.

        Needed after writes that torch does not track: through a NumPy view, ``tensor.data``, or
        before the next epoch after those of other processes to a mapped file.
        """
        for field in [self._fields[key]] if key is not None else list(self._fields.values()):
            version = field.invalidate()
            if version is not None and self._static is not None:
                self._static.invalidate_shared(version)

    def shrink(self) -> bool:
        """Drop about half of the cached rows on an accelerator, those read least.

        Reads may go on meanwhile. Later fillings keep to the new size.

        Returns:
            Whether anything was dropped; always False on the CPU.
        """
        return self._static is not None and self._static.shrink()

    def with_room(self, work: Callable[[], T]) -> T:
        """Do work that can be repeated, and retry with a smaller cache if memory runs out.

        Raises:
            OutOfMemory: It does not fit even with an empty cache.
        """
        if self._link is None:
            return work()
        return with_room(work, self._link.accelerator, self.shrink)

    def close(self) -> None:
        """Unpin the fields' memory, as dropping the set does. A later read pins it again."""
        if self._link is not None:
            self._link.close()

    @property
    def device(self) -> torch.device:
        """Device that rows are delivered on."""
        return self._device

    @property
    def cache_dtype(self) -> torch.dtype | None:
        """The dtype of cached floating-point rows; None: unchanged."""
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
        """Statistics of all finished reads (see :meth:`settle`); subtract to get an interval."""
        return self._counters.snapshot()

    def settle(self) -> None:
        """Wait until all reads so far are counted, at the end of an epoch."""
        self._counters.settle()

    @property
    def plans(self) -> CachePlans:
        """The cached rows of each type; none before the choice or without a budget."""
        if self._static is not None:
            plans = self._static.plans
        else:
            vertices = {t: n for t, n in self._num_rows.items() if isinstance(t, str)}
            plans = CachePlans(
                CachePlan(self._device, n, 0, 0, (), None, "as cache is 0")
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
