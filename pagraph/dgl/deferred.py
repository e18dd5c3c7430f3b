"""Deferred columns: rows gathered when they are first read."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..graph.indexed_rows import FieldValue, IndexedRows
from .graphbolt import import_dgl

dgl = import_dgl()
from dgl.frame import Column, LazyFeature, _LazyIndex  # noqa: E402

__all__ = [
    "LazyColumn",
    "column_values",
    "find_lazy",
    "gather_others",
    "map_leaves",
    "materialise",
    "moved",
    "parent_columns",
    "parent_storages",
    "repoint",
    "sub_column",
    "vertex_field",
    "waiting_column",
    "waiting_rows",
]


@dataclass(frozen=True, eq=False)
class LazyColumn:
    """One column of a sampled graph that is to be filled: ``frame[key]`` gets ``name`` of the parent at ``ids``."""

    frame: Any
    key: str
    kind: str
    name: str
    type: Any
    ids: Tensor


def map_leaves(item: Any, change: Callable[[Any], Any]) -> Any:
    """The nested structure with every leaf changed; tuples (also named ones) become tuples, as in DGL's loader."""
    if isinstance(item, tuple):
        return tuple(map_leaves(x, change) for x in item)
    if isinstance(item, list):
        return [map_leaves(x, change) for x in item]
    if isinstance(item, Mapping):
        return {key: map_leaves(x, change) for key, x in item.items()}
    return change(item)


def moved(leaf: Any, device: torch.device) -> Any:
    """A leaf on ``device``; a copy to the CPU is waited for."""
    return leaf.to(device, non_blocking=device.type != "cpu")


def find_lazy(graph: Any) -> Iterator[LazyColumn]:
    """Every LazyFeature column of a sampled graph.

    Raises:
        DGLError: The column names no ids and the graph has no NID or EID.
    """
    for kind, frames, types, id_name in (
        ("node", graph._node_frames, graph.ntypes, dgl.NID),
        ("edge", graph._edge_frames, graph.canonical_etypes, dgl.EID),
    ):
        for frame, type_ in zip(frames, types, strict=True):
            for key, column in list(frame._columns.items()):
                if isinstance(column, LazyFeature):
                    ids = column.id_ if column.id_ is not None else frame.get(id_name, None)
                    if ids is None:
                        raise dgl.DGLError(
                            f"LazyFeature {key!r} must have ids, or its graph a dgl.{id_name.strip('_')} column; "
                            "it has neither"
                        )
                    yield LazyColumn(frame, key, kind, column.name or key, type_, ids)


def materialise(parent: Any) -> None:
    """Gather the columns of a graph that are lazy themselves (it is a subgraph), once, as DGL's own fetch does.

    For samplers of a user's own in threads: DGL's columns must not be looked at while another thread gathers them.
    Call it before they start.
    """
    if isinstance(parent, dgl.DGLGraph):
        for frame in [*parent._node_frames, *parent._edge_frames]:
            for column in list(frame._columns.values()):
                if isinstance(column, Column) and column.index is not None:
                    _ = column.data


def parent_storages(parent: Any) -> dict[tuple[Any, str], Any]:
    """The tensors that are columns of a DGL graph now, by frame and name; empty for any other object."""
    if not isinstance(parent, dgl.DGLGraph):
        return {}
    frames = [*parent._node_frames, *parent._edge_frames]
    return {(id(f), key): c.storage for f in frames for key, c in f._columns.items() if _is_gathered(c)}


def parent_columns(graph: Any, parent: Any, before: Mapping[tuple[Any, str], Any]) -> list[tuple[Any, Any]]:
    """Columns of a sampled graph that still wait to be gathered from the parent: (column, the parent's frame and key).

    Frames are matched by type, as DGL's loader does for its workers. A column is the parent's if it waits for just the
    rows of its frame's ids, or holds a tensor that the parent has, or had before.

    Args:
        graph: What a sampler returned.
        parent: The graph it was sampled from.
        before: ``parent_storages(parent)`` of before the sampling, during which a column may have been replaced.
    """
    found: list[tuple[Any, Any]] = []
    if not isinstance(parent, dgl.DGLGraph):
        return found
    nodes = zip(graph._node_frames, _node_parents(graph, parent), strict=True)
    edges = zip(graph._edge_frames, _edge_parents(graph, parent), strict=True)
    pairs = [(dgl.NID, *pair) for pair in nodes] + [(dgl.EID, *pair) for pair in edges]
    for id_name, frame, parent_frame in pairs:
        if parent_frame is None:
            continue
        ids = getattr(frame._columns.get(id_name), "storage", None)
        for key, column in frame._columns.items():
            own = parent_frame._columns.get(key)
            if not _is_gathered(own) or isinstance(column, LazyFeature) or column.index is None:
                continue
            old = before.get((id(parent_frame), key))
            if column.index is ids or column.storage is own.storage or column.storage is old:
                found.append((column, (parent_frame, key)))
    return found


