"""PyG's Data and HeteroData as core graphs: converted once for each ``edge_index``, and kept as long as it lives."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..csc import CSC
from ..field_version import FieldVersion
from ..graph import EDGE_TYPE, NODE_TYPE, EdgeType, Graph
from .package import import_pyg

import_pyg()
from torch_geometric.data import Data, HeteroData  # noqa: E402

__all__ = ["core_graph", "csc_of"]


def core_graph(data: Any) -> Graph:
    """The structure of a ``Data`` or ``HeteroData`` as a graph without fields; edge ids are places in ``edge_index``.

    A ``Data`` has the types of any graph with one vertex and one edge type. The arrays are made once for each
    ``edge_index`` and shared by all graphs of it.

    Raises:
        TypeError: ``data`` is something else.
        ValueError: An edge leads out of the graph, or a vertex type does not say how many vertices it has.
    """
    if isinstance(data, Data):
        count = int(data.num_nodes or 0)
        return Graph({EDGE_TYPE: csc_of(data, count, count)}, {NODE_TYPE: count})
    if not isinstance(data, HeteroData):
        raise TypeError(f"data must be a Data or HeteroData, got {type(data).__name__}")
    node_types, edge_types = data.metadata()
    counts = {ntype: _count(data, ntype) for ntype in node_types}
    csc: dict[EdgeType, CSC] = {etype: csc_of(data[etype], counts[etype[0]], counts[etype[2]]) for etype in edge_types}
    return Graph(csc, counts)


def _count(data: Any, ntype: str) -> int:
    count = data[ntype].num_nodes
    if count is None:
        raise ValueError(f"data[{ntype!r}] must say how many vertices there are, set num_nodes or a feature")
    return int(count)


class _Conversions:
    """The CSC of each ``edge_index`` that is alive, as it was written last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: Any = WeakTensorKeyDictionary()

    def get(self, edge_index: Tensor, counts: tuple[int, int]) -> CSC:
        """The CSC; whoever asks while it is being made waits for it."""
        plain = edge_index.as_subclass(Tensor)
        with self._lock:
            version, made = self._known.get(edge_index, (None, {}))
            now = FieldVersion.of(plain)
            if version != now:
                made = {}
                self._known[edge_index] = now, made
            if counts not in made:
                src, dst = plain.detach().cpu()
                made[counts] = CSC.from_coo(src, dst, counts)
            csc: CSC = made[counts]
            return csc


_conversions = _Conversions()


def csc_of(store: Any, num_src: int, num_dst: int) -> CSC:
    """The in-edges of a ``Data`` or of the store of one edge type.

    Raises:
        TypeError, ValueError: ``edge_index`` is not such a tensor, or an edge leads out of the graph.
    """
    edge_index = store.get("edge_index", None)
    if edge_index is None:
        return CSC(torch.zeros(num_dst + 1, dtype=torch.int32), torch.empty(0, dtype=torch.int32), num_src)
    return _conversions.get(edge_index, (num_src, num_dst))
