"""The two models of the PaGraph paper on sampled blocks: GraphSAGE (mean) and GCN."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ..dgl.graphbolt import import_dgl

_conv = import_dgl().nn.pytorch

__all__ = ["GCN", "NORM", "GraphSAGE"]

NORM = "gcn_norm"
"""The vertex field GCN reads; see :func:`pagraph.train.task.gcn_norm`."""


class GraphSAGE(nn.Module):
    """GraphSAGE with mean aggregation, one layer per hop.

    Args:
        sizes: Width of the features, of each hidden layer, and the number of classes.
        dropout: Share of the hidden values dropped in training.
    """

    fields: tuple[str, ...] = ("feat",)

    def __init__(self, sizes: Sequence[int], *, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_conv.SAGEConv(a, b, "mean") for a, b in pairwise(sizes))
        self.dropout = nn.Dropout(dropout)

    def forward(self, blocks: Sequence[Any], x: Tensor) -> Tensor:
        """Predict the classes of the last block's destination vertices from the input nodes' features."""
        for i, block in enumerate(blocks):
            x = self.layer(i, block, x)
        return x

    def layer(self, i: int, block: Any, x: Tensor) -> Tensor:
        """Run layer ``i`` alone, for layer-wise inference."""
        x = self.layers[i](block, x)
        return x if i == len(self.layers) - 1 else self.dropout(x.relu())


class GCN(nn.Module):
    """The graph convolutional network of Kipf and Welling on sampled blocks, one layer per hop.

    A vertex with sampled in-neighbours ``S`` receives ``sqrt(d_v) * mean(h_u / sqrt(d_u) for u in S)``, where
    ``d`` are degrees in the whole graph: with all neighbours this is the paper's symmetric normalisation, and
    with a sample its expectation is. (Degrees counted in the block would make it another model.)

    Args:
        sizes: Width of the features, of each hidden layer, and the number of classes.
        dropout: Share of the hidden values dropped in training. (Dropping input features as well took two
            thirds of a step on the CPU with 767 features and raised no accuracy.)
    """

    fields: tuple[str, ...] = ("feat", NORM)

    def __init__(self, sizes: Sequence[int], *, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            _conv.GraphConv(a, b, norm="none", allow_zero_in_degree=True) for a, b in pairwise(sizes)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, blocks: Sequence[Any], x: Tensor) -> Tensor:
        """Predict the classes of the last block's destination vertices from the input nodes' features."""
        norm = blocks[0].srcdata[NORM]  # the sources of later blocks are the first of these
        for i, block in enumerate(blocks):
            x = self.layer(i, block, x, norm[: block.num_src_nodes()])
        return x

    def layer(self, i: int, block: Any, x: Tensor, norm: Tensor | None = None) -> Tensor:
        """Run layer ``i`` alone, for layer-wise inference."""
        norm = block.srcdata[NORM] if norm is None else norm
        weight = _edge_weight(block, norm)
        x = self.layers[i](block, x, edge_weight=weight)
        return x if i == len(self.layers) - 1 else self.dropout(x.relu())


def _edge_weight(block: Any, norm: Tensor) -> Tensor:
    """``sqrt(d_v) / sqrt(d_u) / number of sampled in-neighbours of v`` for every edge of the block."""
    src, dst = block.edges()
    share = norm[: block.num_dst_nodes(), 1] / block.in_degrees().clamp(min=1)
    return torch.index_select(norm[:, 0], 0, src.long()) * torch.index_select(share, 0, dst.long())
