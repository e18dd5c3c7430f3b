"""Times and weights of a PyG data object, found as PyG's samplers find them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..graph.csc import writeable
from ..graph.fields import FieldNote
from ..graph.graph import EDGE_TYPE, NODE_TYPE, EdgeType, Graph, without_fields
from ..sampling.times import as_times, check_unrounded, known_ticks
from .package import import_pyg
from .stores import store_times

import_pyg()
from torch_geometric.data import Data, HeteroData  # noqa: E402


@dataclass(frozen=True, eq=False)
class Fields:
    """A field that sampling reads, as the data's own CPU tensors.

    Attributes:
        nodes: Values of the vertices, by type.
        edges: Values of the edges in the order of ``edge_index``, by type.
        units: Units of times by type, if known.
    """

    nodes: dict[str, Tensor] = field(default_factory=dict)
    edges: dict[EdgeType, Tensor] = field(default_factory=dict)
    units: dict[str | EdgeType, str] = field(default_factory=dict)

    def with_graph(self, graph: Graph, name: str) -> Graph:
        """The graph with these values as the field ``name``; ValueError for wrong lengths."""
        graph = without_fields(graph)
        for ntype, values in self.nodes.items():
            graph.set_field(name, values, node_type=ntype)
        for etype, values in self.edges.items():
            graph.set_field(name, values, edge_type=etype)
        for kind, unit in self.units.items():
            # Samplers check units, and refuse several.
            fields = graph.node_fields(kind) if isinstance(kind, str) else graph.edge_fields(kind)
            fields.notes[name] = FieldNote(unit)
        return graph


_units: Any = WeakTensorKeyDictionary()


def remember_unit(values: Tensor, unit: str) -> None:
    """Remember the unit of a tensor of times, for which PyG's data has no place."""
    _units[values] = unit


def times_of(data: Any, name: str) -> Fields:
    """The time attribute of a ``Data``, a ``HeteroData`` or a pair of stores (``store_times``).

    Unlike in PyG, both vertices and edges may have it. PyG's ValueError if neither has, and one for
    floats that are rounded, also of types from which nothing is drawn.
    """
    found = _times_of(data, name)
    for owner, values in (*found.nodes.items(), *found.edges.items()):
        of = "" if owner in (NODE_TYPE, EDGE_TYPE) else f" of {owner!r}"
        check_unrounded(f"time_attr {name!r}{of}", values)
    return found


def _times_of(data: Any, name: str) -> Fields:
    if isinstance(data, tuple):
        nodes, edges = store_times(data, name)
        return Fields(
            {t: _values(x) for t, x in nodes.items()}, {t: _values(x) for t, x in edges.items()}
        )
    if isinstance(data, Data):
        if name in data and data.is_node_attr(name):
            return Fields(nodes={NODE_TYPE: _values(data[name])})
        if name in data and data.is_edge_attr(name):
            return Fields(edges={EDGE_TYPE: _values(data[name])})
        raise _neither(name)
    found = _collect(data, name)
    if not found.nodes and not found.edges:
        raise _neither(name)
    return found


def weights_of(data: Any, name: str) -> Fields:
    """The edges' weights; KeyError without any, PyG's NotImplementedError for a pair of stores."""
    if isinstance(data, tuple):
        raise NotImplementedError(
            "'weight_attr' argument not yet supported within 'NeighborSampler' for '(FeatureStore, "
            "GraphStore)' inputs"
        )
    if isinstance(data, Data):
        edges = {EDGE_TYPE: _values(data[name])} if name in data else {}
    else:
        edges = _collect(data, name).edges
    if not edges:
        raise KeyError(f"weight_attr must name an attribute of the edges, got {name!r}")
    return Fields(edges=edges)


def check_times(name: str, times: Any, count: int, owner: str) -> None:
    """Raise TypeError or ValueError unless ``times`` is None, or one number per ``owner``.

    These must be integers or floats, without missing ones.
    """
    if times is not None:
        known_ticks(name, as_times(name, times, count, owner))
        if times.dim() != 1:
            raise ValueError(
                f"{name} must have one time per {owner} ({count}), got shape {tuple(times.shape)}"
            )


def _neither(name: str) -> ValueError:
    return ValueError(
        f"The time attribute '{name}' is neither a node-level or edge-level attribute"
    )


def _collect(data: HeteroData, name: str) -> Fields:
    found = Fields()
    for ntype, store in data.node_items():
        if name in store:
            found.nodes[ntype] = _values(store[name])
            _take_unit(found, ntype, store[name])
    for etype, store in data.edge_items():
        if name in store:
            found.edges[etype] = _values(store[name])
            _take_unit(found, etype, store[name])
    return found


def _take_unit(found: Fields, owner: str | EdgeType, value: Any) -> None:
    if isinstance(value, Tensor) and value in _units:
        found.units[owner] = _units[value]


def _values(value: Any) -> Any:
    """An attribute as a CPU tensor, without a copy if possible; dtypes are checked on use."""
    if isinstance(value, np.ndarray):
        return torch.as_tensor(writeable(value), device="cpu")
    if not isinstance(value, Tensor):
        raise TypeError(f"times and weights must be tensors, got {type(value).__name__}")
    # Inference tensors have no version, and would be sorted again for each batch; a copy has one.
    return value.detach().clone() if value.is_inference() else value.detach().cpu()
