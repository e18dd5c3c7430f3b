"""The two models of the PaGraph paper on sampled blocks: GraphSAGE (mean) and GCN.

Both can begin with pre-aggregated features (:mod:`pagraph.preaggregation`): their first layer then needs no block, so
that there is one layer more than there are blocks. The parameters, and with all neighbours the outputs, are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ..dgl.graphbolt import import_dgl
from ..preaggregation import FEATURES, SUMS

_conv = import_dgl().nn.pytorch

__all__ = ["GCN", "NORM", "GraphSAGE"]

NORM = "gcn_norm"
"""The vertex field GCN reads; see :func:`pagraph.train.task.gcn_norm`."""


class GraphSAGE(nn.Module):
    """GraphSAGE with mean aggregation, one layer per hop.

    Args:
        sizes: Width of the features, of each hidden layer, and the number of classes.
        dropout: Share of the hidden values dropped in training.
        preaggregated: Whether the first layer takes the neighbours' means as they are in the field ``feat_mean``.

    Attributes:
        features: The fields whose rows :meth:`forward` takes, as float32.
        fields: All fields it needs of the input nodes.
    """

    def __init__(self, sizes: Sequence[int], *, dropout: float, preaggregated: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_conv.SAGEConv(a, b, "mean") for a, b in pairwise(sizes))
        self.dropout = nn.Dropout(dropout)
        self.preaggregated = preaggregated
        self.features: tuple[str, ...] = (FEATURES, SUMS["sage"]) if preaggregated else (FEATURES,)
        self.fields = self.features

    def forward(self, blocks: Sequence[Any], *rows: Tensor) -> Tensor:
        """Predict the classes of the last block's destination vertices from the input nodes' rows of ``features``."""
        x = self.first(*rows) if self.preaggregated else rows[0]
        for i, block in enumerate(blocks, int(self.preaggregated)):
            x = self.layer(i, block, x)
        return x

    def first(self, own: Tensor, mean: Tensor) -> Tensor:
        """Run the first layer on pre-aggregated rows."""
        layer: Any = self.layers[0]
        x: Tensor = self.dropout((layer.fc_self(own) + layer.fc_neigh(mean)).relu())
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
        preaggregated: Whether the first layer takes the neighbours' sums as they are in the field ``feat_gcn``.

    Attributes:
        features: The field whose rows :meth:`forward` takes, as float32.
        fields: All fields it needs of the input nodes.
    """

    def __init__(self, sizes: Sequence[int], *, dropout: float, preaggregated: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            _conv.GraphConv(a, b, norm="none", allow_zero_in_degree=True) for a, b in pairwise(sizes)
        )
        self.dropout = nn.Dropout(dropout)
        self.preaggregated = preaggregated
        self.features: tuple[str, ...] = (SUMS["gcn"] if preaggregated else FEATURES,)
        self.fields = (*self.features, NORM)

    def forward(self, blocks: Sequence[Any], *rows: Tensor) -> Tensor:
        """Predict the classes of the last block's destination vertices from the input nodes' rows of ``features``."""
        x = self.first(*rows) if self.preaggregated else rows[0]
        norm = blocks[0].srcdata[NORM]  # the sources of later blocks are the first of these
        for i, block in enumerate(blocks, int(self.preaggregated)):
            x = self.layer(i, block, x, norm[: block.num_src_nodes()])
        return x

    def first(self, sums: Tensor) -> Tensor:
        """Run the first layer on pre-aggregated rows."""
        layer: Any = self.layers[0]
        x: Tensor = self.dropout(torch.addmm(layer.bias, sums, layer.weight).relu())
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
