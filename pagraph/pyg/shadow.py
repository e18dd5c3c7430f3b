"""ShaDowKHopSampler: PyG's arguments and batches, without torch-sparse."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..graph.graph import NODE_TYPE
from ..sampling import ShaDowSampler
from ..system.checks import as_integer
from .graphs import core_graph, local_dtype
from .inputs import vertex_ids
from .package import import_pyg
from .stand_ins import selected
from .subgraphs import SubgraphLoader, SubgraphView, level_of

import_pyg()
from torch_geometric import loader as _pyg  # noqa: E402
from torch_geometric.data import Batch, Data  # noqa: E402
from torch_geometric.typing import SparseTensor  # noqa: E402

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..typing import Ids, LoaderOptions


class ShaDowKHopSampler(SubgraphLoader, _pyg.ShaDowKHopSampler):
    """Drop-in for ``torch_geometric.loader.ShaDowKHopSampler``: the same arguments, the same
    batches.

    Needs no torch-sparse. Batches are sampled by our kernels, in threads, ahead of the training
    loop, as those of :class:`~pagraph.pyg.NeighborLoader`. A vertex draws its neighbours once, in
    the hop after the one that found it; PyG's draws again whenever it is found. Where all
    neighbours are taken, batches are equal to PyG's.

    Args:
        data: A ``Data``, with ``edge_index`` or torch-sparse's ``adj_t``.
        depth: Hops; 0: the roots with their self-loops.
        num_neighbors: Neighbours that a vertex draws in each hop; all where it has no more. Not
            negative, by which PyG means none here and all elsewhere.
        node_idx: Roots: None for all vertices, ids, or a mask, as ``input_nodes`` of
            :class:`~pagraph.pyg.NeighborLoader`.
        replace: Draw with replacement, where there are more than ``num_neighbors``.
        **kwargs: ``cache``, ``cache_policy``, ``cache_dtype``, ``prefetch``, ``lookahead``,
            ``memory``, ``seed`` and ``device``; torch's ``batch_size``, ``shuffle``, ...: as
            :class:`~pagraph.pyg.NeighborLoader`.

    Raises:
        TypeError: ``data`` is no ``Data``, a number is not an integer, ids are not integers.
        ValueError: A negative number; a mask for another number of vertices; an edge leads out of
            the graph.
        IndexError: A root that is not there.

    Example:
        >>> import torch
        >>> from pagraph.pyg import ShaDowKHopSampler
        >>> from torch_geometric.data import Data
        >>> data = Data(x=torch.arange(4.0).view(4, 1), edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]))
        >>> loader = ShaDowKHopSampler(data, depth=2, num_neighbors=5, node_idx=torch.tensor([2, 3]), batch_size=2)
        >>> batch = next(iter(loader))
        >>> batch.ptr.tolist(), batch.root_n_id.tolist(), batch.edge_index.tolist()
        ([0, 3, 6], [2, 5], [[0, 1, 3, 4], [1, 2, 4, 5]])
    """

    _makers = ("collate_fn", "__collate__")

    def __init__(
        self,
        data: Data,
        depth: int,
        num_neighbors: int,
        node_idx: Ids | None = None,
        replace: bool = False,
        **kwargs: Unpack[LoaderOptions],
    ) -> None:
        if not isinstance(data, Data):
            raise TypeError(f"data must be a Data, got {type(data).__name__}")
        fanout = as_integer("num_neighbors", num_neighbors, least=0)
        graph = core_graph(data)
        self.is_sparse_tensor: bool = data.edge_index is None and "adj_t" in data
        self.node_idx, _ = vertex_ids("node_idx", node_idx, graph.num_nodes_of(NODE_TYPE))
        self.depth = depth
        self.num_neighbors = num_neighbors
        self.replace = replace
        self._view = SubgraphView(
            data=copy.copy(data),
            graph=graph,
            core=ShaDowSampler(depth, fanout, replace, by_source=not self.is_sparse_tensor),
            items=self.node_idx,
            dtype=local_dtype(data),
        )
        self._load(_joined, kwargs)

    def _collate(self, items: Any) -> Any:
        return self.__collate__(items)

    def __collate__(self, n_id: Any) -> Any:
        """PyG's name of :meth:`collate_fn`."""
        return super()._collate(n_id)


def _joined(view: Any, output: Any) -> Any:
    """The batch that PyG's class makes; an array of vertices is selected from too, which PyG's
    leaves whole."""
    data = view.data
    nodes = output.node
    trees = output.batch
    roots = output.metadata
    # Ids ascend within a tree, so that one search finds each tree's first vertex, another its root.
    # By numpy: torch would start threads beside the loader's own.
    ids = trees.numpy() * data.num_nodes + nodes.numpy()
    firsts = np.arange(len(roots) + 1) * data.num_nodes
    ptr = torch.from_numpy(np.searchsorted(ids, firsts))
    root_n_id = torch.from_numpy(np.searchsorted(ids, firsts[:-1] + roots.numpy()))
    batch = Batch(batch=trees, ptr=ptr)
    batch.root_n_id = root_n_id
    if "edge_index" in data:
        batch.edge_index = torch.stack([output.row, output.col])
    else:
        batch.adj_t = _adjacency(data, output)
    for name, value in data:
        if name in ("edge_index", "adj_t", "num_nodes", "batch", "ptr"):
            continue
        level = level_of(view, name, value)
        if level is not None:
            value = selected(value, nodes if level == "node" else output.edge)
            value = value[root_n_id] if name == "y" and level == "node" else value
        batch[name] = value
    return batch


def _adjacency(data: Any, output: Any) -> Any:
    """The edges as a ``SparseTensor`` with the values of ``data.adj_t``; none where the data has no
    edges."""
    if "adj_t" not in data:
        return None
    value = data.adj_t.storage.value()
    return SparseTensor(
        row=output.col.as_subclass(Tensor),
        col=output.row.as_subclass(Tensor),
        value=None if value is None else value[output.edge],
        sparse_sizes=(len(output.node), len(output.node)),
        is_sorted=True,
        trust_data=True,
    )
