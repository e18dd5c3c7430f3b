"""Graphs from datasets of OGB's own package: plain arrays, or PyG's or DGL's graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.conversion import library_of, way_of
from ..graph.fields import Fields
from ..graph.graph import Graph
from .arrays import left_behind, one_column
from .ogb_arrays import RawArrays, plain_name
from .ogb_graph import LINKS_LEFT, SETS, class_labels, graph_of, set_masks
from .paths import COUNTS, EDGE_INDEX

_WHERE = "dataset"
# OGB's modules with one graph per dataset; "ogb.graphproppred" has many.
_ROOMS = ("ogb.nodeproppred", "ogb.linkproppred")
# PyG's names of features and labels.
_PYG_NAMES = {"x": "feat", "y": "label", "edge_attr": "feat"}


def graph_of_dataset(dataset: Any) -> Graph:
    """See ``Graph.from_ogb``."""
    modules = [kind.__module__ for kind in type(dataset).__mro__]
    room = next((room for room in _ROOMS for name in modules if name.startswith(room)), None)
    if room is None:
        raise TypeError(
            f"dataset must be a data set of {' or '.join(_ROOMS)}, got {way_of(dataset)}"
        )
    item = dataset[0]
    # Node datasets return (graph, labels), except PyG's.
    given, labels = item if isinstance(item, tuple) else (item, None)
    library = library_of(given)
    if library == "dgl":
        graph = _with_our_names(Graph.from_dgl(given))
    elif library == "torch_geometric":
        graph = _with_our_names(Graph.from_pyg(given))
    else:
        graph = graph_of(_arrays(given), _WHERE)
    if labels is not None:
        _set_labels(graph, labels, dataset)
    if room == _ROOMS[0]:
        _set_split(graph, dataset.get_idx_split())
    else:
        left_behind(_WHERE, SETS.values(), LINKS_LEFT)
    return graph


def _arrays(given: Any) -> RawArrays:
    """The arrays of OGB's library-agnostic graph, a dict."""
    if not isinstance(given, Mapping):
        raise FormatError(f"{_WHERE} must hold a dict of arrays, got a {type(given).__name__}")
    there = {plain_name(name): value for name, value in given.items() if value is not None}
    # A dict by type, or the number of vertices.
    count = there.pop("num_nodes", None)
    if count is not None:
        there[COUNTS] = count
    if not isinstance(there.get(EDGE_INDEX), Mapping):
        return RawArrays.of_one_graph(_WHERE, {n: np.asarray(v) for n, v in there.items()})
    arrays = {}
    left = []
    for name, by_type in there.items():
        if isinstance(by_type, Mapping):
            arrays[name] = {kind: np.asarray(rows) for kind, rows in by_type.items()}
        else:
            left.append(name)
    if COUNTS not in arrays:
        raise FormatError(f"{_WHERE} must hold num_nodes_dict, it holds {sorted(given)}")
    left_behind(_WHERE, left, "no arrays by type")
    return RawArrays(_WHERE, arrays, is_typed=True)


def _with_our_names(graph: Graph) -> Graph:
    """Give another library's fields the names and shapes of our folders."""
    for ntype in graph.node_types:
        _rename(graph.node_fields(ntype), "node_")
    for etype in graph.edge_types:
        _rename(graph.edge_fields(etype), "edge_")
    return graph


def _rename(fields: Fields, prefix: str) -> None:
    for name, rows in list(fields.items()):
        ours = _PYG_NAMES.get(name, name.removeprefix(prefix))
        del fields[name]
        fields[ours] = rows if ours == "feat" else one_column(rows)


def _set_labels(graph: Graph, labels: Any, dataset: Any) -> None:
    by_type = labels if isinstance(labels, Mapping) else {graph.only_node_type: labels}
    for ntype, given in by_type.items():
        rows = one_column(torch.as_tensor(given, device="cpu"))
        # Like OGB's own tensors: classes are integers, and regression targets float32.
        is_classes = "classification" in dataset.task_type
        graph.set_field(
            "label", class_labels(rows) if is_classes else rows.float(), node_type=ntype
        )


def _set_split(graph: Graph, split: Mapping[str, Any]) -> None:
    for ntype in graph.node_types:
        sets: dict[str, tuple[str, Tensor]] = {}
        for part, name in SETS.items():
            found = split.get(name)
            ids = found.get(ntype) if isinstance(found, Mapping) else found
            if ids is not None:
                sets[part] = (f"{_WHERE}'s split {name!r}", torch.as_tensor(ids, device="cpu"))
        set_masks(graph, ntype, sets)
