"""FieldSet: all fields that a loader reads, with one cache for those that are worth caching."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..buffers import BufferPool
from ..cache.budget import Budget
from ..cache.plan import CachePlan, CachePlans
from ..cache.sharing import Share
from ..cache.stats import CacheStats, ReadCounters
from ..field_version import FieldVersion
from ..graph import NODE_TYPE
from ..indexed_rows import FieldValue
from .cached import CachedFeature, part_ends
from .candidate import Role, RowType
from .choice import Outputs, Rank
from .feature import Feature
from .field import Field, delivering, host_feature
from .first_epoch import FirstEpoch
from .narrow import stored_as
from .static import StaticCache

__all__ = ["FieldRows", "FieldSet"]


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


class FieldSet:
    """Reads rows of named fields, from a static cache where it holds them; always the present values.

    On the CPU, fields of memory-mapped files are cached in memory; for another device, fields in host
    memory or in files are cached on it. One budget serves all fields of all vertex and edge types, and goes where it
    saves most bytes; within a type rows are cached in one order. When a field is replaced or written, it is read from
    its source until it has settled, then cached again.

    Args:
        sources: Field key to a function that gives the field's present values. Asked anew at every read;
            keys may come and go.
        device: Where rows are delivered, and cached.
        budget: What the cache may take. None: no cache.
        rank: Gives the rows of some types, most valuable first, as checked rankings; called when the cache is filled.
        pool_of: Gives the memory for a field's rows that are delivered on the CPU.
        num_nodes: Number of vertices; for several types, a mapping from vertex and edge types to numbers of rows.
        outputs: How often an epoch reads each row of a type as a seed, shape ``(num_rows,)``; None where that is not
            known. Default: of no type.
        ranks_all: ``rank`` leaves no vertex out: it is not called where all of them have room.
        first_epoch: Counts what is read until it has a ranking, by which the cache is then filled again.
        share: Sets whose ``share`` allows it, with equal budget and device, that read the same tensors use one cache:
            the train and the validation loader of a graph, say. None: no sharing.
        cache_dtype: float16 or bfloat16: what rows of float32 and float64 fields are cached in. All rows of fields that
            the cache may serve are rounded alike, cached or not. None: as they are.
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
    ) -> None:
        if device.type == "cuda" and device.index is None:
            # Each thread has a current device of its own, and reads come from any thread.
            device = torch.device("cuda", torch.cuda.current_device())
        self._device = device
        self._pool_of = pool_of
        self._cache_dtype = cache_dtype
        self._num_rows: dict[RowType, int] = {NODE_TYPE: num_nodes} if isinstance(num_nodes, int) else dict(num_nodes)
        self._sources: dict[Hashable, Callable[[], FieldValue]] = {}
        self._fields: dict[Hashable, Field] = {}
        self._lock = threading.Lock()
        self._counters = ReadCounters()
        self._first_epoch = first_epoch
        self._static: StaticCache | None = None
        if budget is not None:
            self._static = StaticCache(
                device=device,
                budget=budget,
                rank=rank,
                num_rows=self._num_rows,
                outputs=outputs,
                ranks_all=ranks_all,
                share=share,
                cache_dtype=cache_dtype,
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
    ) -> None:
        """Add or replace a field; one that comes after the cache was filled gets the bytes that are left.

        Args:
            key: The field.
            source: Gives its present tensor or rows by reference, or raises KeyError.
            row_type: Whose rows it has: a vertex or an edge type. Fields of None, and of types that ``num_nodes`` does
                not name, are never cached.
            role: Which rows of a batch are read; another one is added to those that are known.
        """
        self._sources[key] = source
        with self._lock:
            field = self._fields.get(key)
            if field is None:
                field = self._fields[key] = Field(key, partial(_read_source, self._sources, key))
        if self._static is not None and row_type is not None and row_type in self._num_rows:
            self._static.add(key, field, row_type, role)

    def read(self, key: Hashable, ids: Tensor, bounds: Sequence[int] | None = None) -> FieldRows:
        """The rows of ``ids``; safe from any thread.

        Args:
            key: The field.
            ids: 1-D int32 or int64 tensor.
            bounds: Where the ids of each hop end (``MiniBatch.hop_ends``), to count them by hop.

        Raises:
            KeyError: There is no such field now.
            IndexError: An id is out of range.
            RuntimeError: The field requires gradients.
            ValueError: A value is too large for ``cache_dtype``.
        """
        begin = time.perf_counter()
        seen = self._fields[key].snapshot()
        base = host_feature(seen.tensor, self._device)
        cache, cacheable = (None, False) if self._static is None else self._static.cache_for(key, seen, base)
        stored = stored_as(base, self._cache_dtype, key) if cacheable else base
        feature = delivering(stored, self._device) if cache is None else CachedFeature(stored, cache)
        tensor, hits = self._read(key, feature, ids, bounds)
        if cacheable:  # only now: the ids have been checked
            self._count_first(key, ids, bounds)
        self._counters.record(
            key,
            base.tier,
            asked=len(ids),
            hits=sum(hits),
            row_bytes=base.row_bytes,
            cacheable=cacheable,
            seconds=time.perf_counter() - begin,
            asked_by_hop=() if bounds is None else [end - begin for begin, end in pairwise((0, *bounds))],
            hits_by_hop=() if bounds is None else hits,
        )
        return FieldRows(tensor, seen.version, seen.generation)

    def is_current(self, key: Hashable, rows: FieldRows) -> bool:
        """Whether a read now gives the same values: not once the field was replaced, written or deleted."""
        return self._fields[key].is_current(rows.version, rows.generation)

    def prepare(self) -> None:
        """Fill the cache if its size and its fields are known; call before the first batch of an epoch."""
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
            self._static.after_first_step()

    def refill(self, rank: Rank) -> None:
        """Choose what is cached anew by another ranking, under the same number of bytes; reads may go on.

        Before the cache is filled for the first time, that ranking is taken then. See ``StaticCache.refill``.
        """
        if self._static is not None:
            self._static.refill(rank)

    def invalidate(self, key: Hashable | None = None) -> None:
        """Forget what is cached of one field, or of all: for writes that torch cannot see.

        Needed after writes through a NumPy view or ``tensor.data``, and by other processes. Sets that share a cache
        with this one forget it too.
        """
        for field in [self._fields[key]] if key is not None else list(self._fields.values()):
            version = field.invalidate()
            if version is not None and self._static is not None:
                self._static.invalidate_shared(version)

    def observe(self, on_read: Callable[[Hashable, str, int, int, int, bool, float], object]) -> None:
        """Call ``on_read`` after every read; see ``ReadCounters``."""
        self._counters.on_read = on_read

    @property
    def counters(self) -> CacheStats:
        """What was read so far; subtract an earlier value for what was read since."""
        return self._counters.snapshot()

    @property
    def plans(self) -> CachePlans:
        """What the cache holds of each type; no field before that is decided, and without a budget."""
        if self._static is not None:
            return self._static.plans
        vertices = {t: n for t, n in self._num_rows.items() if isinstance(t, str)}
        return CachePlans(CachePlan(self._device, n, 0, 0, ()) for n in vertices.values())

    @property
    def plan(self) -> CachePlan:
        """What the cache holds, of a set with one vertex type."""
        return self.plans[0]

    def _count_first(self, key: Hashable, ids: Tensor, bounds: Sequence[int] | None) -> None:
        first_epoch = self._first_epoch  # another thread may end it
        if first_epoch is None or self._static is None:
            return
        row_type = self._static.input_type(key)
        if isinstance(row_type, str):
            first_epoch.add(key, row_type, ids, bounds)

    def _read(
        self, key: Hashable, feature: Feature, ids: Tensor, bounds: Sequence[int] | None
    ) -> tuple[Tensor, tuple[int, ...]]:
        """The rows, and how many the cache served of each hop."""
        out = None
        if self._device.type == "cpu":
            out = self._pool_of(key).take((len(ids), *feature.row_shape), feature.dtype)
        if isinstance(feature, CachedFeature):
            return feature.read_counted(ids, out, bounds)
        return feature.read(ids, out), (0,) * len(part_ends(bounds, len(ids)))


def _read_source(sources: Mapping[Hashable, Callable[[], FieldValue]], key: Hashable) -> FieldValue:
    """The field's values now. Not a method: a cycle would keep caches in memory until the collector runs."""
    return sources[key]()
