"""DGL columns that wait to be gathered (a subgraph's, a part's) as rows by reference: read without gathering them."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from torch import Tensor

from ..indexed_rows import FieldValue, IndexedRows
from .graphbolt import import_dgl

dgl = import_dgl()
from dgl.frame import Column, _LazyIndex  # noqa: E402

__all__ = ["column_values", "gather_others", "sub_column", "vertex_field", "waiting_column", "waiting_rows"]

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
