"""Columns of a DGL graph as fields, read through caches and recycled memory, and never stale."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..cache.choice import Role
from ..features.field import Read
from ..graph.fields import FieldValue
from ..ranking.policy import RowType
from .deferred import column_values, frame_of
from .graphbolt import import_dgl

dgl = import_dgl()
from dgl.frame import Column  # noqa: E402

if TYPE_CHECKING:
    from ..cache.fields import FieldSet
    from ..graph.graph import EdgeType


_Key = tuple[str, Any, str]
"""Kind ("node" or "edge"), type, name."""
_KINDS = ("node", "edge")


class Columns:
    """Reads rows of any vertex or edge column of a DGL graph onto a device.

    One static cache serves vertices of all types, and edges of the declared columns.

    Args:
        graph: A DGL graph, or anything with ``get_node_storage`` and ``get_edge_storage``.
        fields: The set to which columns are added as fields.
        device: Where rows are delivered.
    """

    def __init__(self, graph: Any, fields: FieldSet, device: torch.device) -> None:
        self._graph = graph
        self._fields = fields
        self._device = device
        # By kind, whether rows are those of the frames, and not what a user's method gives.
        self._has_frames = {kind: _is_dgls(graph, f"get_{kind}_storage") for kind in _KINDS}
        self._roles: dict[_Key, Role] = {}
        self._added: set[_Key] = set()

    def reads(
        self,
        kind: str,
        names: Iterable[tuple[Any, str]],
        ids: Mapping[Any, Tensor],
        bounds: Mapping[Any, Sequence[int]] | None = None,
    ) -> list[Read]:
        """Reads of vertex or edge columns, each with the ids of its type.

        Args:
            kind: "node" or "edge".
            names: (type, name) of the columns.
            ids: Type to ids.
            bounds: Type to the ends of the hops in the ids. Default: all are seeds.
        """
        reads = []
        has_frames = self._has_frames[kind]
        for type_, name in names:
            of_type = ids[type_]
            ends = (of_type.shape[0],) if bounds is None else bounds[type_]
            # The usual answer of `key_of`, without its call for each column of each batch.
            key: Hashable = (kind, type_, name)
            if not has_frames or key not in self._added:
                key = self.key_of(kind, type_, name)
            reads.append(Read(key, of_type, ends))
        return reads

    def key_of(self, kind: str, type_: Any, name: str) -> Hashable:
        """The key by which a column is read, that of its field or of a user's storage."""
        key = kind, type_, name
        if not self._has_frames[kind]:
            # A user's class may return another storage each time, so it is asked for every batch.
            try:
                storage = _storage(self._graph, kind, name, type_)
            except KeyError:
                storage = None
            if not isinstance(storage, Column):
                own = "storage", *key
                fetch = partial(_fetched, self._graph, kind, name, type_, self._device)
                self._fields.add_storage(own, fetch)
                return own
        if key not in self._added:
            self._add(key)
        return key

    def declare(self, kind: str, names: Iterable[tuple[Any, str]], role: Role) -> None:
        """Declare columns that will be read, so that one cache is planned for all of them.

        Columns of edges are cached only if they are declared, since otherwise it is unknown how
        often they are read.

        Args:
            kind: "node" or "edge".
            names: (type, name) of columns. Columns that do not exist yet are not planned for.
            role: Which of a batch's rows are read.
        """
        for type_, name in names:
            key = (kind, type_, name)
            before = self._roles.get(key)
            self._roles[key] = role if before is None else role | before
            if self._roles[key] != before:  # add the field again, since the cache plans by roles
                self._added.discard(key)
            # What a user's class gives is asked for by each batch.
            if (
                self._has_frames[kind]
                and key not in self._added
                and name in frame_of(self._graph, kind, type_)._columns
            ):
                self._add(key)

    def _add(self, key: _Key) -> None:
        """Add a column as a field."""
        kind, type_, name = key
        source = partial(_values, self._graph, kind, name, type_)
        if self._has_frames[kind]:
            graph = self._graph
            place = graph.get_ntype_id(type_) if kind == "node" else graph.get_etype_id(type_)
            source = partial(_frame_values, self._graph, f"_{kind}_frames", place, name, source)
        role = self._roles.get(key)
        row_type = type_ if kind == "node" or role is not None else None
        label = _label(kind, name, type_, self._graph)
        self._fields.add_source(
            key, source, row_type=row_type, role=role or Role.INPUT, label=label
        )
        # Set last: other threads look here before they read, without a lock, and must then find the
        # field. Two threads that add it at once add the same.
        self._added.add(key)


def row_counts(graph: Any) -> dict[RowType, int]:
    """Vertices and edges by type; empty for blocks and foreign graphs, which cannot be ranked."""
    if not isinstance(graph, dgl.DGLGraph) or graph.is_block:
        return {}
    counts: dict[RowType, int] = {ntype: int(graph.num_nodes(ntype)) for ntype in graph.ntypes}
    return counts | {etype: int(graph.num_edges(etype)) for etype in graph.canonical_etypes}


def _is_dgls(graph: Any, method: str) -> bool:
    """Whether it is a DGL graph, with DGL's own method."""
    if not isinstance(graph, dgl.DGLGraph) or method in vars(graph):
        return False
    return getattr(type(graph), method) is getattr(dgl.DGLGraph, method)


# Free functions, because a field set must not keep its owner alive through a source.


def _frame_values(graph: Any, frames: str, place: int, name: str, slowly: Any) -> FieldValue:
    """The values of a column, taken from its frame if it is gathered, else by ``slowly``."""
    column = getattr(graph, frames)[place]._columns.get(name)
    plain = (
        type(column) is Column and column.index is column.device is column.deferred_dtype is None
    )
    values: FieldValue = column.storage if plain else slowly()
    return values


def _values(graph: Any, kind: str, name: str, type_: Any) -> FieldValue:
    """The current values of a column."""
    return column_values(_storage(graph, kind, name, type_))


def _fetched(
    graph: Any, kind: str, name: str, type_: Any, device: torch.device, ids: Tensor
) -> Any:
    return awaited(_storage(graph, kind, name, type_).fetch(ids, device, False))


def _storage(graph: Any, kind: str, name: str, type_: Any) -> Any:
    get = graph.get_node_storage if kind == "node" else graph.get_edge_storage
    try:
        return get(name, type_)
    except KeyError:
        if not isinstance(graph, dgl.DGLGraph):
            raise
        there = sorted((graph.nodes if kind == "node" else graph.edges)[type_].data)
        raise KeyError(
            f"{kind}s of type {type_!r} must have the column {name!r}, they have {there}"
        ) from None


def _label(kind: str, name: str, type_: Any, graph: Any) -> str:
    """Name of a column in statistics, such as ``user/feat`` or ``edge:user-buys-item/w``."""
    if kind == "node":
        return name if len(graph.ntypes) == 1 else f"{type_}/{name}"
    return f"edge:{name}" if len(graph.canonical_etypes) == 1 else f"edge:{'-'.join(type_)}/{name}"


def awaited(value: Any) -> Any:
    """A fetched value, which may be a future."""
    return value.wait() if hasattr(value, "wait") else value


def edge_column(graph: Any, etype: EdgeType, name: str) -> Tensor | None:
    """A column of edges; None: there is none of that name."""
    return column_of(frame_of(graph, "edge", etype), name)


def column_of(frame: Any, name: str) -> Tensor | None:
    """A column of a frame; None: there is none of that name."""
    values: Tensor | None = frame[name] if name in frame._columns else None
    return values
