"""Parts of graphs of other libraries: edges and attributes of networkx, and edges of DGL."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .csc import CSC, check_range, id_dtype

Array = Any  # a NumPy array

_log = logging.getLogger(__name__)

_WAYS = {
    "dgl": "pagraph.Graph.from_dgl(graph)",
    "torch_geometric": "pagraph.Graph.from_pyg(data)",
    "networkx": "pagraph.Graph.from_networkx(graph)",
    "scipy": "pagraph.Graph.from_scipy(matrix)",
    "ogb": "pagraph.Graph.from_ogb(dataset)",
}
"""What makes a graph of another library's objects, by the library's name."""


def library_of(given: object) -> str | None:
    """Which of the libraries above an object is of, also one of a user's subclass; None: none."""
    for kind in type(given).__mro__:
        library = kind.__module__.partition(".")[0]
        if library in _WAYS:
            return library
    return None


def way_of(given: object) -> str:
    """The end of an error about an object that is no graph of the right kind: its type, and what
    takes it."""
    kind = type(given)
    name = kind.__name__
    if isinstance(given, str | os.PathLike):
        return (
            f"{name} {os.fspath(given)!r}: pagraph.Graph.open(folder) opens a graph folder, "
            "pagraph.datasets.import_graph reads other files"
        )
    if name == "Graph" and kind.__module__ == "pagraph.graph.graph":
        return "Graph: it is a pagraph.Graph already"
    if isinstance(given, Tensor | np.ndarray):
        return f"{name}: pagraph.Graph.from_coo(src, dst) takes the two ends of all edges"
    library = library_of(given)
    if library is None:
        return name
    return f"{name}: {_WAYS[library]} makes a graph of it"


_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)
_FLOATS = (float, np.floating)
_WIDE = 2**53  # from here on float64 holds not every integer


def networkx_edges(graph: Any) -> tuple[Array, Array]:
    """Places of the two ends of every edge among ``graph.nodes``, int64."""
    index = {node: i for i, node in enumerate(graph.nodes)}
    ends = [(index[u], index[v]) for u, v in graph.edges()]
    pairs: Array = np.asarray(ends, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0].copy(), pairs[:, 1].copy()


def number_attributes(
    graph: Any, where: str, *, unnamed: Collection[str] = ()
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The attributes that are numbers on all vertices, and those that are on all edges, as fields
    in the graph's order.

    One warning, which begins with ``where``, names the attributes that are left out, except the
    ``unnamed`` ones.
    """
    left: list[str] = []
    vertices = _number_fields("vertex", graph.nodes(data=True), unnamed, left)
    edges = _number_fields("edge", graph.edges(data=True), unnamed, left)
    if left:
        _log.warning(
            "%s: what not all vertices or edges have a number of stays behind: %s",
            where,
            ", ".join(left),
        )
    return vertices, edges


def _number_fields(
    owner: str, view: Iterable[Any], unnamed: Collection[str], left: list[str]
) -> dict[str, Tensor]:
    """The attributes that are numbers in every entry of a view; the others are appended to
    ``left``."""
    rows = [entry[-1] for entry in view]
    fields = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = _numbers([row.get(name) for row in rows])
        # Other names could not be written to a manifest, or would break the lines of a table.
        if values is not None and isinstance(name, str) and name.isprintable():
            fields[name] = values
        elif name not in unnamed:
            left.append(f"{owner} attribute {name!r}")
    return fields


def _numbers(values: Sequence[Any]) -> Tensor | None:
    """The values as a tensor; None unless all are numbers that one dtype holds."""
    if not all(isinstance(value, _NUMBERS) for value in values):
        return None
    array = np.array(values)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        return None
    # NumPy makes floats of integers among floats, and of integers beyond int64.
    if array.dtype.kind == "f" and any(
        not isinstance(value, _FLOATS) and abs(int(value)) >= _WIDE for value in values
    ):
        return None
    return torch.from_numpy(array)


def dgl_csc(graph: Any, etype: tuple[str, str, str], layout: str) -> CSC:
    """One edge type of a DGL graph, copied; see ``Graph.csc_from_dgl``."""
    from . import _csc

    _check_dgl_edges(graph, etype, layout)
    formats = graph.formats()
    if layout not in [*formats["created"], *formats["not created"]]:
        # The user restricted the formats: convert a copy of the structure.
        graph = graph.formats(layout)
    indptr, indices, edge_ids = graph.adj_tensors(layout, etype=etype)
    far = etype[0] if layout == "csc" else etype[2]
    num_src = int(graph.num_nodes(far))
    dtype = id_dtype(max(num_src, len(indptr) - 1), len(indices))
    # DGL writes ids out even where they only count 0, 1, 2...; without them each edge of a batch
    # costs one random read less.
    counting = len(edge_ids) < len(indices) or bool(_csc.is_sorted(edge_ids.numpy()))
    ids = None if counting else edge_ids.to(dtype, copy=True)
    return CSC(indptr.to(dtype, copy=True), indices.to(dtype, copy=True), num_src, ids)


def _check_dgl_edges(graph: Any, etype: tuple[str, str, str], layout: str) -> None:
    """Check the edges from which DGL will make a layout, in the dtype that they have.

    DGL checks no id when it makes one layout from another: wrong ones would make it write anywhere.
    """
    made = graph._graph.get_relation_graph(graph.get_etype_id(etype)).formats()["created"]
    num_src = int(graph.num_nodes(etype[0]))
    num_dst = int(graph.num_nodes(etype[2]))
    for each in [layout] if layout in made else made:
        arrays = graph.adj_tensors(each, etype=etype)
        if each == "coo":
            check_range(f"sources of {etype}", arrays[0], num_src)
            check_range(f"destinations of {etype}", arrays[1], num_dst)
            continue
        rows, cols = (num_dst, num_src) if each == "csc" else (num_src, num_dst)
        csc = CSC(arrays[0], arrays[1], cols, arrays[2] if len(arrays[2]) else None)
        csc.validate()
        if csc.num_dst != rows:
            raise ValueError(
                f"indptr of {etype} must have {rows + 1} entries, got {csc.num_dst + 1}"
            )
        if csc.edge_ids is not None:
            check_range(f"edge ids of {etype}", csc.edge_ids, csc.num_edges)
