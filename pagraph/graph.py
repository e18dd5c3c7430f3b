"""Graph: in-edges by destination (CSC), edge ids and fields, for one or several edge types."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy.typing as npt

EdgeType = tuple[str, str, str]
"""(source vertex type, relation, destination vertex type), as in DGL and PyG."""

NODE_TYPE = "_N"
EDGE_TYPE: EdgeType = ("_N", "_E", "_N")

_INT32_MAX = 2**31 - 1
_ID_DTYPES = (torch.int32, torch.int64)

__all__ = ["CSC", "EDGE_TYPE", "NODE_TYPE", "EdgeType", "Graph"]


def id_dtype(num_nodes: int, num_edges: int) -> torch.dtype:
    """The narrowest id dtype that holds every vertex id and every edge position.

    >>> id_dtype(10, 100)
    torch.int32
    >>> id_dtype(10, 2**31)
    torch.int64
    """
    return torch.int32 if max(num_nodes, num_edges) <= _INT32_MAX else torch.int64


@dataclass(frozen=True, eq=False, repr=False)
class CSC:
    """The in-edges of one edge type, compressed by destination.

    The in-neighbours of ``v`` are ``indices[indptr[v]:indptr[v + 1]]``. Self-loops and parallel edges are kept.

    Args:
        indptr: Shape ``(num_dst + 1,)``, int32 or int64, non-decreasing from 0 to the number of edges.
        indices: Shape ``(num_edges,)``, the same dtype, source ids.
        num_src: Number of source vertices; ``indices`` are below it.
        edge_ids: Shape ``(num_edges,)``, int32 or int64: the caller's id of each edge. None: its position.

    Raises:
        TypeError: An array is not a 1-D int32 or int64 CPU tensor.
        ValueError: ``indptr`` does not fit ``indices``, or ``edge_ids`` has another length.
    """

    indptr: Tensor
    indices: Tensor
    num_src: int
    edge_ids: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("indptr", "indices", "edge_ids"):
            value = getattr(self, name)
            if name == "edge_ids" and value is None:
                continue
            _check_ids(name, value)
        if self.indices.dtype != self.indptr.dtype:
            raise TypeError(f"indices must have indptr's dtype {self.indptr.dtype}, got {self.indices.dtype}")
        if len(self.indptr) == 0:
            raise ValueError("indptr must have at least 1 element, got 0")
        first, last = int(self.indptr[0]), int(self.indptr[-1])
        if first != 0 or last != len(self.indices):
            raise ValueError(
                f"indptr must run from 0 to the number of edges {len(self.indices)}, got {first} to {last}"
            )
        if self.edge_ids is not None and len(self.edge_ids) != len(self.indices):
            raise ValueError(f"edge_ids must have one entry per edge ({len(self.indices)}), got {len(self.edge_ids)}")

    @property
    def num_dst(self) -> int:
        """Number of destination vertices."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.indices)

    def validate(self) -> None:
        """Read every id once; constructors do this for data that comes from outside.

        Raises:
            ValueError: ``indptr`` decreases somewhere, or a source id is outside ``[0, num_src)``.
        """
        from . import _csc

        if not _csc.is_sorted(self.indptr.numpy()):
            raise ValueError("indptr must be non-decreasing, got a decreasing entry")
        _check_range("indices", self.indices, self.num_src)

    def destinations(self) -> Tensor:
        """Destination of every edge in CSC order, shape ``(num_edges,)``."""
        from . import _csc

        out = torch.empty(self.num_edges, dtype=self.indices.dtype)
        _csc.expand_indptr(self.indptr.numpy(), out.numpy())
        return out

    def transpose(self) -> CSC:
        """The out-edges as a CSC: the "in-neighbours" of ``v`` in it are the out-neighbours of ``v`` here."""
        flipped = _compress(self.destinations(), self.indices, self.num_dst, self.num_src)
        if self.edge_ids is None:
            return flipped
        # Without edge_ids the sources were in order already: an edge's place is the one it had.
        ids = self.edge_ids if flipped.edge_ids is None else self.edge_ids[flipped.edge_ids.long()]
        return CSC(flipped.indptr, flipped.indices, flipped.num_src, ids)

    @cached_property
    def source_counts(self) -> Tensor:
        """How often each vertex occurs as a source (its out-degree), shape ``(num_src,)``, int64."""
        return _count(self.indices, self.num_src)


