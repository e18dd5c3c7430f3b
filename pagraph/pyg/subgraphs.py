"""SubgraphLoader, the base of our loaders that are no ``NodeLoader``s, and ShaDowKHopSampler."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ..graph.graph import NODE_TYPE
from ..graph.minibatch import SampledEdges
from ..sampling import ShaDowSampler
from ..seeds.keys import random_key
from ..system.buffers import BufferPools
from ..system.checks import as_integer
from .filtering import rows_of, stacked
from .frames import is_frame
from .graphs import core_graph, local_dtype
from .inputs import core_workload, vertex_ids
from .joining import Reading
from .package import import_pyg
from .pipelined import OURS, Pipelined, View

import_pyg()
from torch_geometric import loader as _pyg  # noqa: E402
from torch_geometric.data import Batch, Data  # noqa: E402
from torch_geometric.sampler import SamplerOutput  # noqa: E402
from torch_geometric.typing import SparseTensor  # noqa: E402

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..graph.graph import Graph
    from ..graph.minibatch import Subgraph
    from ..ranking.workload import Workload
    from ..sampling.sampler import MiniBatchSampler
    from ..typing import Ids, LoaderOptions
    from .joining import Make, Name
    from .typing import SubgraphBatch


class _Output(SamplerOutput):
    """An output whose ``edge`` is gathered on access."""

    @property
    def edge(self) -> Any:
        """Ids of the edges."""
        edge = self.__dict__["edge"]
        return edge.edge_ids if isinstance(edge, SampledEdges) else edge

    @edge.setter
    def edge(self, edge: Any) -> None:
        self.__dict__["edge"] = edge


@dataclass(eq=False, kw_only=True)
class SubgraphView(View):
    """View of a loader that samples homogeneous subgraphs by a core sampler.

    Attributes:
        graph: The graph.
        core: The sampler, which draws a :class:`~pagraph.graph.minibatch.Subgraph`.
        items: The items that the loader orders, such as vertex ids, shape ``(n,)``.
        dtype: Dtype of ids.
        flipped: The core's edges point from the second row of ``edge_index`` to the first, so it
            must turn them.
    """

    graph: Graph
    core: MiniBatchSampler
    items: Tensor
    dtype: torch.dtype = torch.int64
    flipped: bool = False

    @property
    def sampler(self) -> Any:
        """The sampler of subgraphs."""
        return self.core

    @property
    def is_ours(self) -> bool:
        """See ``View``."""
        return True

    def inputs(self, places: Tensor) -> Tensor:
        """The items at these positions."""
        return self.items[places]

    def sample_ahead(self, inputs: Tensor, key: int, pools: BufferPools | None) -> Any:
        """A subgraph with the items as ``metadata``, and the ends of each hop's vertices."""
        core: Any = self.core
        pools = pools or BufferPools(batches=0)
        turned = {"turned": True} if self.flipped else {}
        subgraph = core.sample(self.graph, inputs, key, dtype=self.dtype, pools=pools, **turned)
        output = self.output(subgraph)
        output.metadata = inputs
        return output, subgraph.hop_ends

    def output(self, subgraph: Subgraph) -> Any:
        """A subgraph as the output of PyG's samplers."""
        (edges,) = subgraph.edges.values()
        row, col = edges.edge_index
        trees = None if subgraph.trees is None else subgraph.trees[NODE_TYPE]
        return _Output(
            node=subgraph.input_nodes[NODE_TYPE], row=row, col=col, edge=edges, batch=trees
        )


def level_of(view: SubgraphView, name: str, value: Any, known: Mapping[Name, Tensor]) -> str | None:
    """The level of an attribute by its first dimension: "node", "edge" or None.

    With as many vertices as edges, the name decides. (In PyG, all such attributes are of vertices.)
    """
    # Arrays are selected if their rows were read; PyG leaves them whole.
    if isinstance(value, np.ndarray) and (None, name) in known:
        return "node"
    has_rows = is_frame(value) or (isinstance(value, Tensor) and value.dim())
    rows = len(value) if has_rows else None
    by_node = rows == view.graph.num_nodes
    by_edge = rows == view.graph.num_edges
    if by_node and by_edge:
        by_node = not view.data.is_edge_attr(name)
    if by_node:
        return "node"
    return "edge" if by_edge else None


