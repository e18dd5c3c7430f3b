"""Graphs from OGB's files and objects: edges compressed in memory or in files, labels and masks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.conversion import library_of, way_of
from ..graph.fields import Fields
from ..graph.graph import EdgeType, Graph
from ..graph.mapped import spilled
from .arrays import left_behind, one_column
from .edge_sort import GivenEdges, InFiles, copied
from .edges import check_size
from .ogb_arrays import RawArrays, plain_name
from .paths import COUNTS, EDGE_INDEX, PARTS

SETS = dict(zip(PARTS, ("train", "valid", "test"), strict=True))
"""OGB's names of the sets of a split."""
LINKS_LEFT = "sets of links, of which masks hold none; pagraph train --task links draws some"

# Rows per block, if all may not fit into memory.
_BLOCK_ROWS = 2**20
_WHERE = "dataset"
# OGB's modules with one graph per dataset; "ogb.graphproppred" has many.
_ROOMS = ("ogb.nodeproppred", "ogb.linkproppred")
# PyG's names of features and labels.
_PYG_NAMES = {"x": "feat", "y": "label", "edge_attr": "feat"}


class Raw(Protocol):
    """The content of a folder or an object, by type."""

    is_typed: bool
    counts: dict[str, int]
    edge_types: list[EdgeType]

    def edges(self, etype: EdgeType) -> GivenEdges:
        """The edges of a type, with their fields."""

    def node_fields(self, ntype: str) -> dict[str, Tensor]:
        """The fields of the vertices of a type."""


def graph_of(
    raw: Raw, where: str, *, undirected: bool = False, files: InFiles | None = None
) -> Graph:
    """The graph, without masks; bit-identical in memory and in files.

    Args:
        raw: Edges and fields.
        where: Their source, for errors.
        undirected: Add the other direction of each edge.
        files: For data larger than memory. Default: all is in memory.

    Raises:
        FormatError: An id is out of range, or a field has a wrong number of rows.
    """
    for count in raw.counts.values():
        check_size(where, count)
    csc = {}
    edata = {}
    # One type at a time, so that only its temporary files exist.
    for etype in raw.edge_types:
        edges = raw.edges(etype)
        csc[etype], edata[etype] = edges.compressed(files, undirected=undirected)
        edges.ends.src.remove()
        edges.ends.dst.remove()
    graph = Graph(csc, raw.counts)
    for etype in raw.edge_types:
        for name, values in edata[etype].items():
            graph.set_field(name, values, edge_type=etype)
    for ntype in raw.counts:
        for name, values in raw.node_fields(ntype).items():
            rows = class_labels(values, files) if name == "label" else values
            try:
                graph.set_field(name, rows, node_type=ntype)
            except ValueError as error:
                of_type = f" of {ntype}" if raw.is_typed else ""
                raise FormatError(f"{where}{of_type}: {error}") from None
    return graph


def class_labels(labels: Tensor, files: InFiles | None = None) -> Tensor:
    """Labels as in OGB's loaders: int64 if all are integers, float32 with NaN if some are missing.

    Fractional labels, as in a regression, are unchanged.
    """
    if not labels.is_floating_point():
        return _converted(labels, torch.int64, files)
    has_missing = False
    for begin in range(0, len(labels), _BLOCK_ROWS):
        rows = labels[begin : begin + _BLOCK_ROWS]
        missing = rows.isnan()
        # At most 2**24, beyond which float32 skips integers.
        is_class = (rows == rows.round()) & (rows.abs() <= 2**24)
        if not bool((is_class | missing).all()):
            return labels
        has_missing = has_missing or bool(missing.any())
    dtype = torch.float32 if has_missing else torch.int64
    return _converted(labels, dtype, files)


def _converted(values: Tensor, dtype: torch.dtype, files: InFiles | None) -> Tensor:
    if values.dtype == dtype or files is None:
        return values.to(dtype)
    return copied(values, dtype, files).mapped().reshape(values.shape)


Sets = Mapping[str, tuple[Path | str, Any]]
"""Name of a set in :data:`PARTS` to its source and the ids of its vertices."""


def set_masks(graph: Graph, ntype: str, sets: Sets, files: InFiles | None = None) -> None:
    """Set the masks of a split for the vertices of a type.

    Raises:
        FormatError: Ids are not integers or out of range, or sets overlap.
    """
    count = graph.num_nodes_of(ntype)
    masks: dict[str, Tensor] = {}
    for part in PARTS:
        if part not in sets:
            continue
        where, given = sets[part]
        ids = _ids(where, given, count)
        for other, taken in masks.items():
            common = ids[taken[ids]]
            if len(common):
                raise FormatError(
                    f"{where} must have no vertex in common with {sets[other][0]}, got "
                    f"{len(common)}, such as {int(common[0])}"
                )
        if files is None:
            mask = torch.zeros(count, dtype=torch.bool, device="cpu")
        else:
            mask = spilled((count,), torch.bool, files.scratch.folder)
        mask[ids] = True
        masks[part] = mask
    for part, mask in masks.items():
        graph.set_field(f"{part}_mask", mask, node_type=ntype)


def _ids(where: Path | str, given: Any, count: int) -> Tensor:
    if not isinstance(given, Tensor):
        raise FormatError(f"{where} must hold tensors of ids, got a {type(given).__name__}")
    ids = given.reshape(len(given)) if given.shape[1:] == (1,) else given
    is_sound = ids.dim() == 1 and not (ids.is_floating_point() or ids.is_complex())
    if ids.numel() and not (is_sound and int(ids.min()) >= 0 and int(ids.max()) < count):
        raise FormatError(f"{where} must hold ids of vertices, one a line and each below {count}")
    return ids.reshape(-1).long()


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
