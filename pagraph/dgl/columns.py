"""The columns of a DGL graph as fields: read through caches and recycled memory, never stale."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from ..accelerator import Accelerator, Handover, OutOfMemory, with_room
from ..cache.budget import Budget
from ..cache.plan import CachePlans
from ..cache.sharing import Share
from ..cache.stats import CacheStats, FieldStats, OnRead
from ..features.candidate import Role, RowType
from ..features.choice import Outputs, Rank
from ..features.fields import FieldRows, FieldSet
from ..features.first_epoch import FirstEpoch
from ..indexed_rows import FieldValue
from .graphbolt import import_dgl
from .waiting import column_values

dgl = import_dgl()
from dgl.frame import Column  # noqa: E402

if TYPE_CHECKING:
    from ..buffers import BufferPool
    from ..pipeline.stats import EpochRecorder

__all__ = ["ColumnRows", "Columns", "awaited"]

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ColumnRows:
    """Rows of one column that were read ahead, and how to get those that the graph holds when they are needed.

    Attributes:
        read: Reads them now.
        ahead: Those that were read ahead; None if that could not be done.
        is_current: Whether they are what the graph holds; None: yes.
    """

    read: Callable[[], FieldRows | Handover]
    ahead: FieldRows | Handover | None = None
    is_current: Callable[[], bool] | None = None

    def current(self, recorder: EpochRecorder | None = None) -> Tensor:
        """The rows, for the calling thread; read now if the column was replaced or written since, or was not read.

        Raises:
            KeyError: The graph has no such column now.
        """
        rows = self.ahead
        if rows is None or (self.is_current is not None and not self.is_current()):
            rows = self.read()
        if recorder is not None:
            recorder.device_time("reading", rows.begun, rows.ready)
        return rows.arrive() if isinstance(rows, FieldRows) else rows.arrive()[0]


@dataclass(frozen=True)
class _Key:
    """A column of the graph; reads as it is called in the statistics, which may be the same for two columns."""

    kind: str
    type: Any
    name: str
    label: str

    def __repr__(self) -> str:
        return repr(self.label)

    def __str__(self) -> str:
        return self.label


class Columns:
    """Reads rows of any vertex or edge column of a DGL graph onto a device.

    One static cache serves the vertices of all types, and the edges of the columns that are declared.

    Args:
        graph: A DGL graph, or anything with ``get_node_storage`` and ``get_edge_storage``.
        device: Where rows are delivered.
        budget: Bytes the cache may take, or None for no cache.
        rank: Ranks vertices and edges, most valuable first; called when the cache is filled.
        outputs: How often an epoch reads each vertex or edge of a type as a seed.
        pool_of: Recycled memory for a column, by its key.
        ranks_all: See ``FieldSet``.
        first_epoch: Makes ``FieldSet``'s, given the vertex types and their numbers of vertices.
        share: See ``FieldSet``.
        cache_dtype: See ``FieldSet``.
        accelerator: That of ``device``, where it has one.
    """

    def __init__(
        self,
        graph: Any,
        device: torch.device,
        *,
        budget: Budget | None,
        rank: Rank,
        outputs: Outputs = lambda row_type: None,
        pool_of: Callable[[Hashable], BufferPool],
        ranks_all: bool = False,
        first_epoch: Callable[[Mapping[str, int]], FirstEpoch] | None = None,
        share: Share | None = None,
        cache_dtype: torch.dtype | None = None,
        accelerator: Accelerator | None = None,
    ) -> None:
        self._graph = graph
        self._device = device
        self._accelerator = accelerator
        self._roles: dict[tuple[str, Any, str], Role] = {}
        num_rows = _row_counts(graph)
        self._fields = FieldSet(
            {},
            device=device,
            budget=budget,
            rank=rank,
            pool_of=pool_of,
            num_nodes=num_rows,
            outputs=outputs,
            ranks_all=ranks_all,
            first_epoch=first_epoch and first_epoch({t: n for t, n in num_rows.items() if isinstance(t, str)}),
            share=share,
            cache_dtype=cache_dtype,
            accelerator=accelerator,
        )

    def read_ahead(
        self, kind: str, name: str, type_: Any, ids: Tensor, bounds: Sequence[int] | None = None
    ) -> ColumnRows:
        """Rows of column ``name`` ("node" or "edge", of one type) at ``ids``, for any thread.

        A column that cannot be read may have been deleted only to be set again: whether that is an error is seen when
        the rows are needed. ``bounds``: where the ids of each hop end, see ``FieldSet.read``.
        """
        read = partial(self.with_room, partial(self._read, kind, name, type_, ids, bounds))
        try:
            ahead, is_current = read()
        except OutOfMemory:
            raise
        except (KeyError, RuntimeError):
            return ColumnRows(lambda: read()[0])
        return ColumnRows(lambda: read()[0], ahead, is_current)

    def _read(
        self, kind: str, name: str, type_: Any, ids: Tensor, bounds: Sequence[int] | None
    ) -> tuple[FieldRows | Handover, Callable[[], bool] | None]:
        """The rows now, and how to ask later whether they still are."""
        storage = _storage(self._graph, kind, name, type_)
        if not isinstance(storage, Column):
            fetched = awaited(storage.fetch(ids, self._device, False))
            return Handover.here([fetched], self._accelerator), None
        key = self._add(kind, name, type_)
        after = None
        if self._accelerator is not None and self._device in (ids.device, storage.storage.device):
            after = self._accelerator.current_stream.record()  # ids that DGL has drawn there, a column that is written
        rows = self._fields.read(key, ids, bounds, after=after)
        return rows, partial(self._fields.is_current, key, rows)

    def declare(self, kind: str, names: Iterable[tuple[Any, str]], role: Role) -> None:
        """Say which columns ("node" or "edge") will be read, so that one cache is planned for all of them.

        Columns of edges are only cached if they are declared: else nobody knows how often they are read.

        Args:
            kind: "node" or "edge".
            names: (type, name) of columns; a type that lacks one now is not planned for.
            role: Which of a batch's rows are read.
        """
        graph = self._graph
        for type_, name in names:
            self._roles[kind, type_, name] = role | self._roles.get((kind, type_, name), role)
            if kind == "node":
                frame = graph._node_frames[graph.get_ntype_id(type_)]
            else:
                frame = graph._edge_frames[graph.get_etype_id(type_)]
            if name in frame._columns:
                self._add(kind, name, type_)

    def prepare(self) -> None:
        """Fill the cache if its budget is fixed."""
        self._fields.prepare()

    def after_first_step(self) -> None:
        """Size and fill the cache if its budget is "auto"."""
        self._fields.after_first_step()

    def invalidate(self) -> None:
        """Forget all cached values."""
        self._fields.invalidate()

    def with_room(self, work: Callable[[], T]) -> T:
        """Do work on the device; where its memory is short, again with a smaller cache."""
        return with_room(work, self._accelerator, self._fields.shrink)

    def shrink(self) -> bool:
        """See ``FieldSet.shrink``."""
        return self._fields.shrink()

    def settle(self) -> None:
        """See ``FieldSet.settle``."""
        self._fields.settle()

    def close(self) -> None:
        """Unpin host memory."""
        self._fields.close()

    def observe(self, on_read: OnRead) -> None:
        """Call ``on_read`` after every read; see ``ReadCounters``."""
        self._fields.observe(on_read)

    def counters(self) -> CacheStats:
        """Rows and bytes by column."""
        fields: dict[Hashable, FieldStats] = {}
        for key, stats in self._fields.counters.fields.items():
            label = key.label if isinstance(key, _Key) else key
            fields[label] = fields.get(label, FieldStats()) + stats
        return CacheStats(fields)

    @property
    def plans(self) -> CachePlans:
        """What is cached of each vertex type, and of each edge type of which anything is."""
        return CachePlans(
            replace(plan, fields=tuple(replace(part, key=getattr(part.key, "label", part.key)) for part in plan))
            for plan in self._fields.plans
        )

    def _add(self, kind: str, name: str, type_: Any) -> _Key:
        """The key of a column, which the field set knows afterwards."""
        key = _Key(kind, type_, name, _label(kind, name, type_, self._graph))
        source = partial(_column_values, self._graph, kind, name, type_)
        role = self._roles.get((kind, type_, name))
        row_type = type_ if kind == "node" or role is not None else None
        self._fields.add_source(key, source, row_type=row_type, role=role or Role.INPUT)
        return key


def _row_counts(graph: Any) -> dict[RowType, int]:
    """Vertices and edges by type of a graph where they can be ranked; a block has the same type at both ends."""
    if not isinstance(graph, dgl.DGLGraph) or graph.is_block:
        return {}
    counts: dict[RowType, int] = {ntype: int(graph.num_nodes(ntype)) for ntype in graph.ntypes}
    return counts | {etype: int(graph.num_edges(etype)) for etype in graph.canonical_etypes}


def _storage(graph: Any, kind: str, name: str, type_: Any) -> Any:
    get = graph.get_node_storage if kind == "node" else graph.get_edge_storage
    try:
        return get(name, type_)
    except KeyError:
        if not isinstance(graph, dgl.DGLGraph):
            raise
        there = sorted((graph.nodes if kind == "node" else graph.edges)[type_].data)
        raise KeyError(f"{kind}s of type {type_!r} must have the column {name!r}, they have {there}") from None


def _column_values(graph: Any, kind: str, name: str, type_: Any) -> FieldValue:
    """The values of a column now. A function of the graph alone: a field set must not keep its owner alive."""
    return column_values(_storage(graph, kind, name, type_))


def _label(kind: str, name: str, type_: Any, graph: Any) -> str:
    """How a column is called in the statistics: ``feat``, ``user/feat``, ``edge:w``, ``edge:user-buys-item/w``."""
    if kind == "node":
        return name if len(graph.ntypes) == 1 else f"{type_}/{name}"
    return f"edge:{name}" if len(graph.canonical_etypes) == 1 else f"edge:{'-'.join(type_)}/{name}"


def awaited(value: Any) -> Any:
    """A fetched value, which may be a future."""
    return value.wait() if hasattr(value, "wait") else value
