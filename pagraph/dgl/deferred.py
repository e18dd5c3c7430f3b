"""Deferred columns, whose rows are gathered or decoded when they are first read."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..graph.fields import FieldValue, Named
from ..graph.stored_rows import IndexedRows, NarrowRows
from .graphbolt import import_dgl

dgl = import_dgl()
from dgl.frame import Column, Frame, LazyFeature, Scheme, _LazyIndex  # noqa: E402


@dataclass(frozen=True, eq=False)
class LazyColumn:
    """A LazyFeature of a sampled graph: ``frame[key]`` gets rows ``ids`` of the parent's column."""

    frame: Any
    key: str
    kind: str
    name: str
    type: Any
    ids: Tensor


def map_leaves(item: Any, change: Callable[[Any], Any]) -> Any:
    """Map the leaves of a nested structure; like in DGL's loader, named tuples become tuples."""
    if isinstance(item, tuple):
        return tuple(map_leaves(x, change) for x in item)
    if isinstance(item, list):
        return [map_leaves(x, change) for x in item]
    if isinstance(item, Mapping):
        return {key: map_leaves(x, change) for key, x in item.items()}
    return change(item)


def frame_of(graph: Any, kind: str, type_: Any) -> Any:
    """The frame of one vertex or edge type; ``kind`` is "node" or "edge"."""
    if kind == "node":
        return graph._node_frames[graph.get_ntype_id(type_)]
    return graph._edge_frames[graph.get_etype_id(type_)]


def moved(leaf: Any, device: torch.device) -> Any:
    """A leaf on ``device``; copies to the CPU are synchronous."""
    return leaf.to(device, non_blocking=device.type != "cpu")


def find_lazy(graph: Any) -> Iterator[LazyColumn]:
    """Every LazyFeature column of a sampled graph.

    Raises DGLError if one has no ids and its graph has no NID or EID.
    """
    for type_, frame in zip(graph.ntypes, graph._node_frames, strict=True):
        yield from _lazy_of(frame, "node", type_, dgl.NID)
    for type_, frame in zip(graph.canonical_etypes, graph._edge_frames, strict=True):
        yield from _lazy_of(frame, "edge", type_, dgl.EID)


def _lazy_of(frame: Any, kind: str, type_: Any, id_name: str) -> Iterator[LazyColumn]:
    """The LazyFeature columns of a frame."""
    for key, column in list(frame._columns.items()):
        if not isinstance(column, LazyFeature):
            continue
        ids = column.id_
        if ids is None:
            ids = frame.get(id_name, None)
        if ids is None:
            raise dgl.DGLError(
                f"LazyFeature {key!r} must have ids, or its graph a dgl.{id_name.strip('_')} "
                "column; it has neither"
            )
        yield LazyColumn(frame, key, kind, column.name or key, type_, ids)


def materialise(parent: Any) -> None:
    """Gather the lazy columns of a graph that is itself a subgraph, like DGL's fetch.

    Call it before samplers run in threads, because DGL's columns must not be read while another
    thread gathers them.
    """
    for frame in _frames(parent):
        for column in list(frame._columns.values()):
            if isinstance(column, Column) and column.index is not None:
                _ = column.data


def _frames(graph: Any) -> list[Any]:
    """All frames of a DGL graph; none for any other object."""
    return [*graph._node_frames, *graph._edge_frames] if isinstance(graph, dgl.DGLGraph) else []


def parent_storages(parent: Any) -> dict[tuple[Any, str], Any]:
    """The tensors of a DGL graph's gathered columns, by frame and name; none for other objects."""
    storages = {}
    for frame in _frames(parent):
        for name, column in frame._columns.items():
            if _is_gathered(column):
                storages[id(frame), name] = column.storage
    return storages


