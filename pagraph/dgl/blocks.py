"""Core blocks as DGL blocks: structure, vertex and edge ids, and the parent graph's columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .graphbolt import import_dgl
from .lazy import materialise_column

dgl = import_dgl()
from dgl import graph_index, heterograph_index, utils  # noqa: E402
from dgl.frame import Column, Frame, Scheme, _LazyIndex  # noqa: E402
from dgl.heterograph import DGLBlock  # noqa: E402

if TYPE_CHECKING:
    from ..graph import CSC
    from ..minibatch import Block

__all__ = ["BlockBuilder"]


class BlockBuilder:
    """Makes ``DGLBlock`` objects for one homogeneous DGL graph, as DGL's own samplers would.

    A block's frames hold ``dgl.NID`` and ``dgl.EID`` and all of the graph's columns; a column is gathered when it is
    first read, edge ids included (DGL's lazy columns), so what nobody reads costs nothing.

    Args:
        graph: The DGL graph that batches are sampled from.
        csc: Its edges in the sampled direction.
    """

    def __init__(self, graph: Any, csc: CSC) -> None:
        self._graph = graph
        self._csc = csc
        self._metagraph = graph_index.from_coo(2, [0], [1], True)
        self._ntype, self._etype = graph.ntypes[0], graph.etypes[0]
        self._counting = torch.empty(0, dtype=graph.idtype)

    def build(self, block: Block, *, own_ids: bool = False) -> Any:
        """One DGL block; building takes about 25 us. ``own_ids`` copies its vertex ids."""
        num_src, num_dst = block.num_src, block.num_dst
        unit = heterograph_index.create_unitgraph_from_csr(
            2,
            num_src,
            num_dst,
            block.indptr,
            block.indices,
            self._local_edge_ids(block.num_edges),
            ["coo", "csr", "csc"],
            True,
        )
        counts = utils.toindex([num_src, num_dst], "int64")
        index = heterograph_index.create_heterograph_from_relations(self._metagraph, [unit], counts)
        parent = self._graph._node_frames[0]
        src_nodes = block.src_nodes.clone() if own_ids else block.src_nodes
        dst_nodes = src_nodes[:num_dst].clone()
        src = _sub_frame(parent, src_nodes, num_src)
        dst = _sub_frame(parent, dst_nodes, num_dst)
        src[dgl.NID] = src_nodes
        dst[dgl.NID] = dst_nodes
        edges = self._edge_frame(block)
        return DGLBlock(index, ([self._ntype], [self._ntype]), [self._etype], [src, dst], [edges])

    def _local_edge_ids(self, num_edges: int) -> Tensor:
        """0, 1, 2, ...: a block's own edge ids, as a view of one array that all blocks share.

        DGL takes an empty array for the same, but its libxsmm kernels then fail on edge features.
        """
        if len(self._counting) < num_edges:
            self._counting = torch.arange(num_edges + num_edges // 4, dtype=self._counting.dtype)
        return self._counting[:num_edges]

    def edge_ids(self, block: Block) -> Tensor:
        """The graph's id of each edge of a block, shape ``(num_edges,)``."""
        ids = block.positions if self._csc.edge_ids is None else self._csc.edge_ids[block.positions.long()]
        return ids.to(self._graph.idtype)

    def _edge_frame(self, block: Block) -> Any:
        """All edge columns and the edge ids, each gathered when first read."""
        idtype, positions, ids = self._graph.idtype, block.positions, self._csc.edge_ids
        index = positions if ids is None else _LazyIndex([ids, positions])
        frame = _sub_frame(self._graph._edge_frames[0], index, block.num_edges)
        if ids is None:
            deferred = None if positions.dtype == idtype else idtype
            column = Column(positions, Scheme((), idtype), None, None, deferred)
        else:
            column = Column(ids, Scheme((), idtype), positions)
        frame._columns[dgl.EID] = column
        return frame


def _sub_frame(parent: Any, index: Any, num_rows: int) -> Any:
    """A frame of the parent's columns at ``index``, nothing read yet."""
    frame = Frame(num_rows=num_rows)
    for name, column in parent._columns.items():
        materialise_column(column)
        frame._columns[name] = column.subcolumn(index)
    return frame
