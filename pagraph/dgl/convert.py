"""Between DGL's graphs and ours."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import torch

from ..errors import FormatError
from ..graph import EdgeType, Graph
from .graphbolt import import_dgl

dgl = import_dgl()

__all__ = ["by_edge_type", "core_graph", "load_saved_graph", "to_dgl"]

_core_graphs: weakref.WeakKeyDictionary[Any, tuple[Any, dict[str, Graph]]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def core_graph(graph: Any, edge_dir: str = "in") -> Graph:
    """The structure of a DGL graph as ours, converted once and kept as long as the graph lives.

    For "out" the result's "in-edges" are the out-edges, and its edge types turned round: (a, r, b) becomes (b, r, a).
    All loaders of a graph share the result; a graph whose structure was changed in place is converted again. Fields
    are not taken along: they stay the DGL graph's.
    """
    with _lock:
        index, by_direction = _core_graphs.get(graph, (None, {}))
        if index is not graph._graph:
            index, by_direction = graph._graph, {}
            _core_graphs[graph] = (index, by_direction)
        if edge_dir not in by_direction:
            layout, turn = {"in": ("csc", 1), "out": ("csr", -1)}[edge_dir]
            csc = {etype[::turn]: Graph.csc_from_dgl(graph, etype, layout) for etype in graph.canonical_etypes}
            by_direction[edge_dir] = Graph(csc, {t: int(graph.num_nodes(t)) for t in graph.ntypes})
        return by_direction[edge_dir]


def by_edge_type(graph: Any, what: str, numbers: Mapping[Any, Any]) -> dict[EdgeType, Any]:
    """A mapping from edge types, named by triple or by relation, as one from all canonical types of a DGL graph.

    Raises:
        DGLError: It does not name every edge type, or one that the graph does not have.
    """
    by_type = {graph.to_canonical_etype(etype): number for etype, number in numbers.items()}
    missing = [etype for etype in graph.canonical_etypes if etype not in by_type]
    if missing:
        raise dgl.DGLError(f"{what} given as a dict must name every edge type, {missing} are missing")
    return by_type


def to_dgl(graph: Graph) -> Any:
    """A ``dgl.DGLGraph`` with the same vertices, edges, edge ids and fields (fields share memory).

    Ids are int64, DGL's default. Edge ids are given even where they only count: DGL takes none for the same, but its
    libxsmm kernels then fail on edge features.
    """
    data = {}
    for etype in graph.edge_types:
        csc = graph.csc_of(etype)
        ids = csc.edge_ids if csc.edge_ids is not None else torch.arange(csc.num_edges)
        data[etype] = ("csc", (csc.indptr.long(), csc.indices.long(), ids.long()))
    counts = {t: graph.num_nodes_of(t) for t in graph.node_types}
    result = dgl.heterograph(data, num_nodes_dict=counts)
    for ntype in graph.node_types:
        result.nodes[ntype].data.update(graph.node_fields(ntype))
    for etype in graph.edge_types:
        result.edges[etype].data.update(graph.edge_fields(etype))
    return result


def load_saved_graph(path: str | os.PathLike[str], index: int = 0) -> Graph:
    """Read one graph from a file that ``dgl.save_graphs`` wrote (a binary format; nothing is unpickled).

    Raises:
        FileNotFoundError: There is no such file.
        FormatError: The file is not DGL's, or holds no graph ``index``.
    """
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"file must exist, got {path}")
    try:
        graphs, _ = dgl.load_graphs(path)
    except Exception as error:
        raise FormatError(f"{path} must be a file that dgl.save_graphs wrote: {error}") from error
    if not 0 <= index < len(graphs):
        raise FormatError(f"{path} must hold graph {index}, it holds {len(graphs)}")
    return Graph.from_dgl(graphs[index])
