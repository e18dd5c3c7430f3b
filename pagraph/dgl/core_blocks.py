"""Blocks of the core as DGL's, one at a time: for its layers, outside the DGL face's loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .blocks import EDGE_WEIGHTS
from .graphbolt import import_dgl

dgl = import_dgl()

if TYPE_CHECKING:
    from ..graph import Graph
    from ..minibatch import Block

__all__ = ["dgl_block"]


def dgl_block(block: Block, graph: Graph | None) -> Any:
    """See ``Block.to_dgl``."""
    # Copies: DGL sorts rows in place.
    indptr, indices, src_nodes = (
        tensor.to(torch.int64, copy=True) for tensor in (block.indptr, block.indices, block.src_nodes)
    )
    # Without them they are numbered so too, but some of DGL's kernels fail.
    local = torch.arange(block.num_edges, device=indices.device)
    try:
        made = dgl.create_block(("csc", (indptr, indices, local)), block.num_src, block.num_dst)
    except (dgl.DGLError, RuntimeError) as error:  # the latter is torch's, where it cannot hand the arrays over
        if indices.device.type == "cpu":
            raise
        raise dgl.DGLError(
            f"block must be on the CPU for this DGL, which has no support for {indices.device}: "
            "take block.to('cpu').to_dgl(), block.to_pyg() for PyG's layers, or a DGL that was built for it"
        ) from error
    made.srcdata[dgl.NID] = src_nodes
    made.dstdata[dgl.NID] = src_nodes[: block.num_dst].clone()
    if block.weights is not None:
        made.edata[EDGE_WEIGHTS] = block.weights
    if graph is not None:
        own = graph.csc.edge_ids
        positions = block.positions.long()
        made.edata[dgl.EID] = positions if own is None else own.to(positions.device)[positions].long()
    return made