def parent_columns(
    graph: Any, parent: Any, before: Mapping[tuple[Any, str], Any]
) -> list[tuple[Any, Any]]:
    """Deferred columns of a graph sampled from ``parent``: (column, the parent's frame and key).

    Frames are matched by type, like in DGL's loader. A column is the parent's if it waits for the
    rows of its frame's ids, or holds a tensor that the parent has now or had ``before`` sampling
    (:func:`parent_storages`). A column may be replaced during sampling.
    """
    found: list[tuple[Any, Any]] = []
    if not isinstance(parent, dgl.DGLGraph):
        return found
    by_type = dict(zip([*parent.ntypes, *parent.canonical_etypes], _frames(parent), strict=True))
    types = [*graph.ntypes, *graph.canonical_etypes]
    id_names = [dgl.NID] * len(graph.ntypes)
    id_names += [dgl.EID] * len(graph.canonical_etypes)
    for type_, frame, id_name in zip(types, _frames(graph), id_names, strict=True):
        parent_frame = by_type.get(type_)
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


def repoint(columns: Sequence[tuple[Any, Any]]) -> None:
    """Let deferred columns use the parent's current column, which may have been replaced."""
    for column, (parent_frame, key) in columns:
        own = parent_frame._columns.get(key)
        # A column without an index was gathered, by the sampler or a user, and keeps its rows.
        if own is not None and column.index is not None and column.storage is not own.storage:
            column.storage = own.storage
            column.scheme = own.scheme


def _is_gathered(column: Any) -> bool:
    return isinstance(column, Column) and column.index is None


# The rows of deferred columns. DGL gathers a column when it is first read: it sets `storage`, then
# clears `index`. A thread that read both in between would pair the new rows with the old index. So
# both are read once, before other threads run, and the result is used as long as there is an index.
_known: weakref.WeakKeyDictionary[Any, IndexedRows] = weakref.WeakKeyDictionary()
_lock = threading.Lock()  # guards _known; its holder takes no other


def waiting_column(rows: IndexedRows) -> Any:
    """A DGL column of rows by reference, which DGL gathers at the first read."""
    column = Column(rows.source, None, rows.ids)
    with _lock:
        _known[column] = rows
    return column


def waiting_rows(column: Any) -> IndexedRows | None:
    """The rows of a column that DGL has yet to gather from a CPU tensor; None for all others."""
    if column.index is None and not _known:  # the usual case, which needs no lock
        return None
    with _lock:
        index = column.index  # read again, as another thread may have gathered the column
        if index is None:
            _known.pop(column, None)
            return None
        if column not in _known and _is_plain(column, index):
            ids = index.flatten() if isinstance(index, _LazyIndex) else index
            _known[column] = IndexedRows(column.storage, ids)
        return _known.get(column)