def repoint(columns: list[tuple[Any, Any]]) -> None:
    """Make waiting columns follow the parent, whose field may have been replaced since they were sampled."""
    for column, (parent_frame, key) in columns:
        own = parent_frame._columns.get(key)
        if own is not None and column.index is not None and column.storage is not own.storage:
            column.storage, column.scheme = own.storage, own.scheme


def _is_gathered(column: Any) -> bool:
    return isinstance(column, Column) and column.index is None


def _node_parents(graph: Any, parent: Any) -> list[Any]:
    by_type = dict(zip(parent.ntypes, parent._node_frames, strict=True))
    return [by_type.get(ntype) for ntype in graph.ntypes]


def _edge_parents(graph: Any, parent: Any) -> list[Any]:
    by_type = dict(zip(parent.canonical_etypes, parent._edge_frames, strict=True))
    return [by_type.get(etype) for etype in graph.canonical_etypes]


# DGL gathers a column when it is first read: it sets `storage`, then clears `index`. Another thread that looked at both
# between the two would pair the new rows with the old index; so they are looked at once, before other threads run, and
# count for as long as there is an index.
_known: weakref.WeakKeyDictionary[Any, IndexedRows] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def waiting_column(rows: IndexedRows) -> Any:
    """A DGL column of these rows, gathered when DGL first reads it."""
    column = Column(rows.source, None, rows.ids)
    with _lock:
        _known[column] = rows
    return column


def waiting_rows(column: Any) -> IndexedRows | None:
    """The rows of a column that DGL has yet to gather; None for all others.

    Those that also wait to be moved or converted, or are not in CPU memory, are others.
    """
    index = column.index
    if index is None and not _known:  # nearly always: no lock for columns that never waited
        return None
    with _lock:
        if index is None:
            _known.pop(column, None)
            return None
        if column not in _known and _is_plain(column):
            ids = index.flatten() if isinstance(index, _LazyIndex) else index
            _known[column] = IndexedRows(column.storage, ids)
        return _known.get(column)


def column_values(column: Any) -> FieldValue:
    """The values of a column now: rows by reference where DGL has yet to gather them, else its tensor."""
    rows = waiting_rows(column)
    if rows is not None:
        return rows
    values: Tensor = column.data
    return values


def vertex_field(graph: Any, name: str) -> FieldValue:
    """The values of a field of a DGL graph with one vertex type, not gathered for this."""
    return column_values(graph._node_frames[0]._columns[name])


def gather_others(graph: Any, edge_names: tuple[str | None, ...] = ()) -> None:
    """Look at all waiting columns of a graph; gather those that cannot be read by reference, and these of its edges.

    Not safe while other threads read these columns: call it before they start.
    """
    for frame in [*graph._node_frames, *graph._edge_frames]:
        for column in list(frame._columns.values()):
            if isinstance(column, Column):
                column_values(column)
    for frame in graph._edge_frames:
        for name in edge_names:
            if name in frame._columns:
                _ = frame[name]


def sub_column(column: Any, index: Any) -> Any:
    """The rows of a parent's column at ``index`` (ids, or DGL's lazy ones), nothing read yet.

    DGL's own ``subcolumn`` would look up the parent's index of every row at once.
    """
    rows = waiting_rows(column)
    if rows is None:
        _ = column.data
        return column.subcolumn(index)
    then = index._indices if isinstance(index, _LazyIndex) else [index]
    return Column(rows.source, column.scheme, _LazyIndex([rows.ids, *then]))


def _is_plain(column: Any) -> bool:
    """Whether a waiting column is rows of a dense CPU tensor, to be delivered as they are."""
    index, storage = column.index, column.storage
    parts = index._indices if isinstance(index, _LazyIndex) else [index]
    return (
        column.device is None
        and column.deferred_dtype is None
        and isinstance(storage, Tensor)
        and all(t.device.type == "cpu" and t.layout == torch.strided for t in (storage, *parts))
        and all(part.dtype in (torch.int32, torch.int64) for part in parts)
    )
