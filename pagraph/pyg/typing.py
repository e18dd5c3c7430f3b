"""Types of batches, for editors: PyG's loaders are untyped, and its attributes may be None.

At run time each name here is PyG's ``Data`` or ``HeteroData``. Which attributes a batch has depends
on the loader's arguments and the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, overload

from torch import Tensor

from ..graph.graph import EdgeType
from .package import import_pyg

import_pyg()
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData  # noqa: E402
from torch_geometric.data.storage import EdgeStorage, NodeStorage  # noqa: E402

Stores: TypeAlias = tuple[FeatureStore, GraphStore]
"""Users' own stores of data, as PyG's loaders accept them."""

if TYPE_CHECKING:
    # Declared as attributes; in PyG some are properties, and others are looked up.
    class GraphData(Data):
        """A ``Data`` with the usual attributes of a training graph."""

        x: Tensor
        y: Tensor
        edge_index: Tensor
        edge_attr: Tensor
        edge_weight: Tensor
        train_mask: Tensor
        val_mask: Tensor
        test_mask: Tensor
        num_nodes: int

    class _Batch(GraphData):
        batch: Tensor
        """Tree of each vertex, for disjoint subgraphs."""

    class _Sampled(_Batch):
        n_id: Tensor
        """The graph's id of each vertex."""
        e_id: Tensor
        """The graph's id of each edge."""
        input_id: Tensor
        num_sampled_nodes: list[int]
        num_sampled_edges: list[int]

    class NodeBatch(_Sampled):
        """A ``Data`` of :class:`~pagraph.pyg.NeighborLoader`, with its seeds as first vertices."""

        batch_size: int

    class LinkBatch(_Sampled):
        """A ``Data`` of :class:`~pagraph.pyg.LinkNeighborLoader`."""

        edge_label_index: Tensor
        edge_label: Tensor
        src_index: Tensor
        dst_pos_index: Tensor
        dst_neg_index: Tensor

    class SubgraphBatch(_Batch):
        """A ``Data`` of the subgraph loaders: ShaDow, Cluster-GCN, GraphSAINT."""

        root_n_id: Tensor
        ptr: Tensor
        node_norm: Tensor
        edge_norm: Tensor

    class NodeRows(NodeStorage):
        """The vertices of one type in a batch."""

        x: Tensor
        y: Tensor
        n_id: Tensor
        input_id: Tensor
        batch: Tensor
        batch_size: int

    class EdgeRows(EdgeStorage):
        """The edges of one type in a batch."""

        edge_index: Tensor
        edge_attr: Tensor
        e_id: Tensor
        input_id: Tensor
        edge_label_index: Tensor
        edge_label: Tensor

    class HeteroBatch(HeteroData):
        """A heterogeneous batch: rows by vertex type, edges by edge type."""

        x_dict: dict[str, Tensor]
        y_dict: dict[str, Tensor]
        n_id_dict: dict[str, Tensor]
        edge_index_dict: dict[EdgeType, Tensor]
        edge_attr_dict: dict[EdgeType, Tensor]
        e_id_dict: dict[EdgeType, Tensor]
        num_sampled_nodes_dict: dict[str, list[int]]
        num_sampled_edges_dict: dict[EdgeType, list[int]]

        @overload
        def __getitem__(self, kind: str, /) -> NodeRows: ...
        @overload
        def __getitem__(self, kind: tuple[str, str] | EdgeType, /) -> EdgeRows: ...
        def __getitem__(self, kind: object, /) -> NodeRows | EdgeRows: ...

else:
    GraphData = NodeBatch = LinkBatch = SubgraphBatch = Data
    HeteroBatch = HeteroData

__all__ = ["GraphData", "HeteroBatch", "LinkBatch", "NodeBatch", "Stores", "SubgraphBatch"]

__dir__ = __all__.copy
