"""Types of what graphs are built from: ids, values, and other libraries' objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


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
