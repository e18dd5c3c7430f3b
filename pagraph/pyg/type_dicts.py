"""A ``Data`` that holds several types in dicts, as OGB's ``ogbn-mag`` does, made a ``HeteroData``;
what data hold."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from .package import import_pyg

import_pyg()
from torch_geometric.data import Data, HeteroData  # noqa: E402

_EDGES = "edge_index_dict"
_COUNTS = "num_nodes_dict"
_STRUCTURE = ("edge_index", "adj", "adj_t")


def has_type_dicts(data: Any) -> bool:
    """Whether a ``Data`` holds the edges of several types in a dict."""
    return isinstance(data, Data) and isinstance(data.get(_EDGES, None), Mapping)


def has_edges(data: Any) -> bool:
    """Whether data say what their edges are, be it that there are none."""
    if isinstance(data, HeteroData):
        return bool(data.edge_types)
    return any(data.get(name, None) is not None for name in (*_STRUCTURE, _EDGES))


def check_one_type(data: Data) -> None:
    """Raise ValueError for a ``Data`` of several types, or one that has neither edges nor
    vertices."""
    if has_type_dicts(data):
        raise ValueError(
            f"data must be a HeteroData where there are several types, got a Data with {_EDGES}: "
            "pagraph.pyg.to_pyg(Graph.from_pyg(data)) makes one of it"
        )
    if has_edges(data):
        return
    with warnings.catch_warnings():
        # Of a Data that does not say how many vertices it has.
        warnings.simplefilter("ignore", UserWarning)
        count = data.num_nodes
    if count is None:
        raise ValueError(
            f"data must have edge_index, or vertices (num_nodes or x), it holds {held_words(data)}"
        )


def typed_data(data: Data) -> HeteroData:
    """The ``HeteroData`` of a ``Data`` in which every attribute of vertices and edges is a dict by
    type.

    ``x_dict`` becomes the attribute ``x`` of each vertex type in it. So does any other dict by the
    types, such as OGB's ``node_year`` and ``edge_reltype``.

    Raises:
        ValueError: The dicts name other types than ``edge_index_dict`` and ``num_nodes_dict``, or
            an attribute twice, or there is an ``edge_index``, too.
    """
    attributes = dict(data._store.items())
    also = [name for name in _STRUCTURE if attributes.get(name) is not None]
    if also:
        raise ValueError(f"data must have either {_EDGES} or {also[0]}, got both")
    typed = HeteroData()
    for ntype, count in attributes.pop(_COUNTS, {}).items():
        if not isinstance(count, int | Tensor | np.integer) or (
            isinstance(count, Tensor) and count.numel() != 1
        ):
            raise ValueError(
                f"{_COUNTS}[{ntype!r}] must be 1 number of vertices, got {count!r}"[:300]
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
            # The property of a HeteroData would take the name of a type.
            typed._global_store[name] = value
            continue
        for kind, rows in value.items():
            attribute = name.removesuffix("_dict")
            if kind not in types:
                raise ValueError(
                    f"{name} must be by the types of {_EDGES} and {_COUNTS}, got {kind!r}"
                )
            if attribute in typed[kind]:
                raise ValueError(
                    f"data must hold {attribute!r} of {kind!r} once, got it again in {name}"
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