class Graph:
    """A directed graph stored by in-edges, with named fields on vertices and edges.

    Args:
        csc: The in-edges, or one ``CSC`` for every edge type.
        num_nodes: Number of vertices, or a mapping from vertex type. Default: taken from ``csc``.
        ndata: Field name to a tensor with one row per vertex; for several vertex types, such a mapping per type.
        edata: The same for edges; rows are in the order of the edge ids.

    Raises:
        ValueError: A CSC or a field does not have the number of rows that ``num_nodes`` says.

    Example:
        >>> graph = Graph.from_coo([0, 1, 1], [1, 2, 2])
        >>> graph
        Graph(num_nodes=3, num_edges=3, ids=int32)
        >>> graph.csc.indptr.tolist(), graph.csc.indices.tolist()
        ([0, 0, 1, 3], [0, 1, 1])
    """

    def __init__(
        self,
        csc: CSC | Mapping[EdgeType, CSC],
        num_nodes: int | Mapping[str, int] | None = None,
        *,
        ndata: Mapping[str, Any] | None = None,
        edata: Mapping[Any, Any] | None = None,
    ) -> None:
        self._csc: dict[EdgeType, CSC] = {EDGE_TYPE: csc} if isinstance(csc, CSC) else dict(csc)
        if not self._csc:
            raise ValueError("csc must hold at least 1 edge type, got 0")
        self._out_csc: CSC | None = None
        self._lock = threading.Lock()
        self._num_nodes = self._node_counts(num_nodes)
        self._check_counts()
        single_node, single_edge = len(self._num_nodes) == 1, len(self._csc) == 1
        self._ndata: dict[str, dict[str, Tensor]] = {t: {} for t in self._num_nodes}
        self._edata: dict[EdgeType, dict[str, Tensor]] = {t: {} for t in self._csc}
        for ntype, fields in ({self.node_types[0]: ndata} if single_node else ndata or {}).items():
            for name, value in (fields or {}).items():
                self.set_field(name, value, node_type=ntype)
        for etype, fields in ({self.edge_types[0]: edata} if single_edge else edata or {}).items():
            for name, value in (fields or {}).items():
                self.set_field(name, value, edge_type=etype)

    # -- construction -------------------------------------------------------------------------------------

    @classmethod
    def from_coo(
        cls,
        src: Any,
        dst: Any,
        num_nodes: int | None = None,
        *,
        ndata: Mapping[str, Any] | None = None,
        edata: Mapping[str, Any] | None = None,
    ) -> Graph:
        """Build from the two ends of every edge; edge ``i`` keeps the id ``i``.

        Args:
            src: Source ids, shape ``(num_edges,)``, any integer array or list.
            dst: Destination ids, the same shape.
            num_nodes: Number of vertices. Default: the largest id plus 1.
            ndata: Vertex fields.
            edata: Edge fields, in the order of ``src``.

        Raises:
            TypeError: An array does not hold integers.
            ValueError: The lengths differ, or an id is negative or not below ``num_nodes``.
        """
        src, dst = _as_ids("src", src), _as_ids("dst", dst)
        if len(src) != len(dst):
            raise ValueError(f"src and dst must have the same length, got {len(src)} and {len(dst)}")
        if num_nodes is None:
            num_nodes = 1 + max(_range(src)[1], _range(dst)[1])
        elif num_nodes < 0:
            raise ValueError(f"num_nodes must be at least 0, got {num_nodes}")
        _check_range("src", src, num_nodes)
        _check_range("dst", dst, num_nodes)
        return cls(_compress(src, dst, num_nodes, num_nodes), ndata=ndata, edata=edata)

    @classmethod
    def from_scipy(cls, matrix: Any, *, ndata: Mapping[str, Any] | None = None) -> Graph:
        """Build from a square scipy sparse matrix, ``matrix[src, dst] != 0`` meaning an edge.

        Every stored entry is one edge, explicit zeros and duplicates of a COO matrix included; edge ids follow
        the entries' order in ``matrix.tocoo()``.

        Raises:
            ValueError: The matrix is not square.
        """
        coo = matrix.tocoo(copy=False)
        if coo.shape[0] != coo.shape[1]:
            raise ValueError(f"matrix must be square, got shape {tuple(coo.shape)}")
        return cls.from_coo(coo.row, coo.col, int(coo.shape[0]), ndata=ndata)

    @classmethod
    def from_networkx(cls, graph: Any, *, ndata: Mapping[str, Any] | None = None) -> Graph:
        """Build from a networkx graph; vertex ``i`` is the ``i``-th of ``graph.nodes``.

        An undirected edge becomes two, one in each direction (a self-loop stays one).
        """
        index = {node: i for i, node in enumerate(graph.nodes)}
        ends = [(index[u], index[v]) for u, v in graph.edges()]
        if not graph.is_directed():
            ends += [(v, u) for u, v in ends if u != v]
        pairs = np.asarray(ends, dtype=np.int64).reshape(-1, 2)
        return cls.from_coo(pairs[:, 0].copy(), pairs[:, 1].copy(), len(index), ndata=ndata)

    @classmethod
    def from_dgl(cls, graph: Any) -> Graph:
        """Build from a ``dgl.DGLGraph`` on the CPU; fields are shared, ids are narrowed to int32 where they fit.

        Raises:
            ValueError: The graph is not on the CPU, or is a block.
        """
        if graph.device.type != "cpu":
            raise ValueError(f"graph must be on the CPU, got one on {graph.device}")
        if graph.is_block:
            raise ValueError("graph must be a whole graph, got a block")
        csc = {etype: cls._csc_from_dgl(graph, etype, "csc") for etype in graph.canonical_etypes}
        counts = {ntype: int(graph.num_nodes(ntype)) for ntype in graph.ntypes}
        ndata = {t: dict(graph.nodes[t].data) for t in graph.ntypes}
        edata = {t: dict(graph.edges[t].data) for t in graph.canonical_etypes}
        one_node, one_edge = len(counts) == 1, len(csc) == 1
        return cls(
            csc,
            counts,
            ndata=ndata[graph.ntypes[0]] if one_node else ndata,
            edata=edata[graph.canonical_etypes[0]] if one_edge else edata,
        )

    @staticmethod
    def _csc_from_dgl(graph: Any, etype: EdgeType, layout: str) -> CSC:
        """One edge type of a DGL graph: layout "csc" gives its in-edges, "csr" its out-edges as a CSC."""
        formats = graph.formats()
        if layout not in [*formats["created"], *formats["not created"]]:
            graph = graph.formats(layout)  # the user restricted the formats: convert a copy of the structure
        indptr, indices, edge_ids = graph.adj_tensors(layout, etype=etype)
        far = etype[0] if layout == "csc" else etype[2]
        num_src = int(graph.num_nodes(far))
        dtype = id_dtype(max(num_src, len(indptr) - 1), len(indices))
        ids = None if len(edge_ids) == 0 and len(indices) > 0 else edge_ids
        return CSC(indptr.to(dtype), indices.to(dtype), num_src, ids)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, verify: bool = False) -> Graph:
        """Open a graph folder, native (memory-mapped) or PaGraph's. See ``pagraph.datasets.open_graph``."""
        from .datasets import open_graph

        return open_graph(folder, verify=verify)

    # -- structure ----------------------------------------------------------------------------------------

    @property
    def node_types(self) -> list[str]:
        """Names of the vertex types."""
        return list(self._num_nodes)

    @property
    def edge_types(self) -> list[EdgeType]:
        """Names of the edge types."""
        return list(self._csc)

    @property
    def is_homogeneous(self) -> bool:
        """Whether there is one vertex type and one edge type."""
        return len(self._num_nodes) == 1 and len(self._csc) == 1

    @property
    def csc(self) -> CSC:
        """The in-edges of a graph with one edge type."""
        return self.csc_of(self._only("edge", self.edge_types))

    def csc_of(self, edge_type: EdgeType) -> CSC:
        """The in-edges of ``edge_type``."""
        if edge_type not in self._csc:
            raise KeyError(f"edge_type must be one of {self.edge_types}, got {edge_type!r}")
        return self._csc[edge_type]

    @property
    def num_nodes(self) -> int:
        """Number of vertices, over all types."""
        return sum(self._num_nodes.values())

    @property
    def num_edges(self) -> int:
        """Number of edges, over all types."""
        return sum(csc.num_edges for csc in self._csc.values())

    def num_nodes_of(self, node_type: str) -> int:
        """Number of vertices of ``node_type``."""
        return self._num_nodes[node_type]

    def adjacency(self, edge_dir: str) -> CSC:
        """What "neighbours" means in a direction: the in-edges, or for "out" the out-edges turned round.

        The out-edges are built when they are first asked for, and kept.
        """
        if edge_dir == "in":
            return self.csc
        with self._lock:
            if self._out_csc is None:
                self._out_csc = self.csc.transpose()
        return self._out_csc

    def in_degrees(self) -> Tensor:
        """In-degree of every vertex of a homogeneous graph, shape ``(num_nodes,)``, int64."""
        return torch.diff(self.csc.indptr).long()

    def out_degrees(self) -> Tensor:
        """Out-degree of every vertex of a homogeneous graph, shape ``(num_nodes,)``, int64."""
        return self.csc.source_counts

    def reverse(self) -> Graph:
        """The graph with every edge turned round (edge ids and fields kept), for sampling out-neighbours."""
        turned = {(d, r, s): csc.transpose() for (s, r, d), csc in self._csc.items()}
        edata = {(d, r, s): self._edata[s, r, d] for s, r, d in self._csc}
        one_node, one_edge = len(self._num_nodes) == 1, len(self._csc) == 1
        return Graph(
            turned,
            self._num_nodes,
            ndata=self._ndata[self.node_types[0]] if one_node else self._ndata,
            edata=next(iter(edata.values())) if one_edge else edata,
        )

    # -- fields -------------------------------------------------------------------------------------------

    @property
    def ndata(self) -> dict[str, Tensor]:
        """Vertex fields of a graph with one vertex type (change them with :meth:`set_field`)."""
        return self.node_fields(self._only("vertex", self.node_types))

    @property
    def edata(self) -> dict[str, Tensor]:
        """Edge fields of a graph with one edge type."""
        return self.edge_fields(self._only("edge", self.edge_types))

    def node_fields(self, node_type: str) -> dict[str, Tensor]:
        """Fields of one vertex type."""
        return self._ndata[node_type]

    def edge_fields(self, edge_type: EdgeType) -> dict[str, Tensor]:
        """Fields of one edge type."""
        return self._edata[edge_type]

    def set_field(
        self,
        name: str,
        value: Any,
        *,
        node_type: str | None = None,
        edge_type: EdgeType | None = None,
    ) -> None:
        """Attach a field: one row per vertex, or per edge if ``edge_type`` is given.

        Raises:
            ValueError: The number of rows is not the number of vertices or edges.
        """
        value = _writeable(value) if isinstance(value, np.ndarray) else value
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(value)
        if edge_type is not None:
            rows, owner, target = self._csc[edge_type].num_edges, "edge", self._edata[edge_type]
        else:
            ntype = node_type if node_type is not None else self._only("vertex", self.node_types)
            rows, owner, target = self._num_nodes[ntype], "vertex", self._ndata[ntype]
        got = tensor.shape[0] if tensor.dim() else "a scalar"
        if got != rows:
            raise ValueError(f"field {name!r} must have one row per {owner} ({rows}), got {got}")
        target[name] = tensor

    # -- helpers ------------------------------------------------------------------------------------------

    def _node_counts(self, num_nodes: int | Mapping[str, int] | None) -> dict[str, int]:
        if isinstance(num_nodes, Mapping):
            return {t: int(n) for t, n in num_nodes.items()}
        if num_nodes is not None:
            return {self._only("vertex", sorted({t for e in self._csc for t in (e[0], e[2])})): int(num_nodes)}
        counts: dict[str, int] = {}
        for (src_type, _, dst_type), csc in self._csc.items():
            counts.setdefault(src_type, csc.num_src)
            counts.setdefault(dst_type, csc.num_dst)
        return counts

    def _check_counts(self) -> None:
        for (src_type, _, dst_type), csc in self._csc.items():
            for ntype, got, what in ((src_type, csc.num_src, "num_src"), (dst_type, csc.num_dst, "num_dst")):
                if self._num_nodes.get(ntype) != got:
                    raise ValueError(
                        f"num_nodes must agree with every CSC: {ntype!r} has {self._num_nodes.get(ntype)}, "
                        f"a CSC has {what}={got}"
                    )

    @staticmethod
    def _only(what: str, names: list[Any]) -> Any:
        if len(names) != 1:
            raise ValueError(f"the graph must have exactly 1 {what} type for this call, got {names}")
        return names[0]

    def __repr__(self) -> str:
        dtype = str(next(iter(self._csc.values())).indices.dtype).removeprefix("torch.")
        if self.is_homogeneous:
            return f"Graph(num_nodes={self.num_nodes}, num_edges={self.num_edges}, ids={dtype})"
        edges = {"/".join(t): c.num_edges for t, c in self._csc.items()}
        return f"Graph(num_nodes={self._num_nodes}, num_edges={edges}, ids={dtype})"

    def __iter__(self) -> Iterator[EdgeType]:
        raise TypeError("a Graph is not iterable; use graph.edge_types")


