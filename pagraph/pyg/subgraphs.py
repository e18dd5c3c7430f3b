"""SubgraphLoader: base of our loaders that PyG derives from torch's, and makes of a subgraph in
their own ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ..graph.graph import NODE_TYPE
from ..graph.subgraph import SampledEdges
from ..seeds.keys import random_key
from ..system.buffers import BufferPools
from .package import import_pyg
from .pipelined import OURS, Pipelined, View
from .workload import core_workload

import_pyg()
from torch_geometric.data import Data  # noqa: E402
from torch_geometric.sampler import SamplerOutput  # noqa: E402

if TYPE_CHECKING:
    from ..graph.graph import Graph
    from ..graph.subgraph import Subgraph
    from ..ranking.workload import Workload
    from ..sampling.sampler import MiniBatchSampler
    from .typing import SubgraphBatch


class _Output(SamplerOutput):
    """An output whose ``edge`` is looked up once it is asked for."""

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
    """Attributes of a loader that samples subgraphs of one vertex and edge type by a sampler of the
    core.

    Attributes:
        graph: The graph.
        core: Draws a :class:`~pagraph.graph.subgraph.Subgraph`.
        items: Shape ``(n,)``: what the loader's order goes through, such as ids of vertices.
        dtype: Dtype of ids.
        flipped: Edges of the core lead from the second row of their ``edge_index`` to the first,
            unless it turns them.
    """

    graph: Graph
    core: MiniBatchSampler
    items: Tensor
    dtype: torch.dtype = torch.int64
    flipped: bool = False

    @property
    def sampler(self) -> Any:
        """Draws the subgraphs."""
        return self.core

    @property
    def is_ours(self) -> bool:
        """See ``View``."""
        return True

    def inputs(self, places: Tensor) -> Tensor:
        """The items at these places."""
        return self.items[places]

    def sample_ahead(self, inputs: Tensor, key: int, pools: BufferPools | None) -> Any:
        """A subgraph, the items being its ``metadata``, and where the vertices of each hop end."""
        core: Any = self.core
        pools = pools or BufferPools(max_free=0)
        turned = {"turned": True} if self.flipped else {}
        subgraph = core.sample(self.graph, inputs, key, dtype=self.dtype, pools=pools, **turned)
        output = self.output(subgraph)
        output.metadata = inputs
        return output, subgraph.hop_ends

    def output(self, subgraph: Subgraph) -> Any:
        """The output of PyG's samplers for a subgraph."""
        (edges,) = subgraph.edges.values()
        row, col = edges.edge_index
        trees = None if subgraph.trees is None else subgraph.trees[NODE_TYPE]
        return _Output(
            node=subgraph.input_nodes[NODE_TYPE], row=row, col=col, edge=edges, batch=trees
        )


def level_of(view: SubgraphView, name: str, value: Any) -> str | None:
    """Level that PyG's classes select an attribute by, "node" or "edge", from its first dimension;
    None: neither.

    Where there are as many vertices as edges, the name says (in PyG every such attribute counts as
    one of vertices).
    """
    rows = len(value) if isinstance(value, Tensor) and value.dim() else None
    by_node, by_edge = rows == view.graph.num_nodes, rows == view.graph.num_edges
    if by_node and by_edge:
        by_node = not view.data.is_edge_attr(name)
    if by_node:
        return "node"
    return "edge" if by_edge else None


class SubgraphLoader(Pipelined[Data]):
    """Base of our loaders whose classes PyG derives from torch's ``DataLoader``; it stands in front
    of PyG's class.

    PyG's own constructors ask for torch-sparse, so torch's is called. Subclasses make ``_view``, a
    :class:`SubgraphView`, and call :meth:`_load`. A subclass of theirs with a ``collate_fn`` of its
    own is iterated by torch, as PyG's would be.
    """

    _view: SubgraphView
    # Methods that a user may override to make a batch.
    _makers: tuple[str, ...] = ("collate_fn", "_collate")

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[SubgraphBatch]: ...

    def _load(self, join: Callable[[Any, Any], Any], arguments: Mapping[str, Any]) -> None:
        """Make torch's loader and the engine.

        Args:
            join: Makes a batch of the view and a sampler's output, as PyG's class does. It is a
                function of a module; it reads the view's ``data``, whose attributes of vertices
                ``torch.index_select`` gives by row.
            arguments: Torch's and ours (see ``OURS``).
        """
        options = {name: arguments.get(name, default) for name, default in OURS.items()}
        torchs = {name: value for name, value in arguments.items() if name not in OURS}
        DataLoader.__init__(self, self._view.items, collate_fn=None, **torchs)  # type: ignore[arg-type]
        self._begin({"data": self._view.data} | options, join)

    def _workload(self, order: Any) -> Workload:
        view = self._view
        return core_workload(view.graph, order, view.items, view.core)

    def collate_fn(self, items: Any) -> Any:
        """The batch of some items, by a key of torch's global generator."""
        return self._collate(items)

    def _collate(self, items: Any) -> Any:
        """PyG's name of :meth:`collate_fn`."""
        output, _ = self._view.sample_ahead(
            torch.as_tensor(items, device="cpu"), random_key(), None
        )
        return self._filter_fn(self._view, output)

    @property
    def _makes_batches(self) -> bool:
        ours = all(
            getattr(type(self), name).__module__.startswith("pagraph.") for name in self._makers
        )
        return ours and vars(self).keys().isdisjoint(self._makers)