class SubgraphLoader(Pipelined[Data]):
    """Base of our loaders that PyG derives directly from torch's ``DataLoader``.

    It comes before PyG's class. PyG's constructors need torch-sparse, so torch's is called.
    Subclasses make ``_view``, a :class:`SubgraphView`, and call :meth:`_load`. A user's subclass
    that overrides ``collate_fn`` is iterated by torch, as in PyG.
    """

    _view: SubgraphView
    # Methods that users may override to make batches.
    _makers: tuple[str, ...] = ("collate_fn", "_collate")

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[SubgraphBatch]: ...

    def _load(self, join: Make, arguments: Mapping[str, Any]) -> None:
        """Make torch's loader and the engine.

        Args:
            join: Makes a batch as PyG's class does; a module-level function.
            arguments: Torch's and ours (see ``OURS``).
        """
        options = {name: arguments.get(name, default) for name, default in OURS.items()}
        torchs = {name: value for name, value in arguments.items() if name not in OURS}
        items = self._view.items
        DataLoader.__init__(self, items, collate_fn=None, **torchs)  # type: ignore[arg-type]
        self._begin({"data": self._view.data} | options, join)

    def _workload(self, order: Any) -> Workload:
        view = self._view
        return core_workload(view.graph, order, view.items, view.core)

    def collate_fn(self, items: Any) -> Any:
        """The batch of some items, with a key from torch's global generator."""
        return self._collate(items)

    def _collate(self, items: Any) -> Any:
        """PyG's name for :meth:`collate_fn`."""
        output, _ = self._view.sample_ahead(
            torch.as_tensor(items, device="cpu"), random_key(), None
        )
        return self._make_batch(self._view, output, Reading(self._view.data), {})

    @property
    def _makes_batches(self) -> bool:
        ours = all(
            getattr(type(self), name).__module__.startswith("pagraph.") for name in self._makers
        )
        return ours and vars(self).keys().isdisjoint(self._makers)


class ShaDowKHopSampler(SubgraphLoader, _pyg.ShaDowKHopSampler):
    """Drop-in for ``torch_geometric.loader.ShaDowKHopSampler``, without torch-sparse.

    Our kernels sample batches in threads, ahead of the training loop, as in
    :class:`~pagraph.pyg.NeighborLoader`. A vertex draws its neighbours once, in the hop after the
    one that found it; in PyG it draws again each time it is found. If all neighbours are taken,
    batches are equal to PyG's.

    Args:
        data: A ``Data``, with ``edge_index`` or torch-sparse's ``adj_t``.
        depth: Number of hops; 0: the roots with their self-loops.
        num_neighbors: Fanout of each hop, at least 0. (PyG takes no neighbours for negative numbers
            here, and all of them elsewhere.)
        node_idx: Roots: None for all vertices, ids, or a mask, like ``input_nodes`` of
            :class:`~pagraph.pyg.NeighborLoader`.
        replace: Draw with replacement, if there are more than ``num_neighbors``.
        **kwargs: ``cache``, ``cache_policy``, ``cache_dtype``, ``prefetch``, ``lookahead``,
            ``memory``, ``seed`` and ``device``; torch's ``batch_size``, ``shuffle``, ...: as in
            :class:`~pagraph.pyg.NeighborLoader`.

    Raises:
        TypeError: ``data`` is not a ``Data``, or a number or ids are not integers.
        ValueError: A number is negative, a mask has the wrong length, or an edge has an end outside
            the graph.
        IndexError: A root is out of range.

    Example:
        >>> import torch
        >>> from pagraph.pyg import ShaDowKHopSampler
        >>> from torch_geometric.data import Data
        >>> edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
        >>> data = Data(x=torch.arange(4.0).view(4, 1), edge_index=edges)
        >>> roots = torch.tensor([2, 3])
        >>> loader = ShaDowKHopSampler(data, 2, num_neighbors=5, node_idx=roots, batch_size=2)
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
        """PyG's name for :meth:`collate_fn`."""
        return super()._collate(n_id)


def _joined(view: Any, output: Any, reading: Reading, rows: Mapping[Name, Tensor]) -> Any:
    """The batch that PyG's class makes, but with rows of NumPy arrays, which PyG leaves whole."""
    data = view.data
    nodes = output.node
    trees = output.batch
    roots = output.metadata
    # Ids ascend within a tree, so one search finds each tree's first vertex, and another its root.
    # NumPy: torch would start its own threads.
    ids = trees.numpy() * data.num_nodes + nodes.numpy()
    firsts = np.arange(len(roots) + 1) * data.num_nodes
    ptr = torch.from_numpy(np.searchsorted(ids, firsts))
    root_n_id = torch.from_numpy(np.searchsorted(ids, firsts[:-1] + roots.numpy()))
    batch = Batch(batch=trees, ptr=ptr)
    batch.root_n_id = root_n_id
    if "edge_index" in data:
        batch.edge_index = stacked(output.row, output.col)
    else:
        batch.adj_t = _adjacency(data, output)
    for name, value in data:
        if name in ("edge_index", "adj_t", "num_nodes", "batch", "ptr"):
            continue
        level = level_of(view, name, value, rows)
        if level is not None:
            index = nodes if level == "node" else output.edge
            value = rows_of(rows, name, value, index)
            value = value[root_n_id] if name == "y" and level == "node" else value
        batch[name] = value
    return batch


def _adjacency(data: Any, output: Any) -> Any:
    """The edges as a ``SparseTensor`` with the values of ``data.adj_t``; None without it."""
    if "adj_t" not in data:
        return None
    value = data.adj_t.storage.value()
    if value is not None:
        value = value[output.edge]
    return SparseTensor(
        row=output.col,
        col=output.row,
        value=value,
        sparse_sizes=(len(output.node), len(output.node)),
        is_sorted=True,
        trust_data=True,
    )
