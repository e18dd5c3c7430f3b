"""Joining a sampled subgraph with the attributes of the data: PyG's own code, our gathers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..features.fields import FieldRows, FieldSet
from ..field_version import FieldVersion
from ..graph import NODE_TYPE
from .package import import_pyg

import_pyg()
from torch_geometric.data import Data, HeteroData  # noqa: E402

__all__ = ["Joined", "Joiner"]


class _Gathered(Tensor):
    """An attribute whose rows were read already: PyG's ``torch.index_select`` gets them as they are."""

    rows: Tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ == "index_select":  # not always the object that torch has under this name
            return args[0].rows
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


class _End(Tensor):
    """One end of sampled edges, cut from an ``edge_index``: PyG's ``torch.stack`` of both gets it back, uncopied."""

    edge_index: Tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ == "stack" and len(args[0]) == 2:
            return args[0][0].edge_index
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


@dataclass(frozen=True, eq=False)
class Joined:
    """A batch, and the attributes that it was made of."""

    batch: Any
    rows: dict[str, FieldRows]
    seen: list[tuple[Any, str, Any, FieldVersion | None]]


class Joiner:
    """Makes batches of sampler outputs.

    Node attributes that are dense tensors on the CPU are read through fields; everything else is PyG's to select.

    Args:
        view: What PyG's ``filter_fn`` wants to know of a loader; ``view.data`` is read at every call.
        fields: Reads rows.
        filter_fn: PyG's.
    """

    def __init__(self, view: Any, fields: FieldSet, filter_fn: Any) -> None:
        self._view = view
        self._fields = fields
        self._filter_fn = filter_fn
        self._known: set[str] = set()

    def declare(self) -> None:
        """Tell the fields which attributes will be read, so that one cache is planned for all of them."""
        for ntype, name, _ in _node_tensors(self._view.data):
            self._key(ntype, name)

    def join(self, output: Any, hop_ends: Mapping[str, list[int]]) -> Joined:
        """The batch of a sampler's output, without the user's transform."""
        data, view = self._view.data, copy.copy(self._view)
        seen = _attributes(data)
        view.data, view.transform, view.transform_sampler_output = copy.copy(data), None, None
        rows = {}
        for ntype, name, value in _node_tensors(data):
            nodes = output.node if isinstance(data, Data) else output.node.get(ntype)
            if nodes is None:
                continue
            key = self._key(ntype, name)
            rows[key] = self._fields.read(key, nodes, hop_ends.get(ntype))
            gathered = value.detach().as_subclass(_Gathered)
            gathered.rows = rows[key].tensor
            _store(view.data, ntype)[name] = gathered
        return Joined(self._filter_fn(view, with_joined_ends(output, data)), rows, seen)

    def is_current(self, joined: Joined) -> bool:
        """Whether joining now would give the same values."""
        if not all(self._fields.is_current(key, rows) for key, rows in joined.rows.items()):
            return False
        now = _attributes(self._view.data)
        return len(now) == len(joined.seen) and all(
            a[0] == b[0] and a[1] == b[1] and a[2] is b[2] and a[3] == b[3]
            for a, b in zip(now, joined.seen, strict=True)
        )

    def _key(self, ntype: str, name: str) -> str:
        single = isinstance(self._view.data, Data)
        key = name if single else f"{ntype}/{name}"
        if key not in self._known:
            self._known.add(key)
            self._fields.add_source(key, partial(_value, self._view, ntype, name), row_type=ntype)
        return key


def with_joined_ends(output: Any, data: Any) -> Any:
    """The output with ends that remember the ``edge_index`` they were cut from, where that is what is made of them."""
    output = copy.copy(output)
    if isinstance(output.row, Mapping):
        ends = {etype: _ends(row, output.col[etype]) for etype, row in output.row.items() if _stacks(data, etype)}
        output.row = {**output.row, **{etype: row for etype, (row, _) in ends.items()}}
        output.col = {**output.col, **{etype: col for etype, (_, col) in ends.items()}}
    elif _stacks(data, None):
        output.row, output.col = _ends(output.row, output.col)
    return output


def _stacks(data: Any, etype: Any) -> bool:
    """Whether PyG's code stacks the ends of these edges, and does nothing else with them."""
    if isinstance(data, Data):
        return "adj_t" not in data
    return not isinstance(data, HeteroData) or etype not in data.edge_types or "adj_t" not in data[etype]


def _ends(row: Tensor, col: Tensor) -> tuple[Tensor, Tensor]:
    """Both ends, or where these are the two rows of one tensor, as PyG's code gets them back uncopied."""
    count = len(row)
    adjacent = row.untyped_storage().data_ptr() == col.untyped_storage().data_ptr() and (
        col.storage_offset() == row.storage_offset() + count
    )
    if not (adjacent and len(col) == count and row.is_contiguous() and col.is_contiguous() and row.dtype == col.dtype):
        return row, col
    whole = row.as_strided((2, count), (count, 1))
    ends = row.as_subclass(_End), col.as_subclass(_End)
    for end in ends:
        end.edge_index = whole
    return ends


def _store(data: Any, ntype: str) -> Any:
    return data._store if isinstance(data, Data) else data[ntype]


def _stores(data: Any) -> list[tuple[Any, Any]]:
    """The stores of vertices, and of edges too where these are the same, with the type that owns each."""
    return [(NODE_TYPE, data._store)] if isinstance(data, Data) else list(data.node_items())


def _node_tensors(data: Any) -> list[tuple[str, str, Tensor]]:
    """Attributes with a row for each vertex that fields can read: dense tensors on the CPU that need no gradient."""
    if not isinstance(data, Data | HeteroData):
        return []
    return [
        (ntype, name, value)
        for ntype, store in _stores(data)
        for name, value in list(store.items())
        if isinstance(value, Tensor) and _is_plain(value) and store.is_node_attr(name)
        if data.__cat_dim__(name, value, store) == 0
    ]


def _is_plain(value: Tensor) -> bool:
    return (
        type(value) in (Tensor, torch.nn.Parameter)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not value.requires_grad
        and value.dim() > 0
    )


def _attributes(data: Any) -> list[tuple[Any, str, Any, FieldVersion | None]]:
    """All that a batch may be made of, as it is now."""
    if not isinstance(data, Data | HeteroData):
        return []
    return [
        (store._key, name, value, FieldVersion.of(value) if isinstance(value, Tensor) and _is_plain(value) else None)
        for store in data.stores
        for name, value in list(store.items())
    ]


def _value(view: Any, ntype: str, name: str) -> Tensor:
    """The attribute now. Not a method: a cycle would keep caches in memory until the collector runs."""
    value: Tensor = _store(view.data, ntype)[name]
    return value