class NarrowColumn(Column):
    """Rows in fewer bytes as a column; blocks, subgraphs and DGL's loader read single rows.

    ``ndata[...]`` decodes the whole column, which is a plain tensor from then on.
    """

    def __init__(self, rows: NarrowRows) -> None:
        super().__init__(rows, Scheme(rows.decoding.row_shape, rows.dtype))
        self.storage: Any
        self.index: Any

    @property
    def data(self) -> Tensor:
        """The values; overrides DGL's attribute."""
        rows = self.storage
        index = self.index
        if isinstance(rows, NarrowRows):
            ids = index.flatten() if isinstance(index, _LazyIndex) else index
            values = rows.materialize() if ids is None else rows[ids.cpu()]
            # The index is cleared first, since it does not fit the new values.
            self.index = None
            self.storage = values
        result: Tensor = Column.data.fget(self)
        return result

    @data.setter
    def data(self, values: Tensor) -> None:
        Column.data.fset(self, values)

    def clone(self) -> Any:
        """See ``Column.clone``."""
        return _narrow(super().clone())

    def subcolumn(self, rowids: Any) -> Any:
        """See ``Column.subcolumn``; nothing is read yet."""
        return _narrow(super().subcolumn(rowids))

    def astype(self, new_dtype: Any) -> Any:
        """See ``Column.astype``; reads the values."""
        _ = self.data
        return super().astype(new_dtype)

    def fetch(self, indices: Tensor, device: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        """See ``Column.fetch``; reads only these rows."""
        rows = narrow_rows(self)
        if rows is None:
            return super().fetch(indices, device, pin_memory=pin_memory, **kwargs)
        return rows[indices.cpu()].to(device)


def _narrow(column: Any) -> Any:
    # DGL's methods return a plain Column for any kind of column.
    column.__class__ = NarrowColumn
    return column


def narrow_rows(column: Any) -> NarrowRows | None:
    """A column's rows in fewer bytes; None if it has none, or a change of it is pending."""
    rows = column.storage
    waits = (
        column.index is not None or column.device is not None or column.deferred_dtype is not None
    )
    return rows if isinstance(rows, NarrowRows) and not waits else None


def column_values(column: Any) -> FieldValue:
    """The current values of a column: rows in fewer bytes, rows by reference, or its tensor."""
    narrow = narrow_rows(column)
    if narrow is not None:
        return narrow
    rows = waiting_rows(column)
    if rows is not None:
        return rows
    values: Tensor = column.data
    return values


def gather_others(graph: Any, edge_names: tuple[str | None, ...] = ()) -> None:
    """Gather the columns that cannot be read by reference, and those of ``edge_names``.

    Call it before other threads read any.
    """
    for frame in _frames(graph):
        for column in list(frame._columns.values()):
            if isinstance(column, Column):
                column_values(column)
    for frame in graph._edge_frames:
        for name in edge_names:
            if name in frame._columns:
                _ = frame[name]


class _Columns(Named[Any]):
    """Columns of a frame; pickled as a plain dict, which a process without pagraph can read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def sub_frame(parent: Any, index: Any, num_rows: int, given: Mapping[str, Tensor]) -> Any:
    """A frame of a parent's columns at ``index`` (ids, or DGL's lazy ids), in the parent's order.

    Rows that are ``given`` are used; other columns are gathered when they are first read. DGL's
    ``subcolumn`` would look up the parent's index for every row at once.
    """
    frame = Frame(num_rows=num_rows)
    columns = frame._columns = _Columns()
    # Read once: the length of a weak dictionary takes a call, and a batch has dozens of columns.
    none_wait = not _known
    for name, column in parent._columns.items():
        if name in given:
            columns[name] = None  # keeps its place in the order
            continue
        gathered = column.index is column.device is column.deferred_dtype is None
        if none_wait and gathered and type(column) is Column and column._data_nd is None:
            # `Column(storage, scheme, index)` without its three constructors. The parent's
            # `pinned_by_dgl` must not be copied: a column with it unpins the memory when it dies.
            child = object.__new__(Column)
            vars(child).update(vars(column), index=index, pinned_by_dgl=False)
            columns[name] = child
        else:
            columns[name] = sub_column(column, index)
    for name, rows in given.items():
        columns[name] = Column(rows, Scheme(tuple(rows.shape[1:]), rows.dtype))
    return frame


def sub_column(column: Any, index: Any) -> Any:
    """One column of :func:`sub_frame`, for any kind of column."""
    if isinstance(column, NarrowColumn) and narrow_rows(column) is not None:
        if isinstance(index, _LazyIndex):
            index = index.flatten()
        return column.subcolumn(index)
    rows = waiting_rows(column)
    if rows is None:
        _ = column.data
        return column.subcolumn(index)
    then = index._indices if isinstance(index, _LazyIndex) else [index]
    return Column(rows.source, column.scheme, _LazyIndex([rows.ids, *then]))


def _is_plain(column: Any, index: Any) -> bool:
    """Whether a deferred column is plain rows of a dense CPU tensor, with no change pending."""
    storage = column.storage
    parts = index._indices if isinstance(index, _LazyIndex) else [index]
    return (
        column.device is None
        and column.deferred_dtype is None
        and isinstance(storage, Tensor)
        and all(t.device.type == "cpu" and t.layout == torch.strided for t in (storage, *parts))
        and all(part.dtype in (torch.int32, torch.int64) for part in parts)
    )
