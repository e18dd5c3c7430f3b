"""Other libraries' graphs: types of what is taken of them; edges of networkx's and DGL's."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
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
    """The library above that an object's class, or a base of it, comes from; None if none."""
    for kind in type(given).__mro__:
        library = kind.__module__.partition(".")[0]
        if library in _WAYS:
            return library
    return None


def way_of(given: object) -> str:
    """The end of an error about a wrong object: its type, and which function takes it."""
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
        return (
            f"{name}: pagraph.Graph.from_coo(src, dst) builds a graph from the edges' sources "
            "and destinations"
        )
    library = library_of(given)
    if library is None:
        return name
    return f"{name}: {_WAYS[library]} converts it"


_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)
_FLOATS = (float, np.floating)
_WIDE = 2**53  # float64 does not hold every integer from here on


def networkx_edges(graph: Any) -> tuple[Array, Array]:
    """Positions of both ends of every edge among ``graph.nodes``, int64."""
    index = {node: i for i, node in enumerate(graph.nodes)}
    ends = [(index[u], index[v]) for u, v in graph.edges()]
    pairs: Array = np.asarray(ends, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0].copy(), pairs[:, 1].copy()


def number_attributes(
    graph: Any, where: str, *, unnamed: Collection[str] = ()
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Fields from the attributes that all vertices, or all edges, have as numbers.

    One warning, which begins with ``where``, names the attributes that are left out, except the
    ``unnamed`` ones.
    """
    left: list[str] = []
    vertices = _number_fields("vertex", graph.nodes(data=True), unnamed, left)
    edges = _number_fields("edge", graph.edges(data=True), unnamed, left)
    if left:
        _log.warning(
            "%s: attributes left out, as some vertices or edges have no number for them: %s",
            where,
            ", ".join(left),
        )
    return vertices, edges


def _number_fields(
    owner: str, view: Iterable[Any], unnamed: Collection[str], left: list[str]
) -> dict[str, Tensor]:
    """Fields from the attributes that are numbers in every entry; others are added to ``left``."""
    rows = [entry[-1] for entry in view]
    fields = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = _numbers([row.get(name) for row in rows])
        # A manifest cannot hold other names, and line breaks would spoil tables.
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
    # NumPy turns integers into floats when they stand among floats or do not fit int64.
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
    # DGL stores edge ids even where they only count 0, 1, 2... Without them each sampled edge saves
    # a random read.
    counting = len(edge_ids) < len(indices) or bool(_csc.is_sorted(edge_ids.numpy()))
    ids = None if counting else edge_ids.to(dtype, copy=True)
    return CSC(indptr.to(dtype, copy=True), indices.to(dtype, copy=True), num_src, ids)


def _check_dgl_edges(graph: Any, etype: tuple[str, str, str], layout: str) -> None:
    """Check the edges that DGL is about to convert to a layout.

    DGL checks no ids when it converts: a wrong one would make it write out of bounds.
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
        edge_ids = arrays[2] if len(arrays[2]) else None
        csc = CSC(arrays[0], arrays[1], cols, edge_ids)
        csc.validate()
        if csc.num_dst != rows:
            raise ValueError(
                f"indptr of {etype} must have {rows + 1} entries, got {csc.num_dst + 1}"
            )
        if csc.edge_ids is not None:
            check_range(f"edge ids of {etype}", csc.edge_ids, csc.num_edges)


# -- types of arguments ----------------------------------------------------------------------------


class ArrayColumn(Protocol):
    """A column of pandas, polars or Arrow that converts to an array."""

    def __array__(self) -> NDArray[Any]: ...


Ids = Tensor | NDArray[np.generic] | Sequence[int] | Sequence[bool] | ArrayColumn
"""Ids of vertices or edges, or a mask of all of them."""

Values = Tensor | NDArray[np.generic] | Sequence[float] | ArrayColumn
"""Numbers that become a tensor: a tensor, an array, a list, or a column of a DataFrame."""

Keys = Mapping[str, str | Sequence[str] | None]
"""Keys of tables by name: ``{"users": "id", "orders.user_id": "users"}``."""

TablesByName = Mapping[str, Any]
"""Table name to a DataFrame, an Arrow table or a relation."""

# Protocols name what is read of other libraries' objects, so that these need not be installed.


class DGLGraph(Protocol):
    """A ``dgl.DGLGraph``."""

    @property
    def canonical_etypes(self) -> Any:
        """The edge types."""

    @property
    def ntypes(self) -> Any:
        """The vertex types."""

    @property
    def is_block(self) -> Any:
        """Whether it is a block."""

    @property
    def device(self) -> Any:
        """Where it is."""

    @property
    def nodes(self) -> Any:
        """The vertices."""

    @property
    def edges(self) -> Any:
        """The edges."""

    def num_nodes(self, ntype: Any = None, /) -> Any:
        """Number of vertices."""


class PyGData(Protocol):
    """PyG's ``Data`` or ``HeteroData``."""

    @property
    def node_stores(self) -> list[Any]:
        """The attributes of each vertex type."""

    @property
    def edge_stores(self) -> list[Any]:
        """The attributes of each edge type."""


class PyGDataset(Protocol):
    """PyG's ``Dataset``."""

    def get(self, idx: int, /) -> Any:
        """The graph at a place."""

    def len(self) -> int:
        """Number of graphs."""


class OGBDataset(Protocol):
    """A data set of ``ogb.nodeproppred`` or ``ogb.linkproppred``."""

    @property
    def meta_info(self) -> Any:
        """What OGB knows of it."""

    def __getitem__(self, idx: Any, /) -> Any:
        """The graph, and its labels if it has any."""


class NetworkxGraph(Protocol):
    """A graph of networkx."""

    def is_directed(self) -> bool:
        """Whether edges have a direction."""

    @property
    def nodes(self) -> Any:
        """The vertices."""

    @property
    def edges(self) -> Any:
        """The edges."""


class RelBenchDatabase(Protocol):
    """RelBench's ``Database``."""

    @property
    def table_dict(self) -> Mapping[str, Any]:
        """Its tables by name."""


class SparseMatrix(Protocol):
    """A sparse matrix of scipy."""

    def tocoo(self, copy: bool = False) -> Any:
        """The matrix as coordinates."""