def _check_ids(name: str, value: Any) -> None:
    if not isinstance(value, Tensor) or value.dtype not in _ID_DTYPES:
        got = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name} must be an int32 or int64 tensor, got {got}")
    if value.dim() != 1:
        raise ValueError(f"{name} must be 1-D, got shape {tuple(value.shape)}")
    if value.device.type != "cpu":
        raise TypeError(f"{name} must be on the CPU, got {value.device}")


def _as_ids(name: str, value: Any) -> Tensor:
    """Any integer array or list as a 1-D contiguous int32 or int64 tensor."""
    if not isinstance(value, Tensor):
        array: npt.NDArray[Any] = np.asarray(value)
        if array.size == 0:
            array = array.astype(np.int64)
        if array.dtype.kind not in "iu":
            raise TypeError(f"{name} must hold integers, got {array.dtype}")
        array = np.ascontiguousarray(array, dtype=None if array.dtype == np.int32 else np.int64)
        value = torch.from_numpy(_writeable(array))
    elif value.dtype not in _ID_DTYPES:
        if value.is_floating_point() or value.dtype == torch.bool or value.is_complex():
            raise TypeError(f"{name} must hold integers, got {value.dtype}")
        value = value.long()
    tensor: Tensor = value.contiguous()
    if tensor.dim() != 1:
        raise ValueError(f"{name} must be 1-D, got shape {tuple(tensor.shape)}")
    return tensor


