"""The columns of a DGL graph as fields: read through caches and recycled memory, never stale."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..cache.budget import Budget
from ..cache.stats import CacheStats
from ..features.fields import FieldRows, FieldSet
from .graphbolt import import_dgl

dgl = import_dgl()
from dgl.frame import Column  # noqa: E402

if TYPE_CHECKING:
    from ..buffers import BufferPool
    from ..cache.plan import CachePlan

__all__ = ["ColumnRows", "Columns"]


@dataclass(frozen=True, eq=False)
class ColumnRows:
    """Rows of one column, and how to tell whether the graph still holds these values."""

    tensor: Tensor
    fields: FieldSet | None = None
    key: str = ""
    rows: FieldRows | None = None
    ids: Tensor | None = None

    def current(self) -> Tensor:
        """The rows; read again if the column was replaced or written since."""
        if self.fields is None or self.rows is None or self.ids is None:
            return self.tensor
        if self.fields.is_current(self.key, self.rows):
            return self.tensor
        return self.fields.read(self.key, self.ids).tensor


class Columns:
    """Reads rows of any vertex or edge column of a DGL graph onto a device.

    Each vertex or edge type has a field set of its own; the static cache serves the vertices of graphs with one type.

    Args:
        graph: A DGL graph, or anything with ``get_node_storage`` and ``get_edge_storage``.
        device: Where rows are delivered.
        budget: Bytes the cache may take, or None for no cache.
        rank: Ranks all vertices, most valuable first; called once, when a cache is filled.
        pool_of: Recycled memory for a column, by its key.
    """

    def __init__(
        self,
        graph: Any,
        device: torch.device,
        *,
        budget: Budget | None,
        rank: Callable[[], Tensor],
        pool_of: Callable[[str], BufferPool],
    ) -> None:
        self._graph = graph
        self._device = device
        self._budget = budget
        self._rank = rank
        self._pool_of = pool_of
        self._sets: dict[tuple[str, Any], FieldSet] = {}
        self._lock = threading.Lock()

    def read(self, kind: str, name: str, type_: Any, ids: Tensor) -> ColumnRows:
        """Rows of column ``name`` ("node" or "edge", of one type) at ``ids``.

        Raises:
            KeyError: The graph has no such column.
        """
        storage = self._storage(kind, name, type_)
        if not isinstance(storage, Column):
            return ColumnRows(_wait(storage.fetch(ids, self._device, False)))
        fields = self._set_of(kind, type_, name)
        key = _key(kind, name, type_, self._graph)
        rows = fields.read(key, ids)
        return ColumnRows(rows.tensor, fields, key, rows, ids)

    def declare(self, names: list[str]) -> None:
        """Say which vertex columns will be read, so that one cache is planned for all of them."""
        for name in names:
            if name in self._graph._node_frames[0]._columns:
                self._set_of("node", self._graph.ntypes[0], name)

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

    def _storage(self, kind: str, name: str, type_: Any) -> Any:
        get = self._graph.get_node_storage if kind == "node" else self._graph.get_edge_storage
        return get(name, type_)

    def _set_of(self, kind: str, type_: Any, name: str) -> FieldSet:
        """The field set of a type, which knows column ``name`` afterwards."""
        with self._lock:
            fields = self._sets.get((kind, type_))
            if fields is None:
                cached = kind == "node" and len(self._graph.ntypes) == 1
                count = self._graph.num_nodes(type_) if kind == "node" else self._graph.num_edges(type_)
                fields = FieldSet(
                    {},
                    device=self._device,
                    budget=self._budget if cached else None,
                    rank=self._rank,
                    pool_of=self._pool_of,
                    num_nodes=count,
                )
                self._sets[kind, type_] = fields
            fields.add_source(_key(kind, name, type_, self._graph), lambda: self._storage(kind, name, type_).data)
            return fields


def _key(kind: str, name: str, type_: Any, graph: Any) -> str:
    """How a column is called in the statistics: ``feat``, ``user/feat``, ``edge:w``, ``edge:user-buys-item/w``."""
    if kind == "node":
        return name if len(graph.ntypes) == 1 else f"{type_}/{name}"
    return f"edge:{name}" if len(graph.canonical_etypes) == 1 else f"edge:{'-'.join(type_)}/{name}"


def _wait(value: Any) -> Any:
    """A fetched value, which may be a future."""
    return value.wait() if hasattr(value, "wait") else value
