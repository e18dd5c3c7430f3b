"""PyG's convolutions on blocks that have all in-edges of their destinations."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..graph.csc import CSC
from ..graph.minibatch import Block
from .package import import_pyg

import_pyg()
from torch_geometric import nn as layers  # noqa: E402

__all__ = ["hop_of"]

_OF_ONE_HOP = (
    *(layers.SAGEConv, layers.GATConv, layers.GATv2Conv, layers.GINConv, layers.GraphConv, layers.TransformerConv),
    *(layers.EdgeConv, layers.GeneralConv, layers.MFConv, layers.CGConv),
)


def hop_of(layer: Any, csc: CSC) -> Callable[[Block, Tensor], Tensor] | None:
    """The computation of a layer of PyG's on a block; None for one that takes rows alone.

    Raises:
        TypeError: It is not known what it reads, or it reads more: norms of PyG's may take means over all vertices.
    """
    if isinstance(layer, (layers.Linear, layers.BatchNorm)) or (
        isinstance(layer, layers.LayerNorm) and layer.mode == "node"
    ):
        return None
    if isinstance(layer, layers.MessagePassing) and layer.flow == "source_to_target":
        if type(layer) is layers.GCNConv and not layer.improved:
            return _normalised(layer, csc) if layer.normalize else _of_sources(layer)
        if any(isinstance(layer, known) and type(layer).forward is known.forward for known in _OF_ONE_HOP):
            return lambda block, x: layer((x, x[: block.num_dst]), block.to_pyg())
    raise TypeError(
        f"layers must be known to read one hop or a row alone, got PyG's {layer}: if it reads one hop, give "
        f"OneHop(lambda block, x: layer((x, x[: block.num_dst]), block.to_pyg()), layer)"
    )


def _of_sources(layer: Any) -> Callable[[Block, Tensor], Tensor]:
    return lambda block, x: layer(x, block.to_pyg())[: block.num_dst]


def _normalised(layer: Any, csc: CSC) -> Callable[[Block, Tensor], Tensor]:
    """GCNConv that divides by the degrees in the whole graph: a block knows only those of its destinations."""
    plain = copy.copy(layer)
    plain.normalize = False
    loops = layer.add_self_loops
    degrees = csc.indptr.diff() + (1 - csc.loop_counts if loops else 0)
    scales = degrees.float().rsqrt_().masked_fill_(degrees == 0, 0.0)

    def call(block: Block, x: Tensor) -> Tensor:
        edges = block.to_pyg()
        if loops:  # one for each vertex, in place of the graph's own
            own = torch.arange(block.num_dst, device=edges.device)
            edges = torch.cat([edges[:, edges[0] != edges[1]], own.expand(2, -1)], 1)
        scale = scales[block.src_nodes.cpu()].to(x.device)
        rows: Tensor = plain(x, edges, scale[edges[0]] * scale[edges[1]])
        return rows[: block.num_dst]

    return call