def _writeable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array, or a copy where it is read-only: torch has no read-only tensors."""
    return array if array.flags.writeable else array.copy()


def _range(ids: Tensor) -> tuple[int, int]:
    from . import _csc

    low, high = _csc.id_range(ids.numpy())
    return int(low), int(high)


def _check_range(name: str, ids: Tensor, limit: int) -> None:
    low, high = _range(ids)
    if low < 0 or high >= limit:
        raise ValueError(f"{name} must be in [0, {limit}), got {low if low < 0 else high}")


def _count(ids: Tensor, limit: int) -> Tensor:
    from . import _csc

    counts = torch.zeros(limit, dtype=torch.int64)
    _csc.count_degrees(ids.numpy(), counts.numpy())
    return counts


def _compress(src: Tensor, dst: Tensor, num_src: int, num_dst: int) -> CSC:
    """Stable counting sort of checked edges by destination."""
    from . import _csc

    dtype = id_dtype(max(num_src, num_dst), len(src))
    indptr = torch.zeros(num_dst + 1, dtype=dtype)
    indptr[1:] = torch.cumsum(_count(dst, num_dst), 0)
    indices = torch.empty(len(src), dtype=dtype)
    edge_ids = torch.empty(len(src), dtype=dtype)
    _csc.fill_csc(src.numpy(), dst.numpy(), indptr[:-1].clone().numpy(), indices.numpy(), edge_ids.numpy())
    in_order = bool(_csc.is_sorted(dst.numpy()))
    return CSC(indptr, indices, num_src, None if in_order else edge_ids)
