"""PyG's graphs without ``edge_index``: pairs of stores, and OGB's ``Data`` with dicts by type."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..graph.csc import CSC, as_ids, check_range, id_dtype
from ..graph.graph import EDGE_TYPE, NODE_TYPE, EdgeType, Graph
from .package import import_pyg

import_pyg()
from torch_geometric.data import (  # noqa: E402
    Data,
    FeatureStore,
    GraphStore,
    HeteroData,
    remote_backend_utils,
)
from torch_geometric.data.graph_store import EdgeLayout  # noqa: E402

_Types = tuple[dict[str, Tensor], dict[EdgeType, Tensor]]


def is_typed(stores: Any) -> bool:
    """Whether the edges of a pair of stores have types, and batches are ``HeteroData``.

    TypeError if it is not such a pair; ValueError without edges, or if only some have a type.
    """
    _, graph_store = _pair(stores)
    types = [attr.edge_type for attr in graph_store.get_all_edge_attrs()]
    if not types:
        raise ValueError("graph_store must hold at least 1 edge type, got 0")
    typed = [edge_type is not None for edge_type in types]
    if any(typed) != all(typed):
        raise ValueError(
            f"graph_store must hold edge types or one edge_index of type None, got {types}"
        )
    return all(typed)


def store_graph(stores: Any) -> Graph:
    """The structure in the graph store; edge ids are positions in it as stored.

    As in PyG, CSC is preferred to COO, and COO to CSR. The number of vertices comes from the edges'
    sizes, else from the features, else from the edges' ends.

    Raises:
        TypeError: It is not a pair of stores, or the edges are not integers.
        ValueError: An edge has an end outside the graph, or the structure is invalid.
    """
    features, graph_store = _pair(stores)
    typed = is_typed(stores)
    edges = _edges_of(graph_store)
    types = dict.fromkeys(ntype for etype in edges for ntype in (etype[0], etype[2]))
    if typed:
        groups = [attr.group_name for attr in features.get_all_tensor_attrs()]
        types |= dict.fromkeys(group for group in groups if isinstance(group, str))
        counts = {ntype: _count(features, graph_store, ntype, edges) for ntype in types}
    else:
        counts = {NODE_TYPE: _untyped_count(features, graph_store, edges)}
    made: dict[EdgeType, CSC] = {}
    for etype, stored in edges.items():
        try:
            made[etype] = _csc(stored, counts[etype[0]], counts[etype[2]])
        except (TypeError, ValueError) as error:
            raise type(error)(f"{_name_of(etype)}: {error}") from None
    return Graph(made, counts)


def store_times(stores: Any, name: str) -> _Types:
    """The times of vertices and edges under a name in a pair of stores.

    Without types the name decides, as in PyG: ``"time"`` is of vertices, any other of edges. With
    types, both vertices and edges may have times, unlike in PyG.

    Raises:
        ValueError: As in PyG: edges are not sorted by destination, or there are no such times.
    """
    features, graph_store = _pair(stores)
    for edge_attr in graph_store.get_all_edge_attrs():
        if edge_attr.layout == EdgeLayout.CSR:
            raise ValueError(
                "Temporal sampling requires that edges are stored in either COO or CSC layout"
            )
        if not edge_attr.is_sorted:
            raise ValueError(
                "Temporal sampling requires that edges are sorted by destination, and by source "
                "time within local "
                "neighborhoods"
            )
    attrs = [copy.copy(attr) for attr in features.get_all_tensor_attrs() if attr.attr_name == name]
    for attr in attrs:
        attr.index = None  # all of them
    if not is_typed(stores):
        if len(attrs) != 1:
            raise ValueError("Temporal sampling specified but did not find any temporal data")
        values = features.get_tensor(attrs[0])
        return ({NODE_TYPE: values}, {}) if name == "time" else ({}, {EDGE_TYPE: values})
    if not attrs:
        raise ValueError(
            f"The time attribute '{name}' is neither a node-level or edge-level attribute"
        )
    nodes = {}
    edges = {}
    for attr, values in zip(attrs, features.multi_get_tensor(attrs), strict=True):
        if isinstance(attr.group_name, str):
            nodes[attr.group_name] = values
        else:
            edges[attr.group_name] = values
    return nodes, edges


def _pair(stores: Any) -> tuple[Any, Any]:
    kinds = (FeatureStore, GraphStore)
    if len(stores) != 2 or not all(map(isinstance, stores, kinds)):
        got = ", ".join(type(store).__name__ for store in stores)
        raise TypeError(f"data must be a pair of a FeatureStore and a GraphStore, got ({got})")
    return stores[0], stores[1]


@dataclass(frozen=True, eq=False)
class _Stored:
    """The edges of one type: ids of both ends; CSC and CSR have pointers for one of them."""

    layout: EdgeLayout
    row: Tensor
    col: Tensor

    @property
    def num_src(self) -> int:
        """Least number of sources."""
        return len(self.row) - 1 if self.layout == EdgeLayout.CSR else _end(self.row)

    @property
    def num_dst(self) -> int:
        """Least number of destinations."""
        return len(self.col) - 1 if self.layout == EdgeLayout.CSC else _end(self.col)


def _edges_of(graph_store: Any) -> dict[EdgeType, _Stored]:
    preferred = [EdgeLayout.CSC, EdgeLayout.COO, EdgeLayout.CSR]
    attrs: dict[EdgeType, Any] = {}
    for attr in graph_store.get_all_edge_attrs():
        etype = EDGE_TYPE if attr.edge_type is None else tuple(attr.edge_type)
        known = attrs.setdefault(etype, attr)
        if preferred.index(attr.layout) < preferred.index(known.layout):
            attrs[etype] = attr
    edges = {}
    for etype, attr in attrs.items():
        row, col = graph_store.get_edge_index(attr)
        name = _name_of(etype)
        edges[etype] = _Stored(
            attr.layout, as_ids(f"{name}: row", row), as_ids(f"{name}: col", col)
        )
    return edges


def _name_of(etype: EdgeType) -> str:
    """The edges of a type, for errors."""
    return "graph_store's edges" + ("" if etype == EDGE_TYPE else f" of {etype}")


def _count(features: Any, graph_store: Any, ntype: str, edges: dict[EdgeType, _Stored]) -> int:
    """Number of vertices of a type."""
    try:
        return int(remote_backend_utils.num_nodes(features, graph_store, ntype))
    except ValueError:  # the stores do not know it
        most = 0
        for etype, stored in edges.items():
            if etype[0] == ntype:
                most = max(most, stored.num_src)
            if etype[2] == ntype:
                most = max(most, stored.num_dst)
        return most


def _untyped_count(features: Any, graph_store: Any, edges: dict[EdgeType, _Stored]) -> int:
    size = graph_store.get_all_edge_attrs()[0].size
    if size is not None and None not in size:
        return int(max(size))
    for attr in features.get_all_tensor_attrs():
        if isinstance(attr.group_name, str | tuple):
            continue
        shape = features.get_tensor_size(attr)
        if shape is not None:
            return int(shape[0])
    return max(max(stored.num_src, stored.num_dst) for stored in edges.values())


def _end(ids: Tensor) -> int:
    return int(ids.max()) + 1 if len(ids) else 0


def _csc(stored: _Stored, num_src: int, num_dst: int) -> CSC:
    """The in-edges of one type."""
    if stored.layout == EdgeLayout.COO:
        return CSC.from_coo(stored.row, stored.col, (num_src, num_dst), names=("row", "col"))
    if stored.layout == EdgeLayout.CSR:
        return _compressed(stored.row, stored.col, num_dst, num_src, "col").transpose()
    return _compressed(stored.col, stored.row, num_src, num_dst, "row")


def _compressed(
    pointers: Tensor, indices: Tensor, num_indexed: int, num_rows: int, name: str
) -> CSC:
    """The CSC of pointers and ids (``name``); pointers of trailing empty rows may be missing."""
    missing = num_rows + 1 - len(pointers)
    if missing < 0:
        raise ValueError(
            f"pointers to edges must have at most {num_rows + 1} entries, got {len(pointers)}"
        )
    check_range(name, indices, num_indexed)
    if missing:
        last = pointers[-1:] if len(pointers) else pointers.new_zeros(1)
        pointers = torch.cat([pointers, last.expand(missing)])
    dtype = id_dtype(max(num_rows, num_indexed), len(indices))
    csc = CSC(pointers.to(dtype), indices.to(dtype), num_indexed)
    csc.validate()
    return csc


_EDGES = "edge_index_dict"
_COUNTS = "num_nodes_dict"
_STRUCTURE = ("edge_index", "adj", "adj_t")


def has_type_dicts(data: Any) -> bool:
    """Whether a ``Data`` holds the edges of several types in a dict."""
    return isinstance(data, Data) and isinstance(data.get(_EDGES, None), Mapping)


def has_edges(data: Any) -> bool:
    """Whether data has edges, possibly an empty set."""
    if isinstance(data, HeteroData):
        return bool(data.edge_types)
    return any(data.get(name, None) is not None for name in (*_STRUCTURE, _EDGES))


def check_one_type(data: Data) -> None:
    """Raise ValueError for a ``Data`` of several types, or without edges and vertices."""
    if has_type_dicts(data):
        raise ValueError(
            f"data must be a HeteroData for several types, got a Data with {_EDGES}: "
            "pagraph.pyg.to_pyg(Graph.from_pyg(data)) converts it"
        )
    if has_edges(data):
        return
    with warnings.catch_warnings():
        # PyG warns of a Data without num_nodes.
        warnings.simplefilter("ignore", UserWarning)
        count = data.num_nodes
    if count is None:
        raise ValueError(
            f"data must have edge_index, or vertices (num_nodes or x), it holds {held_words(data)}"
        )


def typed_data(data: Data) -> HeteroData:
    """The ``HeteroData`` of a ``Data`` whose attributes are dicts by type.

    ``x_dict`` becomes the attribute ``x`` of each vertex type in it. The same holds for other dicts
    by type, such as OGB's ``node_year`` and ``edge_reltype``.

    Raises:
        ValueError: A dict has types that ``edge_index_dict`` and ``num_nodes_dict`` lack, an
            attribute comes twice, or there is also an ``edge_index``.
    """
    attributes = dict(data._store.items())
    also = [name for name in _STRUCTURE if attributes.get(name) is not None]
    if also:
        raise ValueError(f"data must have either {_EDGES} or {also[0]}, got both")
    typed = HeteroData()
    for ntype, count in attributes.pop(_COUNTS, {}).items():
        is_number = isinstance(count, int | Tensor | np.integer)
        if not is_number or (isinstance(count, Tensor) and count.numel() != 1):
            raise ValueError(
                f"{_COUNTS}[{ntype!r}] must be one number of vertices, got {count!r}"[:300]
            )
        typed[ntype].num_nodes = int(count)
    edges = attributes.pop(_EDGES)
    for etype, edge_index in edges.items():
        if not isinstance(etype, tuple) or len(etype) != 3:
            raise ValueError(f"{_EDGES} must have triples of types as keys, got {etype!r}")
        typed[etype].edge_index = edge_index
    types = {*typed.node_types, *(end for etype in edges for end in etype[::2]), *edges}
    for name, value in attributes.items():
        if not isinstance(value, Mapping) or not (name.endswith("_dict") or types & set(value)):
            # Setting it on the HeteroData could be taken for a type.
            typed._global_store[name] = value
            continue
        for kind, rows in value.items():
            attribute = name.removesuffix("_dict")
            if kind not in types:
                raise ValueError(
                    f"{name} must have types of {_EDGES} and {_COUNTS} as keys, got {kind!r}"
                )
            if attribute in typed[kind]:
                raise ValueError(
                    f"data must hold {attribute!r} of {kind!r} only once, got another in {name}"
                )
            typed[kind][attribute] = rows
    return typed


def held_words(data: Any) -> str:
    """The attributes of data, with their shapes."""
    words = [f"{name} {_shape(value)}" for store in data.stores for name, value in store.items()]
    return ", ".join(words)[:300] or "nothing"


def _shape(value: Any) -> str:
    if isinstance(value, Tensor | np.ndarray):
        return str(list(value.shape))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shape(one)}" for key, one in value.items()) + "}"
    return type(value).__name__
