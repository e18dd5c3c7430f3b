"""PyG's Data and HeteroData as core graphs: converted once for each ``edge_index``, and kept as long as it lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..graph.csc import CSC, check_range, id_dtype
from ..graph.field_version import FieldVersion
from ..graph.graph import EDGE_TYPE, NODE_TYPE, EdgeType, Graph
from ..graph.minibatch import plain_tensor
from ..system.threads import ForkLock
from .package import import_pyg
from .stores import is_typed, store_graph

import_pyg()
from torch_geometric.data import Data, HeteroData  # noqa: E402
from torch_geometric.typing import SparseTensor  # noqa: E402  (torch-sparse's, or PyG's own that nobody has)

__all__ = ["core_graph", "csc_of", "has_types", "local_dtype"]


def core_graph(data: Any) -> Graph:
    """The structure of a ``Data`` or ``HeteroData`` as a graph without fields; edge ids are places in ``edge_index``.

    Of a pair of a ``FeatureStore`` and a ``GraphStore`` see ``store_graph``.

    A ``Data`` has the types of any graph with one vertex and one edge type. The arrays are made once for each
    ``edge_index`` and shared by all graphs of it. As in PyG, the ``SparseTensor`` ``adj`` and then ``adj_t`` go before
    ``edge_index``, and edge ids are then places in them.

    Raises:
        TypeError: ``data`` is something else, or ``adj_t`` a torch tensor.
        ValueError: An edge leads out of the graph, or a vertex type does not say how many vertices it has.
    """
    if isinstance(data, Data):
        count = int(data.num_nodes or 0)
        return Graph({EDGE_TYPE: csc_of(data, count, count)}, {NODE_TYPE: count})
    if isinstance(data, tuple):
        return store_graph(data)
    if not isinstance(data, HeteroData):
        raise TypeError(f"data must be a Data or HeteroData, got {type(data).__name__}")
    node_types, edge_types = data.metadata()
    counts = {ntype: _count(data, ntype) for ntype in node_types}
    for ntype in (ntype for etype in edge_types for ntype in etype[::2]):
        if ntype not in counts:  # looking it up would add it to the data
            raise _uncounted(ntype)
    csc: dict[EdgeType, CSC] = {
        etype: csc_of(data[etype], counts[etype[0]], counts[etype[2]], f"data[{etype!r}].") for etype in edge_types
    }
    return Graph(csc, counts)


def _count(data: Any, ntype: str) -> int:
    count = data[ntype].num_nodes
    if count is None:
        raise _uncounted(ntype)
    return int(count)


def _uncounted(ntype: str) -> ValueError:
    return ValueError(f"data[{ntype!r}] must say how many vertices there are, set num_nodes or a feature")


def has_types(data: Any) -> bool:
    """Whether samples are to be by vertex and edge type."""
    return is_typed(data) if isinstance(data, tuple) else isinstance(data, HeteroData)


def local_dtype(data: Any) -> torch.dtype:
    """The dtype of local and global vertex ids in batches: int32 where that is every ``edge_index``'s."""
    if not isinstance(data, Data | HeteroData):
        return torch.int64
    dtypes = set()
    for store in data.edge_stores:
        if _sparse(store) is not None:
            dtypes.add(torch.int64)
        elif store.get("edge_index", None) is not None:
            dtypes.add(store["edge_index"].dtype)
    return torch.int32 if dtypes == {torch.int32} else torch.int64


class _Conversions:
    """What was made of each tensor that is alive, as the tensor was written last."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._known: Any = WeakTensorKeyDictionary()

    def get(self, tensor: Tensor, counts: tuple[int, int], make: Callable[[Tensor], CSC]) -> CSC:
        """The CSC between so many vertices; whoever asks while it is being made waits for it."""
        plain = plain_tensor(tensor)
        with self._lock:
            version, made = self._known.get(tensor, (None, {}))
            # Writes through an EdgeIndex are counted by it alone.
            now = FieldVersion.of(plain), None if tensor.is_inference() else tensor._version
            if version != now:
                made = {}
                self._known[tensor] = now, made
            if counts not in made:
                made[counts] = make(plain)
            csc: CSC = made[counts]
            return csc


_conversions = _Conversions()


def csc_of(store: Any, num_src: int, num_dst: int, where: str = "") -> CSC:
    """The in-edges of a ``Data`` or of the store of one edge type, which errors place by ``where``.

    Raises:
        TypeError, ValueError: ``edge_index`` is not such a tensor, or an edge leads out of the graph.
    """
    counts = num_src, num_dst
    sparse = _sparse(store)
    if sparse is not None:
        indptr, indices = sparse
        return _conversions.get(indices, counts, lambda plain: _compressed(indptr, plain, counts))
    edge_index = store.get("edge_index", None)
    if edge_index is None:
        return CSC(torch.zeros(num_dst + 1, dtype=torch.int32), torch.empty(0, dtype=torch.int32), num_src)
    name = f"{where}edge_index"
    if not isinstance(edge_index, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(edge_index).__name__}")
    return _conversions.get(edge_index, counts, lambda plain: _from_coo(plain, counts, name))


def _from_coo(edge_index: Tensor, counts: tuple[int, int], name: str) -> CSC:
    if edge_index.dim() != 2 or len(edge_index) != 2:
        raise ValueError(f"{name} must have shape [2, num_edges], got {list(edge_index.shape)}")
    src, dst = edge_index.detach().cpu()
    return CSC.from_coo(src, dst, counts, names=(f"{name}[0]", f"{name}[1]"))


def _sparse(store: Any) -> tuple[Tensor, Tensor] | None:
    """``indptr`` and ``indices`` of a ``SparseTensor``, where a store has one."""
    adj, adj_t = store.get("adj", None), store.get("adj_t", None)
    if isinstance(adj, SparseTensor):
        indptr, indices, _ = adj.csc()
    elif isinstance(adj_t, SparseTensor):
        indptr, indices, _ = adj_t.csr()
    elif adj_t is not None:
        got = adj_t.layout if isinstance(adj_t, Tensor) else type(adj_t).__name__
        raise TypeError(
            f"adj_t must be a SparseTensor of torch-sparse, got {got}: keep edge_index, and pass "
            "transform=T.ToSparseTensor() to the loader, so that every batch gets its adj_t"
        )
    else:
        return None
    return indptr, indices


def _compressed(indptr: Tensor, indices: Tensor, counts: tuple[int, int]) -> CSC:
    """The arrays of a ``SparseTensor`` with narrow ids."""
    num_src, num_dst = counts
    if len(indptr) != num_dst + 1:
        raise ValueError(f"adj_t must have a row for each destination ({num_dst}), got {len(indptr) - 1}")
    check_range("adj_t's columns", indices, num_src)
    dtype = id_dtype(max(counts), len(indices))
    return CSC(indptr.detach().cpu().to(dtype), indices.detach().cpu().to(dtype), num_src)
