"""Readers of ``edge_index`` files: NumPy's ``.npy`` and ``.npz``, torch's ``.pt``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.fields import is_single
from ..graph.graph import Graph
from ..system.checks import StrPath
from ..system.torch_file import load_saved
from .arrays import array_tensor, left_behind, load_npz, map_or_read, one_column, unread_npz
from .edge_sort import InFiles, build_graph
from .edges import check_count, count_nodes
from .paths import EDGE_INDEX, PARTS

_NO_FIELDS = (EDGE_INDEX, "num_nodes", "num_edges")
_OF_VERTICES = (
    "x",
    "feat",
    "features",
    "y",
    "label",
    "labels",
    *(f"{part}_mask" for part in PARTS),
)


def read_edge_index(
    path: StrPath,
    *,
    files: InFiles | None = None,
    num_nodes: int | None = None,
    undirected: bool = False,
) -> Graph:
    """Read ``edge_index`` (2 x E: sources, then targets) from ``.npy`` or (with fields) ``.npz``.

    The number of vertices is the file's ``num_nodes``, else the number of rows of ``x`` or
    ``feat``, else the largest id plus 1. Arrays with a row per vertex become vertex fields, arrays
    with a row per edge edge fields. If both numbers are equal, edge fields are those with ``edge``
    in their names, as in PyG. Other arrays of more than one value are left out with a warning.
    Edges of a ``.npy`` file may be larger than memory.

    Raises:
        FormatError: The edges are not integers of this shape, ids are out of range, features,
            labels or masks have a wrong number of rows, or ``num_nodes`` or ``num_edges`` in the
            file are wrong.
        ValueError: An id is not below ``num_nodes``.
    """
    if os.fspath(path).lower().endswith(".npy"):
        # Edges stay in the mapped file.
        src, dst = _ends(path, map_or_read(Path(path)), False)
        return build_graph(
            path, src.numpy(), dst.numpy(), num_nodes, undirected=undirected, files=files
        )
    plain = load_npz(path)
    arrays = {
        name: array_tensor(path, array)
        for name, array in plain.items()
        if array.dtype.kind in "biuf"
    }
    if EDGE_INDEX not in arrays:
        raise FormatError(f"{path}: {EDGE_INDEX} must hold integers, got another dtype")
    no_numbers = {name: array for name, array in plain.items() if name not in arrays}
    pickled = dict.fromkeys(unread_npz(path, plain), object())
    return _graph(path, arrays | no_numbers | pickled, num_nodes, undirected, is_named=True)


def read_pyg(path: StrPath) -> Graph:
    """Read a graph that ``torch.save`` wrote, with all its fields.

    The file has an ``edge_index``, alone or in a dict, or PyG's data: a ``Data`` or ``HeteroData``,
    its ``to_dict()``, or a dataset's ``processed/data.pt``. These need PyG. Vertex fields get DGL's
    names: ``x`` becomes ``feat``, and ``y`` becomes ``label`` (1-D if it has one column), unless
    these exist. Columns of masks for several splits become ``train_mask``, ``split1_train_mask``
    etc.
    """
    try:
        content = load_saved(path)
    except FormatError:  # PyG's classes, or a damaged file, which PyG's reader reports
        content = None
    if isinstance(content, Tensor):
        return _graph(path, {EDGE_INDEX: content}, None, False, is_named=False)
    if isinstance(content, Mapping) and isinstance(content.get(EDGE_INDEX), Tensor):
        return _graph(path, content, None, False, is_named=True)
    from ..pyg.graphs import load_saved_data

    graph = load_saved_data(path)
    for ntype in graph.node_types:
        _rename(graph.node_fields(ntype))
    return graph


def _graph(
    path: StrPath,
    arrays: Mapping[Any, Any],
    num_nodes: int | None,
    undirected: bool,
    *,
    is_named: bool,
) -> Graph:
    src, dst = (ids.long() for ids in _ends(path, arrays[EDGE_INDEX], is_named))
    count = _num_nodes(path, arrays, num_nodes, len(src))
    if count is None:
        count = count_nodes(path, src.numpy(), dst.numpy())
    _check_counts(path, arrays, count, len(src))
    ndata: dict[str, Tensor] = {}
    edata: dict[str, Tensor] = {}
    left = []
    for name, value in arrays.items():
        if name in _NO_FIELDS:
            continue
        is_field = isinstance(name, str) and _is_rows(value)
        num_rows = len(value) if is_field else None
        # With as many edges as vertices, the name decides.
        if num_rows == len(src) and (count != len(src) or "edge" in name):
            edata[name] = value
        elif num_rows == count:
            ndata[name] = value
        elif not is_single(value):
            left.append(name)
    left_behind(path, left, "no numbers with a row per vertex or edge")
    graph = build_graph(path, src.numpy(), dst.numpy(), count, edata=edata, undirected=undirected)
    _rename(ndata)
    for name, values in ndata.items():
        graph.set_field(name, values)
    return graph


def _check_counts(path: StrPath, arrays: Mapping[Any, Any], num_nodes: int, num_edges: int) -> None:
    """Raise FormatError if stated numbers, or the rows of vertex arrays, differ from these."""
    stated = _stated(path, arrays, "num_edges")
    if stated not in (None, num_edges):
        raise FormatError(
            f"{path}: num_edges must be the {num_edges} of {EDGE_INDEX}, got {stated}"
        )
    for name in _OF_VERTICES:
        rows: Any = arrays.get(name)
        if _is_rows(rows) and len(rows) != num_nodes and not is_single(rows):
            raise FormatError(
                f"{path}: {name} must have a row per vertex ({num_nodes}), got {len(rows)}"
            )


def _ends(path: StrPath, edge_index: Tensor, is_named: bool) -> tuple[Tensor, Tensor]:
    shape = list(edge_index.shape)
    if edge_index.layout != torch.strided:
        raise FormatError(
            f"{path}: {EDGE_INDEX} must be a dense tensor, got layout {edge_index.layout}"
        )
    if (
        edge_index.dtype.is_floating_point
        or edge_index.dtype.is_complex
        or edge_index.dtype == torch.bool
    ):
        raise FormatError(f"{path}: {EDGE_INDEX} must hold integers, got {edge_index.dtype}")
    if len(shape) != 2 or 2 not in shape:
        raise FormatError(
            f"{path}: {EDGE_INDEX} must have shape [2, edges] or [edges, 2], got {shape}"
        )
    if shape == [2, 2] and not is_named:
        raise FormatError(
            f"{path} must not be a 2 x 2 array, whose rows may be edges or ends: save more "
            "edges, or a list"
        )
    # A 2 x 2 array named edge_index counts as PyG's, with rows of sources and targets.
    src, dst = edge_index if shape[0] == 2 else edge_index.T
    return src, dst


def _is_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and value.dim() > 0


def _num_nodes(
    path: StrPath, arrays: Mapping[Any, Any], given: int | None, num_edges: int
) -> int | None:
    stated = _stated(path, arrays, "num_nodes")
    if given is not None:
        if stated not in (None, given):
            raise ValueError(f"num_nodes must be the {stated} that {path} says, got {given}")
        return given
    if stated is not None:
        check_count(path, stated, num_edges)
        return stated
    return next((len(arrays[name]) for name in _OF_VERTICES if _is_rows(arrays.get(name))), None)


def _stated(path: StrPath, arrays: Mapping[Any, Any], name: str) -> int | None:
    """The number that a file has under a name, or None."""
    stated = arrays.get(name)
    if not isinstance(stated, int | Tensor | np.integer):
        return None
    if isinstance(stated, Tensor) and (stated.numel() != 1 or stated.is_floating_point()):
        raise FormatError(
            f"{path}: {name} must be 1 integer, got {stated.dtype} of shape {list(stated.shape)}"
        )
    return int(stated)


def _rename(fields: dict[str, Any]) -> None:
    """Rename and reshape PyG's vertex fields to DGL's."""
    for theirs, ours in (("x", "feat"), ("y", "label")):
        if theirs in fields and ours not in fields:
            fields[ours] = fields.pop(theirs)
    if "label" in fields:
        fields["label"] = one_column(fields["label"])
    for name in (f"{part}_mask" for part in PARTS):
        if name in fields and fields[name].dim() == 2:
            for number, mask in enumerate(fields.pop(name).unbind(1)):
                fields[f"split{number}_{name}" if number else name] = mask
