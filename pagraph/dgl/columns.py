"""The columns of a DGL graph as fields: read through caches and recycled memory, never stale."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..cache.budget import Budget
from ..cache.stats import CacheStats
from ..features.fields import FieldSet
from .graphbolt import import_dgl

dgl = import_dgl()
from dgl.frame import Column  # noqa: E402

if TYPE_CHECKING:
    from ..buffers import BufferPool
    from ..cache.plan import CachePlan

__all__ = ["ColumnRows", "Columns", "awaited"]


@dataclass(frozen=True, eq=False)
class ColumnRows:
    """Rows of one column that were read ahead, and how to get those that the graph holds when they are needed."""

    read: Callable[[], Tensor]
    tensor: Tensor | None = None
    is_current: Callable[[], bool] | None = None

    def current(self) -> Tensor:
        """The rows; read now if the column was replaced or written since, or could not be read ahead.

        Raises:
            KeyError: The graph has no such column now.
        """
        if self.tensor is None or (self.is_current is not None and not self.is_current()):
            return self.read()
        return self.tensor


class Columns:
    """Reads rows of any vertex or edge column of a DGL graph onto a device.

    Each vertex or edge type has a field set of its own; the static cache serves the vertices of graphs with one type.

    Args:
        graph: A DGL graph, or anything with ``get_node_storage`` and ``get_edge_storage``.
        device: Where rows are delivered.
        budget: Bytes the cache may take, or None for no cache.
        rank: Ranks all vertices, most valuable first; called once, when a cache is filled.
        pool_of: Recycled memory for a column, by its key.
        share: See ``FieldSet``.
    """

    def __init__(
        self,
        graph: Any,
        device: torch.device,
        *,
        budget: Budget | None,
        rank: Callable[[], Tensor],
        pool_of: Callable[[str], BufferPool],
        share: Hashable = None,
    ) -> None:
        self._graph = graph
        self._device = device
        self._budget = budget
        self._rank = rank
        self._pool_of = pool_of
        self._share = share
        self._sets: dict[tuple[str, Any], FieldSet] = {}
        self._lock = threading.Lock()

    def read_ahead(self, kind: str, name: str, type_: Any, ids: Tensor) -> ColumnRows:
        """Rows of column ``name`` ("node" or "edge", of one type) at ``ids``, for any thread.

        A column that cannot be read may have been deleted only to be set again: whether that is an error is seen when
        the rows are needed.
        """
        read = partial(self._read, kind, name, type_, ids)
        try:
            tensor, is_current = read()
        except (KeyError, RuntimeError):
            return ColumnRows(lambda: read()[0])
        return ColumnRows(lambda: read()[0], tensor, is_current)

    def _read(self, kind: str, name: str, type_: Any, ids: Tensor) -> tuple[Tensor, Callable[[], bool] | None]:
        """The rows now, and how to ask later whether they still are."""
        storage = _storage(self._graph, kind, name, type_)
        if not isinstance(storage, Column):
            return awaited(storage.fetch(ids, self._device, False)), None
        fields = self._set_of(kind, type_, name)
        key = _key(kind, name, type_, self._graph)
        rows = fields.read(key, ids)
        return rows.tensor, partial(fields.is_current, key, rows)

    def declare(self, names: list[tuple[str, str]]) -> None:
        """Say which vertex columns will be read, (type, name), so that one cache is planned for all of them."""
        for ntype, name in names:
            if name in self._graph._node_frames[self._graph.get_ntype_id(ntype)]._columns:
                self._set_of("node", ntype, name)

    def prepare(self) -> None:
        """Fill the caches whose budget is fixed."""
        for fields in list(self._sets.values()):
            fields.prepare()

    def after_first_step(self) -> None:
        """Size and fill the caches whose budget is "auto"."""
        for fields in list(self._sets.values()):
            fields.after_first_step()

    def invalidate(self) -> None:
        """Forget all cached values."""
        for fields in list(self._sets.values()):
            fields.invalidate()

    def counters(self) -> CacheStats:
        """Rows and bytes by column."""
        return CacheStats({k: f for fields in list(self._sets.values()) for k, f in fields.counters.fields.items()})

    @property
    def plans(self) -> list[CachePlan]:
        """What is cached, for each vertex type that a cache serves."""
        return [fields.plan for (kind, _), fields in list(self._sets.items()) if kind == "node"]

    def _set_of(self, kind: str, type_: Any, name: str) -> FieldSet:
        """The field set of a type, which knows column ``name`` afterwards."""
        with self._lock:
            fields = self._sets.get((kind, type_))
            if fields is None:
                cached = kind == "node" and len(self._graph.ntypes) == len(self._graph.canonical_etypes) == 1
                count = self._graph.num_nodes(type_) if kind == "node" else self._graph.num_edges(type_)
                fields = FieldSet(
                    {},
                    device=self._device,
                    budget=self._budget if cached else None,
                    rank=self._rank,
                    pool_of=self._pool_of,
                    num_nodes=count,
                    share=self._share,
                )
                self._sets[kind, type_] = fields
            fields.add_source(
                _key(kind, name, type_, self._graph), partial(_column_data, self._graph, kind, name, type_)
            )
            return fields


def _storage(graph: Any, kind: str, name: str, type_: Any) -> Any:
    get = graph.get_node_storage if kind == "node" else graph.get_edge_storage
    return get(name, type_)


def _column_data(graph: Any, kind: str, name: str, type_: Any) -> Tensor:
    """The tensor of a column now. A function of the graph alone: a field set must not keep its owner alive."""
    data: Tensor = _storage(graph, kind, name, type_).data
    return data


def _key(kind: str, name: str, type_: Any, graph: Any) -> str:
    """How a column is called in the statistics: ``feat``, ``user/feat``, ``edge:w``, ``edge:user-buys-item/w``."""
    if kind == "node":
        return name if len(graph.ntypes) == 1 else f"{type_}/{name}"
    return f"edge:{name}" if len(graph.canonical_etypes) == 1 else f"edge:{'-'.join(type_)}/{name}"


def awaited(value: Any) -> Any:
    """A fetched value, which may be a future."""
    return value.wait() if hasattr(value, "wait") else value
